"""Motions played slower and faster: a training set with more variety than was recorded.

A walk at 1.15 times its speed fits well, a jump badly, as gravity stays: keep factors near 1.
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
      InputError: for a tempo that is not positive, or that leaves fewer than two frames.
    """
    _check(tempo)
    rate_hz = motion.rate_hz
    played = resample(replace(motion, rate_hz=rate_hz * tempo), robot, rate_hz)
    return replace(played, name=f"{motion.name}_x{tempo:g}")


def with_tempos(
    motions: MotionSet, robot: Robot, tempos: Sequence[float], *, min_frames: int = 2
) -> MotionSet:
    """A training set with copies of every motion at other tempos.

    Of every motion, per second, half of the sampling is its copies'. Left out are copies of fewer
    than `min_frames`, and those whose joints would be too fast for the robot where the original's
    are not; a motion without copies is sampled twice as often.

    Raises:
      InputError: for a tempo that is not a positive number.
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
        what = "a tempo is a positive factor on a motion's speed, such as 1.15"
        raise InputError(f"{what}; got {tempo}")
