"""Rollouts of a skill module without a task, on latents of its prior."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocap_data.files import new_hdf5
from mocap_data.input_files import require_memory
from mocap_data.store import MotionSet
from npmp import robots
from npmp.envs import RobotBatchConfig, TaskEnv, load_motions
from npmp.envs.rollout import Transition, rollout
from npmp.evaluation.analysis.description import Module, open_module
from npmp.robots import Robot
from npmp.skills.composition import wandering
from npmp.skills.skill_module import SkillModule
from npmp.tasks import Imitation, ImitationConfig, Walk


class Wandering(NamedTuple):
    """n robots on latents of the prior, for at most `cap_s` [s], at which times are censored."""

    up_s: Tensor  # (n,) time until the fall [s], cap_s without one
    travelled_m: Tensor  # (n,) length of the root's horizontal path until then [m]
    qpos: Tensor  # (T + 1, kept, nq) float64 of the first robots, also after a fall
    # (T + 1, kept, nv)
    qvel: Tensor
    # (T, kept, nu) joint targets [rad]
    setpoints: Tensor
    dt: float  # control period [s]
    cap_s: float

    def still_up(self) -> Tensor:
        """Robots that did not fall, (n,) bool."""
        return self.up_s > self.cap_s - 0.5 * self.dt

    def up_frames(self, i: int) -> int:
        """Number of frames of robot i until its fall, the start included."""
        return round(float(self.up_s[i]) / self.dt) + 1

    def summary(self) -> dict[str, float]:
        """`up_s_mean` (of censored times, a lower bound), `up_s_median`, `up_to_the_end` (share of
        robots), `path_m` (mean length of the path), `speed_mps` (sum of paths / sum of times)."""
        return {
            "up_s_mean": self.up_s.mean().item(),
            "up_s_median": self.up_s.quantile(0.5).item(),
            "up_to_the_end": self.still_up().float().mean().item(),
            "path_m": self.travelled_m.mean().item(),
            "speed_mps": (self.travelled_m.sum() / self.up_s.sum().clamp(min=self.dt)).item(),
        }


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
    engine: str = "",
    kept: int = 8,
) -> Wandering:
    """Run robots without a task on latents of the module's prior, until they fall.

    A robot has fallen when `TaskEnv.fallen` is true or its simulation diverges.

    Args:
      data: motions of the robot, whose random frames are the starts; None: the home pose at rest.
      robot, split, robots_config, threads, engine: as in `npmp.evaluation.analysis.latent_use`.
      seconds: upper limit, at which times are censored.
      kept: number of robots whose motion is recorded.

    Raises:
      InputError: for a missing module or dataset, or if they are of different robots.
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
    config = robots_config or RobotBatchConfig().like(skill)
    env: TaskEnv[Any] = TaskEnv(
        task, num_robots, robots=config, seed=seed, num_threads=threads, engine=engine
    )
    return wander_in(skill, env, seconds=seconds, seed=seed, kept=kept)


class _WanderRecorder:
    """Records robots until they fall. Ends the rollout when none is up."""

    def __init__(self, env: TaskEnv[Any], kept: int):
        self.env = env
        self.kept = kept
        n = env.num_envs
        self.up = torch.ones(n, dtype=torch.bool)
        self.steps = torch.zeros(n)
        self.travelled = torch.zeros(n)
        self.qpos = [env.robots.qpos[:kept].clone()]
        self.qvel = [env.robots.qvel[:kept].clone()]
        self.setpoints: list[Tensor] = []
        self._position = env.state.root_pos[:, :2]

    def __call__(self, transition: Transition) -> bool:
        env = self.env
        state = transition.step.state
        # after a divergence the state is the previous one, which has not fallen
        self.up = self.up & ~env.robots.broken & ~env.fallen(state)
        self.steps += self.up
        position = state.root_pos[:, :2]
        self.travelled += torch.where(self.up, (position - self._position).norm(dim=-1), 0.0)
        self._position = position
        self.qpos.append(env.robots.qpos[: self.kept].clone())
        self.qvel.append(env.robots.qvel[: self.kept].clone())
        self.setpoints.append(state.setpoint[: self.kept].clone())
        return not self.up.any()


def wander_in(
    skill: SkillModule, env: TaskEnv[Any], *, seconds: float, seed: int, kept: int = 8
) -> Wandering:
    """As `wander`, in an existing environment after a reset; its generator is reseeded."""
    env.generator.manual_seed(seed)
    env.reset()
    steps = max(1, round(seconds / env.dt))
    record = _WanderRecorder(env, kept)
    # lists of steps, then stacked
    row = 2 * (record.qpos[0].nbytes + record.qvel[0].nbytes + env.state.setpoint[:kept].nbytes)
    require_memory(steps * row, f"seconds={seconds:g}: the motions of {kept} robots")
    policy = wandering(skill, torch.Generator().manual_seed(seed))
    rollout(policy, env, steps, record, resets=None)
    return Wandering(
        up_s=record.steps * env.dt,
        travelled_m=record.travelled,
        qpos=torch.stack(record.qpos),
        qvel=torch.stack(record.qvel),
        setpoints=torch.stack(record.setpoints),
        dt=env.dt,
        cap_s=steps * env.dt,
    )


def write_motions(
    path: Path, robot: Robot, trial: Wandering, *, source: str = "", licence: str = "unknown"
) -> None:
    """Write rollouts.h5: a group "prior i" per recorded robot, with qpos (T, nq), qvel (T, nv),
    setpoints (T - 1, nu), rate_hz, source, licence and up_frames, the number of frames until its
    fall.

    source, licence: of the module.
    """
    with new_hdf5(path, track_order=True) as file:
        file.attrs["robot"] = robot.name
        file.attrs["joint_names"] = list(robot.joint_names)
        for i in range(trial.qpos.shape[1]):
            group = file.create_group(f"prior {i}")
            group.attrs["rate_hz"] = 1.0 / trial.dt
            group.attrs["up_frames"] = min(trial.up_frames(i), len(trial.qpos))
            group.attrs["source"] = source
            group.attrs["licence"] = licence
            for name in ("qpos", "qvel", "setpoints"):
                values = getattr(trial, name)[:, i].numpy()
                group.create_dataset(name, data=values, compression="gzip", compression_opts=1)
