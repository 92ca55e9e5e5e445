"""What acts while it learns on policy or from a teacher: a network that unrolls over time, and how
its output moves the robots."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from npmp.core.gaussian import Gaussian
from npmp.core.progress import phase
from npmp.core.state import Part
from npmp.core.tree import Tree, stack_trees
from npmp.envs.task import Task
from npmp.envs.task_env import TaskEnv
from npmp.learning.cloning import fit_behavior, goal_steps, shown_by
from npmp.learning.world_model.behavior import BehaviorPrior
from npmp.skills.actors import SkillMemory, skill_memory
from npmp.skills.high_level_policy import HighLevelPolicy, PolicyInput, PolicyMemory, policy_memory
from npmp.skills.nets import Decoder, DecoderState, JointDecoder
from npmp.skills.prior import observed_by
from npmp.skills.skill_module import SkillModule
from npmp.skills.unroll import unroll_lstm

# a behaviour prior is learned from so many control steps of the module per robot, with this noise
# of its actions [rad], in so many updates [D]
BEHAVIOR_STEPS = 256
BEHAVIOR_NOISE = 0.03
BEHAVIOR_UPDATES = 3000


class AgentMemory(NamedTuple):
    """What an agent carries from step to step; zero at an episode's start."""

    network: Tree  # (n, ...) the learning network's state
    skill: Any  # (n, ...) `SkillMemory` of a frozen decoder, () where none is used
    z: Tensor  # (n, d) the latent of the step before


class Agent(ABC):
    """A network that learns, as `npmp.learning.rl.Learner` calls it, and the robots that it moves;
    by default its output is joint targets and its state holds the latent."""

    network: Any  # what learns
    outputs: int  # width of the network's output
    # of that in losses, (a,) or a number: rad where it is joint targets
    unit: Tensor | float = 1.0
    parts: Mapping[str, Part] = {}  # what else of it a checkpoint keeps

    @abstractmethod
    def observe(self, env: TaskEnv[Any], memory: AgentMemory, generator: torch.Generator) -> Tree:
        """What the network observes now, a tree (n, ...)."""

    def initial_memory(self, n: int) -> AgentMemory:
        """The memory of n fresh episodes."""
        state = self.network.initial_state(n)
        return AgentMemory(state, (), state.z)

    def drive(
        self, output: Tensor, given: Any, memory: AgentMemory, state: Any
    ) -> tuple[Tensor, AgentMemory]:
        """The action (n, nu) [rad] that an output (n, a) is, and the memory after it.

        given: what `observe` said. state: of the network, after the step.
        """
        return output, AgentMemory(state, (), state.z)


class LatentAgent(Agent):
    """A high-level policy, whose output is a latent; a frozen decoder turns it into joint targets
    by its mean."""

    def __init__(
        self, policy: HighLevelPolicy, skill: SkillModule, behavior: BehaviorPrior | None = None
    ):
        """skill: a copy of it is used, frozen. behavior: what the policy is regularized towards,
        as `learn_behavior` fits it; None: its prior."""
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

    def initial_memory(self, n: int) -> AgentMemory:
        memory = skill_memory(self.skill, n)
        return AgentMemory(self.network.initial_state(n), memory.decoder, memory.z)

    def observe(
        self, env: TaskEnv[Any], memory: AgentMemory, generator: torch.Generator
    ) -> PolicyInput:
        observed = observed_by(self.policy.prior, env.task, env.state, env.task.goal())
        return PolicyInput(env.observe(), env.task.observe(), memory.z, observed)

    def learn_behavior(
        self, env: TaskEnv[Any], recordings: Task | None, generator: torch.Generator, *, seed: int
    ) -> dict[str, float]:
        """Fit the behaviour prior to what the module does of itself. Returns figures of it."""
        assert self.behavior is not None  # called only with a behaviour prior
        demonstration = shown_by(
            self.skill, env, recordings, steps=BEHAVIOR_STEPS, noise=BEHAVIOR_NOISE,
            generator=generator, seed=seed + 1,
        )  # fmt: skip
        window = goal_steps(env.dt)
        with phase("warm-up: fitting the behaviour prior"):
            figures = fit_behavior(
                self.behavior,
                demonstration,
                env.task,
                generator,
                window=window,
                updates=BEHAVIOR_UPDATES,
            )
        self.behavior.requires_grad_(False)
        return figures

    def drive(
        self, output: Tensor, given: PolicyInput, memory: AgentMemory, state: Tree
    ) -> tuple[Tensor, AgentMemory]:
        action, decoder = self.skill.decode(output, given.senses, memory.skill)
        return action, AgentMemory(state, decoder, output)


