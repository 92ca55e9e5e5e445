"""Gait metrics per foot, for policies, for modules that track recordings, and for recordings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mocap_data.arrays import Array as Floats
from mocap_data.arrays import Bools
from mocap_data.motion import smoothed
from mocap_data.store import MotionSet
from npmp.envs import TaskEnv
from npmp.envs.feet import Feet
from npmp.envs.state import pose_from_qpos
from npmp.envs.task import Trial
from npmp.evaluation.trial import run_trial
from npmp.robots import Robot
from npmp.skills.composition import tracking
from npmp.skills.skill_module import SkillModule
from npmp.tasks.commands import mean_velocities
from npmp.tasks.imitation import Imitation, ImitationConfig

# feet below this height are in contact [m]
CONTACT_M = 0.005
# speed of the base above which the robot walks [m/s]
MOVING_MPS = 0.1
# robots in the trial of a module that tracks recordings
TRACKED_ROBOTS = 64
# duration of this trial [s]
TRACKED_S = 20.0
# horizontal speed of the base below which a robot stands still [m/s]
STILL_MPS = 0.02
# time after which a robot at command zero must stand still [s]
STILL_S = 0.5
# shorter swings are bounces
MIN_SWING_S = 0.06
# tolerance of velocities at a command, for modules and recordings [m/s, m/s, rad/s]
COMMAND_TOLERANCE = (0.1, 0.1, 0.3)
# least time at a command
MIN_DURATION_S = 2.0
# Limits for walking robots at every command [D]. Least median swing height of every foot, for a
# base 0.5 m above the ground, proportional to that height [m]
MIN_LIFT_M = 0.02
# largest mean speed of a foot in stance, at commands up to 0.5 m/s, up to 1 m/s, above [m/s]
MAX_STANCE_MPS = (0.15, 0.25, 0.35)
# largest error of mean velocities [m/s, rad/s]
MAX_ERROR = 0.08


class FootMotion(NamedTuple):
    """Motion of F feet over T control steps of n robots or recordings."""

    height: Floats  # (T, n, F) of the lowest point above the ground [m]
    speed: Floats  # (T, n, F) horizontal [m/s]
    valid: Bools  # (T, n) after the start and before a fall
    dt: float  # [s]

    def where(self, mask: Bools) -> FootMotion:
        """With only the steps in `mask`, (T, n), valid."""
        return self._replace(valid=self.valid & mask)


def swings(height: Floats, valid: Bools, dt: float) -> tuple[Floats, NDArray[np.int_]]:
    """Complete swings of one foot: all steps valid, `MIN_SWING_S` or longer.

    height, valid: (T, n). Returns: peak heights (k,) [m]; first step, last step and robot (3, k),
      sorted by robot and time.
    """
    steps = len(height)
    up = np.zeros((height.shape[1], steps + 2), np.int8)
    up[:, 1:-1] = height.T >= CONTACT_M
    edges = np.diff(up, axis=1)
    robot, first = np.nonzero(edges == 1)
    last = np.nonzero(edges == -1)[1] - 1
    num_invalid = np.pad(np.cumsum(~valid, 0), ((1, 0), (0, 0)))
    long_enough = (last - first + 1) * dt >= MIN_SWING_S - 1e-9
    complete = (first > 0) & (last < steps - 1) & long_enough
    first = first[complete]
    last = last[complete]
    robot = robot[complete]
    all_valid = num_invalid[last + 2, robot] == num_invalid[first - 1, robot]
    spans = np.stack((first, last, robot))[:, all_valid]
    peaks = [height[a : b + 1, r].max() for a, b, r in spans.T]
    return np.array(peaks), spans


def foot_positions(robot: Robot) -> Floats:
    """Feet in the home pose relative to their mean, forward and left, (F, 2) [m]."""
    home = torch.tensor(robot.home_qpos)[None]
    positions = Feet(robot)(*pose_from_qpos(home))[0, ..., :2].mean(-2).double().numpy()
    return positions - positions.mean(0)


def opposite_feet(robot: Robot) -> list[tuple[int, int]]:
    """Pairs of opposite feet: the diagonals of four, left and right of two."""
    positions = foot_positions(robot)
    pairs = np.linalg.norm(positions[:, None] + positions[None], axis=-1).argmin(-1).tolist()
    return [(a, b) for a, b in enumerate(pairs) if a < b and pairs[b] == a]


def foot_motion(trial: Trial, robots: slice, valid: torch.Tensor) -> FootMotion:
    """Foot motion of some robots of a trial; valid: (T, n) bool of these."""
    height, speed = trial.metrics["feet"][:, robots].double().unbind(-1)
    return FootMotion(height.numpy(), speed.numpy(), valid.numpy(), trial.dt)


def gait_metrics(motion: FootMotion, pairs: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Metrics per foot, lists of F; None for a foot that never swings or never stands.

    `lift_m`: median peak height of swings. `swing_share`: share of the time above 5 mm.
    `stance_mps`: mean horizontal speed in contact at both ends of a control step. `step_rate_hz`:
    swings per second. `phase`: of touchdown within the first foot's stride, circular mean in [0,
    1). `opposite_correlation`: of the heights of opposite feet, mean over robots and pairs; 1 for a
    trot, about -0.2 for a four-beat walk.
    """
    height, speed, valid, dt = motion
    seconds = valid.sum() * dt
    feet = range(height.shape[-1])
    if not seconds:
        return {}
    low = height < CONTACT_M
    stance = valid[1:, :, None] & low[1:] & low[:-1]
    touchdowns = []
    names = ("lift_m", "swing_share", "stance_mps", "step_rate_hz", "phase")
    rows: dict[str, list[float | None]] = {name: [] for name in names}
    for f in feet:
        peaks, spans = swings(height[..., f], valid, dt)
        touchdowns.append(spans[1:])
        stance_speed = speed[1:, :, f][stance[..., f]]
        rows["lift_m"].append(float(np.median(peaks)) if len(peaks) else None)
        rows["swing_share"].append(float((~low[..., f])[valid].mean()))
        rows["stance_mps"].append(float(stance_speed.mean()) if len(stance_speed) else None)
        rows["step_rate_hz"].append(len(peaks) / seconds)
        rows["phase"].append(_phase(touchdowns[0], touchdowns[f], 2.0 / dt))
    correlations = []
    for n in range(height.shape[1]):
        heights = height[valid[:, n], n]
        for a, b in pairs:
            if len(heights) > 1 and heights[:, a].std() > 1e-6 and heights[:, b].std() > 1e-6:
                correlations.append(np.corrcoef(heights[:, a], heights[:, b])[0, 1])
    correlation = float(np.mean(correlations)) if correlations else None
    return rows | {"opposite_correlation": correlation}


