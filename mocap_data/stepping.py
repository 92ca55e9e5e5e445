"""Whether a motion's steps fit its floor and its rate: standing feet, strides, free fall.

Shapes: T frames, F points of feet. World frame, Z up, metres.
"""

from __future__ import annotations

import math
import re

import numpy as np
from scipy.ndimage import uniform_filter1d

from mocap_data.arrays import Array, Bools

# [m/s^2]
GRAVITY = 9.81
# of the body's size: keypoints whose lowest place is at most this high are feet
_FEET = 0.08
# of the body's size: how far above its own lowest place a foot is at the floor, and in the air
_AT_FLOOR = 0.02
_IN_AIR = 0.03
# [m/s] body and feet that are slower do not step
_STEPS = 0.15
# of the frames: with fewer at the floor nothing is said
_TOUCHES = 0.1
# the slowest quarter of feet at the floor [m/s], and as a share of the speed of the body, or of
# the feet against it: recordings over ground exceed one of the two at most
_SLIDES = 0.1
_SLIDES_SHARE = 0.5

# stride / height = 2.4 Fr^0.34 [R: Alexander and Jayes 1983], Fr = speed^2 / (g height)
_STRIDE_FACTOR = 2.4
_STRIDE_EXPONENT = 0.34
# of the height of the body's centre: shorter strides follow no law
_SHORTEST_STRIDE = 0.8
# speed over that of the law: usually, and the range that recordings of dogs and people stay in
_USUAL_PACE = 0.8
_PACES = (0.45, 1.45)
# correlation of a stride with the next
_REPEATS = 0.7

# of the body's size: the least height of a jump; of that height: distance from a parabola
_JUMP = 0.05
_OFF_PARABOLA = 0.06
# acceleration in a jump over g: usually, since keypoints have no masses, and the range
_USUAL_FALL = 0.8
_FALLS = (0.5, 1.6)

# [Hz] other numbers in a name are no rates
_RATES = (5.0, 1000.0)
_RATE_IN_NAME = re.compile(
    r"(?<![\d.])(\d{2,4})[ _-]?(?:hz|fps)(?![a-z])|(?<![a-z])(?:hz|fps)[ _-]?(\d{2,4})(?!\d)",
    re.IGNORECASE,
)


def feet_among(positions: Array, size: float) -> Bools:
    """Which keypoints (M,) of positions (T, M, 3) come down to the floor; size: the body's [m]."""
    lowest = np.percentile(positions[..., 2], 5, axis=0)
    return np.asarray(lowest < lowest.min() + _FEET * size)


def sliding_doubt(feet: Array, body: Array, rate_hz: float, size: float) -> str:
    """The doubt about feet (T, F, 3) that never stand while they or the body move; "" for none.

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


def rate_doubt(feet: Array, body: Array, rate_hz: float, size: float, name: str) -> str:
    """The doubt about a rate that a file does not say: by its name, jumps, strides; "" for none.

    feet: (T, F, 3) [m]. body: its centre (T, 3) [m]. size: of the body [m]. name: the file's.
    """
    if doubt := name_doubt(rate_hz, name):
        return doubt

    assumed = f"a rate of {rate_hz:g} frames/s is assumed"
    fall = fall_of(feet, body, rate_hz, size)
    if fall and not _FALLS[0] < fall < _FALLS[1]:
        likely = rate_hz * math.sqrt(_USUAL_FALL / fall)
        return f"{assumed}, it falls at {fall:.2g} g (rate? about {likely:.0f}, source_rate_hz=)"

    pace = pace_of(feet, body, rate_hz)
    if pace and not _PACES[0] < pace < _PACES[1]:
        likely = rate_hz * _USUAL_PACE / pace
        slow = "slow" if pace < 1.0 else "fast"
        return f"{assumed}, its strides are {slow} (rate? about {likely:.0f}, source_rate_hz=)"
    return ""


def name_doubt(rate_hz: float, name: str) -> str:
    """The doubt about an assumed rate where the file's name says one other; "" for none."""
    rates = rates_in(name)
    if len(rates) != 1:
        return ""

    [named] = rates
    if abs(named / rate_hz - 1.0) < 0.02:
        return ""

    assumed = f"a rate of {rate_hz:g} frames/s is assumed"
    return f"{assumed}, its name says {named:g} (rate? source_rate_hz={named:g})"


