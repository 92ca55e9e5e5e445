"""What a skill module does without a task: robots on latents of its prior, held against white noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp import robots
from npmp.envs import ImitationConfig, ImitationEnv, WalkingConfig, WalkingEnv, load_motions
from npmp.envs.plant import PlantConfig
from npmp.nets import prior
from npmp.nets.prior import sample_stationary
from npmp.reading.description import Module, open_module
from npmp.robots import Robot
from npmp.skill import SkillModule

LATENTS = ("prior", "white", "white_actions")
RESAMPLES = 10_000  # of the bootstrap
_AT_ONCE = 1_000_000  # of its draws, so that thousands of robots take some tens of MB


class Wandering(NamedTuple):
    """n robots on latents of no task's choosing, for `cap_s` seconds at most: times of those still up then are
    censored."""

    up_s: Tensor  # (n,) seconds until the fall, cap_s where there was none
    travelled_m: Tensor  # (n,) length of the root's horizontal path until then
    qpos: Tensor  # (T + 1, shown, nq) float64, of the first robots; goes on after a fall
    action_mean: Tensor  # (nu,) of the joint targets while up [rad]
    action_std: Tensor  # (nu,)
    dt: float  # control period [s]
    cap_s: float

    def still_up(self) -> Tensor:
        """(n,) bool: up until the end."""
        return self.up_s > self.cap_s - 0.5 * self.dt

    def up_frames(self, i: int) -> int:
        """Frames of robot i's motion until its fall, the start included."""
        return round(float(self.up_s[i]) / self.dt) + 1

    def summary(self) -> dict[str, float]:
        """`up_s_mean` (of censored times: at most cap_s, a lower bound of the uncensored mean), `up_s_median`,
        `up_to_the_end` (share of robots), `path_m` (mean length of the path), `speed_mps` (all paths by all times).
        """
        return {
            "up_s_mean": self.up_s.mean().item(),
            "up_s_median": self.up_s.quantile(0.5).item(),
            "up_to_the_end": self.still_up().float().mean().item(),
            "path_m": self.travelled_m.mean().item(),
            "speed_mps": (self.travelled_m.sum() / self.up_s.sum().clamp(min=self.dt)).item(),
        }


class Ratio(NamedTuple):
    """A ratio of mean times, and its 95 % interval."""

    ratio: float
    low: float
    high: float


