"""Numpy archives (npz) of users: sizes are checked before unpacking, nothing is unpickled."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile

from mocap_data.errors import InputError
from mocap_data.input_files import reading, regular_file, require_memory

# ten times five minutes at 120 Hz of a hundred bodies
MAX_ARCHIVE_BYTES = 1 << 30
_SUFFIX = ".npy"


def names_in_npz(path: Path, *, content: bytes | None = None) -> tuple[str, ...]:
    """The names of an archive's arrays. content: of the file, where it has been read.

    Raises:
      InputError: no archive.
    """
    with _open(path, content) as archive:
        return tuple(archive.files)


def has_arrays(path: Path, *names: str) -> bool:
    """Whether a file is an archive with arrays of these names."""
    try:
        return set(names) <= set(names_in_npz(path))
    except InputError:
        return False


def load_npz(
    path: Path, keys: Sequence[str], *, content: bytes | None = None, at_most: int | None = None
) -> dict[str, Any]:
    """The arrays `keys`, None for a missing one.

    content: of the file, where it has been read. at_most: of all of them unpacked [bytes].

    Raises:
      InputError: no archive, a damaged one, arrays larger than memory, or Python objects.
    """
    with _open(path, content) as archive:
        present = [key for key in keys if key in archive.files]
        needed = sum(archive.zip.getinfo(key + _SUFFIX).file_size for key in present)
        if at_most is not None and needed > at_most:
            raise InputError(f"{path} unpacks to {needed:,} bytes; at most {at_most:,} are read")
        require_memory(needed, f"{path}: unpacking {', '.join(present)}")
        arrays = {key: archive[key] if key in present else None for key in keys}
    for key in present:
        # the bytes of an entry in another format
        if not isinstance(arrays[key], np.ndarray):
            raise InputError(f"{path}: {key} is not a numpy array, or damaged")
    return arrays


@contextmanager
def _open(path: Path, content: bytes | None = None) -> Iterator[Any]:
    """The archive, open for reading; any error inside the block names the file."""
    if content is None:
        regular_file(path, at_most=MAX_ARCHIVE_BYTES)
    with reading(path), warnings.catch_warnings():
        # numpy warns of headers written by Python 2
        warnings.simplefilter("ignore")
        source = path if content is None else io.BytesIO(content)
        try:
            archive = np.load(source, allow_pickle=False)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} is not a numpy archive (npz), or truncated") from error
        if not isinstance(archive, NpzFile):
            raise InputError(f"{path} holds a single array, expected an archive (npz)")
        with archive:
            yield archive
