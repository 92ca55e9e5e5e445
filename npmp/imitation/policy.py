"""The skill module as a stochastic policy over time, and its privileged critic."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from npmp.envs.features import Normalizer
from npmp.nets import Decoder, prior
from npmp.nets.high_level import HighLevelCritic
from npmp.rl import unroll_lstm
from npmp.skill import SkillModule
from npmp.tasks.imitation import ImitationEnv


class ImitationPolicyInput(NamedTuple):
    """What the policy is given at a step; leading shape (...)."""

    context: Tensor  # (..., c) the encoder's features
    proprioception: Tensor  # (..., o) what the decoder is shown, as the sensors gave it
    # (..., d) standard normal, of the latent: stored, so that a learner's re-run draws the same
    noise: Tensor


class ImitationPolicyState(NamedTuple):
    """What the policy carries from step to step; zero at an episode's start."""

    hidden: Tensor  # (B, h) the decoder's memory
    cell: Tensor  # (B, h)
    z: Tensor  # (B, d) the latent of the step before


class ImitationPolicy(nn.Module):
    """Encoder, sampled latent and decoder, with a Gaussian around the decoder's setpoints.

    The latent is reparameterized, so the encoder learns through the decoder's density of the
    setpoints. Only `skill` is kept of a trained policy; the spread of the setpoints is exploration.
    """

    def __init__(self, skill: SkillModule, *, initial_std: float = 0.2):
        """initial_std: of the setpoints [rad]; 0.2 in robot-NPMP."""
        super().__init__()
        self.skill = skill
        actions = len(skill.contract.joint_names)
        self.log_std = nn.Parameter(torch.full((actions,), math.log(initial_std)))

    def initial_state(self, n: int) -> ImitationPolicyState:
        """The state of n fresh episodes."""
        memory = self.skill.initial_state(n)
        return ImitationPolicyState(
            memory.hidden, memory.cell, memory.hidden.new_zeros(n, self.skill.latent_dim)
        )

    def module(self, latent_range: Tensor) -> SkillModule:
        """A copy of the skill module, for which latents within latent_range (d,) are usual."""
        skill = copy.deepcopy(self.skill)
        skill.latent_range.copy_(latent_range)
        return skill

    def forward(
        self, observations: ImitationPolicyInput, state: ImitationPolicyState, resets: Tensor
    ) -> tuple[Tensor, Tensor, ImitationPolicyState, Tensor]:
        """Unroll over time.

        Args:
          observations: [T, B, ...]. state: before the first step, [B, ...].
          resets: [T, B] bool, the step is an episode's first: it starts from the fresh state.

        Returns: mean and std of the actions [T, B, nu], the state after the last step, and the KL
        of the encoder to the
          AR(1) prior given the sampled z_{t-1}, eq. 6, summed over latent dimensions [T, B] (nats).
        """
        skill = self.skill
        # only the latents and the LSTM go step by step, and the LSTM does not wait for the latents;
        # the rest: all steps at once
        encode = skill.encoder.over_time(skill.context_scale(observations.context))
        keep = (~resets).unsqueeze(-1).to(state.z.dtype)
        z, latents, mus, sigmas = state.z, [], [], []
        for t in range(len(resets)):
            z = z * keep[t]
            mu, sigma = encode(t, z)
            z = prior.sample_posterior(z, mu, sigma, skill.alpha, observations.noise[t])
            latents.append(z)
            mus.append(mu)
            sigmas.append(sigma)
        assert isinstance(skill.decoder, Decoder)  # what imitation makes; for the type checker
        x, memorized = skill.decoder.inputs(skill.observation_scale(observations.proprioception))
        hidden, (last_hidden, last_cell) = unroll_lstm(
            skill.decoder.lstm, memorized, (state.hidden, state.cell), resets
        )
        mean = skill.decoder.output(hidden, x, torch.stack(latents))
        divergence = prior.kl_of_deviation(torch.stack(mus), torch.stack(sigmas), skill.alpha)
        return (
            mean,
            self.log_std.exp().expand_as(mean),
            ImitationPolicyState(last_hidden, last_cell, z),
            divergence,
        )


class CriticInput(NamedTuple):
    """What the critic sees: all that there is to know. Leading shape (...)."""

    context: Tensor  # (..., c) the encoder's features: reference and true state
    z: Tensor  # (..., d) the latent of the step before
    clip: Tensor  # (...) int64
    physics: Tensor  # (..., p) what was drawn of the physics


def critic_input(env: ImitationEnv, z: Tensor) -> CriticInput:
    """What the critic sees of the present state; z (n, d) the latent of the step before."""
    return CriticInput(env.task.observe(), z, env.task.clip.clone(), env.robots.physics.clone())


class ImitationCritic(nn.Module):
    """Values of the objectives from the true state, the reference, a learned embedding of the clip,
    and the drawn physics.

    robot-NPMP: the physics go through an input norm and layers of 128 and 32 units first.
    """

    def __init__(
        self,
        context_scale: Normalizer,
        latent_dim: int,
        clips: int,
        physics: int,
        widths: tuple[int, ...],
        objectives: int,
    ):
        super().__init__()
        size = len(context_scale.mean)
        self.scale = Normalizer(size)
        self.scale.load_state_dict(context_scale.state_dict())
        self.clip = nn.Embedding(clips, 16)
        self.physics: nn.Module | None = None
        if physics:
            self.physics = nn.Sequential(
                nn.Linear(physics, 512),
                nn.LayerNorm(512),
                nn.Tanh(),
                nn.Linear(512, 128),
                nn.ELU(),
                nn.Linear(128, 32),
                nn.ELU(),
            )
        inputs = size + latent_dim + 16 + (32 if physics else 0)
        self.net = HighLevelCritic(inputs, widths, objectives)

    @property
    def value_head(self) -> nn.Linear:
        """The layer that PopArt rescales."""
        return self.net.value_head

    def forward(self, given: CriticInput) -> Tensor:
        """[...] -> (..., K)."""
        parts = [self.scale(given.context), given.z, self.clip(given.clip)]
        if self.physics is not None:
            parts.append(self.physics(given.physics))
        return self.net(torch.cat(parts, -1))
