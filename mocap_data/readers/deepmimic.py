"""DeepMimic JSON: cycles of a human or a dog as root pose and joint rotations.

A frame is its duration [s], the root's position (3) [m] and quaternion (4), and the joints in the
character file's order: a quaternion for a spherical joint, an angle [rad] about the joint's z axis
for a revolute one, nothing for a fixed one. Quaternions are (w, x, y, z); Y is up, and the
characters face along X.
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
from mocap_data.input_files import read_json
from mocap_data.readers import common
from mocap_data.readers.subject_selection import Keypoints

# numbers in a frame by a joint's kind
_SIZES = {"spherical": 4, "revolute": 1, "fixed": 0, "none": 0}


@dataclass(frozen=True)
class CharacterJoint:
    """A joint of a character."""

    name: str
    # index of its parent, -1 for the root
    parent: int
    # [m] in its parent's frame
    offset: tuple[float, float, float]
    # a key of `_SIZES`
    kind: str


def _side(side: str, sign: float, first: int) -> tuple[CharacterJoint, ...]:
    """Leg and arm of a side of the humanoid, whose first joint has index `first`."""
    return (
        CharacterJoint(f"{side}_hip", 0, (0.0, 0.0, sign * 0.084887), "spherical"),
        CharacterJoint(f"{side}_knee", first, (0.0, -0.421546, 0.0), "revolute"),
        CharacterJoint(f"{side}_ankle", first + 1, (0.0, -0.40987, 0.0), "spherical"),
        CharacterJoint(f"{side}_shoulder", 1, (-0.02405, 0.2435, sign * 0.18311), "spherical"),
        CharacterJoint(f"{side}_elbow", first + 3, (0.0, -0.274788, 0.0), "revolute"),
        CharacterJoint(f"{side}_wrist", first + 4, (0.0, -0.258947, 0.0), "fixed"),
    )


# the humanoid of Peng et al. 2018 (DeepMimic), from its character file
HUMANOID = (
    CharacterJoint("root", -1, (0.0, 0.0, 0.0), "none"),
    CharacterJoint("chest", 0, (0.0, 0.236151, 0.0), "spherical"),
    CharacterJoint("neck", 1, (0.0, 0.223894, 0.0), "spherical"),
    *_side("right", 1.0, 3),
    *_side("left", -1.0, 9),
)
# more keypoints of its bodies: the middle of the head's ball, and the soles' ends at the floor (the
# foot is a box of 0.177 x 0.055 m about (0.045, -0.0225))
HUMANOID_POINTS = (
    CharacterJoint("head", 2, (0.0, 0.175, 0.0), "fixed"),
    CharacterJoint("right_toe", 5, (0.1335, -0.05, 0.0), "fixed"),
    CharacterJoint("right_heel", 5, (-0.0435, -0.05, 0.0), "fixed"),
    CharacterJoint("left_toe", 11, (0.1335, -0.05, 0.0), "fixed"),
    CharacterJoint("left_heel", 11, (-0.0435, -0.05, 0.0), "fixed"),
)


def read_deepmimic(
    path: str | os.PathLike[str],
    *,
    character: str | os.PathLike[str] | None = None,
    rate_hz: float | None = None,
    scale: float | str = 1.0,
    up: str = "y",
) -> Clip:
    """The joints of a DeepMimic motion by forward kinematics, named like the character's joints.

    character: the character file; None: the published humanoid (with head, toes and heels) for 44
      numbers, else KIND_character.txt or KIND.txt beside KIND_*.txt.
    rate_hz: in place of the frames' durations. scale, up: see `to_world`.

    Raises:
      InputError: with the file: no JSON, other contents, a robot's motion, frames of differing
        length, a value that is not finite, no character.
    """
    path = Path(path)
    frames = _frames(path, read_json(path))
    width = frames.shape[1]
    joints: tuple[CharacterJoint, ...] = HUMANOID
    if character is not None or width != size_of(HUMANOID):
        joints = read_character(_character(path, width) if character is None else character)
    if width != size_of(joints):
        raise InputError(
            f"{path}: {width} numbers in a frame, its character expects {size_of(joints)}"
        )
    points = (*joints, *HUMANOID_POINTS) if joints is HUMANOID else joints
    common.check_size(path, len(frames), len(points))
    rate_hz = _rate(path, frames[:, 0]) if rate_hz is None else rate_hz
    # too large numbers become infinite
    with np.errstate(over="ignore", invalid="ignore"):
        positions = joint_positions(points, _normalized(path, frames, joints))
    names = [joint.name for joint in points]
    parents = [joint.parent for joint in points]
    keypoints = Keypoints(positions, names, parents)
    return common.world_clip(path, keypoints, rate_hz=rate_hz, scale=scale, up=up)


def size_of(joints: Sequence[CharacterJoint]) -> int:
    """Numbers in a frame: duration, root position and quaternion, and those of the joints."""
    return 8 + sum(_SIZES[joint.kind] for joint in joints)


def joint_positions(joints: Sequence[CharacterJoint], frames: Array) -> Array:
    """World positions (T, joints, 3), in file units and axes, of frames with unit quaternions."""
    turns: list[Array | None] = []
    column = 8
    for joint in joints:
        local = frames[:, column : column + _SIZES[joint.kind]]
        column += _SIZES[joint.kind]
        if joint.kind == "revolute":
            local = rotations.from_axis_angle(np.array([0.0, 0.0, 1.0]), local[:, 0])
        turns.append(local if local.shape[1] else None)
    turns[0] = frames[:, 4:8]
    root, *offsets = (np.array(joint.offset) for joint in joints)
    parents = [joint.parent for joint in joints]
    return common.forward_kinematics(parents, [frames[:, 1:4] + root, *offsets], turns)


def _frames(path: Path, document: Any) -> Array:
    """The frames (T, numbers) of a motion file."""
    if not isinstance(document, Mapping) or "Frames" not in document:
        raise InputError(f"{path} is JSON without 'Frames', expected a DeepMimic motion")
    if "FrameDuration" in document:
        hint = "not a recording of keypoints to retarget"
        raise InputError(f"{path} holds a robot's motion (it has 'FrameDuration'), {hint}")
    try:
        frames = np.array(document["Frames"], dtype=np.float64)
    # OverflowError: a whole number of more than 308 digits
    except (ValueError, TypeError, OverflowError):
        frames = np.empty(0)
    if frames.ndim != 2 or frames.shape[1] < 8:
        expected = "frames of one length, at least 8 numbers (duration, root position, quaternion)"
        raise InputError(f"{path}: 'Frames' of shape {frames.shape}, expected {expected}")
    finite = np.isfinite(frames).all(axis=1)
    if not finite.all():
        raise InputError(f"{path}: frame {int(np.argmin(finite))} has a value that is not finite")
    return frames


def _normalized(path: Path, frames: Array, joints: Sequence[CharacterJoint]) -> Array:
    """The frames with quaternions of length 1; the published dog's paws come with 0.83 to 1.02."""
    frames = frames.copy()
    column = 4
    for joint in joints:
        size = 4 if joint.parent < 0 else _SIZES[joint.kind]
        if size == 4:
            quaternion = frames[:, column : column + 4]
            with np.errstate(over="ignore"):
                lengths = np.linalg.norm(quaternion, axis=1)
            wrong = ~(np.abs(lengths - 1.0) < 0.4)
            if wrong.any():
                i = int(np.argmax(wrong))
                length = f"the quaternion of {joint.name!r} has length {lengths[i]:.3g}"
                raise InputError(f"{path}: frame {i}: {length}, expected 1; another character?")
            quaternion /= lengths[:, None]
        column += size
    return frames


