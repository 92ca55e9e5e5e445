"""Feet that stand: still, level, on the floor, by inverse kinematics of the limbs.

`stand_soles` says where the contact points of flat feet shall be; `put_feet` solves the limbs for
that on a given path of the root, and lifts the root where the legs cannot fold far enough.
Shapes: T frames, F feet, K contact points a foot, J joints. World, Z up, floor z = 0, metres.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array, Bools
from retarget import ground
from retarget.inverse_kinematics import Problem, best_rotation, solve_poses
from retarget.kinematics import Index
from retarget.prepared_robot import PreparedRobot

# [m] deeper feet lift the trunk
_SUNK = 0.001
# [s] within which it rises
_LIFT_TIME = 0.3
_LIFTS = 6
# of inverse kinematics for limbs on a given root, at most
STEPS = 12
# [rad] smaller steps end it
_STILL = 2e-5


def stand_soles(soles: Array, standing: Bools, home: Array, radius: float) -> Array:
    """Where contact points (T, F, K, 3) shall be: rigid feet, locked in their stances.

    home: (F, K, 3) the points with the feet level. radius: of the contact spheres [m].
    """
    feet = range(soles.shape[1])
    return np.stack(
        [_stand_sole(soles[:, foot], standing[:, foot], home[foot], radius) for foot in feet],
        axis=1,
    )


def _stand_sole(sole: Array, standing: Bools, home: Array, radius: float) -> Array:
    level = home - home.mean(axis=0)
    level[:, 2] = 0.0
    middle = sole.mean(axis=1)
    arms, shift = sole - middle[:, None], np.zeros((len(sole), 3))
    stances = ground.runs(standing)
    if stances and len(home) > 2:
        # rotation vector that levels the foot, in the world
        turn = np.zeros((len(sole), 3))
        attitude = _attitudes(arms, level)
        for start, stop in stances:
            upright, back = _mean_heading(attitude[start:stop]), attitude[start:stop]
            turn[start:stop] = rotations.log(rotations.multiply(upright, rotations.conjugate(back)))
        quaternion = rotations.exp(ground.fade(turn, stances))
        arms = rotations.rotate(quaternion[:, None], arms)
    for start, stop in stances:
        held = middle[start:stop].mean(axis=0)
        held[2] = radius
        shift[start:stop] = held - middle[start:stop]
    if stances:
        shift = ground.fade(shift, stances)
    out: Array = (middle + shift)[:, None] + arms
    out[..., 2] += np.maximum(0.0, radius - out[..., 2].min(axis=1))[:, None]
    return out


def _attitudes(arms: Array, level: Array) -> Array:
    """Quaternions (T, 4) that turn `level` (K, 3) best into `arms` (T, K, 3)."""

    def area(pair: tuple[int, int]) -> float:
        return float(np.linalg.norm(np.cross(level[pair[0]], level[pair[1]])))

    # flat points leave a mirror image open: their normal tells
    a, b = max(((a, b) for a in range(len(level)) for b in range(a)), key=area)
    extra = np.cross(level[a], level[b])[None]
    normal = np.cross(arms[:, a], arms[:, b])[:, None]
    size = np.linalg.norm(extra)
    local = np.concatenate((level, extra / np.sqrt(size)))
    world = np.concatenate((arms, normal / np.sqrt(size)), axis=1)
    return rotations.make_continuous(rotations.from_matrix(best_rotation(local, world)))


def _mean_heading(attitude: Array) -> Array:
    """The rotation about z (4,) nearest to attitudes (T, 4) on the whole."""
    w, z = attitude[:, 0], attitude[:, 3]
    # twice the heading's half angle, so that q and -q agree
    yaw = np.arctan2((2.0 * w * z).sum(), (w * w - z * z).sum())
    return rotations.from_axis_angle(np.array([0.0, 0.0, 1.0]), float(yaw))


def put_feet(
    qpos: Array,
    problem: Problem,
    goal: Array,
    rate_hz: float,
    prepared: PreparedRobot,
    *,
    pieces: Sequence[slice] = (slice(None),),
) -> Array:
    """Poses (T, 7 + J) with the limbs solved for `goal` (T, M, 3) of a problem that holds the root.

    Where feet or belly would be in the floor the root is carried higher, smoothly. Feet at their
    bounds follow only in part, hence some rounds. pieces: the tracks that the frames are of.
    """
    # where a leg cannot reach, the iteration creeps along its bounds: a few steps are as good
    solve = partial(solve_poses, iterations=STEPS, tolerance=_STILL)
    qpos = solve(problem, goal, qpos)
    for _ in range(_LIFTS):
        depth = prepared.depth(qpos)
        if depth.max() <= _SUNK:
            break
        moved = lift(qpos, depth - 0.5 * _SUNK, rate_hz, pieces)
        qpos[moved] = solve(problem.of(moved), goal[moved], qpos[moved])
    return qpos


def lift(qpos: Array, depth: Array, rate_hz: float, pieces: Sequence[slice]) -> Index:
    """Carry roots (T, 7 + J), in place, smoothly higher by `depth` (T,) [m]; the frames moved."""
    rise = np.zeros(len(qpos))
    for piece in pieces:
        if depth[piece].max() > 0.0:
            sunk = np.maximum(depth[piece], 0.0)
            rise[piece] = ground.envelope(sunk, round(_LIFT_TIME * rate_hz))
    qpos[:, 2] += rise
    return np.flatnonzero(rise > 1e-6)