class DecodedPolicy(nn.Module):
    """A high-level policy and the frozen decoder below it as one, whose output is joint targets."""

    def __init__(self, policy: HighLevelPolicy, skill: SkillModule):
        super().__init__()
        self.policy = policy
        self.skill = skill

    def initial_state(self, n: int) -> PolicyMemory:
        """The state of n fresh episodes."""
        return policy_memory(self.policy, self.skill, n)

    def forward(
        self, observations: PolicyInput, state: PolicyMemory, resets: Tensor
    ) -> tuple[Tensor, Tensor, PolicyMemory, Tensor]:
        """Unroll over time, as `HighLevelPolicy.forward`; the decoder acts by latents' means."""
        z, std, memory, held = self.policy(observations, state.policy, resets)
        decoder = self.skill.decoder
        assert isinstance(decoder, Decoder)  # joint space needs none of this
        x, memorized = decoder.inputs(self.skill.observation_scale(observations.senses))
        hidden, last = unroll_lstm(decoder.lstm, memorized, state.skill.decoder, resets)
        after = PolicyMemory(memory, SkillMemory(z[-1], DecoderState(*last)))
        return decoder.output(hidden, x, z), std, after, held


class DecodedAgent(LatentAgent):
    """A high-level policy that learns by what its decoder makes of its latents, so that a teacher
    that acts in joint space can show what skills are to be used for."""

    initial_memory = Agent.initial_memory
    drive = Agent.drive

    def __init__(
        self, policy: HighLevelPolicy, skill: SkillModule, behavior: BehaviorPrior | None = None
    ):
        """As `LatentAgent`."""
        super().__init__(policy, skill, behavior)
        self.network = DecodedPolicy(policy, self.skill)
        self.outputs = len(skill.contract.joint_names)


class ModuleAgent(Agent):
    """A skill module learned as a whole, whose output is the action."""

    def __init__(self, skill: SkillModule, initial_std: float):
        """initial_std: of the joint targets [rad]."""
        self.network = ModulePolicy(skill, initial_std)
        self.outputs = len(skill.contract.joint_names)

    def observe(
        self, env: TaskEnv[Any], memory: AgentMemory, generator: torch.Generator
    ) -> ModuleInput:
        noise = torch.randn(memory.z.shape, generator=generator, device=memory.z.device)
        prior = self.network.skill.prior
        observed = observed_by(prior, env.task, env.state, env.task.goal())
        return ModuleInput(env.task.observe(), env.observe(), noise, observed)


class ModuleInput(NamedTuple):
    """What `ModulePolicy` is given at a step; leading shape (...)."""

    context: Tensor  # (..., c) the encoder's features
    senses: Tensor  # (..., o) what the decoder is shown
    noise: Tensor  # (..., d) of the latent: stored, so that a re-run samples the same
    prior: Tensor  # (..., f) what the prior observes


class ModulePolicy(nn.Module):
    """Encoder, sampled latent and decoder, with a Gaussian around the decoder's joint targets.

    The latent is reparameterized, so the encoder learns through the density of the joint targets.
    Only `skill` is kept of a trained policy; the spread of the targets is exploration.
    """

    def __init__(self, skill: SkillModule, initial_std: float):
        """initial_std: of the joint targets [rad]; 0.2 in robot-NPMP."""
        super().__init__()
        self.skill = skill
        actions = len(skill.contract.joint_names)
        self.log_std = nn.Parameter(torch.full((actions,), math.log(initial_std)))

    def initial_state(self, n: int) -> SkillMemory:
        """The state of n fresh episodes."""
        return skill_memory(self.skill, n)

    def module(self, latent_range: Tensor) -> SkillModule:
        """A copy of the skill module, for which latents within latent_range (d,) are usual."""
        skill = copy.deepcopy(self.skill)
        skill.latent_range.copy_(latent_range)
        return skill

    def forward(
        self, observations: ModuleInput, state: SkillMemory, resets: Tensor
    ) -> tuple[Tensor, Tensor, SkillMemory, Tensor]:
        """Unroll over time, as `HighLevelPolicy.forward`; the KL is eq. 6's.

        Only the latents and the LSTM go step by step, and the LSTM does not wait for the latents;
        the rest is computed for all steps at once.
        """
        skill = self.skill
        assert isinstance(skill.decoder, Decoder)  # a module in joint space has no encoder to learn
        encode = skill.encoder.over_time(skill.context_scale(observations.context))
        keep = (~resets).unsqueeze(-1).to(state.z.dtype)
        z = state.z
        before = []
        latents = []
        deviations = []
        for t in range(len(resets)):
            z = z * keep[t]
            before.append(z)
            deviation = encode(t, z)
            prior = skill.prior.step(z, observations.prior[t])
            posterior = Gaussian(prior.mean + deviation.mean, deviation.std)
            z = posterior.sample(observations.noise[t])
            latents.append(z)
            deviations.append(deviation)
        x, memorized = skill.decoder.inputs(skill.observation_scale(observations.senses))
        begin = (state.decoder.hidden, state.decoder.cell)
        hidden, last = unroll_lstm(skill.decoder.lstm, memorized, begin, resets)
        mean = skill.decoder.output(hidden, x, torch.stack(latents))
        kl = skill.prior.kl_of_deviation(
            stack_trees(deviations), torch.stack(before), observations.prior
        ).sum(-1)
        std = self.log_std.exp().expand_as(mean)
        return mean, std, SkillMemory(z, type(state.decoder)(*last)), kl


def latent_range(z: Tensor) -> Tensor:
    """What 99 % of the latents (..., d) lately seen stay within, per dimension, (d,)."""
    return torch.quantile(z.flatten(0, -2)[:100_000].abs(), 0.99, dim=0).clamp(min=0.1)
