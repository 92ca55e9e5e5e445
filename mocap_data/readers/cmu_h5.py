"""dm_control's HDF5 of CMU recordings: the CMU humanoid's motions, thousands of clips in one file.

    /CLIP                    attributes dt [s], num_steps (T)
    /CLIP/walkers/walker_0   float64 arrays (dim, T): position 3 [m], quaternion 4 (w, x, y, z),
                             body_positions 3 B [m], body_quaternions 4 B (every body but the
                             root, B = 30, in the walker's order), and others

World Z up. `npmp data fetch cmu-h5` downloads the file (cmu_2020, 477 MB).
"""

from __future__ import annotations

import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError, check_available
from mocap_data.hdf5 import array_bytes, attributes, member, members, open_hdf5, read_array
from mocap_data.input_files import reading
from mocap_data.readers.common import MissingOptions, check_size, file_rate, quoted

_LEG = ("hipjoint", "femur", "tibia", "foot", "toes")
_SPINE = ("lowerback", "upperback", "thorax", "lowerneck", "upperneck", "head")
_ARM = ("clavicle", "humerus", "radius", "wrist", "hand", "fingers", "thumb")
# every body of the humanoid but the root
BODY_NAMES = (
    *(f"{side}{bone}" for side in "lr" for bone in _LEG),
    *_SPINE,
    *(f"{side}{bone}" for side in "lr" for bone in _ARM),
)

# The humanoid's bodies sit at the START of the bone they are named after, ASF/AMC keypoints at the
# END of theirs. Keypoints are named the ASF's way: the knee, where ltibia starts, is "lfemur".
# body that starts at each keypoint
_STARTS_AT_END = dict(pairwise(_SPINE)) | {
    f"{side}{bone}": f"{side}{body}"
    for side in "lr"
    for chain in (_LEG, _ARM[:6])
    for bone, body in pairwise(chain)
}
# ends of bones at which no body starts: a point in the body's frame [m], from the model's geoms
_ENDS = {"ltoes": (0.0, -0.035, -0.01), "rtoes": (0.0, -0.035, -0.01), "head": (0.0, 0.167, 0.025)}
# parent of each keypoint
_CHAINS = (
    *(("root", *(side + bone for bone in _LEG)) for side in "lr"),
    ("root", *_SPINE),
    *(("thorax", *(side + bone for bone in _ARM[:5])) for side in "lr"),
)
_PARENTS = {bone: parent for chain in _CHAINS for parent, bone in pairwise(chain)}
# "root" is its position
KEYPOINT_NAMES = ("root", *_PARENTS)


class CmuClip(NamedTuple):
    """A clip of the file, without its arrays."""

    name: str
    num_frames: int
    rate_hz: float


class Bodies(NamedTuple):
    """A clip's poses of the humanoid: root (T, 3) [m], `BODY_NAMES` (T, 30, 3) [m] at the start of
    each bone, and their quaternions (T, 30, 4) to the world."""

    clip: CmuClip
    root: Array
    positions: Array
    quaternions: Array


def is_cmu_h5(path: str | os.PathLike[str]) -> bool:
    """Whether a file is HDF5 with clips in this layout, by its first group."""
    try:
        with open_hdf5(Path(path)) as file:
            first = next(iter(file), "")
            return isinstance(first, str) and _walker(member(file, first)) is not None
    except InputError:
        return False


def list_cmu_h5(path: str | os.PathLike[str]) -> tuple[CmuClip, ...]:
    """The clips of a file, sorted by name, from their attributes.

    Raises:
      InputError: another file.
    """
    with open_hdf5(Path(path)) as file:
        clips = []
        for name in sorted(members(file)):
            try:
                clips.append(_File(path, file, name).clip)
            except InputError:
                continue
        if not clips:
            layout = "a group for each, with dt and num_steps (dm_control)"
            raise InputError(f"{path}: HDF5 without clips, expected {layout}")
        return tuple(clips)


