"""The file of reference motions, where the two pipelines of the project meet: HDF5, versioned.

Layout (schema "npmp-motion", version 3):

    /                attributes schema, version, robot, model_sha256, joint_names, body_names;
                     provenance: a JSON object of strings, how the file was made (optional)
    /CLIP            attributes rate_hz, source, licence, recording, start_s, mirror, split, weight,
                     and every quality figure under its own name
    /CLIP/qpos       (T, nq)         float64, MuJoCo's order and conventions; see `ReferenceMotion`
    /CLIP/contacts   (T, nfoot)      uint8, 1 where a foot stands (optional)
    /CLIP/frame_quality/FIGURE (T,)  float64, any number of figures (optional)

Velocities and the bodies' poses follow from qpos (`ReferenceMotion.qvel`, `retarget.kinematics.body_states`). Versions
1 and 2, which are still read, held them too, as qvel, body_pos and body_quat: these are left unread. Version 1 has no
contacts, no frame_quality and only the first three attributes.
Arrays are compressed without loss and carry checksums, so a damaged file is noticed when it is read.
Clips keep the order they were written in. The same motions give the same bytes.
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

from mocap_data.errors import InputError, unknown
from mocap_data.files import atomic_path
from mocap_data.motion import ReferenceMotion

SCHEMA = "npmp-motion"
VERSION = 3

# Each a field of ReferenceMotion; the second ones came with version 2.
_CLIP_ATTRIBUTES = {"rate_hz": float, "source": str, "licence": str}
_CLIP_ATTRIBUTES_2 = {"recording": str, "start_s": float, "mirror": str, "split": str, "weight": float}
# Clips are read whole. One chunk an array is smaller and faster than HDF5's own guess, up to a size that memory does
# not mind.
_CHUNK_BYTES = 4 << 20
_FIXED = (*_CLIP_ATTRIBUTES, *_CLIP_ATTRIBUTES_2)


@dataclass(frozen=True, eq=False)
class MotionSet:
    """Reference motions of one robot.

    robot: its name.
    model_sha256: the hash of the robot's model that the motions were made with.
    joint_names: the actuated joints, in qpos order after the free root's 7 numbers.
    body_names: every body but the world, in the model's order.
    motions: with unique names.
    provenance: how the motions were made, e.g. versions and options.

    Raises InputError when a motion's arrays do not fit the names, or two motions share a name.
    """

    robot: str
    model_sha256: str
    joint_names: tuple[str, ...]
    body_names: tuple[str, ...]
    motions: tuple[ReferenceMotion, ...]
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the way to normalise fields of a frozen dataclass
        set_field(self, "joint_names", tuple(str(name) for name in self.joint_names))
        set_field(self, "body_names", tuple(str(name) for name in self.body_names))
        set_field(self, "motions", tuple(self.motions))
        set_field(self, "provenance", {str(key): str(value) for key, value in self.provenance.items()})
        seen: set[str] = set()
        for motion in self.motions:
            if motion.name in seen:
                raise InputError(f"two motions are called {motion.name!r}; names must be unique")
            seen.add(motion.name)
            if not motion.name or "/" in motion.name or motion.name in (".", ".."):
                raise InputError(f"a motion cannot be called {motion.name!r}: it names a group in a file")
            joints = motion.qpos.shape[1] - 7
            if joints != len(self.joint_names):
                raise InputError(
                    f"motion {motion.name!r}: qpos is of {joints} joints, "
                    f"robot {self.robot!r} has {len(self.joint_names)}"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the motions."""
        return tuple(motion.name for motion in self.motions)

    def __getitem__(self, name: str) -> ReferenceMotion:
        """The motion called `name`. Raises InputError naming those there are."""
        for motion in self.motions:
            if motion.name == name:
                return motion
        raise unknown("motion", name, self.names)

    def select(self, names: Sequence[str] | None = None, *, split: str | None = None) -> MotionSet:
        """The set with only the motions `names`, in that order, or those of one `split`, or both; None takes all.

        Raises InputError for an unknown name or split, and when no motion is left.
        """
        chosen = self.motions if names is None else tuple(self[name] for name in names)
        if split is not None:
            splits = sorted({motion.split for motion in self.motions if motion.split})
            if split not in splits:
                raise InputError(
                    f"no motion is of split {split!r}; there are: {', '.join(splits)}"
                    if splits
                    else f"no motion is of split {split!r}: the motions were not split into train and validation"
                )
            chosen = tuple(motion for motion in chosen if motion.split == split)
        if not chosen:
            raise InputError("no motion is left: nothing, or nothing of that split, was asked for")
        return replace(self, motions=chosen)


