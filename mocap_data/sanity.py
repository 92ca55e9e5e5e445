"""What speaks against a recording having been read rightly: wrong units, axis, rate, or floor.

Files do not say these things, or say them wrongly, and nothing later on fails because of them; the
motion is just nonsense. What no recording and no motion can have is refused (`require_rate`,
`require_moderate`), the rest is doubted (`doubts`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError

if TYPE_CHECKING:
    from mocap_data.clip import Clip

# from poses of slow video to what no camera does; files have narrower ones, `readers.common`
RATES_HZ = (0.01, 1e6)
# [m], [rad] of a coordinate: nobody walks 100 km, and 32 bits have steps of 8 mm there
LARGEST = 1e5

# [m] across all keypoints at once: a cat to a horse, or a person with arms spread
SIZES = (0.2, 5.0)
MOVES = 1e-3  # [m] less than this over all frames is not moving
FASTEST = 12.0  # [m/s] of the body as a whole: nobody runs faster, few dogs do
LONG, SLOW = 600.0, 20.0  # [s], [Hz] a long recording at a low rate is one with a wrong rate
JUMP = 0.5  # [m] from one frame to the next, beyond what the frames around it move
FLOOR = (-0.3, 0.6)  # [m] where the lowest keypoint may be, at its lowest
WALKS = 0.2  # [m/s] from here on a standing foot differs from the rest of the body

_HEAD = re.compile(r"head|skull|nose", re.IGNORECASE)
_FEET = re.compile(r"foot|feet|toe|ankle|heel|paw|hoof|hand_end|tibia", re.IGNORECASE)


def require_rate(rate_hz: float, what: str) -> float:
    """The rate [Hz], where a motion can have it.

    Raises:
      InputError: for one outside of RATES_HZ, none at all included.
    """
    if RATES_HZ[0] <= rate_hz <= RATES_HZ[1]:
        return float(rate_hz)
    why = "not possible" if rate_hz > 0.0 else "not positive"
    raise InputError(
        f"{what} rate {rate_hz:g} Hz is {why}; expected {RATES_HZ[0]:g} to {RATES_HZ[1]:,.0f}"
    )


def require_moderate(values: Array, what: str) -> None:
    """Refuse coordinates (T, ...) [m] or [rad] that no motion has, though they are finite.

    Raises:
      InputError: naming the first frame with one beyond LARGEST.
    """
    if max(values.max(initial=0.0), -values.min(initial=0.0)) <= LARGEST:
        return
    frame = int(np.argwhere(np.abs(values) > LARGEST)[0, 0])
    worst = float(np.abs(values[frame]).max())
    raise InputError(
        f"{what} is {worst:.3g} at frame {frame}; no coordinate is beyond {LARGEST:,.0f} m or rad"
    )


def doubts(clip: Clip) -> list[str]:
    """What looks misread about a clip, a line each, with the option that may help; nothing where
    all looks well."""
    size = _size(clip)
    found = [
        doubt
        for doubt in (wrong_size(clip), _motion(clip), _rate(clip), _axis(clip, size))
        if doubt
    ]
    if SIZES[0] <= size <= SIZES[1]:  # of another size these say nothing new
        found += [doubt for doubt in (_speed(clip), _jumps(clip), _floor(clip)) if doubt]
    return found


def wrong_size(clip: Clip) -> str:
    """That a clip is of a size that no animal or person has, as in `doubts`; nothing where it is
    not, or has one keypoint."""
    size = _size(clip)
    if SIZES[0] <= size <= SIZES[1] or len(clip.names) < 2:
        return ""
    return f"is {size:.3g} m across (units? {_better_unit(size)})"


def _size(clip: Clip) -> float:
    """[m] across all keypoints at once, the median over frames."""
    return float(np.median(np.linalg.norm(np.ptp(clip.positions, axis=1), axis=-1)))


def _better_unit(size: float) -> str:
    """The change of scale that would make it a plausible one."""
    for factor in (100.0, 1000.0, 39.37, 10.0):
        for times, way in ((1.0 / factor, "smaller"), (factor, "larger")):
            if 0.7 <= size * times <= 3.0:
                return f"scale= should be {factor:.3g} times {way}"
    return "scale="


def _motion(clip: Clip) -> str:
    if clip.num_frames == 1:
        return "has one frame: a pose, no motion"
    if float(np.ptp(clip.positions, axis=0).max()) < MOVES:
        return f"does not move: no keypoint by more than {1000 * MOVES:g} mm"
    return ""


def _rate(clip: Clip) -> str:
    if clip.duration_s > LONG and clip.rate_hz < SLOW:
        return f"lasts {clip.duration_s:.0f} s at {clip.rate_hz:g} frames/s (rate? source_rate_hz=, or the file's own)"
    return ""


def _axis(clip: Clip, size: float) -> str:
    """Whether it stands on its head, lies, or walks up a wall."""
    heights = clip.positions[..., 2]
    head = [i for i, name in enumerate(clip.names) if _HEAD.search(name)]
    feet = [i for i, name in enumerate(clip.names) if _FEET.search(name) and i not in head]
    path = clip.positions.mean(axis=1)
    across, upwards = float(np.linalg.norm(np.ptp(path[:, :2], axis=0))), float(np.ptp(path[:, 2]))
    if upwards > max(2.0 * size, 2.0 * across):
        return f"goes {upwards:.3g} m up or down and {across:.3g} m across (axis? up=)"
    if head and feet:
        above = float(np.median(heights[:, head].mean(axis=1) - heights[:, feet].mean(axis=1)))
        if above < -0.1 * size:
            return f"is upside down: its head is {-above:.3g} m below its feet (axis? up=)"
        if above < 0.1 * size:
            return f"lies: its head is {above:.3g} m above its feet, of {size:.3g} m (axis? up=)"
    elif _stands_on_top(clip):
        return (
            "looks upside down: its highest keypoints stand still while its lowest move (axis? up=)"
        )
    return ""


def _stands_on_top(clip: Clip) -> bool:
    """Whether what is still while the body moves, a standing foot, is at the top."""
    if clip.num_frames < 2:
        return False
    velocity = np.diff(clip.positions, axis=0) * clip.rate_hz
    body = float(np.median(np.linalg.norm(velocity.mean(axis=1), axis=-1)))
    if body < WALKS:
        return False
    heights = clip.positions[:-1, :, 2]
    rows = np.arange(len(velocity))
    speed = np.linalg.norm(velocity, axis=-1)
    top = float(np.median(speed[rows, heights.argmax(axis=1)]))
    bottom = float(np.median(speed[rows, heights.argmin(axis=1)]))
    return top < 0.5 * body and bottom > 0.7 * body


def _speed(clip: Clip) -> str:
    speed = _speeds(clip.positions.mean(axis=1), clip.rate_hz)
    if len(speed) and float(np.percentile(speed, 90)) > FASTEST:
        return f"moves at {float(np.percentile(speed, 90)):.3g} m/s (rate? source_rate_hz=, or units, scale=)"
    return ""


def _speeds(path: Array, rate_hz: float) -> Array:
    """Of a path (T, 3) [m], (T - 1,) [m/s]."""
    return np.linalg.norm(np.diff(path, axis=0), axis=-1) * rate_hz


def _jumps(clip: Clip) -> str:
    """Whether a keypoint leaps between two frames."""
    if clip.num_frames < 3:
        return ""
    steps = np.linalg.norm(np.diff(clip.positions, axis=0), axis=-1)  # (T - 1, M)
    around = np.median(steps, axis=0)
    leaps = steps - 10.0 * around > JUMP
    if not leaps.any():
        return ""
    frame, keypoint = (int(i) for i in np.argwhere(leaps)[0])
    count = int(leaps.any(axis=1).sum())
    more = f", and in {count - 1} more places" if count > 1 else ""
    leap = f"{steps[frame, keypoint]:.3g} m after frame {frame}"
    return f"{clip.names[keypoint]!r} jumps by {leap}{more} (a glitch of the recording?)"


def _floor(clip: Clip) -> str:
    lowest = float(np.percentile(clip.positions[..., 2].min(axis=1), 5))
    if lowest < FLOOR[0]:
        python = "from Python: read(..., add_root_offset=True)"
        return f"is {-lowest:.3g} m below the floor (BVH with a relative root? {python}; else the recording's own floor)"
    if lowest > FLOOR[1]:
        return f"is {lowest:.3g} m above the floor (the recording's own floor? a platform?)"
    return ""
