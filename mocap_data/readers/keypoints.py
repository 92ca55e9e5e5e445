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
from mocap_data.readers.common import (
    DOG_NAMES,
    DOG_PARENTS,
    DOG_RATE_HZ,
    MissingOptions,
    check_size,
    content,
    not_text,
    parse_numbers,
    parse_rows,
    rate_said,
    whole_rate,
    world_clip,
)


def read_csv(
    path: str | os.PathLike[str],
    *,
    rate_hz: float | None = None,
    names: Sequence[str] | None = None,
    scale: float | str = 1.0,
    up: str = "y",
) -> Clip:
    """T rows of M x (x, y, z), separated by commas, with or without a row of names first.

    A row of names says NAME_x, NAME_y, NAME_z (or with a blank, dot or colon between, or nothing)
    for every keypoint, maybe after a column "time" [s], which gives the rate, or "frame".

    rate_hz, names: in place of what the file says, or does not say. Left out, a file of 81 columns
    without names is
      taken as
        the dog set's 27 keypoints (`DOG_NAMES`) at 60 Hz.
    scale: metres per unit, or the unit's name ("mm"); default: metres. up: the upward axis; see
    `to_world`.

    Raises:
      InputError: naming file and line: no rows, rows of differing length, a text or a value that is
        not finite, a number of columns that does not fit the names.
    """
    path = Path(path)
    said, times, values = _named_table(path, content(path).removeprefix(b"\xef\xbb\xbf"))
    columns = values.shape[1]
    if columns % 3:
        raise InputError(
            f"{path}: {columns} numbers in a row, expected three (x, y, z) per keypoint"
        )
    check_size(path, len(values), columns // 3)
    if rate_hz is None and times is not None:
        rate_hz = _rate_of(path, times)
    parents = None
    if names is None and said is not None:
        names = said
    if names is None and columns == 3 * len(DOG_NAMES):
        names, parents = DOG_NAMES, DOG_PARENTS
    if rate_hz is None and said is None and columns == 3 * len(DOG_NAMES):
        rate_hz = DOG_RATE_HZ
    if names is None or rate_hz is None:
        lacking = tuple(o for o, v in (("names", names), ("rate_hz", rate_hz)) if v is None)
        raise MissingOptions(
            f"{path} has {columns // 3} keypoints; only the dog set's {len(DOG_NAMES)} need no options, "
            f"so give {' and '.join(lacking)}",
            lacking,
        )
    return world_clip(
        path,
        values.reshape(len(values), -1, 3),
        tuple(names),
        parents,
        rate_hz=rate_hz,
        scale=scale,
        up=up,
    )


def _named_table(path: Path, data: bytes) -> tuple[list[str] | None, Array | None, Array]:
    """The keypoints' names, the times (T,) [s] (both None where the file has none), and the
    coordinates (T, 3 M)."""
    header = _names_row(path, data)
    if header is None:
        return None, None, number_table(path, data)
    said, first, rest, skipped = header
    table = number_table(path, rest, first_line=skipped + 1)
    width = 3 * len(said) + (first is not None)
    if table.shape[1] != width:
        raise InputError(f"{path}: {table.shape[1]} numbers in a row, its row of names has {width}")
    times = table[:, 0] if first == "time" else None
    return said, times, table[:, 1:] if first is not None else table


_COORDINATE = re.compile(r"(?P<name>.*[^\s._:-])[\s._:-]*(?P<axis>[xyz])", re.IGNORECASE)


def _names_row(path: Path, data: bytes) -> tuple[list[str], str | None, bytes, int] | None:
    """The row of names that a file may begin with; None where it begins with something else.

    The keypoints' names, what the first column is if it is none ("time" or "frame"), what follows
    the row, and how many lines come before that.
    """
    found = re.match(rb"\s*([^\r\n]*)(?:\r\n|\r|\n|\Z)", data[: 1 << 20])
    if found is None or not_text(path, data):
        return None
    cells = [cell.decode("utf-8", "replace").strip().strip("\"'") for cell in _cells(found[1])]
    first = re.split(r"[\s([]", cells[0].lower())[0]
    kind = {"time": "time", "t": "time", "frame": "frame", "#frame": "frame"}.get(first)
    if kind is not None:
        cells = cells[1:]
    coordinates = [_COORDINATE.fullmatch(cell) for cell in cells]
    if not cells or len(cells) % 3 or not all(coordinates):
        return None
    named = [(c["name"], c["axis"].lower()) for c in coordinates if c]
    if any(
        named[i][1] != "xyz"[i % 3] or named[i][0] != named[i - i % 3][0] for i in range(len(named))
    ):
        return None
    before = data[: found.end()]
    lines = before.count(b"\n") + before.count(b"\r") - before.count(b"\r\n")
    return [name for name, _ in named[::3]], kind, data[found.end() :], lines


def _rate_of(path: Path, times: Array) -> float:
    """Frames per second of a column of times [s], which must be even."""
    steps = np.diff(times)
    step = float(np.median(steps)) if len(steps) else 0.0
    if not step > 0.0:
        raise MissingOptions(
            f"{path}: its column of times does not grow; give rate_hz=", ("rate_hz",)
        )
    uneven = np.abs(steps - step) > 0.1 * step
    if uneven.any():
        frame = int(np.argmax(uneven))
        lasts = f"frame {frame} lasts {steps[frame]:g} s, most last {step:g} s"
        raise InputError(f"{path}: {lasts}; give rate_hz= to play them evenly")
    return rate_said(path, whole_rate(float(times[-1] - times[0]) / len(steps), digits=5))


def number_table(path: Path, data: bytes, *, first_line: int = 1) -> Array:
    """Rows of numbers between commas, (T, numbers in a row). first_line: its number in the file,
    for errors."""
    first = next((line for line in data[: 1 << 20].splitlines() if line.strip()), b"")
    if not first and not data.strip():
        raise InputError(f"{path} is empty, expected a row of numbers per frame")
    if why := not_text(path, data):
        raise InputError(why)
    columns = len(_cells(first))
    values = _fast_rows(data, columns)
    if values is not None:
        return values
    rows = [
        (n, _cells(line))
        for n, line in enumerate(data.splitlines(), start=first_line)
        if line.strip()
    ]
    for number, row in rows:
        if len(row) != columns:
            cut = "; the file is cut short" if number == rows[-1][0] and len(row) < columns else ""
            raise InputError(
                f"{path}, line {number}: {len(row)} numbers, the rows before have {columns}{cut}"
            )
    return parse_rows(path, [number for number, _ in rows], [row for _, row in rows])


def _fast_rows(data: bytes, columns: int) -> Array | None:
    """Rows of `columns` numbers between commas; None where it is not just that, and a closer look
    is needed."""
    text = data.strip().replace(b"\r\n", b"\n").replace(b",\n", b"\n").removesuffix(b",")
    codes = np.frombuffer(text, dtype=np.uint8)
    # of what separates the numbers
    newline = codes[(codes == ord(",")) | (codes == ord("\n"))] == ord("\n")
    expected = np.arange(1, len(newline) + 1) % columns == 0
    if (newline != expected).any() or (len(newline) + 1) % columns:
        return None
    values = parse_numbers(text.replace(b"\n", b","), " , ")
    if values is None or values.size != len(newline) + 1:
        return None
    return values.reshape(-1, columns)


def _cells(line: bytes) -> list[bytes]:
    """What stands between the commas of a line; one at its end is tolerated."""
    return line.strip().removesuffix(b",").split(b",")


def read_npz(
    path: str | os.PathLike[str],
    *,
    rate_hz: float | None = None,
    names: Sequence[str] | None = None,
    scale: float | str = 1.0,
    up: str = "y",
) -> Clip:
    """A numpy archive of `positions` (T, M, 3), `names` (M texts), `fps` (a number), maybe
    `parents` (M).

    rate_hz, names: in place of what the file holds, or lacks.
    scale: metres per unit, or the unit's name ("mm"); default: metres. up: the upward axis; see
    `to_world`.

    Archives are read without pickle, so one that holds Python objects is refused.

    Raises:
      InputError: naming the file: no archive, damaged, an array missing, of a wrong shape or type,
        or a value that is not finite.
    """
    path = Path(path)
    arrays = load_npz(path, ("positions", "names", "fps", "parents"))
    positions = arrays["positions"]
    missing = [
        key
        for key, given in (("positions", None), ("names", names), ("fps", rate_hz))
        if arrays[key] is None and given is None
    ]
    if missing or positions is None:
        message = f"{path}: array {missing[0]!r} is missing; expected positions, names, fps"
        if positions is None:
            raise InputError(message)
        raise MissingOptions(message, tuple("rate_hz" if key == "fps" else key for key in missing))
    if positions.ndim != 3 or positions.shape[2] != 3 or positions.dtype.kind not in "fiu":
        raise InputError(
            f"{path}: positions is {positions.dtype} {positions.shape}, expected numbers (T, M, 3)"
        )
    if names is None:
        if arrays["names"].ndim != 1 or arrays["names"].dtype.kind not in "US":
            raise InputError(f"{path}: names must be a list of texts, is {arrays['names'].dtype}")
        names = [n.decode() if isinstance(n, bytes) else str(n) for n in arrays["names"].tolist()]
    if rate_hz is None:
        if arrays["fps"].size != 1 or arrays["fps"].dtype.kind not in "fiu":
            raise InputError(f"{path}: fps must be one number")
        rate_hz = rate_said(path, float(arrays["fps"].reshape(())))
    parents = arrays["parents"]
    if parents is not None and (parents.ndim != 1 or parents.dtype.kind not in "iu"):
        raise InputError(
            f"{path}: parents must be a list of indices, is {parents.dtype} {parents.shape}"
        )
    check_size(path, positions.shape[0], positions.shape[1])
    return world_clip(
        path,
        positions.astype(np.float64),
        tuple(names),
        None if parents is None else tuple(int(p) for p in parents),
        rate_hz=rate_hz,
        scale=scale,
        up=up,
    )
