"""DeepMimic JSON: cycles of a human or a dog as root pose and joint rotations, 30 or 60 frames a
second.

A frame is its duration [s], the root's position (3) [m] and quaternion (4), and the joints in the
character file's order: four numbers (a quaternion) for a spherical joint, one (an angle [rad] about
the joint's z axis) for a revolute one, none for a fixed one. Quaternions are (w, x, y, z); Y is up,
and the characters face along X.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.outside import read_json
from mocap_data.readers.common import (
    MAX_KEYPOINTS,
    MissingOptions,
    check_size,
    json_frames,
    rate_said,
    shown,
    whole_rate,
    world_clip,
)

_SIZES = {"spherical": 4, "revolute": 1, "fixed": 0, "none": 0}
# of a frame of a four-legged robot with 12 joints: a robot's motion, no recording
_ROBOT_NUMBERS = 19


@dataclass(frozen=True)
class Joint:
    """A joint of a character: where it sits in its parent's frame [m], and its kind (a key of
    `_SIZES`)."""

    name: str
    parent: int
    offset: tuple[float, float, float]
    kind: str


# The humanoid of Peng et al. 2018 (DeepMimic): the figures of its character file.
HUMANOID = (
    Joint("root", -1, (0.0, 0.0, 0.0), "none"),
    Joint("chest", 0, (0.0, 0.236151, 0.0), "spherical"),
    Joint("neck", 1, (0.0, 0.223894, 0.0), "spherical"),
    Joint("right_hip", 0, (0.0, 0.0, 0.084887), "spherical"),
    Joint("right_knee", 3, (0.0, -0.421546, 0.0), "revolute"),
    Joint("right_ankle", 4, (0.0, -0.40987, 0.0), "spherical"),
    Joint("right_shoulder", 1, (-0.02405, 0.2435, 0.18311), "spherical"),
    Joint("right_elbow", 6, (0.0, -0.274788, 0.0), "revolute"),
    Joint("right_wrist", 7, (0.0, -0.258947, 0.0), "fixed"),
    Joint("left_hip", 0, (0.0, 0.0, -0.084887), "spherical"),
    Joint("left_knee", 9, (0.0, -0.421546, 0.0), "revolute"),
    Joint("left_ankle", 10, (0.0, -0.40987, 0.0), "spherical"),
    Joint("left_shoulder", 1, (-0.02405, 0.2435, -0.18311), "spherical"),
    Joint("left_elbow", 12, (0.0, -0.274788, 0.0), "revolute"),
    Joint("left_wrist", 13, (0.0, -0.258947, 0.0), "fixed"),
)
# Points of its bodies that a recording of a person would have: the middle of the head's ball, and
# the soles' ends at the floor (the foot is a box of 0.177 x 0.055 m about (0.045, -0.0225) in the
# ankle's frame).
HUMANOID_POINTS = (
    Joint("head", 2, (0.0, 0.175, 0.0), "fixed"),
    Joint("right_toe", 5, (0.1335, -0.05, 0.0), "fixed"),
    Joint("right_heel", 5, (-0.0435, -0.05, 0.0), "fixed"),
    Joint("left_toe", 11, (0.1335, -0.05, 0.0), "fixed"),
    Joint("left_heel", 11, (-0.0435, -0.05, 0.0), "fixed"),
)


def read_deepmimic(
    path: str | os.PathLike[str],
    *,
    character: str | os.PathLike[str] | None = None,
    cycles: int = 1,
    rate_hz: float | None = None,
    scale: float | str = 1.0,
    up: str = "y",
) -> Clip:
    """The joints of a DeepMimic motion by forward kinematics, named like the character's joints.

    character: the character file. Left out, a motion of 44 numbers is the published humanoid's
    (with its head, toes and
      heels
        as further keypoints); for others KIND_character.txt or KIND.txt beside KIND_*.txt, e.g.
        dog3d_character.txt.
    cycles: how often to play it; each cycle goes on where the one before ended, in place and
    heading. rate_hz: in place of the frames' own durations, which must be alike.
    scale: metres per unit, or the unit's name. up: the upward axis; see `to_world`.

    Raises:
      InputError: naming the file: no JSON, other contents, a robot's motion, a frame of another
        length or with a value that is not finite, no character.
    """
    path = Path(path)
    frames = _frames(path, read_json(path))
    joints: tuple[Joint, ...] = HUMANOID
    if character is not None or frames.shape[1] != size_of(HUMANOID):
        joints = read_character(
            _character(path, frames.shape[1]) if character is None else Path(character)
        )
    if frames.shape[1] != size_of(joints):
        raise InputError(
            f"{path} has {frames.shape[1]} numbers in a frame, its character needs {size_of(joints)}"
        )
    if isinstance(cycles, bool) or not isinstance(cycles, int) or cycles < 1:
        raise InputError(f"{path}: cycles is {cycles!r}, expected a whole number from 1")
    if cycles > 1 and len(frames) < 2:
        raise InputError(f"{path} has one frame, which cannot be played {cycles} times")
    points = (*joints, *HUMANOID_POINTS) if joints is HUMANOID else joints
    check_size(path, len(frames) * cycles, len(points))
    rate = _rate(path, frames[:, 0]) if rate_hz is None else rate_hz
    # numbers too large end as a value that is not finite
    with np.errstate(over="ignore", invalid="ignore"):
        positions = forward_kinematics(points, repeated(_normalized(path, frames, joints), cycles))
    return world_clip(
        path,
        positions,
        [joint.name for joint in points],
        [joint.parent for joint in points],
        rate_hz=rate,
        scale=scale,
        up=up,
    )


def size_of(joints: Sequence[Joint]) -> int:
    """Numbers in a frame: duration, root position and quaternion, and those of the joints."""
    return 8 + sum(_SIZES[joint.kind] for joint in joints)


def forward_kinematics(joints: Sequence[Joint], frames: Array) -> Array:
    """World positions (T, joints, 3), in the file's units and axes, of frames (T, numbers) with
    unit quaternions."""
    places: list[Array] = []
    turns: list[Array] = []
    column = 8
    for joint in joints:
        size = _SIZES[joint.kind]
        local = frames[:, column : column + size]
        column += size
        if joint.parent < 0:
            places.append(frames[:, 1:4] + np.array(joint.offset))
            turns.append(frames[:, 4:8])
            continue
        turn = turns[joint.parent]
        places.append(places[joint.parent] + rotations.rotate(turn, np.array(joint.offset)))
        if joint.kind == "spherical":
            turn = rotations.multiply(turn, local)
        elif joint.kind == "revolute":
            turn = rotations.multiply(
                turn, rotations.from_axis_angle(np.array([0.0, 0.0, 1.0]), local[:, 0])
            )
        turns.append(turn)
    return np.stack(places, axis=1)


def repeated(frames: Array, cycles: int) -> Array:
    """Frames (T, numbers) played `cycles` times: 1 + cycles (T - 1) of them.

    The last frame of a cycle is the first of the next, moved and turned about the vertical to where
    the cycle ended.
    """
    first, last = frames[0], frames[-1]
    turn = _heading(rotations.multiply(last[4:8], rotations.conjugate(first[4:8])))
    level = np.array([1.0, 0.0, 1.0])  # what lies in the plane
    parts = [frames]
    part = frames[1:]
    for _ in range(cycles - 1):
        part = part.copy()
        place = part[:, 1:4]
        moved = rotations.rotate(turn, (place - first[1:4]) * level) + last[1:4] * level
        part[:, 1:4] = moved + place * (1.0 - level)
        part[:, 4:8] = rotations.multiply(turn, part[:, 4:8])
        parts.append(part)
    return np.concatenate(parts)


def _heading(q: Array) -> Array:
    """The part of rotation q (4,) about the vertical y."""
    vertical = q * (1.0, 0.0, 1.0, 0.0)
    size = float(np.linalg.norm(vertical))
    return vertical / size if size > 1e-9 else rotations.IDENTITY


# --- the files
# --------------------------------------------------------------------------------------------------------


def _frames(path: Path, document: Any) -> Array:
    """The frames (T, numbers) of a motion file."""
    if not isinstance(document, Mapping) or "Frames" not in document:
        found = (
            f"the keys {', '.join(map(str, list(document)[:6]))}"
            if isinstance(document, Mapping)
            else type(document).__name__
        )
        raise InputError(
            f"{path} is JSON without 'Frames', expected a DeepMimic motion; found {found}"
        )
    frames = json_frames(path, document["Frames"])
    size = frames.shape[1]
    if size == _ROBOT_NUMBERS or "FrameDuration" in document:
        raise InputError(
            f"{path} holds a robot's motion (root pose and {max(size - 7, 0)} joints), not a recording of keypoints to "
            "retarget; npmp inspect shows it"
        )
    if size < 8:
        raise InputError(
            f"{path}: a frame has {size} numbers, expected at least 8 (duration, root position and quaternion)"
        )
    return frames


def _normalized(path: Path, frames: Array, joints: Sequence[Joint]) -> Array:
    """The frames with quaternions of length 1; the published dog's paws come with 0.83 to 1.02."""
    frames = frames.copy()
    column = 4
    for joint in joints:
        size = 4 if joint.parent < 0 else _SIZES[joint.kind]
        if size == 4:
            with np.errstate(over="ignore"):
                lengths = np.linalg.norm(frames[:, column : column + 4], axis=1)
            wrong = ~(np.abs(lengths - 1.0) < 0.4)
            if wrong.any():
                i = int(np.argmax(wrong))
                raise InputError(
                    f"{path}: frame {i}: the quaternion of {joint.name!r} has length {lengths[i]:.3g}, expected 1; "
                    "another character?"
                )
            frames[:, column : column + 4] /= lengths[:, None]
        column += size
    return frames


