"""How robots step, foot by foot and command by command: the same figures for a policy, for a module
that tracks recordings, and for the recordings."""

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

# [m] feet that are lower are at the ground
NEAR = 0.005
# [m/s] a base that is faster walks
MOVING = 0.1
# robots that track recordings with a module, and for how long [s]
TRACKED = 64
TRACKED_S = 20.0
# shorter ones are bounces of a contact
SHORTEST_SWING_S = 0.06
# of a module and of recordings those moments count whose velocity is so near a command [m/s, m/s,
# rad/s]
ALIKE = (0.1, 0.1, 0.3)
# of them there must be so many
ENOUGH_S = 2.0
# What a robot that walks keeps to at every command [D]: every foot's median swing rises so far, for
# a base 0.5 m above the ground, in proportion for smaller robots [m]
LEAST_LIFT_M = 0.02
# it stands no faster, commanded up to 0.5 m/s or turning, up to 1 m/s, and above [m/s]
MOST_STANCE_MPS = (0.15, 0.25, 0.35)
# mean velocities are so near the command [m/s, rad/s]
MOST_ERROR = 0.08


class Stepping(NamedTuple):
    """Feet over T control steps of n robots or recordings."""

    height: Floats  # (T, n, F) of the lowest point above the ground [m]
    speed: Floats  # (T, n, F) horizontal [m/s]
    usable: Bools  # (T, n) counts: before a fall, after the start
    dt: float  # [s]

    def only(self, chosen: Bools) -> Stepping:
        """Those steps alone, (T, n)."""
        return self._replace(usable=self.usable & chosen)


def swings(height: Floats, usable: Bools, dt: float) -> tuple[Floats, NDArray[np.int_]]:
    """Stretches of at least `SHORTEST_SWING_S` in which a foot is higher than 5 mm, whole and all
    of it usable.

    height, usable: (T, n). Returns: how high each gets (k,) [m], and its first step, last step and
      robot (3, k), robot by robot in order of time.
    """
    steps = len(height)
    up = np.zeros((height.shape[1], steps + 2), np.int8)
    up[:, 1:-1] = height.T >= NEAR
    edges = np.diff(up, axis=1)
    robot, first = np.nonzero(edges == 1)
    last = np.nonzero(edges == -1)[1] - 1
    unusable = np.pad(np.cumsum(~usable, 0), ((1, 0), (0, 0)))
    whole = (first > 0) & (last < steps - 1) & ((last - first + 1) * dt >= SHORTEST_SWING_S - 1e-9)
    first = first[whole]
    last = last[whole]
    robot = robot[whole]
    clean = unusable[last + 2, robot] == unusable[first - 1, robot]
    stretches = np.stack((first, last, robot))[:, clean]
    peaks = [height[a : b + 1, r].max() for a, b, r in stretches.T]
    return np.array(peaks), stretches


def foot_place(robot: Robot) -> Floats:
    """Where feet stand at home around their middle, forwards and to the left, (F, 2) [m]."""
    home = torch.tensor(robot.home_qpos)[None]
    place = Feet(robot)(*pose_from_qpos(home))[0, ..., :2].mean(-2).double().numpy()
    return place - place.mean(0)


def opposite(robot: Robot) -> list[tuple[int, int]]:
    """Pairs of feet on opposite sides of their middle: diagonal ones of four, left and right of
    two."""
    place = foot_place(robot)
    pairs = np.linalg.norm(place[:, None] + place[None], axis=-1).argmin(-1).tolist()
    return [(a, b) for a, b in enumerate(pairs) if a < b and pairs[b] == a]


def stepping_of(trial: Trial, robots: slice, counts: torch.Tensor) -> Stepping:
    """The feet of some robots of a trial; counts: (T, n) bool of these."""
    height, speed = trial.seen["feet"][:, robots].double().unbind(-1)
    return Stepping(height.numpy(), speed.numpy(), counts.numpy(), trial.dt)


