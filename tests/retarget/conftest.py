"""Motions of a robot made from numbers, for the tests of what happens to motions after retargeting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d

from mocap_data import rotations
from mocap_data.arrays import Array, Bools
from mocap_data.clip import Clip
from mocap_data.motion import ReferenceMotion
from npmp.robots import Robot
from retarget import foot_locking, inverse_kinematics, kinematics
from retarget.prepared_robot import PreparedRobot

_SOLE_WEIGHT = 100.0  # of all contact points of a foot together, against 1 for a trunk marker
# [s] standard deviation of the window that the root's displacement is smoothed with
_ROOT_TIME = 0.1
_KEEP = 1e-3  # [m^2 / rad^2] pull of the joints to where they were


def motion_of(
    robot: Robot, qpos: Array, rate_hz: float = 50.0, name: str = "m", **more: object
) -> ReferenceMotion:
    """Poses (T, 7 + J) as a motion."""
    return ReferenceMotion(name=name, qpos=qpos, rate_hz=rate_hz, **more)


def mirrored(
    clip: Clip, pairs: Sequence[tuple[str, str]], signs: Sequence[float] = (1.0, -1.0, 1.0)
) -> Clip:
    """A recording seen in a mirror through the origin. pairs: how names of one side begin and how
    the other's do, the first that fits counts; names of which no other side is there stay."""

    def image(name: str) -> str:
        both = [*pairs, *((b, a) for a, b in pairs)]
        found = (b + name.removeprefix(a) for a, b in both if name.startswith(a))
        return next((other for other in found if other in clip.names), name)

    columns = [clip.index(image(name)) for name in clip.names]
    return replace(clip, positions=clip.positions[:, columns] * signs)


def standing(robot: Robot, frames: int) -> Array:
    """The home pose (T, 7 + J), standing at the origin."""
    return np.tile(robot.home_qpos, (frames, 1))


def walking(robot: Robot, frames: int, speed: float, rate_hz: float = 50.0) -> Array:
    """A gliding stand (T, 7 + J), 2 cm above the floor: goes along x at `speed` [m/s] while its
    joints move a little."""
    qpos, time = standing(robot, frames), np.arange(frames) / rate_hz
    qpos[:, 0] += speed * time
    qpos[:, 2] += 0.02
    qpos[:, 7:] += 0.1 * np.sin(2 * np.pi * 1.5 * time)[:, None]
    return qpos


def wandering(robot: Robot, frames: int, seed: int = 0, rate_hz: float = 50.0) -> Array:
    """Smooth random poses (T, 7 + J): the root turns about every axis, joints swing within their
    limits."""
    rng = np.random.default_rng(seed)
    time = np.arange(frames)[:, None] / rate_hz

    def sway(width: int) -> Array:
        return np.asarray(
            np.sin(2 * np.pi * rng.uniform(0.2, 1.0, width) * time + rng.uniform(0, 6, width))
        )

    joints = robot.joint_lower + (0.5 + 0.45 * sway(len(robot.joint_names))) * (
        robot.joint_upper - robot.joint_lower
    )
    place = np.array([0.3, 0.2, 0.9]) + sway(3) * [0.5, 0.4, 0.05]
    turn = rotations.from_euler("ZYX", sway(3) * [2.5, 0.4, 0.5])
    return np.concatenate([place, turn, joints], axis=1)


def lock_feet(qpos: Array, contacts: Bools, rate_hz: float, prepared: PreparedRobot) -> Array:
    """A motion (T, 7 + J) whose feet stand where `contacts` (T, F) says so: still, level, on the
    floor.

    Through each of its stances a foot keeps the mean place and heading that it had in them, its
    contact points all at the floor; the correction fades from one stance into the next, and no
    contact point goes below the floor. The root moves little and smoothly to let the legs reach;
    joints stay within their bounds; joints of limbs without feet stay as they are.
    """
    goal = foot_locking.stand_soles(
        prepared.soles_at(qpos), contacts, prepared.home_soles, prepared.robot.foot_radius
    )
    moved = _follow(qpos, goal, rate_hz, prepared)
    problem = _problem(prepared, qpos, prepared.soles, _SOLE_WEIGHT / prepared.points_per_foot)
    return foot_locking.put_feet(
        moved, replace(problem, hold_root=True), _flat(goal), rate_hz, prepared
    )


def _problem(
    prepared: PreparedRobot, qpos: Array, points: kinematics.Points, weight: float
) -> inverse_kinematics.Problem:
    robot = prepared.robot
    each = np.full(len(points.body), weight)
    return inverse_kinematics.Problem(
        prepared.tree, points, qpos[:, 7:], robot.joint_lower, robot.joint_upper, _KEEP, weight=each
    )


def _flat(soles: Array) -> Array:
    return soles.reshape(len(soles), -1, 3)


def _follow(qpos: Array, goal: Array, rate_hz: float, prepared: PreparedRobot) -> Array:
    """The motion with its root displaced, smoothly, towards where the legs reach the goal (T, F, K,
    3) at ease."""
    size = (
        float(np.ptp(prepared.home_soles.reshape(-1, 3), axis=0).max())
        + prepared.robot.home_qpos[2]
    )
    corners = (
        0.5 * size * np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]], dtype=np.float64)
    )
    points = kinematics.Points(
        np.concatenate((np.zeros(4, dtype=np.intp), prepared.soles.body)),
        np.concatenate((corners, prepared.soles.local)),
    )
    keep = qpos[:, None, :3] + rotations.rotate(qpos[:, None, 3:7], corners)
    problem = _problem(prepared, qpos, points, _SOLE_WEIGHT / prepared.points_per_foot)
    assert problem.weight is not None
    problem.weight[:4] = 0.25
    solved = inverse_kinematics.solve_poses(
        problem, np.concatenate((keep, _flat(goal)), axis=1), qpos, tolerance=1e-4
    )
    out = qpos.copy()
    out[:, :3] += _smooth(solved[:, :3] - qpos[:, :3], rate_hz)
    turn = rotations.log(rotations.multiply(solved[:, 3:7], rotations.conjugate(qpos[:, 3:7])))
    out[:, 3:7] = rotations.multiply(rotations.exp(_smooth(turn, rate_hz)), qpos[:, 3:7])
    out[:, 3:7] = rotations.normalize(out[:, 3:7])
    out[:, 7:] = solved[:, 7:]
    return out


def _smooth(values: Array, rate_hz: float) -> Array:
    """`values` (T, K) averaged over a moment, without lag."""
    return np.asarray(gaussian_filter1d(values, _ROOT_TIME * rate_hz, axis=0, mode="nearest"))


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The functions of this file."""
    return SimpleNamespace(
        motion_of=motion_of, mirrored=mirrored, standing=standing, walking=walking, wandering=wandering,
        lock_feet=lock_feet,
    )  # fmt: skip
