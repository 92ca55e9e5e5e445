"""ASF/AMC: an Acclaim skeleton, and per frame its joints' angles; CMU's motion capture database.

An ASF file has the direction, length and rotation axes of each bone in the rest pose; an AMC file
has the angles. With C the rotation of the ASF's `axis` (angles about the fixed axes x, y, z, in its
order) and R the rotation of the bone's angles about the same axes in the same order, bone b is
turned by

    R_b = R_parent C R C^-1        and ends at        end_parent + R_b (direction x length).

So R_b is the identity in the rest pose. A keypoint is the END of its bone ("lfemur" is the knee,
"ltibia" the ankle), and "root" is the root's position.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.readers import common
from mocap_data.readers.common import CUT, at_line, check_size, quoted, text_content
from mocap_data.readers.subject_selection import Keypoints

# rate of nearly all of CMU's recordings [Hz]; an AMC file has none
RATE_HZ = 120.0
ROOT = "root"
_TURNS = ("rx", "ry", "rz")
_MOVES = ("tx", "ty", "tz")
_METRES_PER_INCH = 0.0254


@dataclass(frozen=True, eq=False)
class Bone:
    """One bone of an ASF file, or its root (which has no length)."""

    name: str
    # index of its parent, -1 for the root
    parent: int
    # (3,) unit vector in the rest pose, in the file's axes
    direction: Array
    # [file units]
    length: float
    # (4,) the quaternion C
    axis: Array
    # in which the angles are applied about fixed axes, e.g. "XYZ": x first
    order: str
    # names of its values in the AMC file, in order: "rx", "ry", "rz"; for the root also "tx", ...
    dofs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class AsfSkeleton:
    """The contents of an ASF file."""

    name: str
    # parents before children, the root first
    bones: tuple[Bone, ...]
    # (3,) of the root, added to its "tx", "ty", "tz" [file units]
    position: Array
    # metres per unit of its lengths and of the AMC files' positions
    metres_per_unit: float
    # whether angles are in degrees, also in an AMC file without :DEGREES or :RADIANS
    degrees: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The bones' names, the root's first."""
        return tuple(bone.name for bone in self.bones)


# contents of an AMC file: per bone with dofs (T, dofs), angles [rad], positions [file units]
Angles = Mapping[str, Array]


def read_amc_clip(
    path: str | os.PathLike[str],
    *,
    asf: str | os.PathLike[str] | None = None,
    rate_hz: float = RATE_HZ,
    scale: float | str | None = None,
    up: str = "y",
) -> Clip:
    """The root and the ends of all bones of an AMC file, named like the bones, in ASF order.

    asf: the skeleton; None: the one beside it (`find_asf`). rate_hz: the file has none.
    scale: None: CMU's convention, inches times the ASF's `length`. up: see `to_world`.

    Raises:
      InputError: with file and line: no skeleton, a garbled or truncated file, other bones than
        the skeleton's, a value that is not finite.
    """
    path = Path(path)
    skeleton = read_asf(find_asf(path) if asf is None else Path(asf))
    angles = read_amc(path, skeleton)
    # too large numbers become infinite
    with np.errstate(over="ignore", invalid="ignore"):
        positions = bone_ends(skeleton, angles)
    keypoints = Keypoints(positions, skeleton.names, [bone.parent for bone in skeleton.bones])
    scale = skeleton.metres_per_unit if scale is None else scale
    clip = common.world_clip(path, keypoints, rate_hz=rate_hz, scale=scale, up=up)
    return replace(clip, assumed=("rate_hz", "up"))


def find_asf(path: str | os.PathLike[str]) -> Path:
    """The skeleton of NN_MM.amc: NN.asf, else NN_MM.asf, else the only one in its folder.

    Raises:
      MissingOptions: no skeleton, or several without the right name.
    """
    path = Path(path)
    files = [
        entry
        for entry in sorted(path.parent.iterdir())
        if entry.suffix.lower() == ".asf" and entry.is_file()
    ]
    stems = [stem for stem in (path.stem.rpartition("_")[0], path.stem) if stem]
    for stem in stems:
        for entry in files:
            if entry.stem.lower() == stem.lower():
                return entry
    if len(files) == 1:
        return files[0]
    expected = " or ".join(f"{stem}.asf" for stem in stems)
    available = ", ".join(entry.name for entry in files[:8]) or "none"
    message = f"{path}: no skeleton {expected} in its folder; available: {available}; set asf="
    raise common.MissingOptions(message, ("asf",))


