"""What kind of movement a motion is, by its root's speed and turning.

The bounds are those that tell a dog's gaits apart (Zhang et al. 2018 use the same speeds); a
person's walk falls among its walks or trots. Shapes: T frames.
"""

from __future__ import annotations

import math

import numpy as np

from mocap_data import rotations
from mocap_data.motion import ReferenceMotion

SPEEDS = (("still", 0.15), ("walk", 0.9), ("trot", 1.6), ("canter", math.inf))  # [m/s] and slower
TURN = "turn"  # of any speed but still
TURNING = 0.3  # [rad/s]


def kinds_of(motion: ReferenceMotion) -> tuple[str, ...]:
    """The kind by mean horizontal speed, and "turn" where the motion ends that much turned; none
    for fewer than two frames."""
    if motion.num_frames < 2:
        return ()
    seconds = (motion.num_frames - 1) / motion.rate_hz
    speed = float(np.linalg.norm(np.diff(motion.qpos[:, :2], axis=0), axis=-1).sum()) / seconds
    kind = next(name for name, below in SPEEDS if speed < below)
    # of the root's x axis, seen from above
    forward = rotations.to_matrix(motion.qpos[:, 3:7])[:, :2, 0]
    heading = np.unwrap(np.arctan2(forward[:, 1], forward[:, 0]))
    turning = kind != SPEEDS[0][0] and abs(heading[-1] - heading[0]) >= TURNING * seconds
    return (kind, TURN) if turning else (kind,)
