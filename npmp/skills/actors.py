"""Actors through a skill module: its own imitation, and its prior."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmp.core.gaussian import Gaussian
from npmp.envs.rollout import PolicyOutput
from npmp.envs.task_env import TaskEnv
from npmp.skills.nets import DecoderState
from npmp.skills.skill_module import SkillModule


class SkillMemory(NamedTuple):
    """What acting through a module carries from step to step; zero at an episode's start."""

    z: Tensor  # (n, d) the latent of the step before
    decoder: DecoderState


class Latents(NamedTuple):
    """The note of an actor that chooses latents."""

    z: Tensor  # (n, d) what the decoder was given
    deviation: Gaussian  # of the encoder, eq. 3, from the prior's mean
    distribution: Gaussian  # of z


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
        observed = skill.prior.observe(env.state, env.task.goal())
        deviation = skill.encode(env.task.context(skill.contract.context_horizon), memory.z)
        mean = skill.prior.step(memory.z, observed).mean + deviation.mean
        latents = Gaussian(mean, deviation.std)
        z = latents.mean if self.generator is None else latents.draw(self.generator)
        action, decoder = skill.decode(z, env.observe(), memory.decoder)
        return PolicyOutput(action, SkillMemory(z, decoder), Latents(z, deviation, latents))


class PriorActor:
    """A module on latents of its AR(1) prior, from its stationary distribution at every start."""

    def __init__(self, skill: SkillModule, generator: torch.Generator):
        self.skill = skill
        self.generator = generator
        self.initial_memory = partial(skill_memory, skill)

    def latent(self, memory: SkillMemory, first: Tensor, observed: Tensor) -> Tensor:
        """z of the coming step, (n, d)."""
        prior = self.skill.prior
        noise = torch.randn(memory.z.shape, generator=self.generator, device=self.generator.device)
        step = prior.step(memory.z, observed)
        return prior.first(memory.z, observed).where(first, step).sample(noise.to(memory.z))

    def act(self, env: TaskEnv[Any], memory: SkillMemory, first: Tensor) -> PolicyOutput:
        observed = self.skill.prior.observe(env.state, env.task.goal())
        z = self.latent(memory, first, observed)
        action, decoder = self.skill.decode(z, env.observe(), memory.decoder)
        return PolicyOutput(action, SkillMemory(z, decoder))
