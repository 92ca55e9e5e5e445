"""HDF5 from outside: only the file itself is opened, and sizes are checked before reading.

A file may point elsewhere (soft and external links, external and virtual arrays), declare sizes
that it does not have, or unpack to a thousand times its size; each is refused in one line.
"""

from __future__ import annotations

import math
import mmap
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mocap_data.errors import InputError
from mocap_data.outside import reading, regular_file

# of a group; all of CMU's recordings with their mirror images are 5,000
MAX_MEMBERS = 20_000
# of a group; a clip of ours has thirty
MAX_ATTRIBUTES = 1_000
# of an attribute that is a list; a robot has a hundred names
MAX_ENTRIES = 10_000
# bytes of a group's texts: many may point to one place in the file
MAX_TEXTS = 32 << 20
# how arrays are stored: higher levels cost seconds and save little on motion
PACKED = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "fletcher32": True}
# bytes of an array to bytes in the file: deflate makes at most 1,032 times of what it has
MAX_RATIO = 1_100
# bytes that an array's last chunk may be larger than the array
SPARE_BYTES = 1 << 20
_FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32"}
# in the order in which they are applied
_ORDER = ("shuffle", "deflate", "fletcher32")
# how a heap of texts begins; 3 bytes more, then its length
_HEAP = b"GCOL\x01"
# that fletcher32 adds to a chunk
_CHECKSUM_BYTES = 4


