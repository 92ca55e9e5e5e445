"""Keypoints in the world, frame by frame: CSV (a row per frame) and npz (named arrays)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.npz import load_npz
from mocap_data.readers import common
from mocap_data.readers.gap_filling import fill_recording
from mocap_data.readers.subject_selection import Keypoints, select_subject


def read_csv(
    path: str | os.PathLike[str],
    *,
    rate_hz: float | None = None,
    names: Sequence[str] | None = None,
    scale: float | str = 1.0,
    up: str = "y",
    subject: str | None = None,
) -> Clip:
    """T rows of M x (x, y, z), separated by commas, with or without a row of names first.

    A row of names is NAME_x, NAME_y, NAME_z (or with a blank, dot or colon between, or nothing) for
    every keypoint, possibly after a column "time" [s], which gives the rate, or "frame".

    rate_hz, names: in place of the file's; 81 unnamed columns are the dog set's at 60 Hz.
    scale, up: see `to_world`. subject: the prefix of "SUBJECT:NAME" to take of several; None: the
      first body's.

    Raises:
      InputError: with file and line: no rows, rows of differing length, a text or a value that is
        not finite, a number of columns that does not fit the names.
    """
    path = Path(path)
    data = common.content(path).removeprefix(common.BOM)
    file_names, times, values = _named_table(path, data)
    columns = values.shape[1]
    if columns % 3:
        raise InputError(f"{path}: {columns} numbers in a row, expected 3 (x, y, z) per keypoint")
    common.check_size(path, len(values), columns // 3)
    if rate_hz is None and times is not None:
        rate_hz = rate_of(path, times)
    parents = None
    assumed: tuple[str, ...] = ("scale", "up")
    if file_names is None and columns == 3 * len(common.DOG_NAMES):
        if rate_hz is None:
            rate_hz = common.DOG_RATE_HZ
            assumed += ("rate_hz",)
        if names is None:
            names = common.DOG_NAMES
            parents = common.DOG_PARENTS
            assumed += ("names",)
    names = file_names if names is None else names
    if names is None or rate_hz is None:
        missing = tuple(o for o, v in (("names", names), ("rate_hz", rate_hz)) if v is None)
        message = f"{path} has {columns // 3} keypoints; set "
        raise common.MissingOptions(message + ", ".join(f"{key}=" for key in missing), missing)
    positions = values.reshape(len(values), -1, 3)
    keypoints = select_subject(path, Keypoints(positions, names, parents), subject)
    return common.world_clip(path, keypoints, rate_hz=rate_hz, scale=scale, up=up, assumed=assumed)


def _named_table(path: Path, data: bytes) -> tuple[list[str] | None, Array | None, Array]:
    """The keypoints' names, the times (T,) [s] (None where the file has none), and (T, 3 M)."""
    header = _names_row(data)
    if header is None:
        return None, None, number_table(path, data)
    names, first, size = header
    table = number_table(path, data[size:], first_line=common.line_breaks(data[:size]) + 1)
    width = 3 * len(names) + (first != "")
    if table.shape[1] != width:
        raise InputError(f"{path}: {table.shape[1]} numbers in a row, its row of names has {width}")
    times = table[:, 0] if first == "time" else None
    return names, times, table[:, 1:] if first else table


_COORDINATE = re.compile(r"(?P<name>.*[^\s._:-])[\s._:-]*(?P<axis>[xyz])", re.IGNORECASE)


def _names_row(data: bytes) -> tuple[list[str], str, int] | None:
    """The keypoints of a row of names, its first column ("time" or "frame"), and its bytes."""
    row = re.match(rb"\s*([^\r\n]*)(?:\r\n|\r|\n|\Z)", data[: 1 << 20])
    if row is None or b"\0" in data[:4096]:
        return None
    cells = [cell.decode("utf-8", "replace").strip().strip("\"'") for cell in cells_of(row[1])]
    kind = first_column(cells[0])
    if kind:
        cells = cells[1:]
    coordinates = [match for cell in cells if (match := _COORDINATE.fullmatch(cell))]
    if not cells or len(cells) % 3 or len(coordinates) < len(cells):
        return None
    names = [match["name"] for match in coordinates]
    expected = [(names[i - i % 3], "xyz"[i % 3]) for i in range(len(names))]
    if [(match["name"], match["axis"].lower()) for match in coordinates] != expected:
        return None
    return names[::3], kind, row.end()


def first_column(name: str) -> str:
    """The kind of a first column of this name: "time" [s], "frame", or "" for another one."""
    word = re.split(r"[\s([]", name.lower())[0].removeprefix("#")
    return {"time": "time", "t": "time", "frame": "frame"}.get(word, "")


