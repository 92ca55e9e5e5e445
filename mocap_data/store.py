"""The file of reference motions, where the two pipelines of the project meet: HDF5, versioned.

Layout (schema "npmp-motion", version 3):

    /                attributes schema, version, robot, model_sha256, joint_names, body_names;
                     provenance: a JSON object of strings, how the file was made (optional)
    /CLIP            attributes rate_hz, source, licence, recording, start_s, mirror, split, weight,
                     and every quality figure under its own name
    /CLIP/qpos       (T, nq)         float64, MuJoCo's order and conventions; see `ReferenceMotion`
    /CLIP/contacts   (T, nfoot)      uint8, 1 where a foot stands (optional)
    /CLIP/frame_quality/FIGURE (T,)  float64, any number of figures (optional)

Arrays are compressed without loss and carry checksums. Clips keep their order. The same motions
give the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mocap_data import hdf5
from mocap_data.arrays import require_rate, set_fields
from mocap_data.errors import InputError, check_known, unknown
from mocap_data.files import new_hdf5
from mocap_data.motion import ReferenceMotion
from mocap_data.outside import parse_json, require_memory

SCHEMA = "npmp-motion"
VERSION = 3
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
    # of the robot's model that the motions were made with
    model_sha256: str
    # the actuated joints, in qpos order after the free root's 7 numbers
    joint_names: tuple[str, ...]
    # every body but the world, in the model's order
    body_names: tuple[str, ...]
    # with unique names
    motions: tuple[ReferenceMotion, ...]
    # how the motions were made, e.g. versions and options
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        set_fields(
            self,
            joint_names=tuple(str(name) for name in self.joint_names),
            body_names=tuple(str(name) for name in self.body_names),
            motions=tuple(self.motions),
            provenance={str(key): str(value) for key, value in self.provenance.items()},
        )
        seen: set[str] = set()
        for motion in self.motions:
            name = motion.name
            if name in seen:
                raise InputError(f"two motions are called {name!r}; names must be unique")
            seen.add(name)
            if not _names_a_group(name):
                raise InputError(f"a motion cannot be called {name!r}: it names a group in a file")
            _check_fits(motion, self.robot, len(self.joint_names))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(motion.name for motion in self.motions)

    def __getitem__(self, name: str) -> ReferenceMotion:
        """The motion called `name`.

        Raises:
          InputError: for an unknown name.
        """
        for motion in self.motions:
            if motion.name == name:
                return motion
        raise unknown("motion", name, self.names)

    def select(self, names: Sequence[str] | None = None, *, split: str | None = None) -> MotionSet:
        """The set with only the motions `names`, in that order, or of one `split`, or both.

        Raises:
          InputError: for an unknown name or split, and when no motion is left.
        """
        chosen = self.motions if names is None else tuple(self[name] for name in names)
        if split is not None:
            splits = sorted({motion.split for motion in self.motions if motion.split})
            if split not in splits:
                unsplit = "the motions were not split into train and validation"
                why = f"; there are: {', '.join(splits)}" if splits else f": {unsplit}"
                raise InputError(f"no motion is of split {split!r}{why}")
            chosen = tuple(motion for motion in chosen if motion.split == split)
        if not chosen:
            raise InputError("no motion is left: nothing, or nothing of that split, was asked for")
        return replace(self, motions=chosen)


def _names_a_group(name: str) -> bool:
    """Whether HDF5 takes a name for a member of a group."""
    return bool(name) and "/" not in name and name not in (".", "..")


def write_motions(path: str | os.PathLike[str], motion_set: MotionSet) -> None:
    """Write `motion_set` to `path`, whole or not at all.

    Raises:
      InputError: for no motions, or a figure that cannot have its name in a file. OSError: when the
        folder cannot be written.
    """
    if not motion_set.motions:
        raise InputError(f"{path}: refusing to write a motion file without motions")
    for motion in motion_set.motions:
        taken = sorted(set(motion.quality) & set(_FIELDS))
        if taken:
            raise InputError(
                f"motion {motion.name!r}: quality figure {taken[0]!r} has the name of an attribute"
            )
        odd = [key for key in motion.frame_quality if not _names_a_group(key)]
        if odd:
            raise InputError(
                f"motion {motion.name!r}: a figure of frames cannot be called {odd[0]!r} in a file"
            )
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
            for key, values in motion.frame_quality.items():
                _write_array(group.require_group("frame_quality"), key, values)


def _write_array(group: h5py.Group, key: str, values: np.ndarray) -> None:
    rows = max(1, _CHUNK_BYTES // max(1, values[:1].nbytes))
    chunks = (min(len(values), rows), *values.shape[1:])
    group.create_dataset(key, data=values, chunks=chunks, track_times=False, **hdf5.PACKED)


def robot_of(path: str | Path) -> str | None:
    """The robot that a dataset is of; None where that cannot be read."""
    try:
        with hdf5.open_hdf5(path) as file:
            robot = hdf5.attributes(file).get("robot")
    except (InputError, OSError):
        return None
    return robot if isinstance(robot, str) else None


def check_replaceable(out: Path, sources: Sequence[Path] = ()) -> None:
    """Raise InputError where a dataset would replace one of its sources, or any other file that is
    no dataset of motions."""
    if not (out.exists() or out.is_symlink()):
        return
    if any(file.exists() and out.exists() and os.path.samefile(file, out) for file in sources):
        raise InputError(
            f"out={out} is one of the recordings of source=; name another file, e.g. out=motions.h5"
        )
    if hdf5.schema_of(out) != SCHEMA:
        raise InputError(
            f"out={out} exists and is no dataset of motions, so it is not replaced; name "
            "another file"
        )


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
    """The motions in `path`, refused unless they are of the robot that the caller expects.

    robot, model_sha256, joint_names, body_names: what the file must say; None: anything.
    clips: read only these, in this order.
    refused: where given, errors of single clips are appended to it, and the others are read.

    Raises:
      InputError: naming the file and what differs: no such file, not HDF5, damaged, another schema
        or a newer version, another robot, an unknown clip, what `mocap_data.hdf5` refuses, more
        than memory holds, or contents that `ReferenceMotion` refuses.
    """
    with _open(path) as (file, head):
        if robot is not None and head["robot"] != robot:
            raise InputError(f"{path} is of robot {head['robot']!r}, expected {robot!r}")
        _require_same(path, "joint", head["joint_names"], joint_names)
        _require_same(path, "body", head["body_names"], body_names)
        if model_sha256 is not None and head["model_sha256"] != model_sha256:
            raise InputError(
                f"{path} was made with another model of {head['robot']!r}: model_sha256 "
                f"{head['model_sha256'][:12]}..., expected {model_sha256[:12]}...; retarget again"
            )
        present = hdf5.members(file)
        names = present if clips is None else list(clips)
        check_known(f"clip in {path}", sorted(set(names)), present)

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
                _check_fits(motion, head["robot"], len(head["joint_names"]))
                motions.append(motion)
            except InputError as error:
                named = str(error).startswith(str(path))
                refuse(error if named else InputError(f"{path}: {error}"))
        if not motions:
            raise InputError(f"{path} holds no motions")
    return MotionSet(motions=tuple(motions), **head)


def splits_in(path: str | os.PathLike[str]) -> dict[str, str]:
    """The split of every clip of `path` by its name, in order, without reading arrays.

    Raises:
      InputError: as `read_motions`.
    """
    with _open(path) as (file, _):
        return {name: _stored(path, file, name).about["split"] for name in hdf5.members(file)}


@dataclass(frozen=True)
class _Stored:
    """A clip in a file: its attributes, and its arrays, checked but not read."""

    name: str
    about: dict[str, Any]
    quality: dict[str, float]
    arrays: dict[str, h5py.Dataset]
    figures: dict[str, h5py.Dataset]
    num_bytes: int


@contextmanager
def _open(path: str | os.PathLike[str]) -> Iterator[tuple[h5py.File, dict[str, Any]]]:
    """The file, and the fields of a MotionSet that its attributes hold."""
    with hdf5.open_hdf5(Path(path)) as file:
        about = hdf5.attributes(file)
        schema = about.get("schema")
        if not isinstance(schema, str) or schema != SCHEMA:
            observed = "none" if schema is None else repr(schema)
            raise InputError(
                f"{path} is HDF5 but no motion file: schema {observed}, expected {SCHEMA!r}"
            )
        version = _attribute(path, about, "version", int)
        if version > VERSION:
            newer = f"version {version} is newer than this reader ({VERSION})"
            raise InputError(f"{path}: {newer}; update npmp")
        if version < VERSION:
            older = f"version {version} is older than this reader ({VERSION})"
            raise InputError(f"{path}: {older}; retarget again")
        kinds = {"robot": str, "model_sha256": str, "joint_names": tuple, "body_names": tuple}
        head = {key: _attribute(path, about, key, kind) for key, kind in kinds.items()}
        try:
            document = parse_json(_text(about.get("provenance", "{}")), "provenance")
        except (TypeError, ValueError):
            document = None
        if not isinstance(document, dict):
            raise InputError(f"{path}: attribute 'provenance' is not a JSON object")
        yield file, {**head, "provenance": document}


_WANTED = {
    tuple: "a list of texts",
    str: f"a text of at most {MAX_TEXT:,} characters",
    int: "an integer",
    float: "a number",
}


def _attribute(where: Any, known: Mapping[str, Any], key: str, kind: type) -> Any:
    """Attribute `key` as str, int, float, or a tuple of str."""
    if key not in known:
        raise InputError(f"{where}: attribute {key!r} is missing, or of a strange type")
    value = known[key]
    try:
        if kind is tuple and np.ndim(value) == 1:
            return tuple(_text(entry) for entry in value)
        if kind is str and len(text := _text(value)) <= MAX_TEXT:
            return text
        if isinstance(value, np.integer) or (kind is float and isinstance(value, np.floating)):
            return kind(value)
    except (TypeError, ValueError):
        pass
    raise InputError(f"{where}: attribute {key!r} is {value!r:.80}, expected {_WANTED[kind]}")


def _text(value: Any) -> str:
    """A text as h5py returns it: str, or bytes for fixed-length ones."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, str):
        # h5py keeps bytes that are no UTF-8 as surrogates
        value.encode("utf-8")
        return str(value)
    raise TypeError


