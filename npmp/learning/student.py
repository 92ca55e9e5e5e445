"""Learning from a teacher (DAgger, Ross et al. 2011): the student acts, the teacher says at every
step what it would do there, and the student is fitted to that. So it learns from the states that it
gets into itself.

The teacher is a task's own, a script, or another policy of the same module, to put it into a
smaller network (policy distillation, Rusu et al. 2016).
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from mocap_data.errors import InputError
from npmp.core import ranges
from npmp.core.memory import require_batch, require_replay
from npmp.core.state import Numbers, Part
from npmp.core.tree import Tree, cat_trees, leaves, map_tree, stack_trees
from npmp.envs.rollout import Actor, PolicyOutput, RolloutState, Transition, rollout
from npmp.envs.task_env import TaskEnv
from npmp.learning.agents import Agent, AgentMemory, LatentAgent, latent_range
from npmp.learning.rl.optimization import descend, move_average
from npmp.learning.schedules import linear
from npmp.learning.trainer import Experience, StepMeans, Trainer
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets import JointDecoder
from npmp.skills.nets.command_decoder import CommandDecoder

CLIP_GRAD = 1.0  # norm
Answer = tuple[Tensor, Tree]  # a teacher's output (n, a), and its memory


@dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """Settings of learning from a teacher. Raises ValueError out of range."""

    # control steps per robot and iteration
    unroll: int = 50
    # unrolls that updates are made from, the latest
    kept: int = 10
    # per iteration
    updates: int = 20
    # robots' unrolls per update
    batch: int = 64
    # share of the run in which the teacher acts, too: at first of all robots, at its end of none
    taught: float = 0.3
    # while collecting [rad]
    action_noise: float = 0.05
    # of training, where the task's own episodes are longer; null: the task's own
    episode_s: float | None = 4.0
    # learning rate over the run
    lr: tuple[float, float] = (1e-3, 5e-5)
    # larger differences count linearly (Huber 1964) [rad]; null: all by their squares
    outlier_rad: float | None = None
    # weight of the KL to the AR(1) prior, per nat summed over latent dimensions
    beta: float = 0.0
    # averaged weights, which are judged and kept; over a ninth of the updates so far at most
    ema: float = 0.995

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "unroll", "kept", "updates", "batch")
        ranges.share(self, "ema", "taught")
        ranges.not_negative(self, "action_noise", "beta")
        ranges.pairs(self, "lr")
        ranges.above_zero(self, "lr", "episode_s", "outlier_rad")


class Teacher(Protocol):
    """What says what it would do, whatever robots do."""

    def initial_memory(self, n: int) -> Tree:
        """The memory of n fresh episodes."""

    def answer(self, env: TaskEnv[Any], given: Tree, memory: Tree, first: Tensor) -> Answer:
        """What it would do where the student is given this."""


class Lesson(NamedTuple):
    """Control steps of n robots, and what the teacher would have done."""

    given: Tree  # (T, n, w) what the student observes
    shown: Tensor  # (T, n, a) the teacher's output, in the unit of losses
    first: Tensor  # (T, n) bool
    z: Tensor  # (T, n, d) the latents in force
    start: Tree  # (n, ...) the student's state before the first step


class StudentMemory(NamedTuple):
    """What student and teacher carry from step to step."""

    student: AgentMemory
    teacher: Tree
    taught: Tensor  # (n,) bool: the teacher acts


class StudentTrainer(Trainer):
    """Owns environment, student and the latest lessons; one `iteration` at a time."""

    needs_all_collectors = True
    learning_rate_keys = "algo.lr="

    def __init__(
        self,
        env: TaskEnv[Any],
        agent: Agent,
        teacher: Teacher,
        config: StudentConfig,
        *,
        seed: int = 0,
    ):
        """agent: what learns, in place, on the environment's device."""
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
        first = torch.ones(n, dtype=torch.bool, device=env.device)
        memory = self.initial_memory(n)
        self.carried = RolloutState(memory, first)
        inputs = agent.observe(env, memory.student, torch.Generator(env.device))
        width = sum(part.shape[-1] for part in leaves(inputs)) + agent.outputs
        require_replay(c.kept * c.unroll, n, width)
        require_batch(c.batch, c.unroll, (width,), width, key="algo.batch")
        target = first.new_zeros(n, agent.outputs, dtype=torch.float32)
        step = {"given": inputs, "shown": target, "first": first, "z": memory.student.z}
        steps = map_tree(lambda part: part.new_zeros(c.kept, c.unroll, *part.shape), step)
        start = map_tree(lambda part: part.new_zeros(c.kept, *part.shape), memory.student.network)
        self.lessons = Lesson(**steps, start=start)  # a ring
        self.range = torch.full_like(memory.student.z[0], 0.1)  # of the latents lately seen
        self.share = 1.0  # of the robots that the teacher moves, of those whose episodes begin
        self.iteration_count = self.env_steps = 0

    def initial_memory(self, n: int) -> StudentMemory:
        taught = torch.zeros(n, dtype=torch.bool, device=self.env.device)
        return StudentMemory(self.agent.initial_memory(n), self.teacher.initial_memory(n), taught)

    def act(self, env: TaskEnv[Any], memory: StudentMemory, first: Tensor) -> PolicyOutput:
        """As `Actor.act`: the student's mean or the teacher's output, with noise on the action."""
        c = self.config
        student = memory.student
        drawn = torch.rand(env.num_envs, generator=self.generator, device=env.device)
        taught = torch.where(first, drawn < self.share, memory.taught)
        inputs = self.agent.observe(env, student, self.generator)
        one = map_tree(lambda part: part[None], inputs)
        mean, _, state, _ = self.agent.network(one, student.network, first[None])
        target, teacher = self.teacher.answer(env, inputs, memory.teacher, first)
        output = torch.where(taught.unsqueeze(-1), target, mean[0])
        action, after = self.agent.drive(output, inputs, student, state)
        noise = torch.randn(action.shape, generator=self.generator, device=action.device)
        note = {"given": inputs, "shown": self.agent.unit * target, "first": first}
        carried = StudentMemory(after, teacher, taught)
        return PolicyOutput(action + c.action_noise * noise, carried, note)

    def collect_experience(self, progress: float) -> Experience:
        """As `Trainer.collect_experience`: a lesson."""
        c = self.config
        start = self.carried
        rows = []
        self.share = max(0.0, 1.0 - progress / c.taught) if c.taught > 0.0 else 0.0
        means = StepMeans(self.env)

        def record(moment: Transition) -> None:
            rows.append(moment.decision.note | {"z": moment.decision.memory.student.z})
            means.add(moment.step)

        self.carried = rollout(self, self.env, c.unroll, record, carried=start)
        lesson = Lesson(**stack_trees(rows), start=start.memory.student.network)
        return Experience(
            lesson, means.metrics() | {"taught": self.share}, self.env_steps_per_iteration
        )

    def merge_data(self, data: list[Lesson]) -> Lesson:
        lesson: Lesson = cat_trees([part._replace(start=None) for part in data], 1)
        return lesson._replace(start=cat_trees([part.start for part in data]))

    def iteration(self, progress: float, experience: Experience | None = None) -> dict[str, float]:
        """As `Trainer.iteration`: a lesson, and updates from the latest ones.

        `clone_error` is by how much the student misses the teacher's output, root mean square.
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
            lesson = self._drawn()
            mean, _, _, to_prior = self.agent.network(lesson.given, lesson.start, lesson.first)
            miss = self.agent.unit * mean - lesson.shown
            divergence = to_prior.mean()
            loss = clone_loss(miss, c.outlier_rad) + c.beta * divergence
            norm = descend(loss, self.optimizer, CLIP_GRAD)
            if math.isfinite(norm):
                done = self.iteration_count * c.updates + update
                move_average(self.average, self.agent.network, c.ema, done)
            skipped += not math.isfinite(norm)
            square += miss.detach().square().mean().item() / c.updates
            kl += divergence.item() / c.updates
        self.iteration_count += 1
        learned = {"clone_error": math.sqrt(square), "kl": kl, "policy_grad_norm": norm}
        return experience.metrics | learned | {"skipped_updates": skipped}

    def _drawn(self) -> Lesson:
        """Robots of one of the lessons that are kept."""
        kept = min(self.iteration_count + 1, self.config.kept)
        device = self.env.device
        which = int(torch.randint(kept, (), generator=self.generator, device=device))
        lesson = map_tree(lambda ring: ring[which], self.lessons)
        robots = lesson.first.shape[1]
        ids = torch.randint(robots, (self.config.batch,), generator=self.generator, device=device)
        drawn = map_tree(lambda part: part[:, ids], lesson._replace(start=None))
        return drawn._replace(start=map_tree(lambda part: part[ids], lesson.start))

    def _parts(self) -> dict[str, Part]:
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
            "counts": Numbers(self, "iteration_count", "env_steps"),
        }


def clone_loss(miss: Tensor, outlier_rad: float | None) -> Tensor:
    """The mean square of differences, those beyond `outlier_rad` counted as the tangent there.

    Moments that are lost anyhow, a robot that falls, hold most of the squares.
    """
    if outlier_rad is None:
        return miss.square().mean()
    return 2.0 * nn.functional.huber_loss(miss, torch.zeros_like(miss), delta=outlier_rad)


class ScriptTeacher:
    """A task's own teacher: joint targets, which are latents in joint space."""

    def __init__(self, script: Actor, scale: Tensor):
        """scale: of a unit of what the student's network says, (nu,) or one for all [rad]."""
        self.script = script
        self.scale = scale
        self.initial_memory = script.initial_memory

    def answer(self, env: TaskEnv[Any], given: Tree, memory: Tree, first: Tensor) -> Answer:
        decision = self.script.act(env, memory, first)
        return decision.action / self.scale, decision.memory


