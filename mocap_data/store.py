"""The dataset of reference motions: HDF5, versioned.

Layout (schema "npmp-motion", version 4):

    /                attributes schema, version, robot, model_sha256, joint_names, body_names;
                     provenance: a JSON object of strings, how the file was made (optional)
    /CLIP            attributes rate_hz, source, licence, recording, start_s, mirror, split, weight,
                     and every quality figure under its own name
    /CLIP/qpos       (T, nq)         float64, MuJoCo's order and conventions; see `ReferenceMotion`
    /CLIP/contacts   (T, nfoot)      uint8, 1 where a foot stands (optional)
    /CLIP/ground     (P,)            float64, heights along x [m]; see `GroundProfile` (optional)
    /CLIP/frame_quality/FIGURE (T,)  float64, any number of figures (optional)

Version 3, without grounds, is read as well.

Arrays are compressed without loss and carry checksums. Clips keep their order. The same motions
give the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mocap_data import hdf5
from mocap_data.arrays import read_only, set_fields, unique
from mocap_data.errors import InputError, check_available
from mocap_data.files import new_hdf5
from mocap_data.ground_profile import GroundProfile
from mocap_data.input_files import parse_json, require_memory
from mocap_data.motion import ReferenceMotion

SCHEMA = "npmp-motion"
VERSION = 4
# versions that are read
READABLE = (3, VERSION)
# characters of an attribute but the provenance
MAX_TEXT = 10_000

# fields of ReferenceMotion that are attributes of a clip
_FIELDS: dict[str, type] = {
    "rate_hz": float,
    "source": str,
    "licence": str,
    "recording": str,
    "start_s": float,
    "mirror": str,
    "split": str,
    "weight": float,
}
# clips are read whole: one chunk an array is smaller and faster than HDF5's own guess
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, eq=False)
class MotionSet:
    """Reference motions of one robot.

    Raises:
      InputError: when a motion does not fit the joints, or two motions share a name.
    """

    # the robot's name
    robot: str
    # hash of the robot's model that the motions were made with
    model_sha256: str
    # the actuated joints, in qpos order after the free root's 7 numbers
    joint_names: tuple[str, ...]
    # every body but the world, in the model's order
    body_names: tuple[str, ...]
    # with unique names
    motions: tuple[ReferenceMotion, ...]
    # provenance of the motions, e.g. versions and options
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        set_fields(
            self,
            joint_names=tuple(str(name) for name in self.joint_names),
            body_names=tuple(str(name) for name in self.body_names),
            motions=tuple(self.motions),
            provenance={str(key): str(value) for key, value in self.provenance.items()},
        )
        unique(self.names, "motion")
        for motion in self.motions:
            if not _is_group_name(motion.name):
                raise InputError(f"motion name {motion.name!r} must be a name of an HDF5 group")
            _check_joints(motion, self.robot, len(self.joint_names))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(motion.name for motion in self.motions)

    def __getitem__(self, name: str) -> ReferenceMotion:
        """The motion called `name`.

        Raises:
          InputError: an unknown name.
        """
        check_available("motion", [name], self.names)
        return self.motions[self.names.index(name)]

    def select(self, names: Sequence[str] | None = None, *, split: str | None = None) -> MotionSet:
        """The set with only the motions `names`, in that order, or of one `split`, or both.

        Raises:
          InputError: an unknown name or split, and when no motion is left.
        """
        selected = self.motions if names is None else tuple(self[name] for name in names)
        if split is not None:
            splits = sorted({motion.split for motion in self.motions if motion.split})
            check_available("split of these motions", [split], splits)
            selected = tuple(motion for motion in selected if motion.split == split)
        if not selected:
            raise InputError(f"no motion left of names={names}, split={split}")
        return replace(self, motions=selected)


def _is_group_name(name: str) -> bool:
    """Whether HDF5 accepts a name for a member of a group."""
    return bool(name) and "/" not in name and name not in (".", "..")


def write_motions(path: str | os.PathLike[str], motion_set: MotionSet) -> None:
    """Write `motion_set` to `path` in one step.

    Raises:
      InputError: no motions, or a figure with a reserved name.
      OSError: an unwritable folder.
    """
    if not motion_set.motions:
        raise InputError(f"{path}: no motions to write")
    for motion in motion_set.motions:
        reserved = sorted(set(motion.quality) & set(_FIELDS))
        reserved += [key for key in motion.frame_quality if not _is_group_name(key)]
        if reserved:
            raise InputError(f"motion {motion.name!r}: no figure can be called {reserved[0]!r}")
    with new_hdf5(path, track_order=True) as file:
        text = h5py.string_dtype("utf-8")
        file.attrs.update(schema=SCHEMA, version=VERSION, robot=motion_set.robot)
        file.attrs["model_sha256"] = motion_set.model_sha256
        for key in ("joint_names", "body_names"):
            file.attrs.create(key, np.array(getattr(motion_set, key), dtype=object), dtype=text)
        file.attrs["provenance"] = json.dumps(dict(motion_set.provenance), sort_keys=True)
        for motion in motion_set.motions:
            group = file.create_group(motion.name)
            group.attrs.update({key: getattr(motion, key) for key in _FIELDS})
            group.attrs.update(motion.quality)
            _write_array(group, "qpos", motion.qpos)
            if motion.contacts is not None:
                _write_array(group, "contacts", motion.contacts.view(np.uint8))
            if motion.ground is not None:
                _write_array(group, "ground", motion.ground.heights)
            for key, values in motion.frame_quality.items():
                _write_array(group.require_group("frame_quality"), key, values)


def _write_array(group: h5py.Group, key: str, values: np.ndarray) -> None:
    rows = max(1, _CHUNK_BYTES // max(1, values[:1].nbytes))
    chunks = (min(len(values), rows), *values.shape[1:])
    group.create_dataset(key, data=values, chunks=chunks, track_times=False, **hdf5.COMPRESSION)


def robot_of(path: str | Path) -> str | None:
    """The robot of a dataset; None for an unreadable file."""
    try:
        with hdf5.open_hdf5(path) as file:
            robot = hdf5.attributes(file).get("robot")
    except (InputError, OSError):
        return None
    return robot if isinstance(robot, str) else None


def check_replaceable(out: Path, sources: Sequence[Path] = ()) -> None:
    """Check that writing a dataset to `out` replaces nothing but a dataset.

    Raises:
      InputError: `out` is one of the sources, or another kind of file.
    """
    if not (out.exists() or out.is_symlink()):
        return
    if any(file.exists() and out.exists() and os.path.samefile(file, out) for file in sources):
        raise InputError(
            f"out={out} is one of the recordings of source=; name another file, e.g. out=motions.h5"
        )
    if hdf5.schema_of(out) != SCHEMA:
        raise InputError(f"out={out} exists and is not a dataset of motions; name another file")


def read_motions(
    path: str | os.PathLike[str],
    *,
    robot: str | None = None,
    model_sha256: str | None = None,
    joint_names: Sequence[str] | None = None,
    body_names: Sequence[str] | None = None,
    clips: Sequence[str] | None = None,
    refused: list[InputError] | None = None,
) -> MotionSet:
    """The motions in `path`.

    robot, model_sha256, joint_names, body_names: the expected attributes; None: any.
    clips: read only these, in this order.
    refused: where passed, errors of single clips are appended to it, and the others are read.

    Raises:
      InputError: with the file and the difference: no file, no HDF5, another schema or version,
        another robot, an unknown clip, more data than memory holds, or invalid values.
    """
    with _open(path) as (file, head):
        if robot is not None and head["robot"] != robot:
            raise InputError(f"{path}: robot is {head['robot']!r}, expected {robot!r}")
        _check_names(path, "joint", head["joint_names"], joint_names)
        _check_names(path, "body", head["body_names"], body_names)
        if model_sha256 is not None and head["model_sha256"] != model_sha256:
            raise InputError(
                f"{path}: model_sha256 of {head['robot']!r} is {head['model_sha256'][:12]}..., "
                f"expected {model_sha256[:12]}... (another model); retarget again"
            )
        present = hdf5.members(file)
        names = present if clips is None else list(clips)
        check_available(f"clip in {path}", sorted(set(names)), present)

        def refuse(error: InputError) -> None:
            if refused is None:
                raise error
            refused.append(error)

        stored = []
        for name in names:
            try:
                stored.append(_stored(path, file, name))
            except InputError as error:
                refuse(error)
        needed = sum(clip.num_bytes for clip in stored)
        require_memory(needed, f"{path}: {len(stored)} motions (clips= reads some of them)")

        motions = []
        for clip in stored:
            try:
                motion = _motion(path, clip)
                _check_joints(motion, head["robot"], len(head["joint_names"]))
                motions.append(motion)
            except InputError as error:
                names_file = str(error).startswith(str(path))
                refuse(error if names_file else InputError(f"{path}: {error}"))
        if not motions:
            raise InputError(f"{path} holds no motions")
    return MotionSet(motions=tuple(motions), **head)


def splits_in(path: str | os.PathLike[str]) -> dict[str, str]:
    """The split of every clip of `path` by its name, in order, without reading arrays.

    Raises:
      InputError: as `read_motions`.
    """
    with _open(path) as (file, _):
        return {name: _stored(path, file, name).fields["split"] for name in hdf5.members(file)}


@dataclass(frozen=True)
class _Stored:
    """A clip in a file: its attributes, and its arrays, not read yet."""

    name: str
    fields: dict[str, Any]
    quality: dict[str, float]
    arrays: dict[str, h5py.Dataset]
    figures: dict[str, h5py.Dataset]
    num_bytes: int


@contextmanager
def _open(path: str | os.PathLike[str]) -> Iterator[tuple[h5py.File, dict[str, Any]]]:
    """The file, and the fields of a MotionSet that its attributes hold."""
    with hdf5.open_hdf5(Path(path)) as file:
        attrs = hdf5.attributes(file)
        schema = attrs.get("schema")
        if not isinstance(schema, str) or schema != SCHEMA:
            raise InputError(f"{path}: schema is {schema!r}, expected {SCHEMA!r}")
        version = _attribute(path, attrs, "version", int)
        if version not in READABLE:
            step = "update npmp" if version > VERSION else "retarget again"
            raise InputError(f"{path}: version is {version}, expected {VERSION}; {step}")
        kinds = {"robot": str, "model_sha256": str, "joint_names": tuple, "body_names": tuple}
        head = {key: _attribute(path, attrs, key, kind) for key, kind in kinds.items()}
        try:
            provenance = parse_json(_text(attrs.get("provenance", "{}")), "provenance")
        except (TypeError, ValueError):
            provenance = None
        if not isinstance(provenance, dict):
            raise InputError(f"{path}: attribute 'provenance': expected a JSON object")
        yield file, {**head, "provenance": provenance}


_EXPECTED = {
    tuple: "a list of texts",
    str: f"a text of at most {MAX_TEXT:,} characters",
    int: "an integer",
    float: "a number",
}


def _attribute(location: Any, attrs: Mapping[str, Any], key: str, kind: type) -> Any:
    """Attribute `key` as str, int, float, or a tuple of str."""
    if key not in attrs:
        raise InputError(f"{location}: attribute {key!r} is missing, expected {_EXPECTED[kind]}")
    value = attrs[key]
    try:
        if kind is tuple and np.ndim(value) == 1:
            return tuple(_text(entry) for entry in value)
        if kind is str and len(text := _text(value)) <= MAX_TEXT:
            return text
        if isinstance(value, np.integer) or (kind is float and isinstance(value, np.floating)):
            return kind(value)
    except (TypeError, ValueError):
        pass
    raise InputError(f"{location}: attribute {key!r} is {value!r:.80}, expected {_EXPECTED[kind]}")


def _text(value: Any) -> str:
    """A text as h5py returns it: str, or bytes for fixed-length ones."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, str):
        # h5py decodes bytes that are not UTF-8 to surrogates
        value.encode("utf-8")
        return str(value)
    raise TypeError


