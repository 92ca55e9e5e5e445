"""Who acts on a task: a high-level policy through its module's decoder."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from npmp.actors import SkillMemory, skill_memory
from npmp.envs.task_env import TaskEnv
from npmp.nets.high_level import HighLevelState
from npmp.reuse.policy import HighLevelPolicy, PolicyInput
from npmp.rollout import Decision
from npmp.skill import SkillModule


class PolicyMemory(NamedTuple):
    """What a high-level policy and its module carry from step to step."""

    policy: HighLevelState
    skill: SkillMemory


class PolicyActor:
    """A high-level policy of any task by the mean of z_t, through its module's decoder."""

    def __init__(self, policy: HighLevelPolicy, skill: SkillModule):
        self.policy, self.skill = policy, skill

    def initial_memory(self, n: int) -> PolicyMemory:
        """As `Actor.initial_memory`."""
        return PolicyMemory(self.policy.initial_state(n), skill_memory(self.skill, n))

    def told(self, env: TaskEnv[Any]) -> Tensor:
        """What the policy is told of the task, (n, c)."""
        return env.task.observe()

    def act(self, env: TaskEnv[Any], memory: PolicyMemory, first: Tensor) -> Decision:
        """As `Actor.act`."""
        seen = env.observe()
        latent, state = self.policy.step(
            PolicyInput(seen, self.told(env), memory.skill.z), memory.policy
        )
        action, decoder = self.skill.decode(latent.mean, seen, memory.skill.decoder)
        return Decision(action, PolicyMemory(state, SkillMemory(latent.mean, decoder)))
