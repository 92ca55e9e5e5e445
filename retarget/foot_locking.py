"""Feet that stand: still, level, on the floor; the legs by inverse kinematics, the root lifted
where it must be.

`stand_soles` says where the contact points of flat feet shall be; `put_feet` solves the limbs for
that on a given path of the root, and lifts the root where the legs cannot fold far enough to keep
the feet out of the floor.

Shapes: T frames, F feet, K contact points a foot, J joints. World frame, Z up, floor z = 0, metres.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from retarget import ground, inverse_kinematics, kinematics
from retarget.ground import Bools
from retarget.prepared_robot import PreparedRobot

_SUNK = 0.001  # [m] deeper feet lift the trunk
_LIFT_TIME = 0.3  # [s] within which it rises
_LIFTS = 6
STEPS = 12  # of inverse kinematics for limbs on a given root, at most
_STILL = 2e-5  # [rad] smaller steps end it


def stand_soles(soles: Array, standing: Bools, home: Array, radius: float) -> Array:
    """Where contact points (T, F, K, 3) shall be: rigid feet, locked in their stances, nowhere
    below the floor.

    home: (F, K, 3) the points with the feet level, from which a foot's heading is counted. radius:
    of the contact spheres [m].
    """
    out = soles.copy()
    for foot in range(soles.shape[1]):
        out[:, foot] = _stand_sole(soles[:, foot], standing[:, foot], home[foot], radius)
    return out


def _stand_sole(sole: Array, standing: Bools, home: Array, radius: float) -> Array:
    level = home - home.mean(axis=0)
    level[:, 2] = 0.0
    middle = sole.mean(axis=1)
    stances = ground.runs(standing)
    if stances and len(home) > 2:
        turn = np.zeros((len(sole), 3))  # rotation vector that levels the foot, in the world
        attitude = _attitudes(sole - middle[:, None], level)
        for start, stop in stances:
            upright = _mean_heading(attitude[start:stop])
            turn[start:stop] = rotations.log(
                rotations.multiply(upright, rotations.conjugate(attitude[start:stop]))
            )
        turn = ground.fade(turn, stances)
        quaternion = rotations.exp(turn)
        arms = rotations.rotate(quaternion[:, None], sole - middle[:, None])
    else:
        arms = sole - middle[:, None]
    shift = np.zeros((len(sole), 3))
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
    extra = np.zeros((1, 3))  # flat points leave a mirror image open: their normal tells
    a, b = _two_arms(level)
    extra[0] = np.cross(level[a], level[b])
    normal = np.cross(arms[:, a], arms[:, b])[:, None]
    size = np.linalg.norm(extra)
    local = np.concatenate((level, extra / np.sqrt(size)))
    world = np.concatenate((arms, normal / np.sqrt(size)), axis=1)
    left, _, right = np.linalg.svd(np.einsum("mi,tmj->tij", local, world))
    right[:, 2] *= np.linalg.det(left @ right)[:, None]
    return rotations.make_continuous(rotations.from_matrix((left @ right).transpose(0, 2, 1)))


def _two_arms(level: Array) -> tuple[int, int]:
    pairs = [(a, b) for a in range(len(level)) for b in range(a)]
    return max(
        pairs, key=lambda pair: float(np.linalg.norm(np.cross(level[pair[0]], level[pair[1]])))
    )


def _mean_heading(attitude: Array) -> Array:
    """The rotation about z (4,) nearest to attitudes (T, 4) on the whole."""
    w, z = attitude[:, 0], attitude[:, 3]
    # twice the heading's half angle, so that q and -q agree
    yaw = np.arctan2((2.0 * w * z).sum(), (w * w - z * z).sum())
    return rotations.from_axis_angle(np.array([0.0, 0.0, 1.0]), float(yaw))


def put_feet(
    qpos: Array,
    problem: inverse_kinematics.Problem,
    goal: Array,
    rate_hz: float,
    prepared: PreparedRobot,
    *,
    pieces: Sequence[slice] = (slice(None),),
    iterations: int = 30,
) -> Array:
    """Poses (T, 7 + J) with the limbs solved for `goal` (T, M, 3) of a problem that holds the root.

    Legs that cannot fold as far as the goals ask (an animal that sits) would push their feet into
    the floor, one that lies its belly: there the root is carried higher, smoothly. Feet at their
    bounds follow only in part, hence some rounds. pieces: the tracks that the frames are of.
    """
    # Where a leg cannot reach, the iteration creeps along its bounds; a few steps are as good as
    # many.
    steps = min(iterations, STEPS)
    qpos = inverse_kinematics.solve_poses(problem, goal, qpos, iterations=steps, tolerance=_STILL)
    for _ in range(_LIFTS):
        depth = prepared.depth(qpos)
        if depth.max() <= _SUNK:
            break
        moved = lift(qpos, depth - 0.5 * _SUNK, rate_hz, pieces)
        qpos[moved] = inverse_kinematics.solve_poses(
            problem.of(moved), goal[moved], qpos[moved], iterations=steps, tolerance=_STILL
        )
    return qpos


def lift(qpos: Array, depth: Array, rate_hz: float, pieces: Sequence[slice]) -> kinematics.Index:
    """Carry roots (T, 7 + J), in place, smoothly higher where something is `depth` (T,) [m] below
    the floor.

    Returns the indices of the frames that moved.
    """
    rise = np.zeros(len(qpos))
    for piece in pieces:
        if depth[piece].max() > 0.0:
            rise[piece] = ground.envelope(
                np.maximum(depth[piece], 0.0), round(_LIFT_TIME * rate_hz)
            )
    qpos[:, 2] += rise
    return np.flatnonzero(rise > 1e-6)