def read_cmu_h5(path: str | os.PathLike[str], *, clip: str | None = None) -> Clip:
    """One clip's keypoints, named as in ASF/AMC; metres, Z up.

    clip: its name in the file; None: the only one.

    Raises:
      InputError: with file and clip: not HDF5, damaged, an unknown clip, an array missing or of a
        wrong shape, values that are not finite; MissingOptions where clip= is needed.
    """
    (name, _, rate_hz), root, positions, quaternions = read_bodies(path, clip)
    points = [root]
    for keypoint in KEYPOINT_NAMES[1:]:
        body = BODY_NAMES.index(_STARTS_AT_END.get(keypoint, keypoint))
        point = positions[:, body]
        if keypoint in _ENDS:
            point = point + rotations.rotate(quaternions[:, body], np.array(_ENDS[keypoint]))
        points.append(point)
    try:
        return Clip(
            np.stack(points, axis=1),
            KEYPOINT_NAMES,
            rate_hz,
            source=f"{Path(path).name}, {name}",
            name=name.replace("/", "_"),
            parents=(-1, *(KEYPOINT_NAMES.index(_PARENTS[n]) for n in KEYPOINT_NAMES[1:])),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_bodies(path: str | os.PathLike[str], clip: str | None = None) -> Bodies:
    """The humanoid's poses in one clip. Raises InputError as `read_cmu_h5`."""
    with open_hdf5(Path(path)) as file:
        opened = _File(path, file, _clip_name(path, file, clip))
        root = opened.array("position", 3)
        places = opened.array("body_positions", 3 * len(BODY_NAMES))
        turns = opened.array("body_quaternions", 4 * len(BODY_NAMES))
    turns = turns.reshape(len(root), -1, 4)
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.linalg.norm(turns, axis=-1, keepdims=True)
    # tolerance of float32 rounding and of the fit
    if not (np.abs(length - 1.0) < 0.02).all():
        raise InputError(f"{opened.where}: a quaternion is not of length 1")
    return Bodies(opened.clip, root, places.reshape(len(root), -1, 3), turns / length)


def _walker(group: Any) -> h5py.Group | None:
    """The group of a clip's arrays, None for a group that is not a clip."""
    for name in ("walkers", "walker_0"):
        group = member(group, name) if isinstance(group, h5py.Group) else None
    is_clip = isinstance(group, h5py.Group) and member(group, "body_positions") is not None
    return group if is_clip else None


def _clip_name(path: Any, file: h5py.File, clip: str | None) -> str:
    """The name of the clip to read."""
    names = sorted(members(file))
    if clip is not None:
        check_available(f"clip in {path}", [clip], names)
        return clip
    if len(names) != 1:
        message = f"{path} holds {len(names)} clips; set clip=, e.g. {', '.join(names[:5])}"
        raise MissingOptions(message, ("clip",))
    return names[0]


class _File:
    """A clip of an open file. Raises InputError for a group that is not a clip."""

    def __init__(self, path: Any, file: h5py.File, name: str) -> None:
        self.where = f"{path}, clip {name!r}"
        with reading(self.where):
            group = member(file, name)
            walker = _walker(group)
            if walker is None:
                raise InputError(f"{self.where}: no walkers/walker_0 with body_positions")
            attrs = attributes(group)
            period = self._positive(attrs, "dt")
            frames = int(self._positive(attrs, "num_steps"))
        # an array may declare any size without data
        check_size(self.where, frames, 1 + len(BODY_NAMES))
        self.walker = walker
        self.clip = CmuClip(name, frames, file_rate(self.where, 1.0 / period))

    def _positive(self, attrs: dict[str, Any], key: str) -> float:
        """An attribute that is a positive number."""
        value = np.asarray(attrs.get(key, "missing"))
        is_number = value.size == 1 and value.dtype.kind in "fiu"
        if not (is_number and 0.0 < value.reshape(()) < math.inf):
            got = quoted(str(value))
            raise InputError(f"{self.where}: attribute {key!r} is {got}, expected above 0")
        return float(value.reshape(()))

    def array(self, key: str, rows: int) -> Array:
        """An array of the clip as (T, rows), in the file (rows, T) or (T, rows)."""
        data = member(self.walker, key)
        label = f"{self.where}: array {key!r}"
        array_bytes(data, label)
        expected = (rows, self.clip.num_frames)
        if data.shape not in (expected, expected[::-1]):
            raise InputError(f"{label} is of shape {data.shape}, expected {expected}")
        values = np.asarray(read_array(data, label), dtype=np.float64)
        return values.T if data.shape == expected else values
