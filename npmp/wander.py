"""What a skill module does without a task: how long robots stay up on latents of the prior, and what its latents carry."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from npmp.envs.features import ReferenceFeatures, encoder_context
from npmp.envs.imitation import ImitationEnv
from npmp.nets import prior
from npmp.skill import SkillModule

LATENTS = ("prior", "white")


class Wandering(NamedTuple):
    """n robots that follow latents of no task's choosing."""

    up_s: Tensor  # (n,) seconds until the fall, or the whole time
    travelled_m: Tensor  # (n,) length of the root's horizontal path until then
    qpos: Tensor  # (T + 1, n, nq) float64


@torch.no_grad()
def wander(skill: SkillModule, env: ImitationEnv, latents: str, *, seconds: float, seed: int) -> Wandering:
    """Let every robot of the environment follow random latents from a random frame of the reference until it falls.

    Args:
      latents: "prior": the AR(1) process of eq. 5; "white": independent standard normals at every step, of the same variance.
      seconds: at most.

    A robot has fallen when it lies or tips over by more than 60 degrees (`ImitationEnv.fallen`).
    """
    if latents not in LATENTS:
        raise ValueError(f"latents must be one of {', '.join(LATENTS)}; got {latents!r}")
    generator = torch.Generator().manual_seed(seed)
    env.generator.manual_seed(seed)
    n, steps = env.num_envs, max(1, round(seconds / env.dt))
    clip, frame = env.sampler.sample(n, generator)
    env.reset(clip=clip, frame=frame)
    free = torch.ones(n, dtype=torch.bool)
    z = prior.sample_stationary((n, skill.latent_dim), generator)
    memory = skill.initial_state(n)
    up = torch.ones(n, dtype=torch.bool)
    count, travelled = torch.zeros(n), torch.zeros(n)
    qpos = [env.sim.qpos.clone()]
    for _ in range(steps):
        if latents == "prior":
            z = prior.sample_prior(z, skill.alpha, generator)
        else:
            z = prior.sample_stationary(z.shape, generator)
        action, memory = skill.decode(z, env.observe(), memory)
        before = env.state.root_pos[:, :2]
        step = env.step(action, free)
        up &= ~step.terminated
        count += up
        travelled += torch.where(up, (step.state.root_pos[:, :2] - before).norm(dim=-1), 0.0)
        qpos.append(env.sim.qpos.clone())
        if not up.any():
            break
    return Wandering(count * env.dt, travelled, torch.stack(qpos))


class LatentUse(NamedTuple):
    """What the latents carry while the reference is tracked."""

    kl: Tensor  # (d,) mean KL to the prior of each dimension per step, eq. 6 [nats]
    mean_share: Tensor  # (d,) share of each dimension's innovation variance that comes from the encoder's mean
    std: Tensor  # (d,) standard deviation of z

    def active(self, threshold: float = 0.01) -> int:
        """Dimensions that carry more than `threshold` nats a step."""
        return int((self.kl > threshold).sum())


@torch.no_grad()
def latent_use(skill: SkillModule, env: ImitationEnv, *, steps: int, seed: int) -> LatentUse:
    """Track the reference with sampled latents from random frames, and see what each dimension tells the decoder."""
    features = ReferenceFeatures(env.robot, env.reference, skill.contract.context_horizon)
    generator = torch.Generator().manual_seed(seed)
    env.generator.manual_seed(seed)
    env.reset()
    z, memory = torch.zeros(env.num_envs, skill.latent_dim), skill.initial_state(env.num_envs)
    kl, means, deviations, latents = [], [], [], []
    for _ in range(steps):
        context = encoder_context(features, env.state, env.frame, env.last_frame, env.home)
        mu, sigma = skill.encode(context, z)
        z = prior.sample_posterior(z, mu, sigma, skill.alpha, torch.randn(mu.shape, generator=generator))
        action, memory = skill.decode(z, env.observe(), memory)
        step = env.step(action)
        kl.append(prior.kl_per_dimension(mu, sigma, skill.alpha))
        means.append(mu)
        deviations.append(sigma)
        latents.append(z)
        done = step.terminated | step.truncated
        env.reset(done)
        z, memory = z.masked_fill(done.unsqueeze(-1), 0.0), memory.reset(done)
    mean = torch.cat(means).var(0)
    return LatentUse(torch.cat(kl).mean(0), mean / (mean + torch.cat(deviations).square().mean(0)), torch.cat(latents).std(0))
