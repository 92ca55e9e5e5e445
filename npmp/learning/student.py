"""Learning from a teacher (DAgger, Ross et al. 2011): the student acts, the teacher labels the
visited states, and the student is fitted to the labels.

The teacher is a script, the task's commands, or another policy of the same module, e.g. to distil
it into a smaller network (Rusu et al. 2016).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mocap_data.errors import InputError
from npmp.core import plugins, ranges
from npmp.core.artifact import sha256
from npmp.core.gaussian import Gaussian
from npmp.core.memory_checks import require_batch, require_replay
from npmp.core.settings import from_mapping
from npmp.core.state import Counters, StatePart
from npmp.core.tree import Tree, cat_trees, leaves, map_tree, stack_trees
from npmp.envs.policy import Observation, Policy, PolicyOutput, observe
from npmp.envs.rollout import RolloutState, Transition, rollout
from npmp.envs.task import Sensor, Task
from npmp.envs.task_env import TaskEnv
from npmp.learning.agents import Agent, LatentAgent, latent_range
from npmp.learning.rl.optimization import descend, move_average
from npmp.learning.schedules import linear
from npmp.learning.trainer import Experience, StepMeans, Trainer
from npmp.skills.composition import CompositionState
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets.command_decoder import CommandDecoder

CLIP_GRAD = 1.0  # norm


@dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """Settings of learning from a teacher. Raises ValueError out of range."""

    # control steps per robot and iteration
    unroll: int = 50
    # unrolls in the buffer, the latest
    kept: int = 10
    # per iteration
    updates: int = 20
    # robots' unrolls per update
    batch: int = 64
    # share of the run in which the teacher also acts, for a share of the robots from 1 to 0
    taught: float = 0.3
    # while collecting [rad]
    action_noise: float = 0.05
    # upper limit on episodes in training [s]; null: the task's episodes
    episode_s: float | None = 4.0
    # learning rate over the run
    lr: tuple[float, float] = (1e-3, 5e-5)
    # threshold of the Huber loss [rad]; null: squared loss
    outlier_rad: float | None = None
    # weight of the KL to the AR(1) prior, per nat summed over latent dimensions
    beta: float = 0.0
    # decay of averaged weights, which are evaluated and saved; at most over a ninth of the updates
    # so far
    ema: float = 0.995

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "unroll", "kept", "updates", "batch")
        ranges.share(self, "ema", "taught")
        ranges.not_negative(self, "action_noise", "beta")
        ranges.pairs(self, "lr")
        ranges.above_zero(self, "lr", "episode_s", "outlier_rad")


class Lesson(NamedTuple):
    """An unroll of n robots over T control steps, labelled by the teacher."""

    observations: Observation  # (T, n, ...) of the student
    targets: Tensor  # (T, n, a) the teacher's output, in the unit of losses
    is_first: Tensor  # (T, n) bool
    z: Tensor  # (T, n, d) latents of the steps
    start: Tree  # (n, ...) the student's state before the first step


class StudentState(NamedTuple):
    """The states of student and teacher."""

    student: CompositionState
    teacher: Tree
    taught: Tensor  # (n,) bool: the teacher acts


class StudentTrainer(Trainer):
    """Environment, student and the latest unrolls; call `iteration` repeatedly."""

    needs_all_collectors = True
    learning_rate_keys = "algo.lr="

    def __init__(
        self,
        env: TaskEnv[Any],
        agent: Agent,
        teacher: Policy,
        config: StudentConfig,
        *,
        seed: int = 0,
    ):
        """Args:
        agent: the student, trained in place, on the environment's device.
        teacher: its output is joint targets, or latents or commands as the student's.
        """
        self.env = env
        self.agent = agent
        self.teacher = teacher
        self.config = config
        self.acting_net = agent.network
        self.average = copy.deepcopy(agent.network).requires_grad_(False)
        self.generator = torch.Generator(env.device).manual_seed(seed + 1)
        learned = [weight for weight in agent.network.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.Adam(learned, lr=config.lr[0])
        n = env.num_envs
        c = config
        is_first = torch.ones(n, dtype=torch.bool, device=env.device)
        state = self.initial_state(n)
        self.carried = RolloutState(state, is_first)
        generator = torch.Generator(env.device)
        inputs = agent.observe(observe(env, is_first), state.student, generator)
        width = sum(part.shape[-1] for part in leaves(inputs)) + agent.outputs
        require_replay(c.kept * c.unroll, n, width)
        require_batch(c.batch, c.unroll, (width,), width, key="algo.batch")
        target = is_first.new_zeros(n, agent.outputs, dtype=torch.float32)
        step = {"observations": inputs, "targets": target, "is_first": is_first}
        step |= {"z": state.student.z}
        steps = map_tree(lambda part: part.new_zeros(c.kept, c.unroll, *part.shape), step)
        network_state = agent.network_state(state.student)
        start = map_tree(lambda part: part.new_zeros(c.kept, *part.shape), network_state)
        self.lessons = Lesson(**steps, start=start)  # a ring buffer
        self.range = torch.full_like(state.student.z[0], 0.1)  # range of recent latents
        self.share = 1.0  # share of new episodes in which the teacher acts
        self.iteration_count = self.env_steps = 0

    def initial_state(self, n: int) -> StudentState:
        """The state at the start of n episodes."""
        taught = torch.zeros(n, dtype=torch.bool, device=self.env.device)
        return StudentState(self.agent.initial_state(n), self.teacher.initial_state(n), taught)

    def step(
        self, observation: Observation, state: StudentState
    ) -> tuple[PolicyOutput, StudentState]:
        """As `Policy.step`: the student's mean or the teacher's output, with noise on the
        action."""
        env = self.env
        student = state.student
        is_first = observation.is_first
        uniform = torch.rand(env.num_envs, generator=self.generator, device=env.device)
        taught = torch.where(is_first, uniform < self.share, state.taught)
        inputs = self.agent.observe(observation, student, self.generator)
        sequence = map_tree(lambda part: part[None], inputs)
        network_state = self.agent.network_state(student)
        mean, _, network_state, _ = self.agent.network(sequence, network_state, is_first[None])
        target, teacher = self._target(observation._replace(z_before=student.z), state.teacher)
        output = torch.where(taught.unsqueeze(-1), target, mean[0])
        action, after = self.agent.drive(output, observation, student, network_state)
        noise = torch.randn(action.shape, generator=self.generator, device=action.device)
        info = {"observations": inputs, "targets": self.agent.unit * target, "is_first": is_first}
        action = action + self.config.action_noise * noise
        return PolicyOutput(action, info), StudentState(after, teacher, taught)

    def _target(self, observation: Observation, state: Tree) -> tuple[Tensor, Tree]:
        """The teacher's output (n, a), in the unit of the student's, and its state."""
        output, state = self.teacher.step(observation, state)
        if isinstance(output, Gaussian):
            return output.mean, state
        if isinstance(output, PolicyOutput):
            return output.action / self.agent.unit, state
        return output, state

    def collect_experience(self, progress: float) -> Experience:
        """As `Trainer.collect_experience`: a labelled unroll."""
        c = self.config
        start = self.carried
        rows = []
        self.share = max(0.0, 1.0 - progress / c.taught) if c.taught > 0.0 else 0.0
        means = StepMeans(self.env)

        def record(transition: Transition) -> None:
            rows.append(transition.output.info | {"z": transition.next_state.student.z})
            means.add(transition.step)

        self.carried = rollout(self, self.env, c.unroll, record, carried=start)
        network_state = self.agent.network_state(start.policy.student)
        lesson = Lesson(**stack_trees(rows), start=network_state)
        return Experience(
            lesson, means.metrics() | {"taught": self.share}, self.env_steps_per_iteration
        )

    def merge_data(self, data: list[Lesson]) -> Lesson:
        lesson: Lesson = cat_trees([part._replace(start=None) for part in data], 1)
        return lesson._replace(start=cat_trees([part.start for part in data]))

    def iteration(self, progress: float, experience: Experience | None = None) -> dict[str, float]:
        """As `Trainer.iteration`: an unroll, and updates from the latest ones.

        `clone_error` is the root mean square difference to the teacher's output.
        """
        experience = experience or self.collect_experience(progress)
        c = self.config
        self.env_steps += experience.env_steps
        slot = self.iteration_count % c.kept
        map_tree(lambda ring, lesson: ring[slot].copy_(lesson), self.lessons, experience.data)
        self.range.copy_(latent_range(experience.data.z))
        lr = linear(c.lr, progress)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        square = kl = skipped = 0.0
        for update in range(c.updates):
            lesson = self._sampled()
            mean, _, _, to_prior = self.agent.network(
                lesson.observations, lesson.start, lesson.is_first
            )
            error = self.agent.unit * mean - lesson.targets
            divergence = to_prior.mean()
            loss = clone_loss(error, c.outlier_rad) + c.beta * divergence
            norm = descend(loss, self.optimizer, CLIP_GRAD)
            if math.isfinite(norm):
                done = self.iteration_count * c.updates + update
                move_average(self.average, self.agent.network, c.ema, done)
            skipped += not math.isfinite(norm)
            square += error.detach().square().mean().item() / c.updates
            kl += divergence.item() / c.updates
        self.iteration_count += 1
        learned = {"clone_error": math.sqrt(square), "kl": kl, "policy_grad_norm": norm.item()}
        return experience.metrics | learned | {"skipped_updates": skipped}

    def _sampled(self) -> Lesson:
        """A minibatch of robots of one unroll in the buffer."""
        kept = min(self.iteration_count + 1, self.config.kept)
        device = self.env.device
        index = int(torch.randint(kept, (), generator=self.generator, device=device))
        lesson = map_tree(lambda ring: ring[index], self.lessons)
        robots = lesson.is_first.shape[1]
        ids = torch.randint(robots, (self.config.batch,), generator=self.generator, device=device)
        sampled = map_tree(lambda part: part[:, ids], lesson._replace(start=None))
        return sampled._replace(start=map_tree(lambda part: part[ids], lesson.start))

    def _parts(self) -> dict[str, StatePart]:
        return {
            "policy": self.agent.network,
            "average": self.average,
            "optimizer": self.optimizer,
            "lessons": self.lessons,
            "env": self.env,
            "carried": self.carried,
            "generator": self.generator,
            "range": self.range,
            **self.agent.parts,
            "counts": Counters(self, "iteration_count", "env_steps"),
        }


def clone_loss(error: Tensor, outlier_rad: float | None) -> Tensor:
    """Mean square of errors; with `outlier_rad` twice the Huber loss, as falls dominate squares."""
    if outlier_rad is None:
        return error.square().mean()
    return 2.0 * nn.functional.huber_loss(error, torch.zeros_like(error), delta=outlier_rad)


class PolicyTeacher:
    """A policy as teacher. Its proprioception is exact, without noise, delay and joint offsets
    (privileged learning: Chen et al. 2019, Lee et al. 2020). A map or camera that its student has
    too is read once, with its errors."""

    def __init__(
        self, policy: HighLevelPolicy, env: TaskEnv[Any], sensors: Sequence[Sensor] | None = None
    ):
        """sensors: of a policy with other sensors than the student, as `with_sensors_of_teacher`
        returns them; None: it has the student's."""
        self.policy = policy
        self.env = env
        self.sensors = sensors
        self.initial_state = policy.initial_state

    def step(self, observation: Observation, state: Any) -> tuple[Gaussian, Any]:
        """As `HighLevelPolicy.step`, for the student's observation (n, ...) of this control step:
        sensors of both have the student's reading, the others are read."""
        exact = self.env.robots.sensing.exact(observation.state)
        own = observation._replace(proprioception=exact, task=self._inputs(observation.task))
        return self.policy.step(own, state)

    def _inputs(self, observed: Tensor) -> Tensor:
        """The teacher's inputs of the task (n, c), from its student's (n, c')."""
        if self.sensors is None:
            return observed
        task = self.env.task
        inputs, *readings = task.columns_of(observed)
        shared = dict(zip(task.extras, readings, strict=True))
        columns = [shared[sensor] if sensor in shared else sensor.read() for sensor in self.sensors]
        return torch.cat((inputs, *columns), -1)


