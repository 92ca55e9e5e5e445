"""Training a policy to do what a teacher does (DAgger, Ross et al. 2011).

In joint space that is what a task's own teacher does, a script; or, by the same module, what
another policy does, to put it into a smaller network (policy distillation, Rusu et al. 2016).

At first some robots move as the teacher has it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import ranges
from npmp.actors import SkillMemory, skill_memory
from npmp.envs.task_env import TaskEnv
from npmp.imitation.lessons import LessonConfig, LessonTrainer
from npmp.memory import require_batch
from npmp.nets import DecoderState, JointDecoder
from npmp.reuse.actor import PolicyMemory
from npmp.reuse.policy import HighLevelPolicy, PolicyInput
from npmp.rollout import Actor, Decision
from npmp.skill import SkillModule
from npmp.training.trainer import Gathered
from npmp.tree import Tree


@dataclass(frozen=True, kw_only=True)
class CloneTrainerConfig(LessonConfig):
    """Settings of learning from a teacher; sources with the values in conf/algo/clone.yaml. Raises
    ValueError for values out of range."""

    # share of the run in which the teacher acts, too: at first of all robots, at its end of none
    taught: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.share(self, "taught")


class CloneMemory(NamedTuple):
    """What the policy, the teacher and who of them acts carry from step to step."""

    student: PolicyMemory
    teacher: Tree
    taught: Tensor  # (n,) bool: the teacher acts


class CloneTrainer(LessonTrainer):
    """A policy that learns what a teacher does."""

    config: CloneTrainerConfig
    online: HighLevelPolicy
    average: HighLevelPolicy

    def __init__(
        self,
        env: TaskEnv[Any],
        skill: SkillModule,
        policy: HighLevelPolicy,
        config: CloneTrainerConfig | None = None,
        *,
        teacher: HighLevelPolicy | None = None,
        seed: int = 0,
    ):
        """Build everything on the environment's device; policy is trained in place.

        teacher: a policy of the same module; None: the task's own teacher, which takes a module in
        joint space
          (`SkillModule.in_joint_space`).

        Raises:
          InputError: for a module of another robot, a teacher of another module or task; without
            one for a task that has none of its own, or a module with skills.
        """
        skill.check_robot(env.robot)
        self.teacher: _PolicyTeacher | _TaskTeacher
        # of a latent in lessons: rad in joint space, where it is a target
        self.unit: Tensor | float = 1.0
        if isinstance(skill.decoder, JointDecoder):
            self.unit = skill.decoder.scale.to(env.device)
        if teacher is not None:
            teacher.check_task(env.task)
            if teacher.contract.module_sha256 != (own := policy.contract.module_sha256):
                own, other = (
                    digest[:12] or "unknown" for digest in (own, teacher.contract.module_sha256)
                )
                raise InputError(
                    f"the teacher commands another module (sha256 {other}...) than the student ({own}...)"
                )
            self.teacher = _PolicyTeacher(
                copy.deepcopy(teacher).requires_grad_(False).eval().to(env.device)
            )
        elif env.task.teacher is None:
            raise InputError(
                f"task '{env.task.name}' has no teacher; use teacher=, algo=world_model or algo=vmpo"
            )
        elif isinstance(self.unit, float):
            raise InputError(
                "what a task's teacher does is in joint space: algo=clone takes joint_space=true, or a policy of the"
                " module as teacher="
            )
        else:
            self.teacher = _TaskTeacher(env.task.teacher(env), self.unit)
        self.skill = copy.deepcopy(skill).requires_grad_(False).eval().to(env.device)
        self.share = 1.0  # of the robots that the teacher moves, of those whose episodes begin
        c, net = config or CloneTrainerConfig(), policy.net.config
        seen, told = env.observe(), env.task.observe()
        given = PolicyInput(seen, told, seen.new_zeros(env.num_envs, self.skill.latent_dim))
        widths = sum(part.shape[-1] for part in given) + self.skill.latent_dim
        require_batch(
            c.batch, c.unroll, (net.hidden_width, 4 * net.lstm_width), widths, key="algo.batch"
        )
        super().__init__(
            env, policy.to(env.device), c, given=given, shown=self.skill.latent_dim, seed=seed
        )

    @property
    def policy(self) -> HighLevelPolicy:
        """The averaged policy: what is evaluated and saved."""
        return self.average

    def initial_memory(self, n: int) -> CloneMemory:
        """As `LessonTrainer.initial_memory`."""
        student = PolicyMemory(self.online.initial_state(n), skill_memory(self.skill, n))
        return CloneMemory(
            student,
            self.teacher.initial_memory(n),
            torch.zeros(n, dtype=torch.bool, device=self.env.device),
        )

    def students(self, memory: CloneMemory) -> DecoderState:
        """As `LessonTrainer.students`: the policy's LSTM's."""
        return DecoderState(memory.student.policy.hidden, memory.student.policy.cell)

    def act(self, env: TaskEnv[Any], memory: CloneMemory, first: Tensor) -> Decision:
        """As `LessonTrainer.act`: the teacher or the policy's mean, with noise."""
        drawn = torch.rand(env.num_envs, generator=self.generator, device=env.device)
        taught = torch.where(first, drawn < self.share, memory.taught)
        given = PolicyInput(env.observe(), env.task.observe(), memory.student.skill.z)
        latent, state = self.online.step(given, memory.student.policy)
        shown, teacher = self.teacher.answer(env, given, memory.teacher, first)
        z = torch.where(taught.unsqueeze(-1), shown, latent.mean)
        action, decoder = self.skill.decode(z, given.proprioception, memory.student.skill.decoder)
        noise = torch.randn(action.shape, generator=self.generator, device=action.device)
        student = PolicyMemory(state, SkillMemory(z, decoder))
        note = {"given": given, "shown": self.unit * shown, "first": first}
        return Decision(
            action + self.config.action_noise * noise, CloneMemory(student, teacher, taught), note
        )

    def gather(self, progress: float) -> Gathered:
        """As `Distributable.gather`: a lesson."""
        self.share = (
            max(0.0, 1.0 - progress / self.config.taught) if self.config.taught > 0.0 else 0.0
        )
        gathered = super().gather(progress)
        return gathered._replace(figures=gathered.figures | {"taught": self.share})

    def fit(self, steps: Tree, start: DecoderState) -> tuple[Tensor, dict[str, Tensor]]:
        """As `LessonTrainer.fit`."""
        state = self.online.initial_state(len(start.hidden))._replace(
            hidden=start.hidden, cell=start.cell
        )
        mean, _, _ = self.online(steps["given"], state, steps["first"])
        return self.unit * mean - steps["shown"], {}


class _TaskTeacher:
    """A task's own teacher, whose actions are latents in joint space."""

    def __init__(self, script: Actor, scale: Tensor):
        self.script, self.scale = script, scale

    def initial_memory(self, n: int) -> Tree:
        """As `Actor.initial_memory`."""
        return self.script.initial_memory(n)

    def answer(
        self, env: TaskEnv[Any], given: PolicyInput, memory: Tree, first: Tensor
    ) -> tuple[Tensor, Tree]:
        """The latents (n, nu) that it would take now, and what it carries on."""
        decision = self.script.act(env, memory, first)
        return decision.action / self.scale, decision.memory


class _PolicyTeacher:
    """A policy, asked with the latents that robots have moved by, whoever chose them."""

    def __init__(self, policy: HighLevelPolicy):
        self.policy = policy

    def initial_memory(self, n: int) -> Tree:
        """As `Actor.initial_memory`."""
        return self.policy.initial_state(n)

    def answer(
        self, env: TaskEnv[Any], given: PolicyInput, memory: Tree, first: Tensor
    ) -> tuple[Tensor, Tree]:
        """As `_TaskTeacher.answer`: the means (n, d) of its latents."""
        latent, memory = self.policy.step(given, memory)
        return latent.mean, memory
