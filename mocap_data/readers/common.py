"""Shared by the readers: limits, units, axes, rates, tables of numbers, the dog's keypoints."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError, unknown
from mocap_data.input_files import regular_file, require_memory
from mocap_data.readers.subject_selection import Keypoints

# five minutes at 120 Hz with 100 keypoints are 100 MB of text
MAX_FILE_BYTES = 2**30
# joints of a hierarchy, bones, markers
MAX_KEYPOINTS = 2_000
# memory per keypoint and frame at the peak of forward kinematics [bytes]
BYTES_PER_KEYPOINT = 160
# [Hz] of recordings; other rates are times in another unit
RATES_HZ = (5.0, 10_000.0)
BOM = b"\xef\xbb\xbf"
CUT = "; the file is truncated"

_LEG = ("UpLeg", "Leg", "Foot", "Foot_end")
_ARM = ("Shoulder", "Arm", "ForeArm", "Hand", "Hand_end")
# the dog skeleton of Zhang et al. 2018 in file order; "Hand_end" are the fore, "Foot_end" the hind
# paws
DOG_NAMES = (
    *("Hips", "Spine", "Spine1", "Neck", "Head", "Head_end"),
    *(f"{side}{part}" for side in ("Left", "Right") for part in _ARM),
    *(f"{side}{part}" for side in ("Left", "Right") for part in _LEG),
    *("Tail", "Tail1", "Tail1_end"),
)
# parent of each keypoint
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
    """A recording lacks a required value; `options` are the reader's options that set it."""

    def __init__(self, message: str, options: tuple[str, ...]) -> None:
        super().__init__(message)
        self.options = options


def at_line(path: Any, line: int, message: str) -> InputError:
    """The error for a line of a file, counted from 1."""
    return InputError(f"{path}, line {line}: {message}")


# metres per unit, by the names that files and people use
UNITS = {
    **dict.fromkeys(("m", "meter", "meters", "metre", "metres"), 1.0),
    **dict.fromkeys(("dm", "decimeter", "decimeters", "decimetre", "decimetres"), 0.1),
    **dict.fromkeys(("cm", "centimeter", "centimeters", "centimetre", "centimetres"), 0.01),
    **dict.fromkeys(("mm", "millimeter", "millimeters", "millimetre", "millimetres"), 0.001),
    **dict.fromkeys(("in", "inch", "inches"), 0.0254),
    **dict.fromkeys(("ft", "foot", "feet"), 0.3048),
}


def metres_per_unit(scale: float | str, path: Any = "scale") -> float:
    """`scale` as a number: metres per unit of the file, or the name of that unit ("cm").

    Raises:
      InputError: an unknown name, or a number that is not positive and finite.
    """
    number = UNITS.get(str(scale).strip().lower(), math.nan)
    if math.isnan(number) and not isinstance(scale, bool):
        number = number_or_nan(str(scale))
    if not (math.isfinite(number) and number > 0.0):
        expected = "metres per unit of the file (above 0), or one of m, dm, cm, mm, in, ft"
        raise InputError(f"{path}: scale={quoted(str(scale))}: expected {expected}")
    return number


# axes that become X, Y and Z, by upward axis of a file; a character in a Y-up file faces +Z
# at rest, which becomes +X
_AXES = {"x": (1, 2, 0), "y": (2, 0, 1), "z": (0, 1, 2)}
UP_AXES = ("x", "y", "z", "-x", "-y", "-z")


def to_world(positions: Array, *, up: str, scale: float | str, path: Any) -> Array:
    """Positions (..., 3) in a file's units and axes as metres, Z up.

    up: the file's upward axis: "y" takes (x, y, z) to (z, x, y), "x" to (y, z, x); "-x", "-y" and
      "-z" point down: as without the sign, then turned half round about X.
    scale: metres per unit, or the unit's name; see `metres_per_unit`.

    Raises:
      InputError: another axis or scale.
    """
    name = str(up).strip().lower()
    if name not in UP_AXES:
        raise unknown("upward axis", up, UP_AXES)
    signs = np.array([1.0, -1.0, -1.0]) if name.startswith("-") else np.ones(3)
    factors = metres_per_unit(scale, path) * signs
    return np.ascontiguousarray(positions[..., _AXES[name[-1]]] * factors)


