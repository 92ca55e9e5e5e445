"""Compositions of policies: latents over a module's decoder, commands over a walking policy.

over(HighLevelPolicy, skill)                a task's policy
over(TrackingPolicy(skill), skill)          imitation of reference motions
over(FootstepPolicy(skill, robot), skill)   a trot over the ground ahead
over(PriorPolicy(skill.prior), skill)       latents of the module's prior
over(script, over(HighLevelPolicy, skill))  commands by a script
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mocap_data.errors import InputError
from npmp.core.gaussian import Gaussian
from npmp.core.tree import Tree, stack_trees
from npmp.envs.policy import Observation, Policy, PolicyOutput, bind
from npmp.envs.task_env import TaskEnv
from npmp.skills.nets.command_decoder import CommandDecoder
from npmp.skills.prior import Prior
from npmp.skills.skill_module import SkillModule


class CompositionState(NamedTuple):
    """The state of a composition; zero at an episode's start."""

    upper: Tree
    z: Tree  # (n, d) previous latent; None above another composition
    lower: Tree


class Unrolled(NamedTuple):
    """Latents over T steps of B robots."""

    latents: Gaussian  # [T, B, d]
    z: Tensor  # [T, B, d] input of the decoder
    state: Tree  # after the last step
    kl: Tensor  # [T, B] to the prior [nats]


class Composition(nn.Module):
    """An upper policy over a lower one, whose task input is the upper one's command.

    The command of a `Gaussian` is its mean, or a sample by `Observation.noise` or `generator`.
    """

    def __init__(
        self,
        upper: Any,
        lower: Any,
        generator: torch.Generator | None = None,
        joint_std: float | None = None,
    ):
        """Args:
        upper: a policy whose output is latents or commands.
        lower: a `SkillModule`, or a policy whose output moves robots.
        generator: samples latents; None: their means.
        joint_std: initial standard deviation of joint targets [rad], if learned on policy.
        """
        super().__init__()
        self.upper = upper
        self.lower = lower
        self.generator = generator
        self.log_std: nn.Parameter | None = None
        if joint_std is not None:
            actions = len(lower.contract.joint_names)
            self.log_std = nn.Parameter(torch.full((actions,), math.log(joint_std)))

    @property
    def prior(self) -> Prior | None:
        """The prior of the lower module; None above another composition."""
        return None if isinstance(self.lower, Composition) else self.lower.prior

    def bind(self, env: TaskEnv[Any]) -> None:
        """Bind the upper policy to an environment."""
        bind(self.upper, env)

    def initial_state(self, n: int) -> CompositionState:
        """The state at the start of n episodes."""
        prior = self.prior
        z = None if prior is None else prior.initial(n)
        return CompositionState(self.upper.initial_state(n), z, self.lower.initial_state(n))

    def step(
        self, observation: Observation, state: CompositionState
    ) -> tuple[PolicyOutput, CompositionState]:
        """As `Policy.step`; the info is the upper policy's latents, or the lower one's info."""
        prior = self.prior
        observation = observation._replace(z_before=state.z)
        if prior is not None and observation.state is not None:
            observed = prior.observe(observation.state, observation.task)
            observation = observation._replace(prior=observed)
        output, upper = self.upper.step(observation, state.upper)
        command = output
        if isinstance(output, Gaussian):
            if prior is not None and observation.free is not None:
                output = prior.step(state.z, observation.prior).where(observation.free, output)
            command = self._command(output, observation.noise)
        action, lower = self.lower.step(observation._replace(task=command), state.lower)
        if prior is None:
            return action, CompositionState(upper, None, lower)
        return PolicyOutput(action, output), CompositionState(upper, command, lower)

    def as_module(self) -> SkillModule:
        """A module whose latents are the commands of a walking policy over skills, scaled to -1 to
        1. It can be saved, and a policy can be learned over it.

        Raises:
          InputError: for a policy with other inputs than commands, or a module without skills.
        """
        contract = self.upper.contract
        skill: SkillModule = self.lower
        if contract.script or contract.extra_inputs or skill.contract.decoder != "lstm":
            raise InputError(
                "walker= must be a policy over skills that observes only commands, without a script"
            )
        walker = {
            "net": skill.contract.net,
            "high_level": contract.net,
            "alpha": contract.alpha,
            "bound": contract.latent_bound,
            "command_range": contract.command_range,
        }
        module = skill.without_skills(len(contract.command), decoder="commands", walker=walker)
        # its weights come from the same recordings
        recordings = {"licences", "data"} & set(skill.contract.training)
        module.contract.training.update({key: skill.contract.training[key] for key in recordings})
        assert isinstance(module.decoder, CommandDecoder)
        module.decoder.policy.load_state_dict(self.upper.net.state_dict())
        module.decoder.decoder.load_state_dict(skill.decoder.state_dict())
        module.decoder.scale.load_state_dict(self.upper.command_scale.state_dict())
        module.latent_range.fill_(1.0)
        return module

    def _command(self, output: Gaussian, noise: Tensor | None) -> Tensor:
        if noise is None and self.generator is not None:
            device = self.generator.device
            shape = output.mean.shape
            noise = torch.randn(shape, generator=self.generator, device=device).to(output.mean)
        return output.mean if noise is None else output.sample(noise)

    def forward(
        self, observations: Observation, state: CompositionState, resets: Tensor
    ) -> tuple[Tensor, Tensor, CompositionState, Tensor]:
        """Unroll over time, for a learner.

        Args:
          observations: [T, B, ...]. resets: [T, B] bool, the step is an episode's first.

        Returns: mean and std of the joint targets [T, B, nu] in rad, the state after the last step,
          the KL to the prior [T, B] in nats.
        """
        unrolled: Unrolled = self.upper.unroll(observations, state.z, state.upper, resets)
        proprioception = observations.proprioception
        mean, lower = self.lower.unroll(unrolled.z, proprioception, state.lower, resets)
        std = unrolled.latents.std
        if self.log_std is not None:
            std = self.log_std.exp().expand_as(mean)
        after = CompositionState(unrolled.state, unrolled.z[-1], lower)
        return mean, std, after, unrolled.kl