@dataclass(frozen=True)
class MotionSummary:
    """What a motion file says about one clip, without its arrays; the fields are those of `ReferenceMotion`.

    num_feet: of its contacts; 0 when it has none. frame_figures: the names in its frame_quality.
    """

    name: str
    num_frames: int
    rate_hz: float
    source: str
    licence: str
    quality: Mapping[str, float]
    recording: str = ""
    start_s: float = 0.0
    mirror: str = ""
    split: str = ""
    weight: float = 1.0
    num_feet: int = 0
    frame_figures: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        """Frames / rate [s]."""
        return self.num_frames / self.rate_hz


def write_motions(path: str | os.PathLike[str], motion_set: MotionSet) -> None:
    """Write `motion_set` to `path`, whole or not at all.

    Raises InputError for a set without motions or a quality figure named like a fixed attribute, OSError
    when the folder cannot be written.
    """
    if not motion_set.motions:
        raise InputError(f"{path}: refusing to write a motion file without motions")
    for motion in motion_set.motions:
        taken = sorted(set(motion.quality) & set(_FIXED))
        if taken:
            raise InputError(f"motion {motion.name!r}: quality figure {taken[0]!r} has the name of an attribute")
        odd = [key for key in motion.frame_quality if not key or "/" in key or key in (".", "..")]
        if odd:
            raise InputError(f"motion {motion.name!r}: a figure of frames cannot be called {odd[0]!r} in a file")
    text = h5py.string_dtype("utf-8")
    with atomic_path(path) as temporary, h5py.File(temporary, "w", track_order=True) as file:
        file.attrs["schema"] = SCHEMA
        file.attrs["version"] = VERSION
        file.attrs["robot"] = motion_set.robot
        file.attrs["model_sha256"] = motion_set.model_sha256
        file.attrs.create("joint_names", np.array(motion_set.joint_names, dtype=object), dtype=text)
        file.attrs.create("body_names", np.array(motion_set.body_names, dtype=object), dtype=text)
        file.attrs["provenance"] = json.dumps(dict(motion_set.provenance), sort_keys=True)
        for motion in motion_set.motions:
            group = file.create_group(motion.name)
            for key in _FIXED:
                group.attrs[key] = getattr(motion, key)
            for key, value in motion.quality.items():
                group.attrs[key] = value
            _write_array(group, "qpos", motion.qpos)
            if motion.contacts is not None:
                _write_array(group, "contacts", motion.contacts.view(np.uint8))
            if motion.frame_quality:
                figures = group.create_group("frame_quality")
                for key, values in motion.frame_quality.items():
                    _write_array(figures, key, values)


