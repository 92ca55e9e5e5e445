"""Atomic writing of files."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from mocap_data.errors import InputError


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` on success, remove it on failure.

    It has the suffix of `path`, as some writers determine the format by it. Missing parent folders
    are created. The `with` block must create the file.

    Raises:
      OSError: an unwritable folder.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        prefix=f".{target.stem}-", suffix=target.suffix, dir=target.parent
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp creates a private file (0600); the usual rights instead
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        with temporary.open("rb") as written:
            # flush before the rename, so that a crash cannot lose the data
            os.fsync(written.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # errors name the target, not the temporary file
        names = (None, str(temporary))
        if isinstance(error, OSError) and error.errno is not None and error.filename in names:
            error.filename = str(target)
        raise


def make_writable(folder: Path) -> list[Path]:
    """Create a folder and its parents and check that it can be written.

    Returns the created folders, outermost first. Raises InputError.
    """
    absent = [path for path in [folder, *folder.parents] if not path.exists()][::-1]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        remove_bare(absent)
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from error
    return absent


def remove_bare(folders: Sequence[Path], *files: str) -> None:
    """Remove folders without other entries; the innermost is last."""
    for folder in reversed(folders):
        if folder.is_dir() and {entry.name for entry in folder.iterdir()} <= set(files):
            for entry in folder.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            folder.rmdir()


@contextmanager
def locked(path: str | os.PathLike[str], busy: str, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder or file against other processes; the system releases locks of dead processes.

    wait: until another process releases it.

    Raises:
      InputError: with `busy`, a lock of another process.
    """
    flags = os.O_RDONLY if os.path.isdir(path) else os.O_RDWR | os.O_CREAT
    handle = os.open(path, flags, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise InputError(busy) from error
        yield
    finally:
        os.close(handle)


def json_text(content: Any, **form: Any) -> str:
    """JSON; NaN and infinities become null. form: as of `json.dumps`."""
    try:
        return json.dumps(content, allow_nan=False, **form)
    except ValueError:
        return json.dumps(_finite(content), allow_nan=False, **form)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(entry) for name, entry in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(entry) for entry in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def write_json(path: str | os.PathLike[str], content: Any, *, indent: int = 2) -> None:
    """Write `json_text` in one step."""
    with atomic_path(path) as temporary:
        temporary.write_text(json_text(content, indent=indent) + "\n", encoding="utf-8")


@contextmanager
def new_hdf5(path: str | os.PathLike[str], *, track_order: bool = False) -> Iterator[h5py.File]:
    """Yield an HDF5 file in memory to fill; written to `path` in one step.

    HDF5 itself ends the process with a segmentation fault on a full disk.
    """
    with h5py.File(
        Path(path).name, "w", driver="core", backing_store=False, track_order=track_order
    ) as file:
        yield file
        file.flush()
        content = file.id.get_file_image()
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
