"""Numpy archives (npz) from outside: sizes checked before unpacking, nothing unpickled."""

from __future__ import annotations

import io
import math
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from mocap_data.errors import InputError
from mocap_data.outside import reading, regular_file, require_memory

# five minutes at 120 Hz of a hundred bodies take a tenth of it
MAX_ARCHIVE_BYTES = 1 << 30
MAX_ARRAYS = 10_000
# of the archive's directory, which zipfile reads at once
MAX_DIRECTORY_BYTES = 200 * MAX_ARRAYS
_SUFFIX = ".npy"
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def names_in_npz(path: Path, *, content: bytes | None = None) -> tuple[str, ...]:
    """The names of an archive's arrays, from its directory alone.

    content: of the file, where it has been read.

    Raises:
      InputError: for what is no archive.
    """
    with _open(path, content) as archive:
        return tuple(name.removesuffix(_SUFFIX) for name in archive.namelist())


def holds(path: Path, *names: str) -> bool:
    """Whether a file is an archive with arrays of these names."""
    try:
        return set(names) <= set(names_in_npz(path))
    except InputError:
        return False


def load_npz(
    path: Path, keys: Sequence[str], *, content: bytes | None = None, at_most: int | None = None
) -> dict[str, Any]:
    """The arrays of those names, None for a missing one.

    content: of the file, where it has been read. at_most: bytes that they may have, unpacked.

    Raises:
      InputError: for what is no archive, damaged, declares other sizes than it has or more than
        memory holds, or holds Python objects.
    """
    with _open(path, content) as archive:
        present = set(archive.namelist())
        entries = {key: archive.getinfo(key + _SUFFIX) for key in keys if key + _SUFFIX in present}
        needed = sum(entry.file_size for entry in entries.values())
        if at_most is not None and needed > at_most:
            raise InputError(f"{path} unpacks to {needed:,} bytes; at most {at_most:,} are read")
        require_memory(needed, f"{path}: unpacking {', '.join(entries)}")
        arrays: dict[str, Any] = dict.fromkeys(keys)
        for key, entry in entries.items():
            with archive.open(entry) as stream:
                arrays[key] = _array(stream, entry.file_size, f"{path}: {key}")
        return arrays


def _array(stream: IO[bytes], size: int, what: str) -> np.ndarray:
    """An array in numpy's own format, of `size` bytes with its header."""
    version = np.lib.format.read_magic(stream)
    # 3.0 is for structures with names beyond Latin-1
    if version not in _HEADERS:
        major, minor = version
        raise InputError(f"{what} is of numpy's format {major}.{minor}, expected 1.0 or 2.0")
    shape, _, kind = _HEADERS[version](stream)
    if kind.hasobject:
        raise InputError(f"{what} holds Python objects, which are never unpickled")
    left = size - stream.tell()
    if math.prod(shape) * kind.itemsize != left:
        raise InputError(f"{what} declares {shape} of {kind}, but {left:,} bytes follow")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


@contextmanager
def _open(path: Path, content: bytes | None = None) -> Iterator[zipfile.ZipFile]:
    """The archive, open for reading; any error inside the block names the file."""
    if content is None:
        regular_file(path, at_most=MAX_ARCHIVE_BYTES)
    with (
        path.open("rb", buffering=0) if content is None else io.BytesIO(content) as raw,
        _BoundedDirectory(raw) as file,  # type: ignore[arg-type]
        reading(path),
        warnings.catch_warnings(),
    ):
        # numpy's, of headers that Python 2 wrote
        warnings.simplefilter("ignore")
        file.path = path
        if file.read(6) == b"\x93NUMPY":
            raise InputError(f"{path} holds a single array, expected an archive of several (npz)")
        try:
            archive = zipfile.ZipFile(file)
        except zipfile.BadZipFile as error:
            raise InputError(f"{path} is no numpy archive, or cut short") from error
        file.opened = True
        with archive:
            if (count := len(archive.filelist)) > MAX_ARRAYS:
                raise InputError(f"{path} has {count:,} entries; at most {MAX_ARRAYS:,} are read")
            yield archive


class _BoundedDirectory(io.BufferedReader):
    """A file that refuses a large directory: zipfile would make an object of each entry first."""

    opened = False
    path = Path()

    def read(self, size: int | None = -1) -> bytes:
        if not self.opened and size is not None and size > MAX_DIRECTORY_BYTES:
            at_most = f"at most {MAX_ARRAYS:,} entries are read"
            raise InputError(f"{self.path}: a directory of {size:,} bytes; {at_most}")
        return super().read(size)