def _rate(path: Path, durations: Array) -> float:
    """Frames per second of the frames' durations [s]; the last frame's is not used (it is 0 in a
    cycle)."""
    used = durations[:-1] if len(durations) > 1 else durations
    middle = float(np.median(used))
    if not middle > 1e-6:
        raise MissingOptions(
            f"{path}: a frame's duration of {middle:g} s is no rate; give rate_hz=", ("rate_hz",)
        )
    uneven = np.abs(used - middle) > 0.01 * middle
    if uneven.any():
        i = int(np.argmax(uneven))
        raise InputError(
            f"{path}: frame {i} lasts {used[i]:g} s, most last {middle:g} s; give rate_hz= to play them evenly"
        )
    return rate_said(path, whole_rate(middle, digits=5))


def _character(path: Path, numbers: int) -> Path:
    """The character file beside a motion file."""
    kind = path.stem.partition("_")[0]
    wanted = [path.with_name(f"{kind}_character.txt"), path.with_name(f"{kind}.txt")]
    for file in wanted:
        if file.is_file() and file != path:
            return file
    raise MissingOptions(
        f"{path} has {numbers} numbers in a frame, only the humanoid's {size_of(HUMANOID)} need no character file; "
        f"looked for {' or '.join(file.name for file in wanted)} in its folder; give character=",
        ("character",),
    )


