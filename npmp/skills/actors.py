"""Actors through a skill module: its own imitation, and its prior."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmp.envs.rollout import PolicyOutput
from npmp.envs.task_env import TaskEnv
from npmp.skills import prior
from npmp.skills.nets import DecoderState
from npmp.skills.skill_module import SkillModule


class SkillMemory(NamedTuple):
    """What acting through a module carries from step to step; zero at an episode's start."""

    z: Tensor  # (n, d) the latent of the step before
    decoder: DecoderState


class Latents(NamedTuple):
    """The note of an actor that chooses latents."""

    z: Tensor  # (n, d) what the decoder was given
    mu: Tensor  # (n, d) of the encoder, eq. 3
    sigma: Tensor  # (n, d)


def skill_memory(skill: SkillModule, n: int) -> SkillMemory:
    """The memory of n fresh episodes."""
    decoder = skill.initial_state(n)
    return SkillMemory(decoder.hidden.new_zeros(n, skill.latent_dim), decoder)


class TrackingActor:
    """A module imitating the reference of an imitation environment: mean actions, and mean or
    sampled latents."""

    def __init__(self, skill: SkillModule, generator: torch.Generator | None = None):
        """generator: draws the latents; None: their means."""
        self.skill = skill
        self.generator = generator
        self.initial_memory = partial(skill_memory, skill)

    def act(self, env: TaskEnv[Any], memory: SkillMemory, first: Tensor) -> PolicyOutput:
        """As `Actor.act`; the note is `Latents`."""
        skill = self.skill
        mu, sigma = skill.encode(
            env.task.tracking.context(skill.contract.context_horizon), memory.z
        )
        if self.generator is None:
            z = skill.alpha * memory.z + mu
        else:
            noise = torch.randn(mu.shape, generator=self.generator, device=mu.device)
            z = prior.sample_posterior(memory.z, mu, sigma, skill.alpha, noise)
        action, decoder = skill.decode(z, env.observe(), memory.decoder)
        return PolicyOutput(action, SkillMemory(z, decoder), Latents(z, mu, sigma))


class PriorActor:
    """A module on latents of its AR(1) prior, from its stationary distribution at every start."""

    def __init__(self, skill: SkillModule, generator: torch.Generator):
        self.skill = skill
        self.generator = generator
        self.initial_memory = partial(skill_memory, skill)

    def latent(self, memory: SkillMemory, first: Tensor) -> Tensor:
        """z of the coming step, (n, d)."""
        drawn = torch.randn(memory.z.shape, generator=self.generator, device=self.generator.device)
        drawn = drawn.to(memory.z)
        alpha = self.skill.alpha
        still = torch.zeros_like(drawn)
        # of the prior
        step = prior.sample_posterior(memory.z, still, still + prior.prior_std(alpha), alpha, drawn)
        return torch.where(first.unsqueeze(-1), drawn, step)

    def act(self, env: TaskEnv[Any], memory: SkillMemory, first: Tensor) -> PolicyOutput:
        z = self.latent(memory, first)
        action, decoder = self.skill.decode(z, env.observe(), memory.decoder)
        return PolicyOutput(action, SkillMemory(z, decoder))