def _stored(path: Any, file: h5py.File, name: str) -> _Stored:
    """A clip of the file, every type and size of it checked."""
    where = f"{path}, clip {name!r}"
    group = hdf5.member(file, name)
    if not isinstance(group, h5py.Group):
        raise InputError(f"{path}: {name!r} is no group; a motion file has one group per clip")
    attrs = hdf5.attributes(group)
    arrays = {key: hdf5.member(group, key) for key in ("qpos", "contacts")}
    if arrays["contacts"] is None:
        del arrays["contacts"]
    figures = {}
    if (inner := hdf5.member(group, "frame_quality")) is not None:
        if not isinstance(inner, h5py.Group):
            raise InputError(f"{where}: frame_quality is no group of arrays")
        figures = {key: hdf5.member(inner, key) for key in hdf5.members(inner)}
    about = {key: _attribute(where, attrs, key, kind) for key, kind in _FIELDS.items()}
    require_rate(about["rate_hz"], f"{where}:")
    num_bytes = 0
    for key, array in (*arrays.items(), *figures.items()):
        if array is None:
            raise InputError(f"{where}: array {key!r} is missing")
        num_bytes += hdf5.array_bytes(array, f"{where}: {key}")
        if key == "contacts":
            if array.ndim != 2:
                raise InputError(f"{where}: contacts is no array (T, F)")
        elif array.dtype.kind != "f" or not array.shape:
            kind = array.dtype
            raise InputError(f"{where}: {key} is of type {kind}, expected an array of floats")
    quality = {
        key: float(value)
        for key, value in attrs.items()
        if key not in _FIELDS and isinstance(value, np.floating | np.integer)
    }
    return _Stored(name, about, quality, arrays, figures, num_bytes)


