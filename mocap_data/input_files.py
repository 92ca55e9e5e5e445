"""Input files: bounded in size and memory, with errors on one line.

Only regular files are opened (a FIFO or a device would block or never end), only up to a size, and
an error of a library becomes an `InputError` that names the file.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError

# ten times an hour of a recording at 120 Hz
MAX_TEXT_BYTES = 512 << 20
MAX_JSON_BYTES = 64 << 20
# largest share of the free memory for one step
MEMORY_SHARE = 0.8
# a pointer of Git LFS is smaller
MAX_POINTER_BYTES = 1024
_POINTER = re.compile(rb"version https?://[^\s]*(?:git-lfs|hawser|git-media)[^\s]*\s")


def regular_file(path: str | os.PathLike[str], *, at_most: int | None = None) -> Path:
    """The path of a regular file, links followed. at_most: its size [bytes].

    Raises:
      InputError: for a file that is absent, unreachable, not regular or too large, and for a Git
        LFS pointer.
    """
    path = Path(path)
    try:
        status = path.stat()
    # ValueError: a null character in the name
    except (FileNotFoundError, ValueError) as error:
        raise InputError(f"no file {str(path)!r}") from error
    except OSError as error:
        raise InputError(f"{path}: {_first_line(error)}") from error
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path} is a folder; a file is expected")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not a regular file (a device, FIFO or socket)")
    if at_most is not None and status.st_size > at_most:
        raise InputError(f"{path} has {status.st_size:,} bytes; at most {at_most:,} are read")
    if status.st_size <= MAX_POINTER_BYTES and (size := pointer_size(path)) is not None:
        raise InputError(
            f"{path} is a Git LFS pointer, not the file ({size:,} bytes): git lfs pull"
        )
    return path


def pointer_size(path: Path) -> int | None:
    """The size [bytes] of the file that a Git LFS pointer points to; None for any other file."""
    start = b""
    # a file that cannot be read is refused by its reader
    with suppress(OSError), path.open("rb") as file:
        start = file.read(MAX_POINTER_BYTES)
    size = re.search(rb"^size (\d{1,18})\s*$", start, re.MULTILINE)
    return int(size[1]) if size and _POINTER.match(start) else None


def read_text(path: str | Path, *, at_most: int = MAX_TEXT_BYTES) -> str:
    """The text of a UTF-8 file.

    Raises:
      InputError: as `regular_file`, and bytes that are not UTF-8.
    """
    path = regular_file(path, at_most=at_most)
    with reading(path):
        return path.read_text(encoding="utf-8")


def read_json(path: str | Path) -> Any:
    """The content of a JSON file. Raises InputError as `read_text` and `parse_json`."""
    return parse_json(read_text(path, at_most=MAX_JSON_BYTES), str(path))


def read_json_object(path: str | Path) -> dict[str, Any]:
    """The content of a JSON file that holds an object.

    Raises:
      InputError: as `read_json`, and anything but an object.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: a JSON object is expected")
    return content


def parse_json(text: str, name: str) -> Any:
    """The content of a JSON text; `name` is its file, for errors.

    Raises:
      InputError: no JSON (with the line).
    """
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        cut = "; the file is truncated" if error.pos >= len(error.doc.rstrip()) else ""
        raise InputError(
            f"{name}, line {error.lineno}: no valid JSON ({error.msg}){cut}"
        ) from error
    # ValueError: a whole number of thousands of digits
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is not readable JSON ({_first_line(error)})") from error


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turn any exception of a library that reads a file into an InputError that names it."""
    try:
        yield
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"{path}: too large for the memory") from error
    except RecursionError as error:
        raise InputError(f"{path}: nested too deep") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except Exception as error:
        raise InputError(f"{path}: {_first_line(error)}") from error


def available_memory() -> int:
    """Free memory [bytes]: of the system, or of this process's cgroup."""
    free = 16 << 30
    with suppress(AttributeError, ValueError, OSError):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError, IndexError):
        free = 1024 * int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0])
    # no such cgroup, or "max": no limit
    with suppress(OSError, ValueError):
        limit = Path("/sys/fs/cgroup/memory.max")
        used = Path("/sys/fs/cgroup/memory.current")
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return max(free, 0)


def require_memory(num_bytes: float, label: str) -> None:
    """Raise InputError before an allocation that exceeds the free memory.

    num_bytes: an estimate of the peak. label: its purpose, with the setting that reduces it.

    Raises:
      InputError: with both sizes.
    """
    free = available_memory()
    if num_bytes > MEMORY_SHARE * free:
        needed = f"{num_bytes / 2**30:,.1f} GiB of memory; {free / 2**30:.1f} GiB are free"
        raise InputError(f"{label} needs about {needed}")


def _first_line(error: BaseException) -> str:
    # str() of an OSError repeats the file's name
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 200 else text[:200] + " ..."
