"""What readers share: limits, units, axes, rates, tables of numbers, and the keypoints of the dog
recordings."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError, unknown
from mocap_data.outside import regular_file, require_memory

# What a file may ask for. A recording of five minutes at 120 Hz with 100 keypoints has 11 million
# coordinates, and a text of that size 100 MB; beyond these limits a file is damaged, made to harm,
# or better cut first.
MAX_FILE_BYTES = 2**30
MAX_KEYPOINTS = 2_000  # joints of a hierarchy, bones, markers
MAX_COORDINATES = 100_000_000  # frames x keypoints x 3: 0.8 GB
# and frame, at the peak of forward kinematics: positions, rotations and angles, twice
BYTES_PER_KEYPOINT = 160
# Frames per second that a file may say: from what poses of slow video have to what the fastest
# cameras do. A rate beyond is a time in another unit, and a motion of seconds would become hours.
RATES_HZ = (5.0, 10_000.0)

# The dog skeleton of Zhang et al. 2018 in file order; "Hand_end" are the fore paws, "Foot_end" the
# hind paws.
DOG_NAMES = (
    "Hips",
    "Spine",
    "Spine1",
    "Neck",
    "Head",
    "Head_end",
    "LeftShoulder",
    "LeftArm",
    "LeftForeArm",
    "LeftHand",
    "LeftHand_end",
    "RightShoulder",
    "RightArm",
    "RightForeArm",
    "RightHand",
    "RightHand_end",
    "LeftUpLeg",
    "LeftLeg",
    "LeftFoot",
    "LeftFoot_end",
    "RightUpLeg",
    "RightLeg",
    "RightFoot",
    "RightFoot_end",
    "Tail",
    "Tail1",
    "Tail1_end",
)
# Of each of them the keypoint it hangs from.
DOG_PARENTS = (
    *(-1, 0, 1, 2, 3, 4),
    *(2, 6, 7, 8, 9),
    *(2, 11, 12, 13, 14),
    *(0, 16, 17, 18),
    *(0, 20, 21, 22),
    *(0, 24, 25),
)
DOG_RATE_HZ = 60.0


class MissingOptions(InputError):
    """A recording that does not say all that is needed: what it lacks can be given as options of
    the reader.

    options: their names, e.g. ("names", "rate_hz").
    """

    def __init__(self, message: str, options: tuple[str, ...]) -> None:
        super().__init__(message)
        self.options = options


# Metres per unit, by the names that files and people use.
UNITS = {
    **dict.fromkeys(("m", "meter", "meters", "metre", "metres"), 1.0),
    **dict.fromkeys(("dm", "decimeter", "decimeters", "decimetre", "decimetres"), 0.1),
    **dict.fromkeys(("cm", "centimeter", "centimeters", "centimetre", "centimetres"), 0.01),
    **dict.fromkeys(("mm", "millimeter", "millimeters", "millimetre", "millimetres"), 0.001),
    **dict.fromkeys(("in", "inch", "inches"), 0.0254),
    **dict.fromkeys(("ft", "foot", "feet"), 0.3048),
}
_SHORT_UNITS = ("m", "dm", "cm", "mm", "in", "ft")


def metres_per_unit(scale: float | str, path: Any = "scale") -> float:
    """`scale` as a number: of metres per unit of the file, or the name of that unit ("cm").

    Raises:
      InputError: for an unknown name, or a number that is not positive and finite.
    """
    if isinstance(scale, str):
        text = scale.strip()
        if text.lower() in UNITS:
            return UNITS[text.lower()]
        try:
            scale = float(text)
        except ValueError:
            raise InputError(
                f"{path}: no unit {shown(text)}; scale is metres per unit of the file, a number or one of: "
                f"{', '.join(_SHORT_UNITS)}"
            ) from None
    if isinstance(scale, bool) or not isinstance(scale, int | float | np.number):
        raise InputError(
            f"{path}: scale {scale!r} is no number (metres per unit of the file) and no unit's name"
        )
    if not (math.isfinite(scale) and scale > 0.0):
        raise InputError(f"{path}: scale {scale} is not positive (metres per unit of the file)")
    return float(scale)


# For each upward axis of a file, the file's axes that become X, Y and Z. Cyclic, so still
# right-handed. With Y up, a character at rest faces +Z by custom: that becomes +X, forward.
_AXES = {"x": (1, 2, 0), "y": (2, 0, 1), "z": (0, 1, 2)}
UP_AXES = ("x", "y", "z", "-x", "-y", "-z")


def to_world(positions: Array, *, up: str, scale: float | str, path: Any) -> Array:
    """Positions (..., 3) in a file's units and axes as metres, Z up.

    up: the file's upward axis. "y": (x, y, z) becomes (z, x, y); "z": unchanged; "x": (y, z, x).
    The heading of a
        recording is not touched. "-x", "-y", "-z": that axis points down, and the recording is
        turned half round about the X axis of the result.
    scale: metres per unit, or the unit's name; see `metres_per_unit`.

    Raises:
      InputError: for another axis or scale.
    """
    name = str(up).strip().lower()
    if name not in UP_AXES:
        raise unknown("upward axis", up, UP_AXES)
    signs = np.array([1.0, -1.0, -1.0]) if name.startswith("-") else np.ones(3)
    return np.ascontiguousarray(
        positions[..., _AXES[name[-1]]] * (metres_per_unit(scale, path) * signs)
    )


def world_clip(
    path: Path,
    positions: Array,
    names: Sequence[str],
    parents: Sequence[int] | None,
    *,
    rate_hz: float,
    scale: float | str,
    up: str,
) -> Clip:
    """The `Clip` of positions (T, M, 3) in a file's units and axes; how every reader ends.

    Raises:
      InputError: naming the file, for what `to_world` and `Clip` refuse.
    """
    if len(names) != positions.shape[1]:
        raise InputError(
            f"{path} has {positions.shape[1]} keypoints, but there are {len(names)} names"
        )
    try:
        with np.errstate(over="ignore"):  # what is too large for a float is refused as not finite
            world = to_world(positions, up=up, scale=scale, path=path)
        return Clip(
            world,
            tuple(names),
            rate_hz,
            source=path.name,
            name=path.stem,
            parents=None if parents is None else tuple(parents),
        )
    except InputError as error:
        raise InputError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


def content(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
      InputError: beyond MAX_FILE_BYTES and for what is no regular file, OSError where it cannot be
        read.
    """
    return regular_file(path, at_most=MAX_FILE_BYTES).read_bytes()


