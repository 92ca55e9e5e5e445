"""dm_control's HDF5 of CMU recordings: the CMU humanoid's motions, thousands of clips in one file.

    /CLIP                    attributes dt [s], num_steps (T)
    /CLIP/walkers/walker_0   float64 arrays (dim, T): position 3 [m], quaternion 4 (w, x, y, z),
    joints 56 [rad],
                             body_positions 3 B [m], body_quaternions 4 B (every body but the root,
                             B = 30, in the order of the walker's model), and velocities and more,
                             which nobody here needs

World Z up. Read with h5py by this layout; only the arrays that are asked for are touched. The file
itself (cmu_2020, 477 MB) is downloaded with `npmp data fetch cmu-h5`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
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

_LEG = ("hipjoint", "femur", "tibia", "foot", "toes")
_SPINE = ("lowerback", "upperback", "thorax", "lowerneck", "upperneck", "head")
_ARM = ("clavicle", "humerus", "radius", "wrist", "hand", "fingers", "thumb")
# The humanoid's bodies in the file's order: every one but the root.
BODY_NAMES = (
    *(f"{s}{b}" for s in "lr" for b in _LEG),
    *_SPINE,
    *(f"{s}{b}" for s in "lr" for b in _ARM),
)


def _axes(body: str, axes: str) -> tuple[str, ...]:
    return tuple(f"{body}r{axis}" for axis in axes)


def _leg(side: str) -> tuple[str, ...]:
    joints = (("femur", "zyx"), ("tibia", "x"), ("foot", "zx"), ("toes", "x"))
    return tuple(name for body, axes in joints for name in _axes(side + body, axes))


def _arm(side: str) -> tuple[str, ...]:
    joints = (
        *(("clavicle", "zy"), ("humerus", "zyx"), ("radius", "x"), ("wrist", "y"), ("hand", "zx")),
    )
    return tuple(
        name
        for body, axes in (*joints, ("fingers", "x"), ("thumb", "zx"))
        for name in _axes(side + body, axes)
    )


# The 56 hinges in the file's order, BODYrAXIS, e.g. "lfemurrz".
JOINT_NAMES = (
    *_leg("l"),
    *_leg("r"),
    *(n for body in _SPINE for n in _axes(body, "zyx")),
    *_arm("l"),
    *_arm("r"),
)

# The humanoid's bodies sit at the START of the bone they are named after; ASF/AMC keypoints are the
# END of theirs. So that one name means one point in all readers, keypoints are named the ASF's way:
# the knee, where ltibia starts, is "lfemur". Of each keypoint the body that starts there.
_STARTS_AT_END = {
    **{f"{s}{bone}": f"{s}{body}" for s in "lr" for bone, body in pairwise(_LEG)},
    **dict(pairwise(_SPINE)),
    **{f"{s}{bone}": f"{s}{body}" for s in "lr" for bone, body in pairwise(_ARM[:6])},
}
# Ends of bones at which no body starts: a point in the body's frame [m], from the model's geoms
# (front of the toes' spheres; top of the head's capsule).
_ENDS = {"ltoes": (0.0, -0.035, -0.01), "rtoes": (0.0, -0.035, -0.01), "head": (0.0, 0.167, 0.025)}
_PARENTS = {
    **{
        f"{s}{bone}": "root" if i == 0 else f"{s}{_LEG[i - 1]}"
        for s in "lr"
        for i, bone in enumerate(_LEG)
    },
    **{bone: "root" if i == 0 else _SPINE[i - 1] for i, bone in enumerate(_SPINE)},
    **{
        f"{s}{bone}": "thorax" if i == 0 else f"{s}{_ARM[i - 1]}"
        for s in "lr"
        for i, bone in enumerate(_ARM[:5])
    },
}
# "root" is its position.
KEYPOINT_NAMES = ("root", *_PARENTS)


@dataclass(frozen=True)
class CmuClip:
    """What the file says about a clip without its arrays."""

    name: str
    num_frames: int
    rate_hz: float

    @property
    def duration_s(self) -> float:
        """T / rate [s]: every frame lasts one period."""
        return self.num_frames / self.rate_hz


@dataclass(frozen=True, eq=False)
class HumanoidMotion:
    """The CMU humanoid's motion at joint level; arrays are read-only, world Z up. T frames.

    position: (T, 3) [m] of the root. quaternion: (T, 4), w, x, y, z, root to world.
    joints: (T, 56) [rad] in the order of joint_names.
    body_pos, body_quat: (T, 30, 3) [m] and (T, 30, 4), world, of the bodies `BODY_NAMES`, at the
    start of each bone.
    """

    name: str
    rate_hz: float
    position: Array
    quaternion: Array
    joints: Array
    body_pos: Array
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
        """(T, 63): position, quaternion, joints, as MuJoCo's qpos of the humanoid with a free root."""
        return np.concatenate([self.position, self.quaternion, self.joints], axis=1)


