"""Checks of steps: feet that never stand, and a rate that differs from the file's name.

Shapes: T frames, F points of feet. World frame, Z up, metres.
"""

from __future__ import annotations

import re

import numpy as np
from scipy.ndimage import uniform_filter1d

from mocap_data.arrays import Array, Bools

# largest lowest height of a foot's keypoint, as a share of the body's size
_FEET = 0.08
# greatest height above its lowest position of a foot at the floor [body sizes]
_AT_FLOOR = 0.02
# [m/s] least speed of body and feet for a step
_STEPS = 0.15
# least share of the frames with feet at the floor
_TOUCHES = 0.1
# the slowest quarter of feet at the floor [m/s], and as a share of the speed of the body, or of
# the feet against it: recordings over ground exceed one of the two at most
_SLIDES = 0.1
_SLIDES_SHARE = 0.5

# [Hz] of rates in a name
_RATES = (5.0, 1000.0)
_RATE_IN_NAME = re.compile(
    r"(?<![\d.])(\d{2,4})[ _-]?(?:hz|fps)(?![a-z])|(?<![a-z])(?:hz|fps)[ _-]?(\d{2,4})(?!\d)",
    re.IGNORECASE,
)


def feet_among(positions: Array, size: float) -> Bools:
    """The keypoints (M,) of positions (T, M, 3) that reach the floor. size: of the body [m]."""
    lowest = np.percentile(positions[..., 2], 5, axis=0)
    return np.asarray(lowest < lowest.min() + _FEET * size)


def sliding_warning(feet: Array, body: Array, rate_hz: float, size: float) -> str:
    """The warning of feet (T, F, 3) that never stand while they or the body move; "" for none.

    body: its centre (T, 3) [m]. size: of the body [m].
    """
    if len(feet) < 3:
        return ""

    path = _speed(body, rate_hz)  # (T,)
    speed = _speed(feet, rate_hz)  # (T, F)
    against_body = _speed(feet - body[:, None], rate_hz)
    second = max(3, round(rate_hz))
    steps = np.maximum(
        uniform_filter1d(np.median(against_body, axis=1), second), uniform_filter1d(path, second)
    )
    lowest = np.percentile(feet[..., 2], 5, axis=0)
    at_floor = (feet[..., 2] < lowest + _AT_FLOOR * size) & (steps > _STEPS)[:, None]
    if at_floor.any(axis=1).mean() < _TOUCHES:
        return ""

    slowest = float(np.percentile(speed[at_floor], 25))
    swings = float(np.percentile(against_body[at_floor], 25))
    travels = float(np.percentile(np.broadcast_to(path[:, None], at_floor.shape)[at_floor], 25))
    if slowest < max(_SLIDES, _SLIDES_SHARE * max(swings, travels)):
        return ""

    moves = f"no foot stands: near the floor they move at {np.median(speed[at_floor]):.2g} m/s"
    if travels < 0.5 * slowest:
        cause = "a treadmill? an animation in place? add the belt's speed to the root's path"
    elif swings < 0.5 * slowest:
        cause = "radians read as degrees? write its joint angles in the format's unit"
    else:
        cause = "units of the root's path? a treadmill?"
    return f"{moves} ({cause})"


def rate_warning(rate_hz: float, name: str) -> str:
    """The warning of an assumed rate [Hz] that is not the one in the file's name; "" for none."""
    rates = rates_in(name)
    if len(rates) != 1:
        return ""

    [in_name] = rates
    if abs(in_name / rate_hz - 1.0) < 0.02:
        return ""

    assumed = f"a rate of {rate_hz:g} frames/s is assumed"
    return f"{assumed}, its name has {in_name:g} (rate? source_rate_hz={in_name:g})"


def rates_in(name: str) -> set[float]:
    """The rates [Hz] in a file's name, e.g. 60 for "dance_60hz"."""
    rates = {float(match[1] or match[2]) for match in _RATE_IN_NAME.finditer(name)}
    return {rate for rate in rates if _RATES[0] <= rate <= _RATES[1]}


def _speed(points: Array, rate_hz: float) -> Array:
    """Horizontal speed [m/s] of points (T, ..., 3), central differences."""
    return np.asarray(np.linalg.norm(np.gradient(points[..., :2], axis=0), axis=-1) * rate_hz)
