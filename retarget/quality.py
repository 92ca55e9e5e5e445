"""Figures that say how good a retargeted motion is. Shapes: T frames, F feet, J joints, M markers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mocap_data.arrays import Array
from mocap_data.motion import ReferenceMotion
from retarget.ground import Bools, horizontal_speed


def marker_errors(world: Array, targets: Array) -> dict[str, float]:
    """Root mean square and largest distance [m] between markers `world` and `targets`, both (T, M, 3)."""
    squares = np.square(world - targets).sum(axis=-1)
    return {"rms_marker_m": float(np.sqrt(squares.mean())), "max_marker_m": float(np.sqrt(squares.max()))}


def overall_rms(motions: Sequence[ReferenceMotion]) -> float:
    """The root mean square marker error [m] over all frames of all motions (those with one marker set: over all markers)."""
    squares = [motion.quality["rms_marker_m"] ** 2 for motion in motions]
    return float(np.sqrt(np.average(squares, weights=[len(motion.qpos) for motion in motions])))


def foot_slide(feet: Array, standing: Bools, rate_hz: float) -> float:
    """Mean horizontal speed [m/s] of feet (T, F, 3) while `standing` (T, F); 0 when none ever stands."""
    if not standing.any():
        return 0.0
    return float(horizontal_speed(feet, rate_hz)[standing].mean())


def penetration(feet: Array, radius: float) -> float:
    """Greatest depth [m] of foot spheres with centres `feet` (T, F, 3) below the floor z = 0; at least 0."""
    return float(max(0.0, radius - feet[..., 2].min()))


def limit_violations(joints: Array, velocities: Array, lower: Array, upper: Array, speed: Array) -> int:
    """Number of (frame, joint) pairs beyond the position or the velocity limits; (T, J) against (J,)."""
    beyond = (joints < lower - 1e-9) | (joints > upper + 1e-9) | (np.abs(velocities) > speed)
    return int(np.count_nonzero(beyond))