class PolicyTeacher:
    """A policy, asked with the latents that robots have moved by, whatever chose them."""

    def __init__(self, policy: HighLevelPolicy):
        """policy: a copy of it is used."""
        self.policy = copy.deepcopy(policy).requires_grad_(False).eval()
        self.initial_memory = self.policy.initial_state

    def answer(self, env: TaskEnv[Any], given: Tree, memory: Tree, first: Tensor) -> Answer:
        """As `Teacher.answer`: the mean of its latents."""
        latent, memory = self.policy.step(given, memory)
        return latent.mean, memory


class CommandTeacher:
    """The commands of a task that shows the way by them."""

    def __init__(self, decoder: CommandDecoder):
        self.decoder = decoder

    def initial_memory(self, n: int) -> Tree:
        return ()

    def answer(self, env: TaskEnv[Any], given: Tree, memory: Tree, first: Tensor) -> Answer:
        return self.decoder.range(env.task.commands.current).clamp(-1.0, 1.0), memory


def teacher_of(
    env: TaskEnv[Any], agent: LatentAgent, policy: HighLevelPolicy | None = None
) -> Teacher:
    """The teacher of a high-level policy: another policy of the same module, or the task's own.

    Raises:
      InputError: for a policy of another module or task; without one for a task that has no teacher
        of its own.
    """
    if policy is not None:
        policy.check_task(env.task)
        if policy.contract.module_sha256 != (own := agent.network.contract.module_sha256):
            one, other = (d[:12] or "unknown" for d in (own, policy.contract.module_sha256))
            raise InputError(
                f"the teacher commands another module (sha256 {other}...) than the student "
                f"({one}...)"
            )
        return PolicyTeacher(policy.to(env.device))
    script = env.task.teacher
    decoder = agent.skill.decoder
    commands = isinstance(decoder, CommandDecoder)
    if isinstance(decoder, CommandDecoder) and env.task.guides:
        return CommandTeacher(decoder)
    if script is None or commands:
        own = "that says velocities" if commands else "of its own"
        raise InputError(
            f"task '{env.task.name}' has no teacher {own}; use teacher=, algo=world_model or "
            "algo=vmpo"
        )
    scale = decoder.scale if isinstance(decoder, JointDecoder) else torch.ones(())
    return ScriptTeacher(script(env), scale)