def standing_metrics(trial: Trial) -> dict[str, Any]:
    """Metrics of robots at command zero from the trial's start on.

    A robot stands still if all feet are in contact and its base is slower than `STILL_MPS`.

    Returns: `stand_s`, the time until it does so for good, median over robots; None: never.
    `stood`, the share of robots within `STILL_S`, which fall at no time. After `STILL_S`:
    `base_mps`, the base's mean speed, and `feet_down`, the share of time with all feet in contact.
    """
    speed = trial.metrics["base"][..., 3]
    down = (trial.metrics["feet"][..., 0] < CONTACT_M).all(-1)
    still = down & (speed < STILL_MPS)
    steps = len(still)
    time = torch.arange(1, steps + 1).unsqueeze(-1)
    last_moving = torch.where(still, 0, time).amax(0)
    never = (last_moving == steps) | trial.fell.any(0)
    seconds = torch.where(never, torch.inf, last_moving.double() * trial.dt)
    median = seconds.median().item()
    after = slice(min(round(STILL_S / trial.dt), steps - 1), None)
    return {
        "stand_s": median if math.isfinite(median) else None,
        "stood": (seconds <= STILL_S + 1e-6).float().mean().item(),
        "base_mps": speed[after].mean().item(),
        "feet_down": down[after].float().mean().item(),
    }


def _phase(strides: NDArray[np.int_], touchdowns: NDArray[np.int_], longest: float) -> float | None:
    """Circular mean of the phases of touchdowns within strides; both (2, k) of step and robot.
    Strides longer than `longest` steps are pauses."""
    start = strides[1] * 10_000_000 + strides[0]
    time = touchdowns[1] * 10_000_000 + touchdowns[0]
    i = np.searchsorted(start, time, side="right") - 1
    inside = (i >= 0) & (i + 1 < len(start))
    i = i[inside]
    time = time[inside]
    duration = start[i + 1] - start[i]
    phase = ((time - start[i]) / duration)[duration <= longest]
    if not len(phase):
        return None
    return float(np.angle(np.exp(2j * np.pi * phase).mean()) / (2 * np.pi) % 1.0)


def faults(row: Mapping[str, Any], base_height: float) -> list[str]:
    """Messages for the entries of a row of `evaluate_commands` that exceed their limits.

    base_height: of the robot in the home pose [m].
    """
    command = row["command"]
    problems = []
    if row["falls"]:
        problems.append(f"{row['falls']} falls")
    if not row.get("achieved"):
        return problems
    error = np.abs(np.subtract(row["achieved"], command))
    if error[:2].max() > MAX_ERROR:
        problems.append(f"off by {error[:2].max():.2f} m/s")
    if error[2] > MAX_ERROR:
        problems.append(f"off by {error[2]:.2f} rad/s")
    if row["dead"]:
        problems.append("achieves less than half of the command")
    moves = float(np.abs(command).max()) > 0.0
    problems += skating(row, command, base_height) if moves else restless(row)
    if row["joint_speed_share"] > 1.0:
        problems.append(f"joints at {row['joint_speed_share']:.1f} of their speed limit")
    return problems


