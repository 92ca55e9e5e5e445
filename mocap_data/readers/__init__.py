"""Recordings as `Clip`s: one module per format, one `read(path, **options)` for all of them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mocap_data.clip import Clip
from mocap_data.errors import InputError, check_available
from mocap_data.hdf5 import schema_of
from mocap_data.input_files import pointer_size, regular_file
from mocap_data.npz import has_arrays
from mocap_data.readers.amass import read_amass
from mocap_data.readers.asf_amc import read_amc_clip
from mocap_data.readers.bvh import read_bvh
from mocap_data.readers.c3d import read_c3d
from mocap_data.readers.cmu_h5 import is_cmu_h5, list_cmu_h5, read_cmu_h5
from mocap_data.readers.common import BOM
from mocap_data.readers.deepmimic import read_deepmimic
from mocap_data.readers.keypoints import read_csv, read_npz
from mocap_data.readers.unsupported import check_supported

# by suffix, in lower case; a .txt is JSON or a table, an .npz may be of AMASS, see `reader_of`
READERS: dict[str, Callable[..., Clip]] = {
    ".amc": read_amc_clip,
    ".bvh": read_bvh,
    ".c3d": read_c3d,
    ".csv": read_csv,
    ".h5": read_cmu_h5,
    ".hdf5": read_cmu_h5,
    ".json": read_deepmimic,
    ".npz": read_npz,
    ".txt": read_csv,
}
# options of every recording
ABOUT = {"name": None, "source": None, "licence": "unknown"}


def read(path: str | os.PathLike[str], **options: Any) -> Clip:
    """The recording at `path` as a `Clip`; the suffix chooses the reader, for .txt the contents.

    options, all optional; those of one format are documented with its reader (see `options_of`):
      scale: metres per unit of the file, or the unit's name ("cm", "m", "mm", "in"); by default
        0.01 for BVH, the file's unit for ASF/AMC and C3D, else 1.
      up: the file's upward axis, "x", "y" or "z" ("-z": z points down); by default the file's for
        C3D, else "y".
      name: of the clip (the file's without suffix). source (the file's name). licence ("unknown").

    Raises:
      InputError: with the file: no file, an unknown suffix or option, or contents that are
        truncated, garbled or not finite; MissingOptions where an option would help.
    """
    file = regular_file(path)
    try:
        reader = reader_of(file)
        check_available(f"option for {file.suffix} files", options, _options(reader))
        about = {key: value for key in ABOUT if (value := options.pop(key, None)) is not None}
        clip = reader(file, **options)
        assumed = tuple(key for key in clip.assumed if options.get(key) is None)
        return replace(clip, assumed=assumed, **about)
    except InputError as error:
        raise _explained(file, error) from None


def read_all(path: str | os.PathLike[str], **options: Any) -> list[Clip]:
    """Every clip of a recording: many for dm_control's HDF5 without clip=, else one.

    Raises:
      InputError: as `read`.
    """
    if options.get("clip") is not None or not is_cmu_h5(path):
        return [read(path, **options)]
    return [read(path, **{**options, "clip": clip.name}) for clip in list_cmu_h5(path)]


def reader_of(path: str | os.PathLike[str]) -> Callable[..., Clip]:
    """The reader for a file by its suffix; a .txt that begins with a brace is JSON.

    Raises:
      InputError: a suffix without reader, with the format to convert the file to.
    """
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix == ".asf":
        raise InputError(f"{str(path)!r} is a skeleton; read its motions, the .amc files beside it")
    check_supported(path)
    check_available(f"reader for {str(path)!r} with suffix", [suffix], READERS)
    if suffix == ".txt" and file.is_file() and _start(file).startswith(b"{"):
        return read_deepmimic
    if suffix == ".npz" and file.is_file() and has_arrays(file, "poses", "trans"):
        return read_amass
    return READERS[suffix]


def options_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The options of the reader for a file with their defaults; {} for a file without reader."""
    try:
        return _options(reader_of(path))
    except (InputError, OSError):
        return {}


def _options(reader: Callable[..., Clip]) -> dict[str, Any]:
    parameters = inspect.signature(reader).parameters.items()
    return {name: entry.default for name, entry in parameters if name != "path"} | ABOUT


def is_recording(path: str | os.PathLike[str]) -> bool:
    """Whether a file of a folder is a recording, by its suffix and its first bytes.

    READMEs and licences in .txt, JSON without frames, and datasets of npmp are not recordings.
    Damaged HDF5 files and pointers of Git LFS count as recordings, so that reading them raises the
    error.
    """
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix not in READERS or not file.is_file():
        return False
    if pointer_size(file) is not None:
        return True
    if suffix in (".h5", ".hdf5"):
        return is_cmu_h5(file) or schema_of(file) is None
    if suffix not in (".txt", ".json"):
        return True
    start = _start(file)
    if start.startswith(b"{"):
        return b'"Frames"' in start
    return suffix == ".txt" and start != b"" and start[:1] in b"+-.0123456789"


def _start(file: Path) -> bytes:
    """The first bytes of a text, from the first character that is not white space."""
    with file.open("rb") as stream:
        return stream.read(4096).removeprefix(BOM).lstrip()


def _explained(file: Path, error: InputError) -> InputError:
    """The error of a reader; a more specific one for a robot's motion or a dataset."""
    # imported late, as they import this module
    from mocap_data.readers import robot_motions
    from mocap_data.store import SCHEMA

    try:
        if (kind := robot_motions.kind_of(file)) is not None:
            problem = f"holds a robot's motion ({kind}), not a recording of keypoints to retarget"
        elif schema_of(file) == SCHEMA:
            problem = "is a dataset of robot motions, made by npmp retarget, not a recording"
        else:
            return error
    # damaged: keep the first error
    except (InputError, OSError):
        return error
    return InputError(f"{file} {problem}; see npmp inspect")
