"""Training a policy to do what a task's teacher does (DAgger, Ross et al. 2011), in joint space.

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
from npmp.nets import DecoderState
from npmp.reuse.actor import PolicyMemory
from npmp.reuse.policy import HighLevelPolicy, PolicyInput
from npmp.rollout import Decision
from npmp.skill import SkillModule
from npmp.training.trainer import Gathered
from npmp.tree import Tree


@dataclass(frozen=True, kw_only=True)
class CloneTrainerConfig(LessonConfig):
    """Settings of learning from a task's teacher; sources with the values in conf/algo/clone.yaml. Raises ValueError
    for values out of range."""

    taught: float = 0.3  # share of the run in which the teacher acts, too: at first of all robots, at its end of none

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.share(self, "taught")


class CloneMemory(NamedTuple):
    """What the policy, the teacher and who of them acts carry from step to step."""

    student: PolicyMemory
    teacher: Tree
    taught: Tensor  # (n,) bool: the teacher acts


class CloneTrainer(LessonTrainer):
    """A policy that learns what the task's teacher does."""

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
        seed: int = 0,
    ):
        """Build everything on the environment's device; policy is trained in place.

        skill: a module in joint space (`SkillModule.in_joint_space`).

        Raises:
          InputError: for a task without a teacher, a module of another robot, or one with skills.
        """
        skill.check_robot(env.robot)
        self.teacher = env.task.teacher()
        if self.teacher is None:
            raise InputError(f"nobody shows how task '{env.task.name}' is done; use algo=world_model or algo=vmpo")
        if skill.contract.decoder != "joints":
            raise InputError("what a teacher does is in joint space: algo=clone takes joint_space=true")
        self.skill = copy.deepcopy(skill).requires_grad_(False).eval().to(env.device)
        self.share = 1.0  # of the robots that the teacher moves, of those whose episodes begin
        c, net = config or CloneTrainerConfig(), policy.net.config
        seen, told = env.observe(), env.task.observe()
        given = PolicyInput(seen, told, seen.new_zeros(env.num_envs, self.skill.latent_dim))
        widths = sum(part.shape[-1] for part in given) + env.num_actions
        require_batch(c.batch, c.unroll, (net.hidden_width, 4 * net.lstm_width), widths, key="algo.batch")
        super().__init__(env, policy.to(env.device), c, given=given, seed=seed)

    @property
    def policy(self) -> HighLevelPolicy:
        """The averaged policy: what is evaluated and saved."""
        return self.average

    def initial_memory(self, n: int) -> CloneMemory:
        """As `LessonTrainer.initial_memory`."""
        student = PolicyMemory(self.online.initial_state(n), skill_memory(self.skill, n))
        return CloneMemory(
            student, self.teacher.initial_memory(n), torch.zeros(n, dtype=torch.bool, device=self.env.device)
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
        wanted, decoder = self.skill.decode(latent.mean, given.proprioception, memory.student.skill.decoder)
        shown = self.teacher.act(env, memory.teacher, first)
        action = torch.where(taught.unsqueeze(-1), shown.action, wanted)
        noise = torch.randn(action.shape, generator=self.generator, device=action.device)
        z = torch.where(taught.unsqueeze(-1), shown.action / self.skill.decoder.scale, latent.mean)
        student = PolicyMemory(state, SkillMemory(z, decoder))
        note = {"given": given, "shown": shown.action, "first": first}
        return Decision(action + self.config.action_noise * noise, CloneMemory(student, shown.memory, taught), note)

    def gather(self, progress: float) -> Gathered:
        """As `Distributable.gather`: a lesson."""
        self.share = max(0.0, 1.0 - progress / self.config.taught) if self.config.taught > 0.0 else 0.0
        gathered = super().gather(progress)
        return gathered._replace(figures=gathered.figures | {"taught": self.share})

    def fit(self, steps: Tree, start: DecoderState) -> tuple[Tensor, dict[str, Tensor]]:
        """As `LessonTrainer.fit`."""
        state = self.online.initial_state(len(start.hidden))._replace(hidden=start.hidden, cell=start.cell)
        mean, _, _ = self.online(steps["given"], state, steps["first"])
        return self.skill.decoder.scale * mean - steps["shown"], {}
