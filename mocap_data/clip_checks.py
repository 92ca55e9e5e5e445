"""Warnings of recordings with implausible units, axis, rate or floor.

Impossible values raise (`require_rate`, `require_moderate`), implausible ones are warnings. A wrong
unit or axis is the only warning, as it causes others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from mocap_data.step_checks import feet_among, rate_warning, sliding_warning

if TYPE_CHECKING:
    from mocap_data.clip import Clip


# [m] across all keypoints at once: a cat to a horse, or a person with arms spread
SIZES = (0.2, 5.0)
# [m] least movement over all frames
MOVES = 1e-3
# [m/s] of the whole body
FASTEST = 12.0
# [s], [Hz] a long recording at a low rate has a wrong rate
LONG = 600.0
SLOW = 20.0
# [m] least jump from frame to frame, relative to the neighbouring frames
JUMP = 0.5
# [m] range of the lowest keypoint's lowest height
FLOOR = (-0.3, 0.6)

_HEAD = re.compile(r"head|skull|nose", re.IGNORECASE)
_FEET = re.compile(r"foot|feet|toe|ankle|heel|paw|hoof|hand_end|tibia", re.IGNORECASE)


def clip_warnings(clip: Clip) -> list[str]:
    """The warnings of a clip, a line each, with the option that may help."""
    size = size_of(clip)
    warnings = [size_warning(clip) or _motion(clip) or _axis(clip, size), _rate(clip, size)]
    if not warnings[0] and SIZES[0] <= size <= SIZES[1]:
        warnings += [_sliding(clip, size), _jumps(clip), _floor(clip)]
    return [warning for warning in warnings if warning]


def size_warning(clip: Clip) -> str:
    """The warning of an implausible size; "" for none, or a single keypoint."""
    size = size_of(clip)
    if SIZES[0] <= size <= SIZES[1] or len(clip.names) < 2:
        return ""
    return f"is {size:.3g} m across (units? {better_unit(size, 0.7, 3.0)})"


def size_of(clip: Clip) -> float:
    """[m] across all keypoints at once, the median over frames."""
    return float(np.median(np.linalg.norm(np.ptp(clip.positions, axis=1), axis=-1)))


def better_unit(size: float, low: float, high: float) -> str:
    """The change of scale that would bring a size between low and high [m]."""
    # inches read as centimetres, and CMU's unit of 1/0.45 inch
    for factor in (100.0, 1000.0, 39.37, 10.0, 2.54, 2.54 / 0.45):
        for times, way in ((1.0 / factor, "smaller"), (factor, "larger")):
            if low <= size * times <= high:
                return f"scale= should be {factor:.3g} times {way}"
    return "scale="


def _motion(clip: Clip) -> str:
    if clip.num_frames == 1:
        return "has one frame: a pose, no motion"
    if float(np.ptp(clip.positions, axis=0).max()) < MOVES:
        return f"does not move: no keypoint by more than {1000 * MOVES:g} mm"
    return ""


def _rate(clip: Clip, size: float) -> str:
    if clip.duration_s > LONG and clip.rate_hz < SLOW:
        lasts = f"lasts {clip.duration_s:.0f} s at {clip.rate_hz:g} frames/s"
        return f"{lasts} (rate? source_rate_hz=, or the file's)"
    if not SIZES[0] <= size <= SIZES[1]:
        return ""
    in_name = rate_warning(clip.rate_hz, clip.source) if "rate_hz" in clip.assumed else ""
    return in_name or _speed(clip)


def _sliding(clip: Clip, size: float) -> str:
    feet = clip.positions[:, feet_among(clip.positions, size)]
    return sliding_warning(feet, clip.positions.mean(axis=1), clip.rate_hz, size)


def _axis(clip: Clip, size: float) -> str:
    """The warning of a body that is upside down, lies, or moves vertically; "" for none."""
    heights = clip.positions[..., 2]
    head = [i for i, name in enumerate(clip.names) if _HEAD.search(name)]
    feet = [i for i, name in enumerate(clip.names) if _FEET.search(name) and i not in head]
    path = clip.positions.mean(axis=1)
    across = float(np.linalg.norm(np.ptp(path[:, :2], axis=0)))
    upwards = float(np.ptp(path[:, 2]))
    if upwards > max(2.0 * size, 2.0 * across):
        return f"goes {upwards:.3g} m up or down and {across:.3g} m across (axis? up=)"
    if head and feet:
        above = float(np.median(heights[:, head].mean(axis=1) - heights[:, feet].mean(axis=1)))
        if above < -0.1 * size:
            return f"is upside down: its head is {-above:.3g} m below its feet (axis? up=)"
        if above < 0.1 * size:
            return f"lies: its head is {above:.3g} m above its feet, of {size:.3g} m (axis? up=)"
    return ""


def _speed(clip: Clip) -> str:
    speed = np.linalg.norm(np.diff(clip.positions.mean(axis=1), axis=0), axis=-1) * clip.rate_hz
    if len(speed) and (fast := float(np.percentile(speed, 90))) > FASTEST:
        return f"moves at {fast:.3g} m/s (rate? source_rate_hz=, or units, scale=)"
    return ""


def _jumps(clip: Clip) -> str:
    """Whether a keypoint jumps between two frames."""
    if clip.num_frames < 3:
        return ""
    steps = np.linalg.norm(np.diff(clip.positions, axis=0), axis=-1)  # (T - 1, M)
    leaps = steps - 10.0 * np.median(steps, axis=0) > JUMP
    if not leaps.any():
        return ""
    frame, keypoint = (int(i) for i in np.argwhere(leaps)[0])
    count = int(leaps.any(axis=1).sum())
    more = f", and in {count - 1} more places" if count > 1 else ""
    leap = f"{steps[frame, keypoint]:.3g} m after frame {frame}"
    return f"{clip.names[keypoint]!r} jumps by {leap}{more} (a glitch of the recording?)"


def _floor(clip: Clip) -> str:
    heights = clip.positions[..., 2]
    lowest = float(np.percentile(heights.min(axis=1), 5))
    if lowest < FLOOR[0]:
        which = clip.names[int(np.argmin(np.percentile(heights, 5, axis=0)))]
        return f"is {-lowest:.3g} m below the floor with {which!r} (another floor?)"
    if lowest > FLOOR[1]:
        return f"is {lowest:.3g} m above the floor (another floor? a platform?)"
    return ""
