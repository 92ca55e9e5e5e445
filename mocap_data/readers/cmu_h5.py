"""dm_control's HDF5 of CMU recordings: the CMU humanoid's motions, thousands of clips in one file.

    /CLIP                    attributes dt [s], num_steps (T)
    /CLIP/walkers/walker_0   float64 arrays (dim, T): position 3 [m], quaternion 4 (w, x, y, z),
                             joints 56 [rad], body_positions 3 B [m], body_quaternions 4 B (every
                             body but the root, B = 30, in the walker's order), and others

World Z up. Only the arrays that are asked for are read. `npmp data fetch cmu-h5` downloads the file
(cmu_2020, 477 MB).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array, read_only
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.hdf5 import array_bytes, attributes, member, members, open_hdf5, read_array
from mocap_data.outside import reading
from mocap_data.readers.common import MissingOptions, check_size, rate_said, shown

# of each body the axes of its hinges, in the file's order
_LEG = {"hipjoint": "", "femur": "zyx", "tibia": "x", "foot": "zx", "toes": "x"}
_SPINE = dict.fromkeys(
    ("lowerback", "upperback", "thorax", "lowerneck", "upperneck", "head"), "zyx"
)
_ARM = {
    "clavicle": "zy",
    "humerus": "zyx",
    "radius": "x",
    "wrist": "y",
    "hand": "zx",
    "fingers": "x",
    "thumb": "zx",
}


def _both(parts: dict[str, str]) -> dict[str, str]:
    return {f"{side}{body}": axes for side in "lr" for body, axes in parts.items()}


_HINGES = {**_both(_LEG), **_SPINE, **_both(_ARM)}
# every body of the humanoid but the root
BODY_NAMES = tuple(_HINGES)
# its 56 hinges, BODYrAXIS, e.g. "lfemurrz"
JOINT_NAMES = tuple(f"{body}r{axis}" for body, axes in _HINGES.items() for axis in axes)

# The humanoid's bodies sit at the START of the bone they are named after, ASF/AMC keypoints at the
# END of theirs. Keypoints are named the ASF's way: the knee, where ltibia starts, is "lfemur".
_CHAINS = [(s, chain) for s in "lr" for chain in (tuple(_LEG), tuple(_ARM)[:6])]
# of each keypoint the body that starts there
_STARTS_AT_END = dict(pairwise(_SPINE)) | {
    f"{s}{bone}": f"{s}{body}" for s, chain in _CHAINS for bone, body in pairwise(chain)
}
# ends of bones at which no body starts: a point in the body's frame [m], from the model's geoms
_ENDS = {"ltoes": (0.0, -0.035, -0.01), "rtoes": (0.0, -0.035, -0.01), "head": (0.0, 0.167, 0.025)}
# of each keypoint its parent
_PARENTS = {
    f"{s}{bone}": "root" if i == 0 else f"{s}{tuple(_LEG)[i - 1]}"
    for s in "lr"
    for i, bone in enumerate(_LEG)
}
_PARENTS |= {bone: "root" if i == 0 else tuple(_SPINE)[i - 1] for i, bone in enumerate(_SPINE)}
_PARENTS |= {
    f"{s}{bone}": "thorax" if i == 0 else f"{s}{tuple(_ARM)[i - 1]}"
    for s in "lr"
    for i, bone in enumerate(tuple(_ARM)[:5])
}
# "root" is its position
KEYPOINT_NAMES = ("root", *_PARENTS)


@dataclass(frozen=True)
class CmuClip:
    """A clip of the file, without its arrays."""

    name: str
    num_frames: int
    rate_hz: float

    @property
    def duration_s(self) -> float:
        """T / rate [s]."""
        return self.num_frames / self.rate_hz


@dataclass(frozen=True, eq=False)
class HumanoidMotion:
    """The CMU humanoid's motion at joint level, world Z up; read-only arrays."""

    name: str
    # frames per second
    rate_hz: float
    # (T, 3) [m] of the root
    position: Array
    # (T, 4) root to world
    quaternion: Array
    # (T, 56) [rad] of `JOINT_NAMES`
    joints: Array
    # (T, 30, 3) [m] of `BODY_NAMES`, at the start of each bone
    body_pos: Array
    # (T, 30, 4) body to world
    body_quat: Array
    joint_names: tuple[str, ...] = JOINT_NAMES
    body_names: tuple[str, ...] = BODY_NAMES
    source: str = "unknown"
    licence: str = "unknown"

    @property
    def num_frames(self) -> int:
        """T."""
        return int(self.position.shape[0])

    @property
    def qpos(self) -> Array:
        """(T, 63): position, quaternion, joints, as MuJoCo's qpos with a free root."""
        return np.concatenate([self.position, self.quaternion, self.joints], axis=1)