def over(
    upper: Policy, lower: SkillModule | Composition, generator: torch.Generator | None = None
) -> Composition:
    """Compose a policy with a lower one or a module's decoder. generator: as `Composition`."""
    return Composition(upper, lower, generator)


class TrackingPolicy:
    """A module's encoder as a policy: latents that track a reference motion, eq. 3.

    It observes the reference and the true state (`Imitation.observe`), and has no memory.
    """

    def __init__(self, skill: SkillModule):
        """skill: learned as a whole, encoder and decoder."""
        self.skill = skill

    @property
    def weights(self) -> nn.Module:
        """The trained network: the module."""
        return self.skill

    @property
    def prior(self) -> Prior:
        """The prior towards which it is regularized."""
        return self.skill.prior

    def initial_state(self, n: int) -> Tree:
        return ()

    def step(self, observation: Observation, state: Tree) -> tuple[Gaussian, Tree]:
        o = observation
        return self.skill.posterior(o.task, o.z_before, o.prior), state

    def unroll(self, observations: Observation, z: Tensor, state: Tree, resets: Tensor) -> Unrolled:
        """Latents of T steps, sampled by `Observation.noise`; the KL is eq. 6.

        Latents are computed step by step, the encoder's first layer for all steps at once.
        """
        skill = self.skill
        encode = skill.encoder.over_time(skill.context_scale(observations.task))
        keep = (~resets).unsqueeze(-1).to(z.dtype)
        before = []
        zs = []
        deviations = []
        posteriors = []
        for t in range(len(resets)):
            z = z * keep[t]
            before.append(z)
            deviation = encode(t, z)
            mean = skill.prior.step(z, observations.prior[t]).mean
            posterior = Gaussian(mean + deviation.mean, deviation.std)
            z = posterior.sample(observations.noise[t])
            zs.append(z)
            deviations.append(deviation)
            posteriors.append(posterior)
        kl = skill.prior.kl_of_deviation(
            stack_trees(deviations), torch.stack(before), observations.prior
        )
        return Unrolled(stack_trees(posteriors), torch.stack(zs), state, kl.sum(-1))


class PriorPolicy:
    """Latents of a module's prior; the first latent is from `Prior.first`."""

    def __init__(self, prior: Prior):
        self.prior = prior

    def initial_state(self, n: int) -> Tree:
        return ()

    def step(self, observation: Observation, state: Tree) -> tuple[Gaussian, Tree]:
        o = observation
        first = self.prior.first(o.z_before, o.prior)
        return first.where(o.is_first, self.prior.step(o.z_before, o.prior)), state


class ConstantCommand:
    """The same command at every step."""

    def __init__(self, *command: float):
        self.command = command

    def initial_state(self, n: int) -> Tree:
        return ()

    def step(self, observation: Observation, state: Tree) -> tuple[Tensor, Tree]:
        proprioception = observation.proprioception
        command = proprioception.new_tensor(self.command)
        return command.expand(len(proprioception), -1), state


def tracking(skill: SkillModule, generator: torch.Generator | None = None) -> Composition:
    """A module that tracks the reference of an imitation task.

    generator: samples the latents; None: their means.
    """
    return over(TrackingPolicy(skill), skill, generator)


def wandering(skill: SkillModule, generator: torch.Generator) -> Composition:
    """A module on latents sampled from its prior."""
    return over(PriorPolicy(skill.prior), skill, generator)