def rates_in(name: str) -> set[float]:
    """The rates [Hz] that a file's name says, e.g. 60 for "dance_60hz"."""
    rates = {float(match[1] or match[2]) for match in _RATE_IN_NAME.finditer(name)}
    return {rate for rate in rates if _RATES[0] <= rate <= _RATES[1]}


def pace_of(feet: Array, body: Array, rate_hz: float) -> float:
    """Speed over that of an animal of this height with strides as long; 0 without even strides.

    feet: (T, F, 3) [m]. body: its centre (T, 3) [m].
    """
    frames = len(feet)
    if frames < 16:
        return 0.0

    smooth = uniform_filter1d(body[:, :2], max(3, frames // 50), axis=0, mode="nearest")
    step = np.gradient(smooth, axis=0)
    advance = np.linalg.norm(step, axis=1)
    ahead = step / np.maximum(advance, 1e-9)[:, None]
    swing = np.einsum("tfc,tc->tf", (feet - body[:, None])[..., :2], ahead)
    period = _period(swing - swing.mean(axis=0))  # [frames]

    per_frame = float(np.median(advance))  # [m]
    height = float(np.median(body[:, 2]) - np.percentile(feet[..., 2], 5))
    if height <= 0.0 or period * per_frame < _SHORTEST_STRIDE * height:
        return 0.0
    froude = (period * per_frame / height / _STRIDE_FACTOR) ** (1.0 / _STRIDE_EXPONENT)
    return per_frame * rate_hz / math.sqrt(GRAVITY * height * froude)


def _period(values: Array) -> int:
    """Frames after which values (T, F) repeat, by their autocorrelation; 0 where they do not."""
    frames = len(values)
    spectrum = np.fft.rfft(values, 2 * frames, axis=0)
    repeats = np.fft.irfft(np.square(np.abs(spectrum)).sum(axis=1))[:frames]
    repeats *= frames / (frames - np.arange(frames)) / max(repeats[0], 1e-12)
    negative = np.flatnonzero(repeats < 0.0)
    if not len(negative) or negative[0] > frames // 2 - 3:
        return 0

    inside = np.arange(negative[0] + 1, frames // 2 - 1)
    peaks = (repeats[inside] >= repeats[inside - 1]) & (repeats[inside] >= repeats[inside + 1])
    high = repeats[inside] > max(_REPEATS, 0.85 * float(repeats[inside].max()))
    return int(inside[peaks & high][0]) if (peaks & high).any() else 0


def fall_of(feet: Array, body: Array, rate_hz: float, size: float) -> float:
    """Acceleration of the body in jumps over g, the median of them; 0 where it does not jump.

    feet: (T, F, 3) [m]. body: its centre (T, 3) [m]. size: of the body [m].
    """
    lowest = np.percentile(feet[..., 2], 10, axis=0)
    in_air = ((feet[..., 2] - lowest) > _IN_AIR * size).all(axis=1)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], in_air, [False])).astype(np.int8)))
    falls = []
    for start, stop in edges.reshape(-1, 2):
        if stop - start < 6:
            continue
        time = np.arange(stop - start) / rate_hz
        curve = np.polyfit(time, body[start:stop, 2], 2)
        off = float(np.std(body[start:stop, 2] - np.polyval(curve, time)))
        jump = -curve[0] * time[-1] ** 2 / 4.0  # [m]
        if jump > _JUMP * size and off < _OFF_PARABOLA * jump:
            falls.append(-2.0 * curve[0] / GRAVITY)
    return float(np.median(falls)) if falls else 0.0


def _speed(points: Array, rate_hz: float) -> Array:
    """Horizontal speed [m/s] of points (T, ..., 3), central differences."""
    return np.asarray(np.linalg.norm(np.gradient(points[..., :2], axis=0), axis=-1) * rate_hz)