def forward_kinematics(
    parents: Sequence[int], offsets: Sequence[Array], turns: Sequence[Array | None]
) -> Array:
    """Positions (T, J, 3) of joints, parents before children, in the axes and units of the roots.

    offsets: of each joint in its parent's frame, (3,) or (T, 3); for a root its positions (T, 3).
    turns: of each joint in its parent, (T, 4); None: the identity.
    """
    positions: list[Array] = []
    orientations: list[Array] = []
    for parent, offset, turn in zip(parents, offsets, turns, strict=True):
        if parent < 0:
            positions.append(offset)
            orientations.append(rotations.IDENTITY if turn is None else turn)
        else:
            outer = orientations[parent]
            positions.append(positions[parent] + rotations.rotate(outer, offset))
            orientations.append(outer if turn is None else rotations.multiply(outer, turn))
    return np.stack(positions, axis=1)


def world_clip(
    path: Path,
    keypoints: Keypoints,
    *,
    rate_hz: float,
    scale: float | str,
    up: str,
    assumed: tuple[str, ...] = ("scale", "up"),
) -> Clip:
    """The `Clip` of keypoints in a file's units and axes.

    assumed: the reader's options whose values are assumed.

    Raises:
      InputError: with the file, as `to_world` and `Clip`.
    """
    names = tuple(keypoints.names)
    parents = keypoints.parents
    count = keypoints.positions.shape[1]
    if len(names) != count:
        raise InputError(f"{path}: names has {len(names)} entries, expected {count} (keypoints)")
    try:
        # numbers too large for a float raise as not finite
        with np.errstate(over="ignore"):
            world = to_world(keypoints.positions, up=up, scale=scale, path=path)
        return Clip(
            world,
            names,
            rate_hz,
            source=path.name,
            name=path.stem,
            parents=None if parents is None else tuple(parents),
            assumed=assumed,
            remarks=keypoints.remarks,
        )
    except InputError as error:
        raise InputError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


def content(path: Path) -> bytes:
    """The bytes of a regular file of at most MAX_FILE_BYTES."""
    return regular_file(path, at_most=MAX_FILE_BYTES).read_bytes()


def text_content(path: Path, expected: str) -> bytes:
    """The bytes of a text file without a byte order mark.

    Raises:
      InputError: as `content` and `check_text`.
    """
    data = content(path).removeprefix(BOM)
    check_text(path, data, expected)
    return data


def check_text(path: Any, data: bytes, expected: str) -> None:
    """Raise InputError for bytes that are empty, UTF-16 or binary. expected: their contents."""
    if not data.strip():
        raise InputError(f"{path} is empty, expected {expected}")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path} is text in UTF-16; save it as UTF-8 or ASCII")
    if b"\0" in data[:4096]:
        raise InputError(f"{path} is binary, expected {expected}")


def check_size(path: Any, frames: int, keypoints: int) -> None:
    """Raise InputError for more than MAX_KEYPOINTS, or more than memory holds."""
    if keypoints > MAX_KEYPOINTS:
        raise InputError(f"{path}: {keypoints:,} keypoints, expected at most {MAX_KEYPOINTS:,}")
    size = f"{frames:,} frames of {keypoints:,} keypoints"
    require_memory(BYTES_PER_KEYPOINT * frames * keypoints, f"{path}: {size}")