def check_size(path: Any, frames: int, keypoints: int) -> None:
    """Refuse, before anything is allocated, a recording that is too large.

    Raises:
      InputError: for more than MAX_KEYPOINTS, more than MAX_COORDINATES, or more than memory holds.
    """
    if keypoints > MAX_KEYPOINTS:
        raise InputError(
            f"{path} has {keypoints:,} keypoints, more than the {MAX_KEYPOINTS:,} that are read"
        )
    if 3 * frames * keypoints > MAX_COORDINATES:
        raise InputError(
            f"{path}: {frames:,} frames of {keypoints:,} keypoints are more than the {MAX_COORDINATES:,} coordinates "
            "that are read; cut it into parts"
        )
    require_memory(
        BYTES_PER_KEYPOINT * frames * keypoints,
        f"{path}: {frames:,} frames of {keypoints:,} keypoints",
    )


def rate_said(path: Any, rate_hz: float) -> float:
    """The frames per second that a file says, directly or as a time per frame.

    Raises:
      InputError: for a rate outside of RATES_HZ.
    """
    if RATES_HZ[0] <= rate_hz <= RATES_HZ[1]:
        return rate_hz
    lasts = f", a frame of {1.0 / rate_hz:g} s," if rate_hz > 0.0 else ""
    unit = " (a time in milliseconds?)" if RATES_HZ[0] <= 1000.0 * rate_hz <= RATES_HZ[1] else ""
    expected = f"expected {RATES_HZ[0]:g} to {RATES_HZ[1]:,.0f}"
    raise InputError(
        f"{path}: a rate of {rate_hz:.4g} frames/s{lasts} is not possible; {expected}{unit}"
    )