def with_sensors_of_teacher(
    task: Task, teacher: HighLevelPolicy, teacher_task: Task
) -> tuple[Task, list[Sensor]]:
    """A student's task with the sensors of a teacher that it lacks, unobserved, and all sensors of
    the teacher in their order.

    Args:
      task: the student's, before `bind`. teacher_task: one with the teacher's inputs, likewise.

    Raises:
      InputError: for a teacher of another task, and where student and teacher have different
        clocks or cameras.
    """
    teacher.check_task(teacher_task)
    for name in ("clock_s", "camera"):
        own = getattr(task, name)
        of_teacher = getattr(teacher_task, name)
        if None not in (own, of_teacher) and own != of_teacher:
            raise InputError(f"task.{name}={own}: expected the teacher's, {of_teacher}")
    kinds = {type(sensor): sensor for sensor in task.extras}
    sensors = [kinds.get(type(sensor), sensor) for sensor in teacher_task.extras]
    missing = [sensor for sensor in sensors if sensor not in task.extras]
    return task.with_unobserved(missing), sensors


class TaskCommands:
    """A teacher: a planner's commands, as latents of a `CommandDecoder`."""

    def __init__(self, env: TaskEnv[Any], decoder: CommandDecoder):
        self.env = env
        self.decoder = decoder

    def initial_state(self, n: int) -> Tree:
        return ()

    def step(self, observation: Observation, state: Tree) -> tuple[Tensor, Tree]:
        return self.decoder.latent(self.env.task.commands.current), state