# --- the skeleton ---


def read_asf(path: str | os.PathLike[str]) -> AsfSkeleton:
    """The skeleton of an ASF file.

    Raises:
      InputError: with file and line, a garbled or truncated file.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no skeleton {str(path)!r} (asf=)")
    data = text_content(path, "an ASF skeleton")
    sections = _sections(path, data.decode("utf-8", "replace"))
    for key in ("root", "bonedata", "hierarchy"):
        if key not in sections:
            raise InputError(f"{path}: no :{key} section{CUT}, or is not an ASF skeleton")
    length, degrees = _units(path, sections.get("units", []))
    root, position = _root(path, sections["root"], degrees)
    bones = {ROOT: root}
    for bone in _bones(path, sections["bonedata"], degrees):
        if bone.name in bones:
            raise InputError(f"{path}: bone {bone.name!r} appears more than once in :bonedata")
        bones[bone.name] = bone
    check_size(path, 1, len(bones))
    parents = _parents(path, sections["hierarchy"], bones)
    names = list(parents)
    ordered = tuple(
        replace(bones[name], parent=-1 if parent is None else names.index(parent))
        for name, parent in parents.items()
    )
    title = " ".join(word for _, line in sections.get("name", [])[:1] for word in line)
    return AsfSkeleton(title or path.stem, ordered, position, _METRES_PER_INCH / length, degrees)


# (number in the file, words) of lines that are not blank
Lines = list[tuple[int, list[str]]]


def _sections(path: Path, text: str) -> dict[str, Lines]:
    """Per ":keyword" its lines, without comments; the rest of the keyword's line is the first."""
    sections: dict[str, Lines] = {}
    current: Lines | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0].startswith(":"):
            current = sections[words[0][1:].lower()] = []
            words = words[1:]
        if current is None:
            expected = "expected a section (':version') of an ASF skeleton"
            raise at_line(path, number, f"{expected}, got {quoted(line)}")
        if words:
            current.append((number, words))
    return sections


def _units(path: Path, lines: Lines) -> tuple[float, bool]:
    """The unit of length, and whether angles are in degrees."""
    length = 1.0
    degrees = True
    for number, words in lines:
        key = words[0].lower()
        if key == "length":
            length = float(_numbers(path, number, words[1:], 1, "length")[0])
            if not 1e-6 < length < 1e6:
                raise at_line(path, number, f"length is {length:g}, expected 1e-6 to 1e6")
        elif key == "angle":
            unit = " ".join(words[1:]).lower()[:3]
            if unit not in ("deg", "rad"):
                raise at_line(path, number, f"angle is {quoted(unit)}, expected deg or rad")
            degrees = unit == "deg"
    return length, degrees


def _root(path: Path, lines: Lines, degrees: bool) -> tuple[Bone, Array]:
    """The root with its dofs, and its position."""
    dofs: tuple[str, ...] = (*_MOVES, *_TURNS)
    order = "XYZ"
    vectors = {"position": np.zeros(3), "orientation": np.zeros(3)}
    for number, words in lines:
        key = words[0].lower()
        if key == "order":
            dofs = _dofs(path, number, words[1:], ROOT, (*_MOVES, *_TURNS))
        elif key == "axis":
            order = _order(path, number, words[1:], ROOT)
        elif key in vectors:
            vectors[key] = _numbers(path, number, words[1:], 3, f"the root's {key}")
    axis = _fixed_axes(order, vectors["orientation"], degrees)
    return Bone(ROOT, -1, np.zeros(3), 0.0, axis, order, dofs), vectors["position"]


def _bones(path: Path, lines: Lines, degrees: bool) -> Iterator[Bone]:
    """The bones of :bonedata, without parents."""
    entries: dict[str, tuple[int, list[str]]] = {}
    first_line = 0
    for number, words in lines:
        key = words[0].lower()
        if key == "begin":
            entries = {}
            first_line = number
        elif key == "end":
            yield _bone(path, first_line, entries, degrees)
        # the second and later lines of limits are not used
        elif not key.startswith("("):
            entries[key] = (number, words[1:])


