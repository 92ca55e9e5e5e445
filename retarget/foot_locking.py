"""Contact points of standing feet: still, level, on the floor.

Shapes: T frames, F feet, K contact points a foot, J joints. World, Z up, floor z = 0, metres.
"""

from __future__ import annotations

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array, Bools
from retarget import ground
from retarget.inverse_kinematics import best_rotation


def stand_soles(soles: Array, standing: Bools, home: Array, radius: float) -> Array:
    """Targets of contact points (T, F, K, 3): rigid feet, locked in their stances.

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
    arms = sole - middle[:, None]
    shift = np.zeros((len(sole), 3))
    stances = ground.runs(standing)
    if stances and len(home) > 2:
        # rotation vector in the world that levels the foot
        turn = np.zeros((len(sole), 3))
        attitude = _attitudes(arms, level)
        for start, stop in stances:
            stance = attitude[start:stop]
            upright = _mean_heading(stance)
            inverse = rotations.conjugate(stance)
            turn[start:stop] = rotations.log(rotations.multiply(upright, inverse))
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
    """Quaternions (T, 4) that best map `level` (K, 3) to `arms` (T, K, 3)."""

    def area(pair: tuple[int, int]) -> float:
        return float(np.linalg.norm(np.cross(level[pair[0]], level[pair[1]])))

    # flat points fit their mirror image as well: add their normal
    a, b = max(((a, b) for a in range(len(level)) for b in range(a)), key=area)
    extra = np.cross(level[a], level[b])[None]
    normal = np.cross(arms[:, a], arms[:, b])[:, None]
    size = np.linalg.norm(extra)
    local = np.concatenate((level, extra / np.sqrt(size)))
    world = np.concatenate((arms, normal / np.sqrt(size)), axis=1)
    return rotations.make_continuous(rotations.from_matrix(best_rotation(local, world)))


def _mean_heading(attitude: Array) -> Array:
    """The rotation about z (4,) nearest to all attitudes (T, 4)."""
    w = attitude[:, 0]
    z = attitude[:, 3]
    # twice the heading's half angle, so that q and -q agree
    yaw = np.arctan2((2.0 * w * z).sum(), (w * w - z * z).sum())
    return rotations.from_axis_angle(np.array([0.0, 0.0, 1.0]), float(yaw))