def _write_array(group: h5py.Group, key: str, values: np.ndarray) -> None:
    rows = max(1, _CHUNK_BYTES // max(1, values[:1].nbytes))
    group.create_dataset(
        key,
        data=values,
        chunks=(min(len(values), rows), *values.shape[1:]),
        compression="gzip",
        compression_opts=1,  # higher levels cost seconds and save little on motion
        shuffle=True,
        fletcher32=True,
        track_times=False,
    )


def read_motions(
    path: str | os.PathLike[str],
    *,
    robot: str | None = None,
    model_sha256: str | None = None,
    joint_names: Sequence[str] | None = None,
    body_names: Sequence[str] | None = None,
    clips: Sequence[str] | None = None,
) -> MotionSet:
    """The motions in `path`, refused unless they are of the robot that the caller expects.

    robot, model_sha256, joint_names, body_names: what the file must say; None accepts anything.
    clips: read only these, in this order; None reads all. Others are not touched (nor decompressed).

    Raises InputError, naming the file and what differs: no such file, not HDF5, truncated or damaged,
    another schema or a newer version, a missing attribute or array, another robot, model, joint or body,
    an unknown clip, or contents that `ReferenceMotion` refuses.
    """
    with _open(path) as file:
        found_robot = _attribute(path, file, "robot", str)
        found_sha256 = _attribute(path, file, "model_sha256", str)
        found_joints = _attribute(path, file, "joint_names", tuple)
        found_bodies = _attribute(path, file, "body_names", tuple)
        if robot is not None and found_robot != robot:
            raise InputError(f"{path} is of robot {found_robot!r}, expected {robot!r}")
        if joint_names is not None:
            _require_same(path, "joint", found_joints, tuple(joint_names))
        if body_names is not None:
            _require_same(path, "body", found_bodies, tuple(body_names))
        if model_sha256 is not None and found_sha256 != model_sha256:
            raise InputError(
                f"{path} was made with another model of {found_robot!r}: model_sha256 "
                f"{found_sha256[:12]}..., expected {model_sha256[:12]}...; retarget again with this one"
            )
        present = tuple(file)
        names = present if clips is None else tuple(clips)
        for name in names:
            if name not in present:
                raise unknown(f"clip in {path}", name, present)
        motions = tuple(_read_motion(path, file, name) for name in names)
        if not motions:
            raise InputError(f"{path} holds no motions")
        provenance = _provenance(path, file)
        try:
            return MotionSet(found_robot, found_sha256, found_joints, found_bodies, motions, provenance)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


def summarize_motions(path: str | os.PathLike[str]) -> tuple[MotionSummary, ...]:
    """What is in `path`, from its attributes and shapes alone. Raises InputError as `read_motions` does."""
    summaries = []
    with _open(path) as file:
        for name in file:
            group = _group(path, file, name)
            contacts = _contacts(path, group, name)
            summaries.append(
                MotionSummary(
                    name=name,
                    num_frames=int(_dataset(path, group, name, "qpos").shape[0]),
                    quality=_quality(group),
                    num_feet=0 if contacts is None else int(contacts.shape[1]),
                    frame_figures=tuple(_frame_figures(path, group, name)),
                    **_fixed_attributes(path, file, group),
                )
            )
    return tuple(summaries)


@contextmanager
def _open(path: str | os.PathLike[str]) -> Iterator[h5py.File]:
    """The file, open for reading, after its schema and version are known to be ours."""
    if not Path(path).exists():
        raise InputError(f"no motion file {str(path)!r}")
    if Path(path).is_dir():
        raise InputError(f"{str(path)!r} is a folder, expected a motion file (HDF5)")
    try:
        file = h5py.File(path, "r")
    except PermissionError:
        raise
    except OSError as error:
        reason = "it is cut short" if "truncated" in str(error) else "not HDF5, or damaged"
        raise InputError(f"{path} cannot be read as a motion file: {reason}") from None
    with file:
        schema = file.attrs.get("schema")
        if schema != SCHEMA:
            found = "none" if schema is None else repr(schema)
            raise InputError(f"{path} is HDF5 but no motion file: schema {found}, expected {SCHEMA!r}")
        version = _attribute(path, file, "version", int)
        if version > VERSION:
            raise InputError(f"{path}: version {version} is newer than this reader ({VERSION}); update npmp")
        if version < 1:
            raise InputError(f"{path}: version {version} does not exist; there are: 1 to {VERSION}")
        yield file


def _attribute(path: Any, group: h5py.Group, key: str, kind: type) -> Any:
    """Attribute `key` as str, int, float, or a tuple of str."""
    where = str(path) if group.name == "/" else f"{path}, clip {group.name.lstrip('/')!r}"
    if key not in group.attrs:
        raise InputError(f"{where}: attribute {key!r} is missing")
    value = group.attrs[key]
    try:
        if kind is tuple:
            if np.ndim(value) != 1:
                raise TypeError
            return tuple(_text(entry) for entry in value)
        if kind is str:
            return _text(value)
        return kind(value)
    except (TypeError, ValueError):
        wanted = {tuple: "a list of texts", str: "a text", int: "an integer", float: "a number"}[kind]
        raise InputError(f"{where}: attribute {key!r} is {value!r}, expected {wanted}") from None


def _text(value: Any) -> str:
    """A text as h5py returns it (str, or bytes for fixed-length ones)."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, str):
        return value
    raise TypeError


def _provenance(path: Any, file: h5py.File) -> dict[str, str]:
    try:
        entries = json.loads(_text(file.attrs.get("provenance", "{}")))
        return {str(key): str(value) for key, value in entries.items()}
    except (TypeError, ValueError, AttributeError):
        raise InputError(f"{path}: attribute 'provenance' is not a JSON object") from None


def _fixed_attributes(path: Any, file: h5py.File, group: h5py.Group) -> dict[str, Any]:
    """The attributes that every clip of the file's version has."""
    wanted = _CLIP_ATTRIBUTES | (_CLIP_ATTRIBUTES_2 if file.attrs["version"] >= 2 else {})
    return {key: _attribute(path, group, key, kind) for key, kind in wanted.items()}


def _contacts(path: Any, group: h5py.Group, name: str) -> h5py.Dataset | None:
    """The contacts (T, F), if the clip has any."""
    if "contacts" not in group:
        return None
    dataset = group["contacts"]
    if not isinstance(dataset, h5py.Dataset) or dataset.ndim != 2:
        raise InputError(f"{path}, clip {name!r}: contacts is no array (T, F)")
    return dataset


def _frame_figures(path: Any, group: h5py.Group, name: str) -> dict[str, h5py.Dataset]:
    """The figures of frames, if the clip has any."""
    figures = group.get("frame_quality", {})
    if not isinstance(figures, (dict, h5py.Group)):
        raise InputError(f"{path}, clip {name!r}: frame_quality is no group of arrays")
    return {key: _dataset(path, figures, name, key) for key in figures}


def _quality(group: h5py.Group) -> dict[str, float]:
    """Every numeric attribute that is not a fixed one."""
    return {
        key: float(value)
        for key, value in group.attrs.items()
        if key not in _FIXED and np.ndim(value) == 0 and isinstance(value, (int, float, np.number))
    }


def _group(path: Any, file: h5py.File, name: str) -> h5py.Group:
    group = file[name]
    if not isinstance(group, h5py.Group):
        raise InputError(f"{path}: {name!r} is no group; a motion file has one group per clip")
    return group


def _dataset(path: Any, group: h5py.Group, name: str, key: str) -> h5py.Dataset:
    dataset = group.get(key)
    if not isinstance(dataset, h5py.Dataset):
        raise InputError(f"{path}, clip {name!r}: array {key!r} is missing")
    if dataset.dtype.kind != "f" or not dataset.shape:
        raise InputError(f"{path}, clip {name!r}: {key} is of type {dataset.dtype}, expected an array of floats")
    return dataset


def _read_motion(path: Any, file: h5py.File, name: str) -> ReferenceMotion:
    group = _group(path, file, name)
    qpos = _values(path, name, _dataset(path, group, name, "qpos"))
    contacts = _contacts(path, group, name)
    figures = _frame_figures(path, group, name)
    try:
        return ReferenceMotion(
            name=name,
            quality=_quality(group),
            contacts=None if contacts is None else _values(path, name, contacts),
            frame_quality={key: _values(path, name, dataset) for key, dataset in figures.items()},
            **_fixed_attributes(path, file, group),
            qpos=qpos,
        )
    except InputError as error:
        if str(error).startswith(str(path)):
            raise
        raise InputError(f"{path}: {error}") from None


def _values(path: Any, name: str, dataset: h5py.Dataset) -> np.ndarray:
    """All of a dataset, read-only."""
    try:
        values: np.ndarray = dataset[...]
    except OSError as error:
        key = dataset.name.removeprefix(f"/{name}/")
        raise InputError(f"{path}, clip {name!r}: {key} is damaged ({error})") from None
    values.flags.writeable = False  # ours alone: saves ReferenceMotion a copy
    return values


def _require_same(path: Any, kind: str, found: tuple[str, ...], expected: tuple[str, ...]) -> None:
    """Raise InputError saying the first place where two lists of names differ."""
    for i, (name, wanted) in enumerate(zip(found, expected, strict=False)):
        if name != wanted:
            raise InputError(f"{path}: {kind} {i} is {name!r}, expected {wanted!r}")
    if len(found) != len(expected):
        shorter, longer = sorted((found, expected), key=len)
        side = "lacks" if shorter is found else "has an extra"
        raise InputError(
            f"{path} has {len(found)} {kind} names, expected {len(expected)}: "
            f"it {side} {longer[len(shorter)]!r} at {len(shorter)}"
        )