class CommandsOfTeacher:
    """A teacher over a walking policy: its commands, `PolicyOutput.info` (n, k), as latents of a
    `CommandDecoder`."""

    def __init__(self, teacher: Policy, decoder: CommandDecoder):
        self.teacher = teacher
        self.decoder = decoder
        self.initial_state = teacher.initial_state

    def step(self, observation: Observation, state: Tree) -> tuple[Tensor, Tree]:
        """As `Policy.step`. Raises InputError for a teacher without commands."""
        output, state = self.teacher.step(observation, state)
        commands = getattr(output, "info", None)
        if not isinstance(commands, Tensor):
            name = type(self.teacher).__name__
            raise InputError(f"walker=: teacher {name} outputs no commands; leave out walker=")
        return self.decoder.latent(commands), state


@dataclass(frozen=True)
class ScriptedTeacher:
    """A teacher by its class, FILE.py:CLASS, which makes a policy of an environment and its
    `config_type`. Raises InputError for a file or class that does not exist."""

    reference: str
    # settings of the teacher's `config_type`
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        plugins.find_class(self.reference)

    def record(self) -> dict[str, Any]:
        """Its entries of a run's summary. Of paths they have the last two parts, as folders differ
        between machines."""
        file, _, name = self.reference.rpartition(":")
        return {
            "teacher": f"{Path(file).name}:{name}",
            "teacher_settings": {
                key: "/".join(Path(value).parts[-2:]) if isinstance(value, str) else value
                for key, value in self.settings.items()
            },
            "teacher_sha256": sha256(Path(file).expanduser()),
        }

    def policy(self, env: TaskEnv[Any]) -> Policy:
        """The teacher at an environment. Raises InputError."""
        kind = plugins.find_class(self.reference)
        policy: Policy = kind(
            env, from_mapping(kind.config_type, self.settings, at="teacher_settings")
        )
        return policy