def read_character(path: str | os.PathLike[str]) -> tuple[Joint, ...]:
    """The joints of a DeepMimic character file.

    Raises:
      InputError: naming it, for other contents.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no character file {str(path)!r} (character=)")
    document = read_json(path)
    try:
        entries = document["Skeleton"]["Joints"]
        joints = tuple(_joint(path, i, entry) for i, entry in enumerate(entries))
    except (KeyError, TypeError, OverflowError):
        raise InputError(
            f"{path} is no DeepMimic character: expected Skeleton / Joints with Name, Type, Parent, AttachX ..."
        ) from None
    if not joints or joints[0].parent >= 0 or any(joint.parent < 0 for joint in joints[1:]):
        raise InputError(f"{path}: a character has one root, its first joint")
    if len(joints) > MAX_KEYPOINTS:
        raise InputError(
            f"{path} has more than {MAX_KEYPOINTS:,} joints, which is all that are read"
        )
    return joints


def _joint(path: Path, i: int, entry: Mapping[str, Any]) -> Joint:
    """One entry of a character's joints."""
    name, kind, parent = str(entry["Name"]), str(entry["Type"]), int(entry["Parent"])
    if kind not in _SIZES:
        raise InputError(
            f"{path}: joint {shown(name)} has the type {shown(kind)}; there are: {', '.join(_SIZES)}"
        )
    if not -1 <= parent < i:
        raise InputError(
            f"{path}: joint {shown(name)} has the parent {parent}, expected an earlier joint"
        )
    if any(float(entry.get(f"AttachTheta{axis}", 0.0)) for axis in "XYZ"):
        raise InputError(
            f"{path}: joint {shown(name)} is turned against its parent (AttachTheta), which is not supported"
        )
    # The root's own offset places the character in its world, the frames do so here.
    offset = tuple(0.0 if parent < 0 else float(entry[f"Attach{axis}"]) for axis in "XYZ")
    if not np.isfinite(offset).all():
        raise InputError(f"{path}: joint {shown(name)} has an offset that is not finite")
    return Joint(name, parent, (offset[0], offset[1], offset[2]), kind)