def _bone(path: Path, first_line: int, entries: dict[str, Any], degrees: bool) -> Bone:
    """One bone from its begin ... end block."""
    name = " ".join(entries.get("name", (0, []))[1]).strip("\"'")
    for key in ("name", "direction", "length", "axis"):
        if key not in entries:
            raise at_line(path, first_line, f"bone {name!r} has no {key}")
    number, words = entries["length"]
    length = float(_numbers(path, number, words, 1, f"the length of {name!r}")[0])
    number, words = entries["direction"]
    direction = _numbers(path, number, words, 3, f"the direction of {name!r}")
    with np.errstate(over="ignore"):
        size = float(np.linalg.norm(direction))
    if not math.isfinite(size) or (size < 1e-9 and length != 0.0):
        raise at_line(path, number, f"the direction of {name!r} has length {size:g}")
    number, words = entries["axis"]
    angles = _numbers(path, number, words[:3], 3, f"the axis of {name!r}")
    order = _order(path, number, words[3:] or ["XYZ"], name)
    number, words = entries.get("dof", (first_line, []))
    dofs = _dofs(path, number, words, name, _TURNS)
    axis = _fixed_axes(order, angles, degrees)
    return Bone(name, -1, direction / max(size, 1e-9), length, axis, order, dofs)


def _parents(path: Path, lines: Lines, bones: Mapping[str, Bone]) -> dict[str, str | None]:
    """Per bone its parent's name, parents first, out of :hierarchy."""
    parents: dict[str, str | None] = {ROOT: None}
    for number, words in lines:
        if words[0].lower() in ("begin", "end") and len(words) == 1:
            continue
        parent, *children = [word.strip("\"'") for word in words]
        for name in (parent, *children):
            if name not in bones:
                available = ", ".join(bones)
                raise at_line(
                    path, number, f"no bone {name!r} in :bonedata; available: {available}"
                )
        if parent not in parents:
            raise at_line(path, number, f"bone {parent!r} has children before its own parent")
        for child in children:
            if child in parents:
                raise at_line(path, number, f"bone {child!r} has two parents")
            parents[child] = parent
    for name in bones:
        if name not in parents:
            raise InputError(f"{path}: bone {name!r} is not in :hierarchy{CUT}")
    return parents


def _numbers(path: Path, line: int, words: list[str], count: int, label: str) -> Array:
    """`count` finite numbers."""
    values = np.array([common.number_or_nan(word) for word in words])
    if len(values) != count or not np.isfinite(values).all():
        expected = "a number" if count == 1 else f"{count} numbers"
        got = quoted(" ".join(words))
        raise at_line(path, line, f"{label} must be {expected}, got {got}")
    return values


def _dofs(
    path: Path, line: int, words: list[str], bone: str, valid: tuple[str, ...]
) -> tuple[str, ...]:
    """The names after `dof` or `order`, in lower case."""
    dofs = tuple(word.lower() for word in words)
    if not set(dofs) <= set(valid) or len(set(dofs)) < len(dofs):
        got = quoted(" ".join(words))
        raise at_line(path, line, f"dof of {bone!r} is {got}, expected of: {', '.join(valid)}")
    return dofs


def _order(path: Path, line: int, words: list[str], bone: str) -> str:
    """An order of three axes, "XYZ"."""
    order = "".join(words[:1]).upper()
    if sorted(order) != ["X", "Y", "Z"]:
        message = f"the order of the axes of {bone!r} is {quoted(order)}"
        raise at_line(path, line, f"{message}, expected e.g. XYZ")
    return order


def _fixed_axes(order: str, angles: Array, degrees: bool) -> Array:
    """The quaternion of angles (3,) about the fixed x, y, z in `order`: "XYZ" is Rz Ry Rx."""
    angles = np.deg2rad(angles) if degrees else angles
    columns = ["XYZ".index(letter) for letter in order[::-1]]
    return rotations.from_euler(order[::-1], angles[columns])


# --- the motion ---


