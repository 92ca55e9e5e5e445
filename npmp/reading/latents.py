"""What a module's latents carry while it imitates."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp import robots
from npmp.envs import ImitationConfig, ImitationEnv, load_motions
from npmp.envs.features import ReferenceFeatures, encoder_context
from npmp.envs.plant import PlantConfig
from npmp.nets import prior
from npmp.reading.description import Module, open_module
from npmp.robots import Robot
from npmp.skill import SkillModule

ACTIVE_NATS = 0.01  # a dimension that carries less than this per step is one of the prior


class LatentUse(NamedTuple):
    """What the latents carry while the reference is tracked; d latent dimensions."""

    kl: Tensor  # (d,) mean KL to the prior of each dimension per step, eq. 6 [nats]
    mean_share: Tensor  # (d,) share of each dimension's innovation variance that comes from the encoder's mean
    std: Tensor  # (d,) standard deviation of z; the prior's is 1

    @property
    def order(self) -> list[int]:
        """The dimensions, the one that carries most first."""
        return [int(i) for i in torch.argsort(self.kl, descending=True, stable=True)]

    def active(self, threshold: float = ACTIVE_NATS) -> int:
        """Dimensions that carry more than `threshold` nats a step."""
        return int((self.kl > threshold).sum())


def latent_use(
    module: Module,
    data: str | Path | MotionSet,
    *,
    robot: Robot | None = None,
    split: str | None = None,
    num_robots: int = 64,
    steps: int = 200,
    seed: int = 0,
    plant: PlantConfig | None = None,
    threads: int = 0,
) -> LatentUse:
    """Track motions with sampled latents, and see what each dimension tells the decoder.

    Args:
      data: motions of the module's robot. split: "train" or "validation"; None: all.
      robot: the module's by default.
      steps: control steps of every robot, from random frames; who is lost or done starts anew.
      plant: physics, senses and pushes; by default an ideal robot whose setpoints are held as in training.
      threads: of the physics; 0: all cores.

    Raises: InputError for a module or dataset that is not there, or that are of different robots.
    """
    skill = open_module(module)
    robot = robot or robots.load(skill.robot)
    skill.check_robot(robot)
    skill.check_encoder(robot)
    motions = data if isinstance(data, MotionSet) else load_motions(data, robot, split)
    config = ImitationConfig(plant=plant or PlantConfig(hold=skill.hold), num_threads=threads)
    return use_in(skill, ImitationEnv(robot, motions, num_robots, seed=seed, config=config), steps=steps, seed=seed)


@torch.no_grad()
def use_in(skill: SkillModule, env: ImitationEnv, *, steps: int, seed: int) -> LatentUse:
    """The same in an environment that there is already; its generator is reseeded."""
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
    return LatentUse(
        torch.cat(kl).mean(0), mean / (mean + torch.cat(deviations).square().mean(0)), torch.cat(latents).std(0)
    )
