"""Motions at another rate: cubic splines for places and joints, SQUAD for the root's rotation.

As Bohez et al. 2022 (arXiv 2203.17138) bring recordings to a robot's control rate. The first frame
does not change; no frame is beyond the end of the motion. Shapes: T frames before, S after, J
joints, F feet.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array, require_rate
from mocap_data.errors import InputError
from mocap_data.input_files import require_memory
from mocap_data.motion import ReferenceMotion
from npmp.robots import Robot

# frames: a last one that coincides up to rounding is kept
_ROUNDING = 1e-9


def frame_times(frames: int, rate_hz: float, new_rate_hz: float, *, width: int = 1) -> Array:
    """The times (S,), in frames of the old rate, of frames at `new_rate_hz` within `frames`.

    width: numbers in a frame of the result, for an estimate of memory.

    Raises:
      InputError: an impossible rate, or more frames than memory holds.
    """
    for rate in (rate_hz, new_rate_hz):
        require_rate(rate, f"cannot resample from {rate_hz:g} Hz to {new_rate_hz:g} Hz:")
    ratio = rate_hz / new_rate_hz
    count = math.floor((frames - 1) / ratio + _ROUNDING) + 1
    # measured with 19 numbers: 36 MiB from 20,000 frames to as many (by this 41), 340 from 200,000
    # to 40,000 (337)
    needed = 8.0 * (3.0 * count * (width + 1) + 11.0 * frames * width)
    label = f"resampling {frames:,} frames from {rate_hz:g} to {new_rate_hz:g} Hz"
    require_memory(needed, label)
    return np.minimum(np.arange(count) * ratio, frames - 1.0)


def resample_qpos(qpos: Array, rate_hz: float, new_rate_hz: float) -> Array:
    """Poses (T, 7 + J) at another rate, (S, 7 + J); root quaternions on one hemisphere.

    Raises:
      InputError: as `frame_times`.
    """
    from scipy.interpolate import CubicSpline

    new = frame_times(len(qpos), rate_hz, new_rate_hz, width=qpos.shape[1])
    old = np.arange(len(qpos), dtype=np.float64)
    if len(new) == len(old) and (new == old).all():
        out = qpos.copy()
        out[:, 3:7] = rotations.make_continuous(qpos[:, 3:7])
        return out
    linear = np.r_[0:3, 7 : qpos.shape[1]]
    out = np.empty((len(new), qpos.shape[1]))
    out[:, linear] = CubicSpline(old, qpos[:, linear], axis=0)(new)
    out[:, 3:7] = rotations.squad(qpos[:, 3:7], old, new)
    return out


def nearest(values: np.ndarray, rate_hz: float, new_rate_hz: float) -> np.ndarray:
    """Rows (T, ...) at another rate, (S, ...): each time the nearest.

    Raises:
      InputError: as `frame_times`.
    """
    times = frame_times(len(values), rate_hz, new_rate_hz)
    return np.asarray(values[np.rint(times).astype(np.intp)])


def resample(motion: ReferenceMotion, robot: Robot, rate_hz: float) -> ReferenceMotion:
    """The motion at another rate; itself if that is its rate.

    Joints stay within the robot's limits where a spline would overshoot them. Contacts are the
    nearest frame's. The quality figures are not changed.

    Raises:
      InputError: as `frame_times`, or a rate that leaves fewer than two frames.
    """
    old_rate = motion.rate_hz
    contacts = motion.contacts
    if rate_hz == old_rate:
        return motion
    new = frame_times(motion.num_frames, old_rate, rate_hz)
    if len(new) < 2:
        raise InputError(
            f"motion {motion.name!r}: {motion.duration_s:.3g} s is too short for {rate_hz:g} Hz"
        )
    qpos = resample_qpos(motion.qpos, old_rate, rate_hz)
    joints = motion.qpos[:, 7:]
    # a motion beyond a limit keeps its extremes
    lower = np.minimum(robot.joint_lower, joints.min(axis=0))
    upper = np.maximum(robot.joint_upper, joints.max(axis=0))
    qpos[:, 7:] = np.clip(qpos[:, 7:], lower, upper)
    old = np.arange(motion.num_frames)
    figures = motion.frame_quality.items()
    return replace(
        motion,
        qpos=qpos,
        rate_hz=rate_hz,
        contacts=None if contacts is None else nearest(contacts, old_rate, rate_hz),
        frame_quality={key: np.interp(new, old, values) for key, values in figures},
    )
