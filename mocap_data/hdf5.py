"""HDF5 files of users: only the file itself is opened, and an error names the place in it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mocap_data.errors import InputError
from mocap_data.input_files import reading, regular_file

# how arrays are stored: higher levels cost seconds and save little on motion
PACKED = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "fletcher32": True}


@contextmanager
def open_hdf5(path: str | Path) -> Iterator[h5py.File]:
    """The file, open for reading; any error inside the block names the file.

    Raises:
      InputError: no regular file, no HDF5, a damaged or a truncated file.
    """
    path = regular_file(path)
    with reading(path):
        try:
            file = h5py.File(path, "r")
        except PermissionError:
            raise
        except (OSError, RuntimeError) as error:
            reason = "it is cut short" if "truncated" in str(error) else "not HDF5, or damaged"
            raise InputError(f"{path} cannot be read: {reason}") from error
        with file:
            yield file


def schema_of(path: str | Path) -> str | None:
    """The attribute "schema" of an HDF5 file, "" for none; None for a file that is no HDF5."""
    try:
        with open_hdf5(path) as file:
            return str(attributes(file).get("schema", ""))
    except InputError:
        return None


def members(group: h5py.Group) -> list[str]:
    """The names in a group, in its order; names that are no UTF-8 are left out."""
    return [name for name in group if isinstance(name, str)]


def member(group: h5py.Group, name: str) -> Any:
    """The group or array `name` of a group, None for none.

    Raises:
      InputError: a soft or an external link, which leads out of the group or the file.
    """
    link = group.get(name, getlink=True)
    if link is None:
        return None
    if not isinstance(link, h5py.HardLink):
        raise InputError(f"{place_of(group)}: {name!r} is a link; links are not followed")
    return group[name]


def attributes(group: h5py.Group) -> dict[str, Any]:
    """The attributes that are text, numbers, or lists of them; others are left out."""
    values = {key: group.attrs[key] for key in group.attrs if isinstance(key, str)}
    return {
        key: value
        for key, value in values.items()
        if isinstance(value, str | bytes | np.generic | np.ndarray)
        and np.asarray(value).dtype.kind in "biufSUO"
    }


def plain(value: Any) -> Any:
    """An HDF5 attribute as a JSON value."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    # h5py keeps bytes that are no UTF-8 as surrogates, which cannot be printed
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, np.ndarray | list):
        return [plain(entry) for entry in list(value)]
    return value.item() if isinstance(value, np.generic) else value


def array_bytes(array: Any, what: str) -> int:
    """The memory [bytes] that an array of numbers takes as float64.

    Raises:
      InputError: no array of numbers, or an array that is stored in another file.
    """
    if not isinstance(array, h5py.Dataset):
        raise InputError(f"{what} is no array")
    dtype = array.dtype
    if dtype.kind not in "fiub" or array.shape is None:
        raise InputError(f"{what} is of type {dtype}, expected an array of numbers")
    if array.is_virtual or array.external:
        raise InputError(f"{what} is stored in another file, which is not opened")
    return math.prod(array.shape) * 8


def read_array(array: h5py.Dataset, what: str) -> np.ndarray:
    """All of an array.

    Raises:
      InputError: a damaged array.
    """
    try:
        return np.asarray(array[...])
    except (OSError, RuntimeError) as error:
        raise InputError(f"{what} is damaged ({error})") from error


def place_of(node: Any) -> str:
    """A file, or a place in it, for an error."""
    file = str(node.file.filename)
    name = node.name
    return file if name in (None, "/") else f"{file}, {name.lstrip('/')!r}"