def stepping_figures(seen: Stepping, pairs: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Figures of each foot, lists of F; a foot that never swings or never stands has None.

    `lift_m`: how high a swing gets, median. `swing_share`: of the time above 5 mm. `stance_mps`:
    mean horizontal speed while it is lower at both ends of a control step. `step_rate_hz`: swings a
    second. `phase`: when it touches down within the first foot's stride, circular mean in [0, 1).
    `opposite_correlation`: of the heights of opposite feet, mean over robots and pairs; a trot
    has 1, a walk in four beats about -0.2.
    """
    height, speed, usable, dt = seen
    seconds = usable.sum() * dt
    feet = range(height.shape[-1])
    if not seconds:
        return {}
    low = height < NEAR
    stands = usable[1:, :, None] & low[1:] & low[:-1]
    touchdowns = []
    names = ("lift_m", "swing_share", "stance_mps", "step_rate_hz", "phase")
    rows: dict[str, list[float | None]] = {name: [] for name in names}
    for f in feet:
        peaks, where = swings(height[..., f], usable, dt)
        touchdowns.append(where[1:])
        slid = speed[1:, :, f][stands[..., f]]
        rows["lift_m"].append(float(np.median(peaks)) if len(peaks) else None)
        rows["swing_share"].append(float((~low[..., f])[usable].mean()))
        rows["stance_mps"].append(float(slid.mean()) if len(slid) else None)
        rows["step_rate_hz"].append(len(peaks) / seconds)
        rows["phase"].append(_phase(touchdowns[0], touchdowns[f], 2.0 / dt))
    alike = []
    for n in range(height.shape[1]):
        mine = height[usable[:, n], n]
        for a, b in pairs:
            if len(mine) > 1 and mine[:, a].std() > 1e-6 and mine[:, b].std() > 1e-6:
                alike.append(np.corrcoef(mine[:, a], mine[:, b])[0, 1])
    return rows | {"opposite_correlation": float(np.mean(alike)) if alike else None}


def _phase(strides: NDArray[np.int_], downs: NDArray[np.int_], longest: float) -> float | None:
    """Circular mean of the phases of touchdowns within strides; both (2, k) of step and robot.
    Strides longer than `longest` steps are pauses."""
    key = strides[1] * 10_000_000 + strides[0]
    at = downs[1] * 10_000_000 + downs[0]
    i = np.searchsorted(key, at, side="right") - 1
    inside = (i >= 0) & (i + 1 < len(key))
    i = i[inside]
    at = at[inside]
    stride = key[i + 1] - key[i]
    share = ((at - key[i]) / stride)[stride <= longest]
    if not len(share):
        return None
    return float(np.angle(np.exp(2j * np.pi * share).mean()) / (2 * np.pi) % 1.0)


def faults(row: Mapping[str, Any], base_height: float) -> list[str]:
    """What of a row of `by_command` is beyond the limits, in words; empty where nothing is.

    base_height: of the robot at home [m].
    """
    command = row["command"]
    problems = []
    if row["falls"]:
        problems.append(f"{row['falls']} falls")
    if not row.get("achieved"):
        return problems
    error = np.abs(np.subtract(row["achieved"], command))
    if error[:2].max() > MOST_ERROR:
        problems.append(f"off by {error[:2].max():.2f} m/s")
    if error[2] > MOST_ERROR:
        problems.append(f"off by {error[2]:.2f} rad/s")
    if row["dead"]:
        problems.append("brings less than half of the command")
    if float(np.abs(command).max()) > 0.0:
        problems += skating(row, command, base_height)
    if row["joint_speed_share"] > 1.0:
        problems.append(f"joints at {row['joint_speed_share']:.1f} of their speed limit")
    return problems


def skating(figures: Mapping[str, Any], command: Sequence[float], base_height: float) -> list[str]:
    """What of `stepping_figures` is beyond the limits of a robot that moves, in words."""
    problems = []
    lift = worst(figures["lift_m"], min)
    least = LEAST_LIFT_M * base_height / 0.5
    if lift < least:
        problems.append(f"a foot lifts by {100 * lift:.1f} cm")
    slides = worst(figures["stance_mps"], max)
    speed = math.hypot(*command[:2])
    if slides > MOST_STANCE_MPS[0 if speed <= 0.5 else 1 if speed <= 1.0 else 2]:
        problems.append(f"a foot stands at {slides:.2f} m/s")
    return problems


def worst(values: Sequence[float | None], of: Any) -> float:
    """min or max over feet; a foot without a value counts as 0."""
    return float(of(0.0 if value is None else value for value in values))


def worst_foot(trial: Trial) -> dict[str, float]:
    """Whether robots step or glide while the base moves; empty where none does. Each figure is that
    of the worst foot: a mean would hide fore legs that glide before hind legs that step.

    Returns: `swing_share`, `foot_lift_m` and `stance_mps`, which `stepping_figures` has for each
      foot (the second as `lift_m`).
    """
    moving = (trial.seen["base"][..., 3] > MOVING) & ~(trial.fell | trial.seen["is_first"])
    figures = stepping_figures(stepping_of(trial, slice(None), moving), ())
    if not figures:
        return {}
    return {
        "swing_share": worst(figures["swing_share"], min),
        "foot_lift_m": worst(figures["lift_m"], min),
        "stance_mps": worst(figures["stance_mps"], max),
    }


def module_stepping(
    skill: SkillModule, robot: Robot, motions: MotionSet, *, seed: int, **place: Any
) -> tuple[Stepping, Floats]:
    """How a module steps while it tracks recordings from random frames, and its mean velocities
    over the half second around each step (T, n, 3). place: of the robots, as `TaskEnv` takes it."""
    frames = skill.contract.context_horizon
    config = ImitationConfig(uniform_starts=1.0, future_frames=frames)
    task = Imitation(robot, config, motions)
    env = TaskEnv(task, TRACKED, seed=seed, **place)
    trial = run_trial(tracking(skill), env, seconds=TRACKED_S, seed=seed)
    seen = stepping_of(trial, slice(None), ~(trial.fell | trial.seen["is_first"]))
    return seen, smoothed(trial.seen["velocity"].double().numpy(), 1.0 / trial.dt)


def recorded_stepping(robot: Robot, motions: MotionSet) -> tuple[Stepping, Floats]:
    """Likewise of the recordings themselves, one after the other."""
    feet = Feet(robot)
    parts = []
    for motion in motions.motions:
        if motion.num_frames < 2:
            continue
        place = feet(*pose_from_qpos(torch.tensor(motion.qpos)))
        height = (place[..., 2].amin(-1) - feet.radius).double().numpy()
        sole = place[..., :2].mean(-2).double().numpy()
        speed = np.linalg.norm(np.diff(sole, axis=0), axis=-1) * motion.rate_hz
        usable = np.ones(len(speed), bool)
        usable[[0, -1]] = False
        velocity = mean_velocities(motion, 1.0 / motion.rate_hz).double().numpy()
        parts.append((height[1:], speed, usable, smoothed(velocity, motion.rate_hz)))
    height, speed, usable, velocity = (np.concatenate(part) for part in zip(*parts, strict=True))
    seen = Stepping(height[:, None], speed[:, None], usable[:, None], 1.0 / motion.rate_hz)
    return seen, velocity[:, None]


def at_command(
    seen: Stepping, velocity: Floats, command: Sequence[float], pairs: Sequence[tuple[int, int]]
) -> dict[str, Any] | None:
    """`stepping_figures` of the moments with about that velocity; None where there are too few."""
    near = (np.abs(velocity - np.asarray(command)) <= ALIKE).all(-1)
    chosen = seen.only(near)
    if chosen.usable.sum() * seen.dt < ENOUGH_S:
        return None
    return stepping_figures(chosen, pairs)
