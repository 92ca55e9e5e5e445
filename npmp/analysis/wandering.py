"""What a skill module does without a task: robots on latents of its prior, held against white
noise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocap_data.files import new_hdf5
from mocap_data.store import MotionSet
from npmp import robots
from npmp.actors import PriorActor
from npmp.analysis.description import Module, open_module
from npmp.envs import RobotBatchConfig, TaskEnv, load_motions
from npmp.robots import Robot
from npmp.rollout import Decision, Moment, rollout
from npmp.skill import SkillModule
from npmp.tasks import Imitation, ImitationConfig, Walk

LATENTS = ("prior", "white", "white_actions")
# of the bootstrap
RESAMPLES = 10_000
# of its draws, so that thousands of robots take some tens of MB
_AT_ONCE = 1_000_000


class Wandering(NamedTuple):
    """n robots on latents of no task's choosing, for `cap_s` seconds at most: times of those still
    up then are censored."""

    up_s: Tensor  # (n,) seconds until the fall, cap_s where there was none
    travelled_m: Tensor  # (n,) length of the root's horizontal path until then
    qpos: Tensor  # (T + 1, shown, nq) float64, of the first robots; continues after a fall
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
        """`up_s_mean` (of censored times: at most cap_s, a lower bound of the uncensored mean),
        `up_s_median`, `up_to_the_end` (share of robots), `path_m` (mean length of the path),
        `speed_mps` (all paths by all times).
        """
        return {
            "up_s_mean": self.up_s.mean().item(),
            "up_s_median": self.up_s.quantile(0.5).item(),
            "up_to_the_end": self.still_up().float().mean().item(),
            "path_m": self.travelled_m.mean().item(),
            "speed_mps": (self.travelled_m.sum() / self.up_s.sum().clamp(min=self.dt)).item(),
        }


def ratio_of_means(times: Tensor, others: Tensor, *, seed: int = 0) -> dict[str, float]:
    """`ratio`, mean(times) / mean(others), and `low` and `high`, its bootstrap interval, 2.5 to
    97.5 %: pairs are drawn together.

    times, others: (n,), paired: the same start, physics and senses. Both censored at the same time,
    so that a ratio above 1 is an underestimate where many of `times` are.
    """
    generator = torch.Generator().manual_seed(seed)
    found, rows = [], max(1, _AT_ONCE // len(times))
    for first in range(0, RESAMPLES, rows):
        shape = (min(rows, RESAMPLES - first), len(times))
        draw = torch.randint(len(times), shape, generator=generator)
        found.append(times.double()[draw].mean(-1) / others.double()[draw].mean(-1).clamp(min=1e-9))
    ratios = torch.cat(found).sort().values
    low, high = (float(ratios[round(share * (RESAMPLES - 1))]) for share in (0.025, 0.975))
    ratio = float(times.double().mean() / others.double().mean().clamp(min=1e-9))
    return {"ratio": ratio, "low": low, "high": high}


def wander(
    module: Module,
    data: str | Path | MotionSet | None = None,
    *,
    robot: Robot | None = None,
    split: str | None = None,
    num_robots: int = 64,
    seconds: float = 20.0,
    seed: int = 0,
    robots_config: RobotBatchConfig | None = None,
    threads: int = 0,
    shown: int = 8,
) -> dict[str, Wandering]:
    """Let robots wander without a task until they fall, each kind of latents from the same starts,
    physics, senses and pushes.

    - "prior": the AR(1) process of eq. 5 from its stationary distribution.
    - "white": N(0, I), drawn at every control step: the same variance and no memory. A decoder
      averages it to a nearly constant latent, on which the robot stands still: the path shows it.
    - "white_actions": no module: every joint target drawn at every control step, normal with the
      mean and standard deviation that it has under the prior.

    Args:
      data: motions of the robot, from whose random frames it starts, moving as they do; None: from
        the home pose, at rest.
      robot, split, robots_config, threads: as of `npmp.analysis.latent_use`.
      seconds: at most; a robot that is still up then counts with this time, so means are censored
        there.
      shown: robots whose motion is kept.

    A robot has fallen when it lies or tips over by more than 60 degrees (`TaskEnv.fallen`), or its
    simulation breaks down.

    Raises:
      InputError: for a module or dataset that is not there, or that are of different robots.
    """
    skill = open_module(module)
    robot = robot or robots.load(skill.robot)
    skill.check_robot(robot)
    task: Imitation | Walk
    if data is None:
        task = Walk(robot)
    else:
        motions = data if isinstance(data, MotionSet) else load_motions(data, robot, split)
        task = Imitation(robot, ImitationConfig(uniform_starts=1.0), motions)
    like = robots_config or RobotBatchConfig().like(skill)
    env: TaskEnv[Any] = TaskEnv(task, num_robots, robots=like, seed=seed, num_threads=threads)
    trials: dict[str, Wandering] = {}
    given: dict[str, Any] = {"seconds": seconds, "seed": seed, "shown": shown}
    for kind in LATENTS:
        if kind == "white_actions":
            given["noise"] = (trials["prior"].action_mean, trials["prior"].action_std)
        trials[kind] = wander_in(skill, env, kind, **given)
    return trials


class _NoiseActor:
    """No module: joint targets of a mean and deviation each, drawn at every step. It senses,
    so that what is drawn for pushes and delays is what others meet."""

    def __init__(self, mean: Tensor, std: Tensor, generator: torch.Generator):
        self.mean, self.std, self.generator = mean, std, generator

    def initial_memory(self, n: int) -> None:
        """None."""

    def act(self, env: TaskEnv[Any], memory: None, first: Tensor) -> Decision:
        """As `Actor.act`."""
        env.observe()
        drawn = torch.randn((env.num_envs, len(self.mean)), generator=self.generator)
        return Decision(self.mean + self.std * drawn, None)


class _WanderRecorder:
    """Follows robots until they fall. Ends the rollout when none is up."""

    def __init__(self, env: TaskEnv[Any], shown: int):
        self.env, self.shown = env, shown
        n = env.num_envs
        self.up = torch.ones(n, dtype=torch.bool)
        self.steps, self.travelled = torch.zeros(n), torch.zeros(n)
        # of the actions while up: number, sum, sum of squares
        self.moments = torch.zeros(3, env.num_actions, dtype=torch.float64)
        self.qpos = [env.robots.qpos[:shown].clone()]
        self._place = env.state.root_pos[:, :2]

    def __call__(self, moment: Moment) -> bool:
        """As `npmp.rollout.Recorder`."""
        env, state = self.env, moment.step.state
        tried = moment.decision.action[self.up].double()
        count = torch.full_like(self.moments[0], len(tried))
        self.moments += torch.stack((count, tried.sum(0), tried.square().sum(0)))
        # the state after a breakdown is that of before, and stands
        self.up = self.up & ~env.robots.broken & ~env.fallen(state)
        self.steps += self.up
        place = state.root_pos[:, :2]
        self.travelled += torch.where(self.up, (place - self._place).norm(dim=-1), 0.0)
        self._place = place
        self.qpos.append(env.robots.qpos[: self.shown].clone())
        return not self.up.any()


def wander_in(
    skill: SkillModule,
    env: TaskEnv[Any],
    latents: str,
    *,
    seconds: float,
    seed: int,
    noise: tuple[Tensor, Tensor] | None = None,
    shown: int = 8,
) -> Wandering:
    """One kind of latents, from a reset of the environment; the same seed gives the same starts,
    physics, senses and pushes.

    noise: mean and standard deviation (nu,) of "white_actions".
    """
    generator = torch.Generator().manual_seed(seed)
    env.generator.manual_seed(seed)
    env.reset()
    steps, record = max(1, round(seconds / env.dt)), _WanderRecorder(env, shown)
    actor: PriorActor | _NoiseActor = PriorActor(skill, generator, white=latents == "white")
    if noise is not None:
        actor = _NoiseActor(*noise, generator)
    rollout(actor, env, steps, record, resets=None)
    moments, dt = record.moments, env.dt
    mean = moments[1] / moments[0]
    std = (moments[2] / moments[0] - mean.square()).clamp(min=0.0).sqrt()
    qpos, up_s = torch.stack(record.qpos), record.steps * dt
    return Wandering(up_s, record.travelled, qpos, mean.float(), std.float(), dt, steps * dt)


def summarize(trials: dict[str, Wandering], *, seed: int = 0) -> dict[str, Any]:
    """The figures of every kind, and how much longer the prior keeps robots up than each kind of
    noise, with its interval."""
    figures: dict[str, Any] = {kind: trial.summary() for kind, trial in trials.items()}
    for kind, trial in trials.items():
        if kind != "prior":
            ratio = ratio_of_means(trials["prior"].up_s, trial.up_s, seed=seed)
            figures[kind]["prior_up_ratio"] = ratio
    return figures


def write_motions(path: Path, robot: Robot, trials: Mapping[str, Wandering]) -> None:
    """rollouts.h5: a group "KIND i" per robot shown with qpos (T, nq), rate_hz and up_frames, the
    frames until its fall."""
    with new_hdf5(path, track_order=True) as file:
        file.attrs["robot"] = robot.name
        file.attrs["joint_names"] = list(robot.joint_names)
        for kind, trial in trials.items():
            for i in range(trial.qpos.shape[1]):
                qpos, group = trial.qpos[:, i].numpy(), file.create_group(f"{kind} {i}")
                group.attrs["rate_hz"] = 1.0 / trial.dt
                group.attrs["up_frames"] = min(trial.up_frames(i), len(qpos))
                group.create_dataset("qpos", data=qpos, compression="gzip", compression_opts=1)