def read_amc(path: str | os.PathLike[str], skeleton: AsfSkeleton) -> Angles:
    """The angles of an AMC file for a skeleton, with all its bones and dofs in every frame.

    Raises:
      InputError: with file and line or frame.
    """
    path = Path(path)
    degrees, body, first_line = _header(path, text_content(path, "AMC motion"), skeleton.degrees)
    bones = [bone for bone in skeleton.bones if bone.dofs]
    if not bones:
        raise InputError(f"{path}: no bone of the skeleton {skeleton.name!r} has a dof")
    values = _frames(path, body, first_line, bones)
    check_size(path, len(next(iter(values.values()))), len(skeleton.bones))
    if degrees:
        for bone in bones:
            turns = [i for i, dof in enumerate(bone.dofs) if dof in _TURNS]
            values[bone.name][:, turns] = np.deg2rad(values[bone.name][:, turns])
    return values


_LINE_AT = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n|\Z)")


def _header(path: Path, data: bytes, degrees: bool) -> tuple[bool, bytes, int]:
    """Whether angles are in degrees, the bytes after the header, and the number of their line."""
    for number, line in enumerate(_LINE_AT.finditer(data), start=1):
        text = line[0].strip().upper()
        if text and not text.startswith((b"#", b":")):
            return degrees, data[line.start() :], number
        if text.startswith((b":DEG", b":RAD")):
            degrees = text.startswith(b":DEG")
    raise InputError(f"{path} has a header but no frames{CUT}")


def _frames(path: Path, body: bytes, first_line: int, bones: list[Bone]) -> dict[str, Array]:
    """The values of all frames per bone; a frame may list bones in any order."""
    dofs = {bone.name.encode(): bone.dofs for bone in bones}
    rows: dict[bytes, list[list[bytes]]] = {name: [] for name in dofs}
    numbers: dict[bytes, list[int]] = {name: [] for name in dofs}
    frames = 0
    number = first_line

    def check_frame(number: int, cut: str = "") -> None:
        """Raise InputError for a frame without one of the bones."""
        missing = [name.decode() for name, values in rows.items() if len(values) < frames]
        if missing:
            raise at_line(path, number, f"frame {frames} has no {missing[0]!r}{cut}")

    for number, line in enumerate(body.splitlines(), start=first_line):
        words = line.split()
        if not words or words[0].startswith(b"#"):
            continue
        name = words[0]
        if len(words) == 1 and name.isdigit():
            check_frame(number)
            frames += 1
            continue
        if name not in dofs or not frames:
            available = ", ".join(bone.name for bone in bones)
            raise at_line(path, number, f"no bone {quoted(name)} with dofs; available: {available}")
        if len(words) != 1 + len(dofs[name]):
            expected = f"expected {len(dofs[name])} ({' '.join(dofs[name])})"
            raise at_line(path, number, f"{quoted(name)} has {len(words) - 1} numbers, {expected}")
        if len(rows[name]) >= frames:
            raise at_line(path, number, f"frame {frames} has {quoted(name)} twice")
        rows[name].append(words[1:])
        numbers[name].append(number)
    if not frames:
        raise InputError(f"{path} has a header but no frames{CUT}")
    check_frame(number, CUT)
    return {name.decode(): common.parse_rows(path, numbers[name], rows[name]) for name in rows}


# --- forward kinematics ---


def bone_ends(skeleton: AsfSkeleton, angles: Angles) -> Array:
    """The root's position and every bone's end, (T, bones, 3), in the file's units and axes."""
    frames = len(next(iter(angles.values())))
    offsets: list[Array] = []
    turns: list[Array] = []
    for bone in skeleton.bones:
        turn = np.tile(rotations.IDENTITY, (frames, 1))
        # C (Rz Ry Rx) C^-1 is the product of turns about the axes C z, C y and C x
        for letter in reversed(bone.order):
            dof = f"r{letter.lower()}"
            if dof in bone.dofs:
                axis = rotations.rotate(bone.axis, np.eye(3)["XYZ".index(letter)])
                angle = angles[bone.name][:, bone.dofs.index(dof)]
                turn = rotations.multiply(turn, rotations.from_axis_angle(axis, angle))
        turns.append(turn)
        offsets.append(rotations.rotate(turn, bone.length * bone.direction))
        if bone.parent < 0:
            offsets[-1] += skeleton.position
            for column, dof in enumerate(bone.dofs):
                if dof in _MOVES:
                    offsets[-1][:, _MOVES.index(dof)] += angles[bone.name][:, column]
    return common.forward_kinematics([bone.parent for bone in skeleton.bones], offsets, turns)