def is_cmu_h5(path: str | os.PathLike[str]) -> bool:
    """Whether a file is HDF5 with clips in this layout (looks at its first group only)."""
    try:
        with open_hdf5(Path(path)) as file:
            first = next(iter(file), "")
            return isinstance(first, str) and _walker(member(file, first)) is not None
    except InputError:
        return False


def list_cmu_h5(path: str | os.PathLike[str]) -> tuple[CmuClip, ...]:
    """The clips of a file, sorted by name, from their attributes alone; groups that are no clips
    are left out.

    Raises:
      InputError: for what is no such file.
    """
    with open_hdf5(Path(path)) as file:
        found = []
        for name in sorted(members(file)):
            try:
                found.append(_header(path, file, name))
            except InputError:
                continue
        if not found:
            raise InputError(
                f"{path}: HDF5, but no clips in dm_control's layout (a group each, with dt and num_steps)"
            )
        return tuple(found)


def read_cmu_h5(path: str | os.PathLike[str], *, clip: str | None = None) -> Clip:
    """One clip's keypoints, named as in ASF/AMC (a keypoint is the END of the bone it is named
    after); metres, Z up.

    clip: its name in the file; may be left out where the file has one.

    Raises:
      InputError: naming the file and the clip: not HDF5, damaged, no such clip, an array missing or
        of a wrong shape, values that are not finite; MissingOptions where clip= is needed.
    """
    with open_hdf5(Path(path)) as file:
        return _clip(path, file, _chosen(path, file, clip))


def read_cmu_h5_motion(
    path: str | os.PathLike[str], clip: str | None = None, *, licence: str = "unknown"
) -> HumanoidMotion:
    """One clip at joint level, for a map of joint angles.

    Raises: as `read_cmu_h5` does.
    """
    with open_hdf5(Path(path)) as file:
        chosen = _chosen(path, file, clip)
        header = _header(path, file, chosen)
        where = f"{path}, clip {chosen!r}:"
        arrays = {
            "position": _array(path, file, header, "position", 3),
            "quaternion": _unit(_array(path, file, header, "quaternion", 4), where),
            "joints": _array(path, file, header, "joints", len(JOINT_NAMES)),
            "body_pos": _bodies(path, file, header, "body_positions", 3),
            "body_quat": _unit(_bodies(path, file, header, "body_quaternions", 4), where),
        }
        for key, array in arrays.items():
            shape = f"({', '.join(['T', *map(str, array.shape[1:])])})"
            arrays[key] = read_only(array, shape=shape, what=f"{where} {key}")
        return HumanoidMotion(
            name=chosen,
            rate_hz=header.rate_hz,
            position=arrays["position"],
            quaternion=arrays["quaternion"],
            joints=arrays["joints"],
            body_pos=arrays["body_pos"],
            body_quat=arrays["body_quat"],
            source=_source(path, chosen),
            licence=licence,
        )


# --- inside the file ---