def _motion(path: Any, clip: _Stored) -> ReferenceMotion:
    """A clip with its arrays read."""

    def values(key: str, array: h5py.Dataset) -> np.ndarray:
        result = hdf5.read_array(array, f"{path}, clip {clip.name!r}: {key}")
        # saves ReferenceMotion a copy
        result.flags.writeable = False
        return result

    arrays: dict[str, Any] = {key: values(key, array) for key, array in clip.arrays.items()}
    figures = {key: values(key, array) for key, array in clip.figures.items()}
    return ReferenceMotion(
        name=clip.name, quality=clip.quality, frame_quality=figures, **clip.about, **arrays
    )


def _check_fits(motion: ReferenceMotion, robot: str, num_joints: int) -> None:
    """Refuse a motion of another number of joints."""
    joints = motion.qpos.shape[1] - 7
    what = f"motion {motion.name!r}: qpos"
    if joints != num_joints:
        raise InputError(f"{what} is of {joints} joints, robot {robot!r} has {num_joints}")


def _require_same(path: Any, kind: str, found: tuple[str, ...], wanted: Any) -> None:
    """Raise InputError at the first place where two lists of names differ; None expects nothing."""
    expected = found if wanted is None else tuple(wanted)
    for i, (name, other) in enumerate(zip(found, expected, strict=False)):
        if name != other:
            raise InputError(f"{path}: {kind} {i} is {name!r}, expected {other!r}")
    if len(found) != len(expected):
        shorter, longer = sorted((found, expected), key=len)
        side = "lacks" if shorter is found else "has an extra"
        raise InputError(
            f"{path} has {len(found)} {kind} names, expected {len(expected)}: "
            f"it {side} {longer[len(shorter)]!r} at {len(shorter)}"
        )