def teacher_of(
    env: TaskEnv[Any],
    agent: LatentAgent,
    policy: HighLevelPolicy | ScriptedTeacher | None = None,
    sensors: Sequence[Sensor] | None = None,
) -> Policy:
    """The teacher of a high-level policy: another policy of the same module, a script, or the
    task's velocity commands.

    sensors: of a policy with other sensors than the student, as `with_sensors_of_teacher`, which
      checks its task, returns them; None: it has the student's.

    Raises:
      InputError: for a policy of another module or task, or a task without a teacher.
    """
    if isinstance(policy, ScriptedTeacher):
        scripted = policy.policy(env)
        if isinstance(agent.skill.decoder, CommandDecoder):
            return CommandsOfTeacher(scripted, agent.skill.decoder)
        return scripted
    if policy is not None:
        if sensors is None:
            policy.check_task(env.task)
        digests = (agent.network.contract.module_sha256, policy.contract.module_sha256)
        if digests[0] != digests[1]:
            student_module, teacher_module = (digest[:12] or "unknown" for digest in digests)
            raise InputError(
                f"the teacher commands another module (sha256 {teacher_module}...) than the student"
                f" ({student_module}...)"
            )
        own = copy.deepcopy(policy.to(env.device)).requires_grad_(False).eval()
        return PolicyTeacher(own, env, sensors)
    decoder = agent.skill.decoder
    if isinstance(decoder, CommandDecoder) and env.task.guides:
        return TaskCommands(env, decoder)
    raise InputError(
        f"task '{env.task.name}' has no teacher; use teacher=POLICY or FILE.py:CLASS, "
        "algo=world_model or algo=vmpo"
    )
