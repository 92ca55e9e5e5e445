"""What kind of movement a motion is, by its root's speed and turning, and medians of quality figures by kind.

The bounds are those that tell a dog's gaits apart (Zhang et al. 2018 use the same speeds); a person's walk falls among
its walks or trots. Shapes: T frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mocap_data import rotations
from mocap_data.motion import ReferenceMotion

SPEEDS = (("still", 0.15), ("walk", 0.9), ("trot", 1.6), ("canter", math.inf))  # [m/s] and slower
TURN = "turn"  # of any speed but still
TURNING = 0.3  # [rad/s]


def kinds_of(motion: ReferenceMotion) -> tuple[str, ...]:
    """The kind by mean horizontal speed, and "turn" where the motion ends that much turned; none for fewer than two frames."""
    if motion.num_frames < 2:
        return ()
    seconds = (motion.num_frames - 1) / motion.rate_hz
    speed = float(np.linalg.norm(np.diff(motion.qpos[:, :2], axis=0), axis=-1).sum()) / seconds
    kind = next(name for name, below in SPEEDS if speed < below)
    forward = rotations.to_matrix(motion.qpos[:, 3:7])[:, :2, 0]  # of the root's x axis, seen from above
    heading = np.unwrap(np.arctan2(forward[:, 1], forward[:, 0]))
    turning = kind != SPEEDS[0][0] and abs(heading[-1] - heading[0]) >= TURNING * seconds
    return (kind, TURN) if turning else (kind,)


def medians(motions: Sequence[ReferenceMotion], figures: Sequence[str]) -> dict[str, dict[str, float]]:
    """By kind, in the order of `SPEEDS`, then turns: how many "motions", their "seconds", and the median of each figure.

    Kinds without a motion are left out; a figure that no motion of a kind has is NaN.
    """
    found: dict[str, dict[str, float]] = {}
    kinds = [kinds_of(motion) for motion in motions]
    for kind in (*(name for name, _ in SPEEDS), TURN):
        these = [motion for motion, own in zip(motions, kinds, strict=True) if kind in own]
        if not these:
            continue
        values = {key: [motion.quality[key] for motion in these if key in motion.quality] for key in figures}
        found[kind] = {
            "motions": float(len(these)),
            "seconds": sum(motion.duration_s for motion in these),
            **{key: float(np.median(known)) if known else math.nan for key, known in values.items()},
        }
    return found
