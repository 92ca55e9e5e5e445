"""Keypoints in the world, frame by frame: CSV (a row per frame) and npz (named arrays)."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.readers.common import (
    DOG_NAMES,
    DOG_PARENTS,
    DOG_RATE_HZ,
    MissingOptions,
    parse_rows,
    to_world,
)

# What numpy and zipfile raise for a file that is damaged or something else.
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)


def read_csv(
    path: str | os.PathLike[str],
    *,
    rate_hz: float | None = None,
    names: Sequence[str] | None = None,
    scale: float = 1.0,
    up: str = "y",
    name: str | None = None,
    source: str | None = None,
    licence: str = "unknown",
) -> Clip:
    """T rows of M x (x, y, z), separated by commas, without a header.

    rate_hz, names: the file does not carry them. Left out, a file of 81 columns is taken as the dog set's
        27 keypoints (`DOG_NAMES`) at 60 Hz; any other file needs both.
    scale: metres per unit (default: metres). up: the upward axis, "y" or "z"; see `to_world`.

    Raises InputError naming file and line: no rows, rows of differing length, a text or a value that is not
    finite, a number of columns that does not fit the names.
    """
    path = Path(path)
    rows = [(n, line) for n, line in enumerate(path.read_bytes().splitlines(), start=1) if line.strip()]
    if not rows:
        raise InputError(f"{path} is empty, expected a row of numbers per frame")
    # a comma at the end of a row is tolerated
    words = [line.strip().removesuffix(b",").split(b",") for _, line in rows]
    columns = len(words[0])
    for (number, _), row in zip(rows, words, strict=True):
        if len(row) != columns:
            raise InputError(f"{path}, line {number}: {len(row)} numbers, the rows before have {columns}")
    if columns % 3:
        raise InputError(f"{path}: {columns} numbers in a row, expected three (x, y, z) per keypoint")
    values = parse_rows(path, [number for number, _ in rows], words)
    if names is None or rate_hz is None:
        if columns != 3 * len(DOG_NAMES):
            lacking = tuple(o for o, v in (("names", names), ("rate_hz", rate_hz)) if v is None)
            raise MissingOptions(
                f"{path} has {columns // 3} keypoints; only the dog set's {len(DOG_NAMES)} need no options, "
                f"so give {' and '.join(lacking)}",
                lacking,
            )
        rate_hz = DOG_RATE_HZ if rate_hz is None else rate_hz
    dog = names is None
    return _clip(
        path,
        values.reshape(len(values), -1, 3),
        DOG_NAMES if names is None else tuple(names),
        DOG_PARENTS if dog else None,
        rate_hz=rate_hz,
        scale=scale,
        up=up,
        name=name,
        source=source,
        licence=licence,
    )


def read_npz(
    path: str | os.PathLike[str],
    *,
    rate_hz: float | None = None,
    names: Sequence[str] | None = None,
    scale: float = 1.0,
    up: str = "y",
    name: str | None = None,
    source: str | None = None,
    licence: str = "unknown",
) -> Clip:
    """A numpy archive of `positions` (T, M, 3), `names` (M texts), `fps` (a number), maybe `parents` (M).

    rate_hz, names: in place of what the file holds, or lacks.
    scale: metres per unit (default: metres). up: the upward axis, "y" or "z"; see `to_world`.

    Archives are read without pickle, so one that holds Python objects is refused.

    Raises InputError naming the file: no archive, damaged, an array missing, of a wrong shape or type, or a
    value that is not finite.
    """
    path = Path(path)
    data = path.read_bytes()  # at once, so that errors below are about the contents, not the disk
    try:
        archive = np.load(io.BytesIO(data), allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"{path} holds a single array, expected an archive of positions, names, fps")
        with archive:
            arrays = {key: _array(path, archive, key) for key in ("positions", "names", "fps", "parents")}
    except InputError:
        raise
    except _DAMAGED as error:
        raise InputError(f"{path} cannot be read as a numpy archive; damaged, or none ({error!r})") from None
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
        rate_hz = float(arrays["fps"].reshape(()))
    parents = arrays["parents"]
    if parents is not None and (parents.ndim != 1 or parents.dtype.kind not in "iu"):
        raise InputError(f"{path}: parents must be a list of indices, is {parents.dtype} {parents.shape}")
    return _clip(
        path,
        positions.astype(np.float64),
        tuple(names),
        None if parents is None else tuple(int(p) for p in parents),
        rate_hz=rate_hz,
        scale=scale,
        up=up,
        name=name,
        source=source,
        licence=licence,
    )


def _clip(
    path: Path,
    positions: Array,
    names: tuple[str, ...],
    parents: tuple[int, ...] | None,
    *,
    rate_hz: float,
    scale: float,
    up: str,
    name: str | None,
    source: str | None,
    licence: str,
) -> Clip:
    if len(names) != positions.shape[1]:
        raise InputError(f"{path} has {positions.shape[1]} keypoints, but there are {len(names)} names")
    try:
        return Clip(
            to_world(positions, up=up, scale=scale, path=path),
            names,
            rate_hz,
            source=path.name if source is None else source,
            licence=licence,
            name=path.stem if name is None else name,
            parents=parents,
        )
    except InputError as error:
        raise InputError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


def _array(path: Path, archive: Any, key: str) -> Any:
    """An array of the archive, or None when it has none of that name."""
    if key not in archive.files:
        return None
    try:
        return archive[key]
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise InputError(f"{path}: {key} holds Python objects, which are never unpickled") from None
        raise
