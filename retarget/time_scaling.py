"""Time scaling of motions: copies at other tempos in a training set.

Gravity does not scale, so keep factors near 1, especially for jumps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp.robots import Robot
from retarget.quality import beyond_speed
from retarget.resampling import resample


def at_tempo(motion: ReferenceMotion, robot: Robot, tempo: float) -> ReferenceMotion:
    """The motion `tempo` times as fast at its rate, called NAME_x1.15 for 1.15; as `resample`.

    Raises:
      InputError: a tempo that is not positive, or that leaves fewer than two frames.
    """
    _check(tempo)
    rate_hz = motion.rate_hz
    scaled = resample(replace(motion, rate_hz=rate_hz * tempo), robot, rate_hz)
    return replace(scaled, name=f"{motion.name}_x{tempo:g}")


def with_tempos(
    motions: MotionSet, robot: Robot, tempos: Sequence[float], *, min_frames: int = 2
) -> MotionSet:
    """A training set with copies of every motion at other tempos.

    Copies get half of a motion's sampling weight per second. Copies of fewer than
    `min_frames` are left out, and those whose joints exceed the robot's speed limits where the
    original's do not; a motion without copies gets twice its weight.

    Raises:
      InputError: a tempo that is not positive.
    """
    for tempo in tempos:
        _check(tempo)
    if not tempos:
        return motions
    originals = []
    copies = []
    for motion in motions.motions:
        long_enough = [t for t in tempos if (motion.num_frames - 1) / t + 1 >= min_frames]
        candidates = [at_tempo(motion, robot, tempo) for tempo in long_enough]
        kept = [
            copy for copy in candidates if _too_fast(motion, robot) or not _too_fast(copy, robot)
        ]
        originals.append(motion if kept else replace(motion, weight=2.0 * motion.weight))
        copies += [replace(copy, weight=motion.weight / len(kept)) for copy in kept]
    return replace(motions, motions=(*originals, *copies))


def _too_fast(motion: ReferenceMotion, robot: Robot) -> bool:
    return bool(beyond_speed(motion.qvel[:, 6:], robot.velocity_limit).any())


def _check(tempo: float) -> None:
    if not (isinstance(tempo, int | float) and 0.0 < tempo < math.inf):
        raise InputError(f"tempo={tempo}: must be above 0 (a factor on a motion's speed)")