def _walker(group: Any) -> h5py.Group | None:
    """The group that holds a clip's arrays: walkers/walker_0, or where a writer left out one of the
    two levels."""
    if not isinstance(group, h5py.Group):
        return None
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
    """The clip to read.

    Raises:
      InputError: for one that there is not, MissingOptions where several are to choose from.
    """
    if clip is not None:
        if member(file, str(clip)) is not None:
            return str(clip)
        names = sorted(members(file))
        raise InputError(
            f"no clip {str(clip)!r} in {path}; there are {len(names)}: {_listed(names)}"
        )
    names = sorted(members(file))
    if len(names) == 1:
        return names[0]
    if not names:
        raise InputError(f"{path} holds no clips")
    raise MissingOptions(
        f"{path} holds {len(names)} clips; give clip=, e.g. {_listed(names)}", ("clip",)
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _header(path: Any, file: h5py.File, name: str) -> CmuClip:
    """Frames and rate from a clip's attributes.

    Raises:
      InputError: for a group that is no clip.
    """
    where = f"{path}, clip {name!r}"
    with reading(where):  # list_cmu_h5 passes over a damaged one
        group = member(file, name)
        if _walker(group) is None:
            raise InputError(f"{where}: no walkers/walker_0 with position and body_positions")
        known = attributes(group)
    said = {}
    for key in ("dt", "num_steps"):
        value = np.asarray(known.get(key, "missing"))
        if (
            value.size != 1
            or value.dtype.kind not in "fiu"
            or not 0.0 < value.reshape(()) < math.inf
        ):
            raise InputError(
                f"{where}: attribute {key!r} is {shown(str(value))}, expected more than 0"
            )
        said[key] = float(value.reshape(()))
    # an array may claim any size without being there
    check_size(where, int(said["num_steps"]), 1 + len(BODY_NAMES))
    return CmuClip(name, int(said["num_steps"]), rate_said(where, 1.0 / said["dt"]))


def _array(path: Any, file: h5py.File, header: CmuClip, key: str, rows: int | None) -> Array:
    """An array of a clip as (T, rows). The layout is (rows, T); one that can only be (T, rows) is
    taken as that.

    Raises:
      InputError: for an array that is missing, damaged, or of another shape.
    """
    walker = _walker(member(file, header.name))
    where = f"{path}, clip {header.name!r}:"
    data = None if walker is None else member(walker, key)
    if data is None:
        raise InputError(f"{where} array {key!r} is missing")
    array_bytes(data, f"{where} array {key!r}")
    frames = header.num_frames
    for shape, turn in (((rows, frames), True), ((frames, rows), False)):
        if data.ndim == 2 and all(want in (None, have) for want, have in zip(shape, data.shape)):
            values = np.asarray(read_array(data, f"{where} {key}"), dtype=np.float64)
            return values.T if turn else values
    raise InputError(f"{where} {key} is of shape {data.shape}, expected ({rows or 'N'}, {frames})")


def _bodies(path: Any, file: h5py.File, header: CmuClip, key: str, width: int) -> Array:
    """(T, 30, width) of the bodies `BODY_NAMES`."""
    flat = _array(path, file, header, key, width * len(BODY_NAMES))
    return flat.reshape(header.num_frames, len(BODY_NAMES), width)


def _unit(quaternions: Array, where: str) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.linalg.norm(quaternions, axis=-1, keepdims=True)
    if not (np.abs(length - 1.0) < 0.02).all():  # float32 rounding and the fit's own leave less
        raise InputError(f"{where} a quaternion is not of length 1")
    return quaternions / length


def _source(path: Any, clip: str) -> str:
    return f"{Path(path).name}, {clip}"


def _clip(path: Any, file: h5py.File, name: str) -> Clip:
    header = _header(path, file, name)
    root = _array(path, file, header, "position", 3)
    origins = _bodies(path, file, header, "body_positions", 3)
    turns = _unit(_bodies(path, file, header, "body_quaternions", 4), f"{path}, clip {name!r}:")
    place = {body: i for i, body in enumerate(BODY_NAMES)}
    points = [root]
    for keypoint in KEYPOINT_NAMES[1:]:
        if keypoint in _ENDS:
            body = place[keypoint]
            points.append(
                origins[:, body] + rotations.rotate(turns[:, body], np.array(_ENDS[keypoint]))
            )
        else:
            points.append(origins[:, place[_STARTS_AT_END[keypoint]]])
    try:
        return Clip(
            np.stack(points, axis=1),
            KEYPOINT_NAMES,
            header.rate_hz,
            source=_source(path, name),
            name=name.replace("/", "_"),
            parents=tuple(
                -1 if n == "root" else KEYPOINT_NAMES.index(_PARENTS[n]) for n in KEYPOINT_NAMES
            ),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
