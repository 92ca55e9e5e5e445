"""Information in a module's latents during imitation."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mocap_data.input_files import require_memory
from mocap_data.store import MotionSet
from npmp import robots
from npmp.core.gaussian import Gaussian
from npmp.core.tree import cat_trees
from npmp.envs import RobotBatchConfig, load_motions
from npmp.envs.rollout import Transition, rollout
from npmp.envs.task_env import TaskEnv
from npmp.evaluation.analysis.description import Module, open_module
from npmp.robots import Robot
from npmp.skills.composition import tracking
from npmp.skills.skill_module import SkillModule
from npmp.tasks.imitation import Imitation, ImitationConfig, ImitationEnv

ACTIVE_NATS = 0.01  # KL per step above which a dimension is active [nats]


class LatentUse(NamedTuple):
    """Statistics of d latent dimensions while tracking."""

    kl: Tensor  # (d,) mean KL to the prior of each dimension per step, eq. 6 [nats]
    # (d,) share of each dimension's innovation variance that comes from the encoder's mean
    mean_share: Tensor
    std: Tensor  # (d,) standard deviation of z; the prior's is 1

    @property
    def order(self) -> list[int]:
        """The dimensions, by decreasing KL."""
        return [int(i) for i in torch.argsort(self.kl, descending=True, stable=True)]

    def active(self) -> int:
        """Number of dimensions with a KL above `ACTIVE_NATS` per step."""
        return int((self.kl > ACTIVE_NATS).sum())

    def rows(self) -> list[dict[str, float]]:
        """One mapping per dimension, by decreasing KL."""
        keys = {"kl_nats": self.kl, "std": self.std, "mean_share": self.mean_share}
        return [
            {"dimension": i, **{key: float(values[i]) for key, values in keys.items()}}
            for i in self.order
        ]


def latent_use(
    module: Module,
    data: str | Path | MotionSet,
    *,
    robot: Robot | None = None,
    split: str | None = None,
    num_robots: int = 64,
    steps: int = 200,
    seed: int = 0,
    robots_config: RobotBatchConfig | None = None,
    threads: int = 0,
    engine: str = "",
) -> LatentUse:
    """Track motions with sampled latents, and measure the information in each dimension.

    Args:
      data: motions of the module's robot. split: "train" or "validation"; None: all.
      robot: None: the module's.
      steps: control steps of every robot, from random frames, with resets.
      robots_config: physics, sensors and pushes; None: ideal robots with the module's hold.
      threads, engine: of the physics, as `num_threads` and `engine` of `TaskEnv`.

    Raises:
      InputError: for a missing module or dataset, or if they are of different robots.
    """
    skill = open_module(module)
    robot = robot or robots.load(skill.robot)
    skill.check_robot(robot)
    skill.check_encoder(robot)
    motions = data if isinstance(data, MotionSet) else load_motions(data, robot, split)
    frames = skill.contract.context_horizon
    task = Imitation(robot, ImitationConfig(future_frames=frames), motions)
    config = robots_config or RobotBatchConfig().like(skill)
    env = TaskEnv(task, num_robots, robots=config, seed=seed, num_threads=threads, engine=engine)
    return use_in(skill, env, steps=steps, seed=seed)


def use_in(skill: SkillModule, env: ImitationEnv, *, steps: int, seed: int) -> LatentUse:
    """As `latent_use`, in an existing environment; its generator is reseeded."""
    zs: list[Tensor] = []
    deviations: list[Gaussian] = []
    kls: list[Tensor] = []
    row = 2 * 3 * 4 * skill.latent_dim * env.num_envs  # lists of steps, then concatenated
    require_memory(steps * row, f"steps={steps}: the latents of {env.num_envs:,} robots")

    def record(transition: Transition) -> None:
        o = transition.observation
        before = transition.state.z
        deviation = skill.encode(o.task, before)
        observed = skill.prior.observe(o.state, o.task)
        zs.append(transition.next_state.z)
        deviations.append(deviation)
        kls.append(skill.prior.kl_of_deviation(deviation, before, observed))

    env.generator.manual_seed(seed)
    env.task.tracking.sampler.forget()
    env.reset()
    rollout(tracking(skill, torch.Generator().manual_seed(seed)), env, steps, record)
    mu, sigma = cat_trees(deviations)
    mean = mu.var(0)
    share = mean / (mean + sigma.square().mean(0))
    return LatentUse(torch.cat(kls).mean(0), share, torch.cat(zs).std(0))