def _stored(path: Any, file: h5py.File, name: str) -> _Stored:
    """A clip of the file, its attributes and types checked."""
    location = f"{path}, clip {name!r}"
    group = hdf5.member(file, name)
    if not isinstance(group, h5py.Group):
        raise InputError(f"{path}: {name!r} is an array, expected a group; a clip is a group")
    attrs = hdf5.attributes(group)
    fields = {key: _attribute(location, attrs, key, kind) for key, kind in _FIELDS.items()}
    quality = {
        key: float(value)
        for key, value in attrs.items()
        if key not in _FIELDS and isinstance(value, np.floating | np.integer)
    }
    arrays = {"qpos": hdf5.member(group, "qpos")}
    for key in ("contacts", "ground"):
        array = hdf5.member(group, key)
        if array is not None:
            arrays[key] = array
    inner = hdf5.member(group, "frame_quality")
    if not isinstance(inner, h5py.Group | None):
        raise InputError(f"{location}: frame_quality is an array, expected a group of arrays")
    figures = {} if inner is None else {key: hdf5.member(inner, key) for key in inner}
    num_bytes = 0
    for key, array in (*arrays.items(), *figures.items()):
        num_bytes += hdf5.array_bytes(array, f"{location}: {key}")
    return _Stored(name, fields, quality, arrays, figures, num_bytes)