def rate_of(path: Path, times: Array) -> float:
    """Frames per second of a column of times [s], which must be even."""
    steps = np.diff(times)
    step = float(np.median(steps)) if len(steps) else 0.0
    if not step > 0.0:
        message = f"{path}: its column of times does not grow; set rate_hz="
        raise common.MissingOptions(message, ("rate_hz",))
    common.check_even(path, steps, step, 0.1)
    mean = float(times[-1] - times[0]) / len(steps)
    return common.file_rate(path, common.whole_rate(mean, digits=5))


def number_table(path: Path, data: bytes, *, first_line: int = 1) -> Array:
    """Rows of numbers between commas, (T, numbers in a row); lines are counted from `first_line`.

    Raises:
      InputError: naming file and line: no rows, rows of differing length, no finite number.
    """
    common.check_text(path, data, "a row of numbers per frame")
    first = next((line for line in data[: 1 << 20].splitlines() if line.strip()), b"")
    columns = len(cells_of(first))
    expected = f"the rows before have {columns}"
    return common.number_lines(path, data, columns, expected, first_line=first_line, separator=b",")


def cells_of(line: bytes) -> list[bytes]:
    """The words between the commas of a line; a comma may end it."""
    return line.strip().removesuffix(b",").split(b",")


def read_npz(
    path: str | os.PathLike[str],
    *,
    rate_hz: float | None = None,
    names: Sequence[str] | None = None,
    scale: float | str = 1.0,
    up: str = "y",
    subject: str | None = None,
) -> Clip:
    """A numpy archive of `positions` (T, M, 3), `names` (M texts), `fps`, maybe `parents` (M).

    rate_hz, names: instead of the file's. scale, up: see `to_world`.
    subject: the root, or without parents the prefix, to take of several; None: the first body's.
    Not-a-number is a missing sample; see `mocap_data.readers.gap_filling`.

    Raises:
      InputError: with the file: no archive, damaged, an array missing or of a wrong shape or type,
        a value that is not finite, or a keypoint with a long gap.
    """
    path = Path(path)
    arrays = load_npz(path, ("positions", "names", "fps", "parents"))
    positions = arrays["positions"]
    parents = arrays["parents"]
    options = {"positions": None, "names": names, "fps": rate_hz}
    missing = [key for key, value in options.items() if arrays[key] is None and value is None]
    if missing:
        message = f"{path}: array {missing[0]!r} is missing, expected positions, names, fps"
        if positions is None:
            raise InputError(message)
        keys = tuple("rate_hz" if key == "fps" else key for key in missing)
        raise common.MissingOptions(message, keys)
    if positions.ndim != 3 or positions.shape[2] != 3 or positions.dtype.kind not in "fiu":
        dtype = f"{positions.dtype} {positions.shape}"
        raise InputError(f"{path}: positions is {dtype}, expected numbers (T, M, 3)")
    if names is None:
        names = texts_of(path, "names", arrays["names"])
    if rate_hz is None:
        rate_hz = common.file_rate(path, one_number(path, "fps", arrays["fps"]))
    if parents is not None and (parents.ndim != 1 or parents.dtype.kind not in "iu"):
        dtype = f"{parents.dtype} {parents.shape}"
        raise InputError(f"{path}: parents is {dtype}, expected indices (M,)")
    common.check_size(path, positions.shape[0], positions.shape[1])
    positions = positions.astype(np.float64)
    keypoints = select_subject(path, Keypoints(positions, names, parents), subject)
    missing_samples = np.asarray(np.isnan(keypoints.positions).any(axis=-1))
    if missing_samples.any():
        drop = keypoints.parents is None
        keypoints = fill_recording(path, keypoints, missing_samples, rate_hz, drop=drop)
    return common.world_clip(path, keypoints, rate_hz=rate_hz, scale=scale, up=up)


def texts_of(path: Path, key: str, array: np.ndarray) -> tuple[str, ...]:
    """An array of texts as a tuple. Raises InputError for anything else."""
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise InputError(f"{path}: {key} is {array.dtype} {array.shape}, expected texts (N,)")
    return tuple(
        n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in array.tolist()
    )


def one_number(path: Path, key: str, array: np.ndarray) -> float:
    """An array of one number as that. Raises InputError for anything else."""
    if array.size != 1 or array.dtype.kind not in "fiu":
        raise InputError(f"{path}: {key} must be one number")
    return float(array.reshape(()))
