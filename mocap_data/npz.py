"""Numpy archives (npz) from outside: sizes are checked before anything is unpacked, and nothing is
unpickled."""

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

# of the file; five minutes at 120 Hz of a hundred bodies take a tenth of it
MAX_ARCHIVE_BYTES = 1 << 30
MAX_ARRAYS = 10_000  # in an archive; those that are read have ten
# of the list of them, which zipfile reads at once, whatever the file says of it
MAX_DIRECTORY_BYTES = 200 * MAX_ARRAYS
_SUFFIX = ".npy"


def names_in_npz(path: Path) -> tuple[str, ...]:
    """The names of an archive's arrays, from its directory alone.

    Raises:
      InputError: for what is no archive.
    """
    with _open(path) as archive:
        return tuple(name.removesuffix(_SUFFIX) for name in archive.namelist())


def load_npz(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """The arrays of those names, None for one that the archive lacks.

    Raises:
      InputError: for what is no archive, is damaged, declares other sizes than it has or more than
        memory holds, or holds Python objects.
    """
    with _open(path) as archive:
        present = set(archive.namelist())
        entries = {key: archive.getinfo(key + _SUFFIX) for key in keys if key + _SUFFIX in present}
        needed = sum(entry.file_size for entry in entries.values())
        require_memory(needed, f"{path}: unpacking {', '.join(entries)}")
        found: dict[str, Any] = dict.fromkeys(keys)
        for key, entry in entries.items():
            with archive.open(entry) as stream:
                found[key] = _array(stream, entry.file_size, f"{path}: {key}")
        return found


def _array(stream: IO[bytes], size: int, what: str) -> np.ndarray:
    """An array in numpy's own format, of so many bytes with its header."""
    version = np.lib.format.read_magic(stream)
    header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if header is None:  # 3.0 is for structures with names beyond Latin-1
        raise InputError(
            f"{what} is of numpy's format {version[0]}.{version[1]}, expected 1.0 or 2.0"
        )
    shape, _, kind = header(stream)
    if kind.hasobject:
        raise InputError(f"{what} holds Python objects, which are never unpickled")
    begin = stream.tell()
    if math.prod(shape) * kind.itemsize != size - begin:
        raise InputError(f"{what} declares {shape} of {kind}, but {size - begin:,} bytes follow")
    # Once more from its start, whence its size is now known to be there
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


@contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive, open for reading; what is raised inside the block becomes an InputError that
    names the file."""
    regular_file(path, at_most=MAX_ARCHIVE_BYTES)
    with (
        path.open("rb", buffering=0) as raw,
        _Opening(raw) as file,
        reading(path),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # numpy's, of headers that Python 2 wrote
        if file.read(6) == b"\x93NUMPY":
            raise InputError(f"{path} holds a single array, expected an archive of several (npz)")
        try:
            archive = zipfile.ZipFile(file)
        except zipfile.BadZipFile as error:
            raise InputError(f"{path} is no numpy archive, or cut short") from error
        file.opened = True
        with archive:
            if len(archive.filelist) > MAX_ARRAYS:
                raise InputError(
                    f"{path} has {len(archive.filelist):,} entries; at most {MAX_ARRAYS:,} are read"
                )
            yield archive


class _Opening(io.BufferedReader):
    """A file of which zipfile cannot read, while it opens it, a directory of millions of entries:
    it would make an object of each before their number is known."""

    opened = False

    def read(self, size: int | None = -1) -> bytes:
        if not self.opened and size is not None and size > MAX_DIRECTORY_BYTES:
            raise InputError(
                f"{self.name}: a directory of {size:,} bytes; at most {MAX_ARRAYS:,} entries are read"
            )
        return super().read(size)