def _motion(path: Any, clip: _Stored) -> ReferenceMotion:
    """A clip with its arrays read."""

    def values(key: str, array: h5py.Dataset) -> np.ndarray:
        result = hdf5.read_array(array, f"{path}, clip {clip.name!r}: {key}")
        # saves ReferenceMotion a copy
        result.flags.writeable = False
        return result

    arrays: dict[str, Any] = {key: values(key, array) for key, array in clip.arrays.items()}
    figures = {key: values(key, array) for key, array in clip.figures.items()}
    if "ground" in arrays:
        label = f"motion {clip.name!r} ground"
        heights = read_only(arrays["ground"], shape="(P,)", label=label)
        arrays["ground"] = GroundProfile(heights)
    return ReferenceMotion(
        name=clip.name, quality=clip.quality, frame_quality=figures, **clip.fields, **arrays
    )


def _check_joints(motion: ReferenceMotion, robot: str, num_joints: int) -> None:
    """Raise InputError for a motion of another number of joints."""
    joints = motion.qpos.shape[1] - 7
    if joints != num_joints:
        raise InputError(
            f"motion {motion.name!r}: qpos has {joints} joints, robot {robot!r} has {num_joints}"
        )


def _check_names(path: Any, kind: str, names: Sequence[str], expected: Any) -> None:
    """Raise InputError at the first place where two lists of names differ; None expects nothing."""
    if expected is None:
        return
    for i, (name, other) in enumerate(zip_longest(names, expected)):
        if name != other:
            raise InputError(f"{path}: {kind} {i} is {name!r}, expected {other!r}")