def ratio_of_means(times: Tensor, others: Tensor, *, seed: int = 0) -> Ratio:
    """mean(times) / mean(others) with its bootstrap interval, 2.5 to 97.5 %: pairs are drawn together.

    times, others: (n,), paired: the same start, physics and senses. Both censored at the same time, so that a ratio
    above 1 is an underestimate where many of `times` are.
    """
    generator = torch.Generator().manual_seed(seed)
    found, rows = [], max(1, _AT_ONCE // len(times))
    for first in range(0, RESAMPLES, rows):
        draw = torch.randint(len(times), (min(rows, RESAMPLES - first), len(times)), generator=generator)
        found.append(times.double()[draw].mean(-1) / others.double()[draw].mean(-1).clamp(min=1e-9))
    ratios = torch.cat(found).sort().values
    low, high = (float(ratios[round(share * (RESAMPLES - 1))]) for share in (0.025, 0.975))
    return Ratio(float(times.double().mean() / others.double().mean().clamp(min=1e-9)), low, high)


def wander(
    module: Module,
    data: str | Path | MotionSet | None = None,
    *,
    robot: Robot | None = None,
    split: str | None = None,
    latents: tuple[str, ...] = LATENTS,
    num_robots: int = 64,
    seconds: float = 20.0,
    seed: int = 0,
    plant: PlantConfig | None = None,
    threads: int = 0,
    shown: int = 8,
) -> dict[str, Wandering]:
    """Let robots wander without a task until they fall, each kind of latents from the same starts, physics, senses and
    pushes.

    - "prior": the AR(1) process of eq. 5 from its stationary distribution: what the decoder was trained to make motion
      of.
    - "white": N(0, I), drawn anew at every control step: the same variance and no memory. A decoder averages it over
      time, so that it acts like a nearly constant latent: standing still on it is no skill, and the path says so.
    - "white_actions": no module at all: every joint target drawn anew at every control step, normal with the mean and
      standard deviation that this joint's targets have under the prior. What exploration without a module looks like.

    Args:
      data: motions of the robot, from whose random frames it starts, moving as they do; None: from the home pose, at
        rest.
      robot, split, plant, threads: as of `npmp.reading.latent_use`.
      latents: which kinds, of `LATENTS`; "prior" is always among them.
      seconds: at most; a robot that is still up then counts with this time, so means are censored there.
      shown: robots whose motion is kept.

    A robot has fallen when it lies or tips over by more than 60 degrees (`PlantEnv.fallen`), or its simulation breaks
    down.

    Raises: InputError for an unknown kind, and for a module or dataset that is not there, or that are of different
      robots.
    """
    if unknown := [kind for kind in latents if kind not in LATENTS]:
        raise InputError(f"no latents '{unknown[0]}'; there are: {', '.join(LATENTS)}")
    skill = open_module(module)
    robot = robot or robots.load(skill.robot)
    skill.check_robot(robot)
    plant = plant or PlantConfig(hold=skill.hold)
    env: ImitationEnv | WalkingEnv
    if data is None:
        env = WalkingEnv(robot, num_robots, seed=seed, config=WalkingConfig(plant=plant, num_threads=threads))
    else:
        motions = data if isinstance(data, MotionSet) else load_motions(data, robot, split)
        config = ImitationConfig(plant=plant, num_threads=threads, uniform_starts=1.0)
        env = ImitationEnv(robot, motions, num_robots, seed=seed, config=config)
    trials: dict[str, Wandering] = {}
    for kind in LATENTS:
        if kind == "prior" or kind in latents:
            noise = None if kind != "white_actions" else (trials["prior"].action_mean, trials["prior"].action_std)
            trials[kind] = wander_in(skill, env, kind, seconds=seconds, seed=seed, noise=noise, shown=shown)
    return trials


@torch.no_grad()
def wander_in(
    skill: SkillModule,
    env: ImitationEnv | WalkingEnv,
    latents: str,
    *,
    seconds: float,
    seed: int,
    noise: tuple[Tensor, Tensor] | None = None,
    shown: int = 8,
) -> Wandering:
    """One kind of latents, from a reset of the environment; the same seed gives the same starts, physics, senses and
    pushes.

    noise: mean and standard deviation (nu,) of "white_actions".
    """
    if latents not in LATENTS:
        raise ValueError(f"latents must be one of {', '.join(LATENTS)}; got {latents!r}")
    generator = torch.Generator().manual_seed(seed)
    env.generator.manual_seed(seed)
    env.reset()
    n, steps = env.num_envs, max(1, round(seconds / env.dt))
    z, memory = sample_stationary((n, skill.latent_dim), generator), skill.initial_state(n)
    up, count, travelled = torch.ones(n, dtype=torch.bool), torch.zeros(n), torch.zeros(n)
    moments = torch.zeros(
        3, env.num_actions, dtype=torch.float64
    )  # of the actions while up: number, sum, sum of squares
    qpos = [env.sim.qpos[:shown].clone()]
    for _ in range(steps):
        if latents == "prior":
            z = prior.sample_prior(z, skill.alpha, generator)
        elif latents == "white":
            z = sample_stationary((n, skill.latent_dim), generator)
        observed = env.observe()  # drawn for every kind, so that all of them meet the same pushes and delays
        if noise is None:
            action, memory = skill.decode(z, observed, memory)
        else:
            action = noise[0] + noise[1] * torch.randn((n, env.num_actions), generator=generator)
        tried = action[up].double()
        moments += torch.stack((torch.full_like(moments[0], len(tried)), tried.sum(0), tried.square().sum(0)))
        before = env.state.root_pos[:, :2]
        env.plant.step(action, env.generator)
        # the state after a breakdown is that of before, and stands
        up = up & ~env.plant.broken & ~env.fallen(env.state)
        count += up
        travelled += torch.where(up, (env.state.root_pos[:, :2] - before).norm(dim=-1), 0.0)
        qpos.append(env.sim.qpos[:shown].clone())
        if not up.any():
            break
    mean = moments[1] / moments[0]
    std = (moments[2] / moments[0] - mean.square()).clamp(min=0.0).sqrt()
    return Wandering(count * env.dt, travelled, torch.stack(qpos), mean.float(), std.float(), env.dt, steps * env.dt)


def summarize(trials: dict[str, Wandering], *, seed: int = 0) -> dict[str, Any]:
    """The figures of every kind, and how much longer the prior keeps robots up than each kind of noise, with its
    interval."""
    figures: dict[str, Any] = {kind: trial.summary() for kind, trial in trials.items()}
    for kind, trial in trials.items():
        if kind != "prior":
            figures[kind]["prior_up_ratio"] = ratio_of_means(trials["prior"].up_s, trial.up_s, seed=seed)._asdict()
    return figures