def not_text(path: Any, data: bytes) -> str | None:
    """What speaks against a file being text in ASCII or UTF-8, as an error message; None where
    nothing does."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return f"{path} is text in UTF-16; save it as UTF-8 or ASCII"
    if b"\0" in data[:4096]:
        return f"{path} is binary, expected text"
    return None


def shown(text: bytes | str) -> str:
    """A piece of a file as it can stand in a one-line error."""
    decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    stripped = decoded.strip()
    return repr(stripped if len(stripped) <= 40 else stripped[:40] + "...")


def whole_rate(frame_time: float, digits: int = 15) -> float:
    """Frames per second: the whole number that the frame time [s], printed with so many decimals,
    stands for.

    Where no whole number is that near (one unit of the last decimal, and at most 0.2 %), 1 /
    frame_time; infinite for a time so short that this is.
    """
    if not math.isfinite(1.0 / frame_time):
        return math.inf
    whole = max(1, round(1.0 / frame_time))
    gap = abs(1.0 / whole - frame_time)
    return float(whole) if gap <= min(10.0**-digits, 2e-3 * frame_time) else 1.0 / frame_time


def words_per_line(data: bytes) -> Array:
    """How many words (between white space) each line of a text holds, an integer per line; blank
    lines count too."""
    codes = np.frombuffer(data, dtype=np.uint8)
    space = _IS_SPACE[codes]
    starts = ~space
    starts[1:] &= space[:-1]
    words = np.flatnonzero(starts)
    ends = np.append(np.flatnonzero(_IS_NEWLINE[codes]), len(codes))
    return np.diff(np.searchsorted(words, ends), prepend=0)


_IS_SPACE = np.zeros(256, dtype=bool)
_IS_SPACE[list(b" \t\n\r\v\f")] = True
_IS_NEWLINE = np.zeros(256, dtype=bool)
_IS_NEWLINE[list(b"\r\n")] = True


def fast_table(text: bytes, columns: int) -> Array | None:
    """Lines of `columns` numbers between white space as (T, columns), blank lines skipped; None
    where it is not just that.

    For the good case only, ten times as fast as looking at each word: who gets None looks closer
    and says what is
      wrong.
    """
    counts = words_per_line(text)
    filled = counts[counts > 0]
    if columns < 1 or not len(filled) or (filled != columns).any():
        return None
    values = parse_numbers(text, " ")
    if values is None or values.size != columns * len(filled):
        return None
    return values.reshape(-1, columns)


def parse_numbers(text: bytes, separator: str) -> Array | None:
    """All numbers of a text, flat; None where one is no number, or not finite."""
    with warnings.catch_warnings():
        # a word that is no number, in numpy before 2.3
        warnings.simplefilter("error", DeprecationWarning)
        try:
            values = np.fromstring(text, dtype=np.float64, sep=separator)
        except (ValueError, DeprecationWarning):
            return None
    return values if np.isfinite(values).all() else None


def parse_rows(path: Any, line_numbers: list[int], rows: list[list[bytes]]) -> Array:
    """Rows of equally many words as finite floats, (T, words in a row).

    line_numbers: of each row in the file, for errors.

    Raises:
      InputError: naming the line of a word that is no number, or no finite one.
    """
    try:
        values = np.array(rows, dtype=np.float64)
    except ValueError:
        for number, row in zip(line_numbers, rows, strict=True):
            for word in row:
                try:
                    float(word)
                except ValueError:
                    raise InputError(
                        f"{path}, line {number}: {shown(word)} is not a number"
                    ) from None
        raise InputError(f"{path}: the rows are not all numbers of one length") from None
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        frame = int(np.argmin(finite))
        raise InputError(
            f"{path}, line {line_numbers[frame]}: a value is not finite (frame {frame})"
        )
    return values


def json_frames(path: Any, rows: Any, size: int | None = None) -> Array:
    """ "Frames" of a JSON document as (T, numbers in a frame).

    size: of a frame; None: of any, all of one.

    Raises:
      InputError: with the frame, for none, for another length, or what is no finite number.
    """
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path}: 'Frames' must be a list of frames, and holds none")
    if not all(isinstance(row, list) for row in rows):
        raise InputError(f"{path}: 'Frames' must be lists of numbers")
    expected = "the frames before have" if size is None else "expected"
    size = len(rows[0]) if size is None else size
    for i, row in enumerate(rows):
        if len(row) != size:
            raise InputError(f"{path}: frame {i} has {len(row)} numbers, {expected} {size}")
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in row):
            raise InputError(f"{path}: frame {i} has an entry that is no number")
    try:
        frames = np.array(rows, dtype=np.float64)
    except OverflowError:  # a whole number of more than 308 digits
        raise InputError(f"{path}: 'Frames' has a value that is not finite") from None
    finite = np.isfinite(frames).all(axis=1)
    if not finite.all():
        raise InputError(f"{path}: frame {int(np.argmin(finite))} has a value that is not finite")
    return frames