def skating(metrics: Mapping[str, Any], command: Sequence[float], base_height: float) -> list[str]:
    """Messages for `gait_metrics` of a walking robot that exceed their limits."""
    problems = []
    lift = worst(metrics["lift_m"], min)
    min_lift = MIN_LIFT_M * base_height / 0.5
    if lift < min_lift:
        problems.append(f"a foot lifts by {100 * lift:.1f} cm")
    stance_speed = worst(metrics["stance_mps"], max)
    speed = math.hypot(*command[:2])
    if stance_speed > MAX_STANCE_MPS[0 if speed <= 0.5 else 1 if speed <= 1.0 else 2]:
        problems.append(f"a foot slides at {stance_speed:.2f} m/s in stance")
    return problems


def restless(metrics: Mapping[str, Any]) -> list[str]:
    """Messages for `standing_metrics` of robots that do not all stand still."""
    if metrics["stood"] == 1.0:
        return []
    return [f"{100.0 * metrics['stood']:.0f} % of robots stand still within {STILL_S:g} s"]


def worst(values: Sequence[float | None], reduce: Any) -> float:
    """Minimum or maximum over feet; None counts as 0."""
    return float(reduce(0.0 if value is None else value for value in values))


def worst_foot(trial: Trial) -> dict[str, float]:
    """Gait metrics of the worst foot while the base moves; empty if it never does.

    A mean over feet would hide front feet that slide while hind feet step.

    Returns: as `of_worst_foot`.
    """
    moving = (trial.metrics["base"][..., 3] > MOVING_MPS) & ~(
        trial.fell | trial.metrics["is_first"]
    )
    return of_worst_foot(gait_metrics(foot_motion(trial, slice(None), moving), ()))


def of_worst_foot(metrics: Mapping[str, Any]) -> dict[str, float]:
    """`swing_share`, `foot_lift_m` and `stance_mps` of the worst foot, from `gait_metrics`."""
    if not metrics:
        return {}
    return {
        "swing_share": worst(metrics["swing_share"], min),
        "foot_lift_m": worst(metrics["lift_m"], min),
        "stance_mps": worst(metrics["stance_mps"], max),
    }


def module_foot_motion(
    skill: SkillModule, robot: Robot, motions: MotionSet, *, seed: int, **device_options: Any
) -> tuple[FootMotion, Floats]:
    """Foot motion of a module that tracks recordings from random frames, and its mean velocities
    over the half second around each step (T, n, 3). device_options: as of `TaskEnv`."""
    frames = skill.contract.context_horizon
    config = ImitationConfig(uniform_starts=1.0, future_frames=frames)
    task = Imitation(robot, config, motions)
    env = TaskEnv(task, TRACKED_ROBOTS, seed=seed, **device_options)
    trial = run_trial(tracking(skill), env, seconds=TRACKED_S, seed=seed)
    motion = foot_motion(trial, slice(None), ~(trial.fell | trial.metrics["is_first"]))
    return motion, smoothed(trial.metrics["velocity"].double().numpy(), 1.0 / trial.dt)


def recorded_foot_motion(robot: Robot, motions: MotionSet) -> tuple[FootMotion, Floats]:
    """As `module_foot_motion`, of the recordings in sequence."""
    feet = Feet(robot)
    parts = []
    for motion in motions.motions:
        if motion.num_frames < 2:
            continue
        points = feet(*pose_from_qpos(torch.tensor(motion.qpos)))
        height = feet.heights(motion.qpos, motion.ground).astype(np.float64)
        center = points[..., :2].mean(-2).double().numpy()
        speed = np.linalg.norm(np.diff(center, axis=0), axis=-1) * motion.rate_hz
        valid = np.ones(len(speed), bool)
        valid[[0, -1]] = False
        velocity = mean_velocities(motion, 1.0 / motion.rate_hz).double().numpy()
        parts.append((height[1:], speed, valid, smoothed(velocity, motion.rate_hz)))
    height, speed, valid, velocity = (np.concatenate(part) for part in zip(*parts, strict=True))
    foot_motion = FootMotion(height[:, None], speed[:, None], valid[:, None], 1.0 / motion.rate_hz)
    return foot_motion, velocity[:, None]


def metrics_at_command(
    motion: FootMotion, velocity: Floats, command: Sequence[float], pairs: Sequence[tuple[int, int]]
) -> dict[str, Any] | None:
    """`gait_metrics` of the steps at about that velocity; None for less than `MIN_DURATION_S`."""
    at_velocity = (np.abs(velocity - np.asarray(command)) <= COMMAND_TOLERANCE).all(-1)
    motion = motion.where(at_velocity)
    if motion.valid.sum() * motion.dt < MIN_DURATION_S:
        return None
    return gait_metrics(motion, pairs)