@contextmanager
def open_hdf5(path: str | Path) -> Iterator[h5py.File]:
    """The file, open for reading; any error inside the block names the file.

    Raises:
      InputError: for no regular file, no HDF5, a file that is damaged or cut short.
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
    """The attribute "schema" of an HDF5 file, "" for none; None for what does not open as HDF5."""
    try:
        with open_hdf5(path) as file:
            return str(attributes(file).get("schema", ""))
    except InputError:
        return None


def members(group: h5py.Group) -> list[str]:
    """The names in a group, in its order; nothing is opened.

    Raises:
      InputError: for more than MAX_MEMBERS, or a name that is no UTF-8.
    """
    if (count := len(group)) > MAX_MEMBERS:
        raise InputError(f"{where(group)} has {count:,} members; at most {MAX_MEMBERS:,} are read")
    names = list(group)
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"{where(group)}: the name {name!r} is not UTF-8")
    return names


def member(group: h5py.Group, name: str) -> Any:
    """The group or array `name` of a group, None for none.

    Raises:
      InputError: for a soft or an external link, which leads out of the group or the file.
    """
    key = name.encode("utf-8", "surrogateescape")
    if name in ("", ".", "..") or "/" in name or not group.id.links.exists(key):
        return None
    if group.id.links.get_info(key).type != h5py.h5l.TYPE_HARD:
        raise InputError(
            f"{where(group)}: {name!r} is a link to another place; these are not followed"
        )
    return group[name]


def attributes(group: h5py.Group) -> dict[str, Any]:
    """The attributes that are text, numbers, or short lists of them; others are left out.

    Raises:
      InputError: for more than MAX_ATTRIBUTES, or texts that are more than the file has.
    """
    if (count := len(group.attrs)) > MAX_ATTRIBUTES:
        most = f"at most {MAX_ATTRIBUTES:,} are read"
        raise InputError(f"{where(group)} has {count:,} attributes; {most}")
    entries = {
        key: texts
        for key in group.attrs
        if isinstance(key, str) and (texts := _texts(group, key)) is not None
    }
    # they lie in heaps of the file, and many may point to one place
    count = sum(entries.values())
    name = group.file.filename
    status = os.stat(group.file.filename)
    if count * status.st_size > MAX_TEXTS:
        longest = _largest_heap(name, status.st_size, status.st_mtime_ns)
        if count * longest > MAX_TEXTS:
            has = f"{where(group)} has {count:,} texts, of up to {longest:,} bytes each"
            raise InputError(f"{has}; at most {MAX_TEXTS:,} in all are read")
    return {key: group.attrs[key] for key in entries}


def _texts(group: h5py.Group, key: str) -> int | None:
    """How many texts of any length an attribute holds; None for one that is left out."""
    opened = h5py.h5a.open(group.id, key.encode())
    kind = opened.get_type()
    entries = math.prod(opened.shape or ())
    numbers = h5py.h5t.TypeIntegerID | h5py.h5t.TypeFloatID
    number = isinstance(kind, numbers) and kind.dtype.itemsize <= 8
    text = isinstance(kind, h5py.h5t.TypeStringID)
    empty = opened.get_space().get_simple_extent_type() == h5py.h5s.NULL
    if not (number or text) or empty or entries > MAX_ENTRIES:
        return None
    return entries if text and kind.is_variable_str() else 0


@lru_cache(maxsize=8)
def _largest_heap(path: str, size: int, changed_ns: int) -> int:
    """Bytes of the largest heap of texts in a file of that size, as it was changed last."""
    largest = 0
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(_HEAP)
        while at >= 0:
            # lengths have 8 bytes, or 4; a heap beyond the end is other data
            lengths = (int.from_bytes(data[at + 8 : at + 8 + width], "little") for width in (8, 4))
            largest = max(largest, next((length for length in lengths if at + length <= size), 0))
            at = data.find(_HEAP, at + 1)
    return largest


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
    """The memory that `read_array` takes for an array; its type and sizes are checked.

    Raises:
      InputError: for no array of numbers, one in another file, or one larger than its storage.
    """
    if not isinstance(array, h5py.Dataset):
        raise InputError(f"{what} is no array")
    kind = array.dtype
    if kind.kind not in "fiub" or kind.itemsize > 8 or array.shape is None:
        raise InputError(f"{what} is of type {kind}, expected an array of numbers")
    if array.is_virtual or array.external:
        raise InputError(f"{what} lies in another file, which is not opened")
    declared = math.prod(array.shape) * kind.itemsize
    chunk = math.prod(array.chunks or ()) * kind.itemsize
    stored = array.id.get_storage_size()
    there = h5py.h5i.get_file_id(array.id).get_filesize()
    if stored > there or declared > MAX_RATIO * stored or chunk > declared + SPARE_BYTES:
        declares = f"{array.shape}, {declared:,} bytes in chunks of {chunk:,}"
        has = f"{stored:,} in a file of {there:,}"
        raise InputError(f"{what} declares {declares}, but has {has}; damaged")
    return math.prod(array.shape) * 8 + chunk


def read_array(array: h5py.Dataset, what: str) -> np.ndarray:
    """All of an array that `array_bytes` has checked.

    Chunks are unpacked here: HDF5 lets a chunk unpack to any size, whatever the file declares.

    Raises:
      InputError: for one that is damaged, or compressed in another way than by gzip.
    """
    settings = array.id.get_create_plist()
    filters = [_FILTERS.get(settings.get_filter(i)[0], "") for i in range(settings.get_nfilters())]
    if filters != [name for name in _ORDER if name in filters]:
        only = "gzip is, with shuffle and fletcher32"
        raise InputError(f"{what} is compressed in a way that is not read: {only}")
    try:
        return _unpacked(array, filters) if "deflate" in filters else array[...]
    except (OSError, RuntimeError, ValueError, zlib.error) as error:
        raise InputError(f"{what} is damaged ({error})") from error


def _unpacked(array: h5py.Dataset, filters: list[str]) -> np.ndarray:
    """The array from its chunks, none of which may unpack to another size than a chunk has."""
    if h5py.h5t.py_create(array.dtype) != array.id.get_type():
        raise ValueError("its numbers are not stored as numpy's are")
    values = np.empty(array.shape, array.dtype)
    size = math.prod(array.chunks) * array.dtype.itemsize
    starts = (range(0, whole, step) for whole, step in zip(array.shape, array.chunks, strict=True))
    for place in product(*starts):
        skipped, packed = array.id.read_direct_chunk(place)
        if skipped:
            raise ValueError("a chunk lacks a filter")
        if "fletcher32" in filters:
            # deflate's own checksum covers the same
            packed = packed[:-_CHECKSUM_BYTES]
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, size + 1)
        if len(data) != size or not unpacker.eof:
            raise ValueError(f"a chunk of {size:,} bytes unpacks to another size")
        if "shuffle" in filters:
            data = np.frombuffer(data, np.uint8).reshape(array.dtype.itemsize, -1).T.tobytes()
        chunk = np.frombuffer(data, array.dtype).reshape(array.chunks)
        inside = tuple(slice(at, at + step) for at, step in zip(place, array.chunks, strict=True))
        part = values[inside]
        part[...] = chunk[tuple(slice(length) for length in part.shape)]
    return values


def where(node: Any) -> str:
    """A file, or a place in it, as errors name it."""
    file = str(node.file.filename)
    name = node.name
    return file if name in (None, "/") else f"{file}, {name.lstrip('/')!r}"
