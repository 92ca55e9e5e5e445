"""Recordings as `Clip`s: one module per format, one `read(path, **options)` for all of them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mocap_data.clip import Clip
from mocap_data.errors import InputError, unknown
from mocap_data.readers.bvh import read_bvh
from mocap_data.readers.keypoints import read_csv, read_npz

# By suffix, in lower case. A format is added here and nowhere else.
READERS: dict[str, Callable[..., Clip]] = {
    ".bvh": read_bvh,
    ".csv": read_csv,
    ".npz": read_npz,
    ".txt": read_csv,
}


def read(path: str | os.PathLike[str], **options: Any) -> Clip:
    """The recording at `path` as a `Clip` (metres, Z up); the suffix chooses the reader.

    Options of every reader, all optional:
        scale: metres per unit of the file (default 0.01 for BVH, which is in centimetres as a rule, else 1).
        up: the file's upward axis, "y" (default) or "z".
        name: of the clip (default: the file name without suffix).
        source: where it comes from (default: the file name).
        licence: of the recording (default "unknown").
    Keypoint files also take rate_hz and names; see `read_csv` and `read_npz`.

    Raises InputError, naming the file: no such file, an unknown suffix or option, or contents that are
    truncated, garbled or not finite. Raises OSError for a file that may not be read.
    """
    file = Path(path)
    if not file.exists():
        raise InputError(f"no file {str(path)!r}")
    if file.is_dir():
        raise InputError(f"{str(path)!r} is a folder, expected a recording ({', '.join(READERS)})")
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise unknown(f"reader for {str(path)!r} with suffix", file.suffix, READERS)
    known = [name for name in inspect.signature(reader).parameters if name != "path"]
    for option in options:
        if option not in known:
            raise unknown(f"option for {file.suffix} files", option, known)
    return reader(file, **options)
