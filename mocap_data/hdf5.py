"""HDF5 files of users: links to other files are not opened, and errors name the path in the
file."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mocap_data.errors import InputError
from mocap_data.input_files import reading, regular_file

# compression of arrays: higher levels take seconds and save little
COMPRESSION = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "fletcher32": True}

_FILTERS = {
    h5py.h5z.FILTER_DEFLATE: "gzip",
    h5py.h5z.FILTER_SHUFFLE: "shuffle",
    h5py.h5z.FILTER_FLETCHER32: "fletcher32",
}


@contextmanager
def open_hdf5(path: str | Path) -> Iterator[h5py.File]:
    """The file, open for reading; any error inside the block names the file.

    Raises:
      InputError: not a regular file, no HDF5, a damaged or a truncated file.
    """
    path = regular_file(path)
    with reading(path):
        try:
            file = h5py.File(path, "r")
        except PermissionError:
            raise
        except (OSError, RuntimeError) as error:
            reason = "it is truncated" if "truncated" in str(error) else "not HDF5, or damaged"
            raise InputError(f"{path} cannot be read: {reason}") from error
        with file:
            yield file


def schema_of(path: str | Path) -> str | None:
    """The attribute "schema" of an HDF5 file, "" for none; None for a file that is not HDF5."""
    try:
        with open_hdf5(path) as file:
            return str(attributes(file).get("schema", ""))
    except InputError:
        return None


def members(group: h5py.Group) -> list[str]:
    """The names in a group, in its order; names that are not UTF-8 are left out."""
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
    # h5py keeps bytes that are not UTF-8 as surrogates, which cannot be printed
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, np.ndarray | list):
        return [plain(entry) for entry in list(value)]
    return value.item() if isinstance(value, np.generic) else value


def array_bytes(array: Any, label: str) -> int:
    """The memory [bytes] that an array of numbers takes as float64.

    Raises:
      InputError: no array of numbers, or an array that is stored in another file.
    """
    if not isinstance(array, h5py.Dataset):
        raise InputError(f"{label} is not an array")
    dtype = array.dtype
    if dtype.kind not in "fiub" or array.shape is None:
        raise InputError(f"{label} is of type {dtype}, expected an array of numbers")
    if array.is_virtual or array.external:
        raise InputError(f"{label} is stored in another file, which is not opened")
    return math.prod(array.shape) * 8


def read_array(array: h5py.Dataset, label: str) -> np.ndarray:
    """All of an array.

    Raises:
      InputError: a damaged array, and as `_check_chunks`.
    """
    _check_chunks(array, label)
    try:
        return np.asarray(array[...])
    except (OSError, RuntimeError) as error:
        raise InputError(f"{label} is damaged ({error})") from error


def _check_chunks(array: h5py.Dataset, label: str) -> None:
    """Check the decompressed size of each chunk before HDF5 decompresses it.

    Raises:
      InputError: a chunk that expands beyond its declared size, or another filter than those of
        `COMPRESSION`.
    """
    settings = array.id.get_create_plist()
    ids = [settings.get_filter(i)[0] for i in range(settings.get_nfilters())]
    if len(set(ids)) < len(ids) or not set(ids) <= set(_FILTERS):
        allowed = ", ".join(_FILTERS.values())
        raise InputError(f"{label} is stored with HDF5 filters {ids}: expected {allowed}")
    if h5py.h5z.FILTER_DEFLATE not in ids:
        return
    size = math.prod(array.chunks) * array.dtype.itemsize
    for i in range(array.id.get_num_chunks()):
        chunk = array.id.get_chunk_info(i)
        if chunk.filter_mask:
            raise InputError(f"{label} is damaged (a chunk lacks a filter)")
        _, compressed = array.id.read_direct_chunk(chunk.chunk_offset)
        try:
            content = zlib.decompressobj().decompress(compressed, size + 1)
        except zlib.error as error:
            raise InputError(f"{label} is damaged ({error})") from error
        if len(content) > size:
            raise InputError(f"{label} is damaged (a chunk of {size:,} bytes expands beyond it)")


def place_of(node: Any) -> str:
    """Name of a file or a path in it, for errors."""
    file = str(node.file.filename)
    name = node.name
    return file if name in (None, "/") else f"{file}, {name.lstrip('/')!r}"
