"""Agents of on-policy learning and learning from a teacher: a network that is unrolled over time,
and the actions of its output."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from npmp.core.progress import phase
from npmp.core.state import StatePart
from npmp.core.tree import Tree
from npmp.envs.policy import Observation
from npmp.envs.task import Task
from npmp.envs.task_env import TaskEnv
from npmp.learning import cloning
from npmp.learning.world_model.behavior import BehaviorPrior
from npmp.skills.composition import Composition, CompositionState, TrackingPolicy
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets import JointDecoder
from npmp.skills.skill_module import SkillModule

# control steps per robot for the fit of a behaviour prior [D]
BEHAVIOR_STEPS = 256
# action noise during these steps [rad] [D]
BEHAVIOR_NOISE = 0.03
# updates of this fit [D]
BEHAVIOR_UPDATES = 3000


class Agent(ABC):
    """A network trained by `npmp.learning.rl.Learner`, and the actions of its output; by default a
    composition whose output is joint targets."""

    network: Any  # the trained network
    outputs: int  # width of the network's output
    # scale of the output in losses, (a,) or a number: [rad] for joint targets
    unit: Tensor | float = 1.0
    parts: Mapping[str, StatePart] = {}  # further parts of checkpoints

    @abstractmethod
    def observe(
        self, observation: Observation, state: CompositionState, generator: torch.Generator
    ) -> Observation:
        """The fields of an observation that the network takes and a learner stores."""

    def initial_state(self, n: int) -> CompositionState:
        """The state at the start of n episodes."""
        state: CompositionState = self.network.initial_state(n)
        return state

    def network_state(self, state: CompositionState) -> Tree:
        """The network's part of a state."""
        return state

    def drive(
        self, output: Tensor, observation: Observation, state: CompositionState, after: Tree
    ) -> tuple[Tensor, CompositionState]:
        """The action (n, nu) [rad] of an output (n, a), and the state after it.

        state: before the step. after: the network's, after it.
        """
        return output, after


class LatentAgent(Agent):
    """A high-level policy, whose output is a latent of a frozen decoder."""

    def __init__(
        self, policy: HighLevelPolicy, skill: SkillModule, behavior: BehaviorPrior | None = None
    ):
        """Args:
        skill: copied and frozen.
        behavior: prior for the regularization, fitted by `learn_behavior`; None: the module's.
        """
        self.network = policy
        self.policy = policy
        self.behavior = behavior
        self.skill = copy.deepcopy(skill).requires_grad_(False).eval()
        policy.regularize_towards(self.skill)
        if behavior is not None:
            self.parts = {"behavior": behavior}
            policy.regularize(behavior)
        self.outputs = skill.latent_dim
        if isinstance(self.skill.decoder, JointDecoder):
            self.unit = self.skill.decoder.scale

    def initial_state(self, n: int) -> CompositionState:
        return Composition(self.policy, self.skill).initial_state(n)

    def observe(
        self, observation: Observation, state: CompositionState, generator: torch.Generator
    ) -> Observation:
        proprioception = observation.proprioception
        task = observation.task
        observed = self.policy.prior.observe(observation.state, task)
        return Observation(proprioception, task, z_before=state.z, prior=observed)

    def learn_behavior(
        self, env: TaskEnv[Any], recordings: Task | None, generator: torch.Generator, *, seed: int
    ) -> dict[str, float]:
        """Fit the behaviour prior to a demonstration by the module. Returns metrics."""
        # for the type checker
        assert self.behavior is not None
        demonstration = cloning.collect_demonstration(
            self.skill,
            env,
            recordings,
            steps=BEHAVIOR_STEPS,
            noise=BEHAVIOR_NOISE,
            generator=generator,
            seed=seed + 1,
        )
        window = cloning.goal_steps(env.dt)
        with phase("warm-up: fitting the behaviour prior"):
            figures = cloning.fit_behavior(
                self.behavior,
                demonstration,
                env.task,
                generator,
                window=window,
                updates=BEHAVIOR_UPDATES,
            )
        self.behavior.requires_grad_(False)
        return figures

    def network_state(self, state: CompositionState) -> Tree:
        return state.upper

    def drive(
        self, output: Tensor, observation: Observation, state: CompositionState, after: Tree
    ) -> tuple[Tensor, CompositionState]:
        action, lower = self.skill.decode(output, observation.proprioception, state.lower)
        return action, CompositionState(after, output, lower)


class DecodedAgent(LatentAgent):
    """A high-level policy whose output is its decoder's joint targets, to learn from a teacher in
    joint space."""

    initial_state = Agent.initial_state
    network_state = Agent.network_state
    drive = Agent.drive

    def __init__(
        self, policy: HighLevelPolicy, skill: SkillModule, behavior: BehaviorPrior | None = None
    ):
        """As `LatentAgent`."""
        super().__init__(policy, skill, behavior)
        self.network = Composition(policy, self.skill)
        self.outputs = len(skill.contract.joint_names)


class ModuleAgent(Agent):
    """A skill module trained as a whole, whose output is the action.

    The latent is reparameterized, so the encoder learns through the density of the joint targets.
    The standard deviation of the joint targets is exploration, and not saved with the module.
    """

    def __init__(self, skill: SkillModule, initial_std: float):
        """initial_std: of the joint targets [rad]; 0.2 in robot-NPMP."""
        self.skill = skill
        self.network = Composition(TrackingPolicy(skill), skill, joint_std=initial_std)
        self.outputs = len(skill.contract.joint_names)

    def observe(
        self, observation: Observation, state: CompositionState, generator: torch.Generator
    ) -> Observation:
        o = observation
        noise = torch.randn(state.z.shape, generator=generator, device=state.z.device)
        observed = self.skill.prior.observe(o.state, o.task)
        # stored, so that a repeated unroll samples the same latents
        return Observation(o.proprioception, o.task, prior=observed, noise=noise)

    def module(self, latent_range: Tensor) -> SkillModule:
        """A copy of the skill module with a latent_range (d,)."""
        skill = copy.deepcopy(self.skill)
        skill.latent_range.copy_(latent_range)
        return skill


def latent_range(z: Tensor) -> Tensor:
    """99 % quantile of |z| per dimension (d,), of latents (..., d)."""
    return torch.quantile(z.flatten(0, -2)[:100_000].abs(), 0.99, dim=0).clamp(min=0.1)