def is_cmu_h5(path: str | os.PathLike[str]) -> bool:
    """Whether a file is HDF5 with clips in this layout, by its first group."""
    try:
        with open_hdf5(Path(path)) as file:
            first = next(iter(file), "")
            return isinstance(first, str) and _walker(member(file, first)) is not None
    except InputError:
        return False


def list_cmu_h5(path: str | os.PathLike[str]) -> tuple[CmuClip, ...]:
    """The clips of a file, sorted by name, from their attributes alone.

    Raises:
      InputError: for what is no such file.
    """
    with open_hdf5(Path(path)) as file:
        found = []
        for name in sorted(members(file)):
            try:
                found.append(_File(path, file, name).clip)
            except InputError:
                continue
        if not found:
            layout = "dm_control's layout (a group each, with dt and num_steps)"
            raise InputError(f"{path}: HDF5, but no clips in {layout}")
        return tuple(found)


def read_cmu_h5(path: str | os.PathLike[str], *, clip: str | None = None) -> Clip:
    """One clip's keypoints, named as in ASF/AMC; metres, Z up.

    clip: its name in the file; may be left out where the file has one.

    Raises:
      InputError: naming the file and the clip: not HDF5, damaged, no such clip, an array missing or
        of a wrong shape, values that are not finite; MissingOptions where clip= is needed.
    """
    with open_hdf5(Path(path)) as file:
        opened = _File(path, file, _chosen(path, file, clip))
        points = {"root": opened.array("position", 3)}
        origins, turns = opened.bodies("body_positions", 3), opened.bodies("body_quaternions", 4)
    for keypoint in KEYPOINT_NAMES[1:]:
        body = BODY_NAMES.index(_STARTS_AT_END.get(keypoint, keypoint))
        points[keypoint] = origins[:, body]
        if keypoint in _ENDS:
            end = rotations.rotate(turns[:, body], np.array(_ENDS[keypoint]))
            points[keypoint] = origins[:, body] + end
    name = opened.clip.name
    parents = (-1, *(KEYPOINT_NAMES.index(_PARENTS[n]) for n in KEYPOINT_NAMES[1:]))
    try:
        return Clip(
            np.stack(list(points.values()), axis=1),
            KEYPOINT_NAMES,
            opened.clip.rate_hz,
            source=_source(path, name),
            name=name.replace("/", "_"),
            parents=parents,
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_cmu_h5_motion(
    path: str | os.PathLike[str], clip: str | None = None, *, licence: str = "unknown"
) -> HumanoidMotion:
    """One clip at joint level, for a map of joint angles.

    Raises:
      InputError: as `read_cmu_h5`.
    """
    with open_hdf5(Path(path)) as file:
        opened = _File(path, file, _chosen(path, file, clip))
        arrays: dict[str, Any] = {
            "position": opened.array("position", 3),
            "quaternion": opened.array("quaternion", 4),
            "joints": opened.array("joints", len(JOINT_NAMES)),
            "body_pos": opened.bodies("body_positions", 3),
            "body_quat": opened.bodies("body_quaternions", 4),
        }
    for key, array in arrays.items():
        shape = f"({', '.join(['T', *map(str, array.shape[1:])])})"
        arrays[key] = read_only(array, shape=shape, what=f"{opened.where}: {key}")
    name, rate_hz = opened.clip.name, opened.clip.rate_hz
    return HumanoidMotion(name, rate_hz, **arrays, source=_source(path, name), licence=licence)


def _source(path: Any, clip: str) -> str:
    return f"{Path(path).name}, {clip}"


def _walker(group: Any) -> h5py.Group | None:
    """The group of a clip's arrays: walkers/walker_0, or with one of the two levels left out."""
    for place in (("walkers", "walker_0"), ("walker_0",), ("walkers",), ()):
        inner: Any = group
        for name in place:
            inner = member(inner, name) if isinstance(inner, h5py.Group) else None
        if isinstance(inner, h5py.Group) and all(
            member(inner, key) is not None for key in ("body_positions", "position")
        ):
            return inner
    return None


def _chosen(path: Any, file: h5py.File, clip: str | None) -> str:
    """The name of the clip to read."""
    if clip is not None and member(file, str(clip)) is not None:
        return str(clip)
    names = sorted(members(file))
    listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    if clip is not None:
        raise InputError(f"no clip {str(clip)!r} in {path}; there are {len(names)}: {listed}")
    if not names:
        raise InputError(f"{path} holds no clips")
    if len(names) > 1:
        message = f"{path} holds {len(names)} clips; give clip=, e.g. {listed}"
        raise MissingOptions(message, ("clip",))
    return names[0]


class _File:
    """A clip of an open file.

    Raises:
      InputError: for a group that is no clip.
    """

    def __init__(self, path: Any, file: h5py.File, name: str) -> None:
        self.where = f"{path}, clip {name!r}"
        with reading(self.where):
            group = member(file, name)
            walker = _walker(group)
            if walker is None:
                wanted = "no walkers/walker_0 with position and body_positions"
                raise InputError(f"{self.where}: {wanted}")
            known = attributes(group)
            period, frames = self._positive(known, "dt"), int(self._positive(known, "num_steps"))
        # an array may claim any size without being there
        check_size(self.where, frames, 1 + len(BODY_NAMES))
        self.walker = walker
        self.clip = CmuClip(name, frames, rate_said(self.where, 1.0 / period))

    def _positive(self, known: dict[str, Any], key: str) -> float:
        """An attribute that is a positive number."""
        value = np.asarray(known.get(key, "missing"))
        if (
            value.size != 1
            or value.dtype.kind not in "fiu"
            or not 0.0 < value.reshape(()) < math.inf
        ):
            found = shown(str(value))
            raise InputError(f"{self.where}: attribute {key!r} is {found}, expected more than 0")
        return float(value.reshape(()))

    def array(self, key: str, rows: int) -> Array:
        """An array of the clip as (T, rows), in the file (rows, T) or (T, rows)."""
        data, where = member(self.walker, key), f"{self.where}: {key}"
        if data is None:
            raise InputError(f"{self.where}: array {key!r} is missing")
        array_bytes(data, f"{self.where}: array {key!r}")
        expected = (rows, self.clip.num_frames)
        if data.shape not in (expected, expected[::-1]):
            raise InputError(f"{where} is of shape {data.shape}, expected {expected}")
        values = np.asarray(read_array(data, where), dtype=np.float64)
        values = values.T if data.shape == expected else values
        return self._unit(values) if key == "quaternion" else values

    def bodies(self, key: str, width: int) -> Array:
        """(T, 30, width) of the bodies `BODY_NAMES`."""
        flat = self.array(key, width * len(BODY_NAMES))
        values = flat.reshape(self.clip.num_frames, len(BODY_NAMES), width)
        return self._unit(values) if width == 4 else values

    def _unit(self, quaternions: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            length = np.linalg.norm(quaternions, axis=-1, keepdims=True)
        # float32 rounding and the fit's own leave less
        if not (np.abs(length - 1.0) < 0.02).all():
            raise InputError(f"{self.where}: a quaternion is not of length 1")
        return quaternions / length