def _rate(path: Path, durations: Array) -> float:
    """Frames per second of the frames' durations [s], without the last, which is 0 in a cycle."""
    used = durations[:-1] if len(durations) > 1 else durations
    middle = float(np.median(used))
    if not middle > 1e-6:
        message = f"{path}: a frame's duration is {middle:g} s, expected above 0; set rate_hz="
        raise common.MissingOptions(message, ("rate_hz",))
    common.check_even(path, used, middle, 0.01)
    return common.file_rate(path, common.whole_rate(middle, digits=5))


def _character(path: Path, width: int) -> Path:
    """The character file beside a motion file of `width` numbers in a frame."""
    kind = path.stem.partition("_")[0]
    candidates = [path.with_name(f"{kind}_character.txt"), path.with_name(f"{kind}.txt")]
    for file in candidates:
        if file.is_file() and file != path:
            return file
    names = " or ".join(file.name for file in candidates)
    message = f"{path}: {width} numbers in a frame and no character file {names}; set character="
    raise common.MissingOptions(message, ("character",))


def read_character(path: str | os.PathLike[str]) -> tuple[CharacterJoint, ...]:
    """The joints of a DeepMimic character file. Raises InputError for other contents."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no character file {str(path)!r} (character=)")
    try:
        entries = read_json(path)["Skeleton"]["Joints"]
        joints = tuple(_joint(path, i, entry) for i, entry in enumerate(entries))
    except (KeyError, TypeError, OverflowError):
        expected = "expected Skeleton / Joints with Name, Type, Parent, AttachX ..."
        raise InputError(f"{path} is not a DeepMimic character: {expected}") from None
    if not joints or joints[0].parent >= 0 or any(joint.parent < 0 for joint in joints[1:]):
        raise InputError(f"{path}: expected one root, its first joint")
    return joints


def _joint(path: Path, i: int, entry: Mapping[str, Any]) -> CharacterJoint:
    """One entry of a character's joints."""
    name = str(entry["Name"])
    kind = str(entry["Type"])
    parent = int(entry["Parent"])
    joint = f"{path}: joint {common.quoted(name)}"
    if kind not in _SIZES:
        raise InputError(f"{joint}: Type={kind!r}: expected one of {', '.join(_SIZES)}")
    if not -1 <= parent < i:
        raise InputError(f"{joint}: Parent is {parent}, expected an earlier joint")
    if any(float(entry.get(f"AttachTheta{axis}", 0.0)) for axis in "XYZ"):
        raise InputError(f"{joint}: AttachTheta (turned against its parent) is not supported")
    # the root's offset is ignored, as frames have its position
    x, y, z = (0.0 if parent < 0 else float(entry[f"Attach{axis}"]) for axis in "XYZ")
    if not np.isfinite((x, y, z)).all():
        raise InputError(f"{joint}: its offset is not finite")
    return CharacterJoint(name, parent, (x, y, z), kind)