def file_rate(path: Any, rate_hz: float) -> float:
    """The rate of a file [Hz]. Raises InputError outside of RATES_HZ."""
    low, high = RATES_HZ
    if low <= rate_hz <= high:
        return rate_hz
    hint = " (a time in milliseconds?)" if low <= 1000.0 * rate_hz <= high else ""
    expected = f"expected {low:g} to {high:,.0f}"
    raise InputError(f"{path}: a rate of {rate_hz:.4g} frames/s, {expected}{hint}")


def whole_rate(frame_time: float, digits: int = 15) -> float:
    """Frames per second of a frame time [s] printed with `digits` decimals: 60 for 0.0166667.

    The whole number within one unit of the last decimal and 0.2 %, else 1 / frame_time.
    """
    if not math.isfinite(1.0 / frame_time):
        return math.inf
    rounded = max(1, round(1.0 / frame_time))
    gap = abs(1.0 / rounded - frame_time)
    return float(rounded) if gap <= min(10.0**-digits, 2e-3 * frame_time) else 1.0 / frame_time


def check_even(path: Any, steps: Array, middle: float, tolerance: float) -> None:
    """Check that frames of durations `steps` (T,) [s] are `middle` up to a share `tolerance`.

    Raises:
      InputError: with the first other frame.
    """
    uneven = np.abs(steps - middle) > tolerance * middle
    if uneven.any():
        frame = int(np.argmax(uneven))
        lasts = f"frame {frame} lasts {steps[frame]:g} s, most last {middle:g} s"
        raise InputError(f"{path}: {lasts}; rate_hz= makes them even")


def quoted(text: bytes | str) -> str:
    """A piece of a file in quotes, cut to 40 characters, for an error."""
    decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    stripped = decoded.strip()
    return repr(stripped if len(stripped) <= 40 else stripped[:40] + "...")


def line_breaks(text: bytes) -> int:
    """The number of line ends in a text."""
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")


def number_or_nan(word: bytes | str) -> float:
    """A word as a number, nan for none."""
    try:
        return float(word)
    except ValueError:
        return math.nan


def parse_rows(path: Any, line_numbers: Sequence[int], rows: Sequence[list[bytes]]) -> Array:
    """Rows of equally many words as finite floats, (T, words in a row).

    Raises:
      InputError: with the line of a word that is not a finite number.
    """
    try:
        values = np.array(rows, dtype=np.float64)
    except ValueError:
        values = np.array([[number_or_nan(word) for word in row] for row in rows])
    finite = np.isfinite(values)
    if not finite.all():
        frame, column = np.argwhere(~finite)[0]
        word = quoted(rows[frame][column])
        raise at_line(path, line_numbers[frame], f"{word} is not a finite number")
    return values


def number_lines(
    path: Any, text: bytes, columns: int, expected: str, *, first_line: int, separator: bytes = b""
) -> Array:
    """Lines of `columns` finite numbers each, (T, columns); blank lines do not count.

    expected: the end of an error for a line of another length. first_line: of the text in the
    file. separator: it may end a line; b"": white space.

    Raises:
      InputError: with the line.
    """
    plain = text.replace(b"\r\n", b"\n").replace(separator + b"\n", b"\n")
    if plain := plain.strip().removesuffix(separator):
        stream = io.BytesIO(plain.replace(b"\r", b"\n"))
        with contextlib.suppress(ValueError):
            delimiter = separator.decode() or None
            values = np.loadtxt(stream, delimiter=delimiter, comments=None, ndmin=2)
            if values.shape[1] == columns and np.isfinite(values).all():
                return values
    # word by word, to find the invalid one
    lines = [
        (number, line.strip().removesuffix(separator).split(separator or None))
        for number, line in enumerate(text.splitlines(), start=first_line)
        if line.strip()
    ]
    for number, row in lines:
        if len(row) != columns:
            cut = CUT if number == lines[-1][0] and len(row) < columns else ""
            raise at_line(path, number, f"{len(row)} numbers, {expected}{cut}")
    if not lines:
        return np.empty((0, columns))
    return parse_rows(path, [number for number, _ in lines], [row for _, row in lines])
