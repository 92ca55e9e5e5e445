"""ASF/AMC: an Acclaim skeleton, and per frame the angles of its joints; the format of CMU's motion
capture database.

An ASF file gives every bone a direction and a length in the rest pose and the axes its angles turn
about; an AMC file gives the angles. With C the rotation of the ASF's `axis` (angles about the fixed
axes x, y, z, in the order that it names) and R the rotation of the bone's own angles about the same
axes in the same order, bone b is turned by

    R_b = R_parent C R C^-1        and ends at        end_parent + R_b (direction x length).

So R_b is the identity in the rest pose, whatever C. A keypoint is the END of its bone ("lfemur" is
the knee, "ltibia" the ankle), and "root" is the root's position.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError, unknown
from mocap_data.readers.common import (
    MAX_KEYPOINTS,
    MissingOptions,
    check_size,
    content,
    not_text,
    parse_rows,
    shown,
    world_clip,
)

RATE_HZ = 120.0  # of nearly all of CMU's recordings; an AMC file does not say its rate
ROOT = "root"
_TURNS = ("rx", "ry", "rz")
_MOVES = ("tx", "ty", "tz")


@dataclass(frozen=True, eq=False)
class Bone:
    """One bone of an ASF file, or its root (which has no length).

    parent: index of the bone it hangs from, -1 for the root.
    direction: (3,) unit vector in the rest pose, in the file's axes.
    length: in the file's units.
    axis: (4,) the quaternion C.
    order: in which the angles are applied, about fixed axes, e.g. "XYZ": x first.
    dofs: what the AMC file gives for it, in its order: out of "rx", "ry", "rz"; for the root also
    "tx", "ty", "tz".
    """

    name: str
    parent: int
    direction: Array
    length: float
    axis: Array
    order: str
    dofs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Skeleton:
    """What an ASF file says.

    bones: parents before children, the root first.
    position: (3,) of the root, added to its "tx", "ty", "tz" [file units].
    metres_per_unit: of its lengths and of the AMC files' positions.
    degrees: whether angles are in degrees, also in an AMC file that does not say.
    """

    name: str
    bones: tuple[Bone, ...]
    position: Array
    metres_per_unit: float
    degrees: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The bones' names, the root's first."""
        return tuple(bone.name for bone in self.bones)

    @property
    def parents(self) -> tuple[int, ...]:
        """Per bone the index of its parent, -1 for the root."""
        return tuple(bone.parent for bone in self.bones)

    def index(self, name: str) -> int:
        """The place of bone `name`.

        Raises:
          InputError: naming the bones there are.
        """
        if name not in self.names:
            raise unknown(f"bone (skeleton {self.name!r})", name, self.names)
        return self.names.index(name)


@dataclass(frozen=True, eq=False)
class Angles:
    """What an AMC file says: per bone with dofs (T, number of dofs), in the order of `Bone.dofs`.

    Angles in radians, the root's positions in the file's units.
    """

    values: Mapping[str, Array]

    @property
    def num_frames(self) -> int:
        """T."""
        return len(next(iter(self.values.values())))


def read_amc_clip(
    path: str | os.PathLike[str],
    *,
    asf: str | os.PathLike[str] | None = None,
    rate_hz: float = RATE_HZ,
    scale: float | str | None = None,
    up: str = "y",
) -> Clip:
    """The root and the ends of all bones of an AMC file, named like the bones, in the ASF file's
    order.

    asf: the skeleton; left out, the one beside it (`find_asf`).
    rate_hz: the file does not say it; nearly all of CMU's are at 120 Hz.
    scale: metres per unit, or the unit's name; left out, CMU's convention: inches, times the ASF's
    `length`. up: the upward axis; see `to_world`.

    Raises:
      InputError: naming file and line: no skeleton, a garbled or truncated file, bones or numbers
        of them that differ from the skeleton's, a value that is not finite.
    """
    path = Path(path)
    skeleton = read_asf(find_asf(path) if asf is None else Path(asf))
    angles = read_amc(path, skeleton)
    # numbers too large end as a value that is not finite
    with np.errstate(over="ignore", invalid="ignore"):
        positions = bone_ends(skeleton, angles)
    return world_clip(
        path,
        positions,
        skeleton.names,
        skeleton.parents,
        rate_hz=rate_hz,
        scale=skeleton.metres_per_unit if scale is None else scale,
        up=up,
    )


def find_asf(path: str | os.PathLike[str]) -> Path:
    """The skeleton of an AMC file: NN.asf for NN_MM.amc, else one of its own name, else the only
    one in its folder.

    Raises: MissingOptions, naming what was looked for, where there is none or no saying which.
    """
    path = Path(path)
    there = sorted(
        entry
        for entry in path.parent.iterdir()
        if entry.suffix.lower() == ".asf" and entry.is_file()
    )
    subject = path.stem.rpartition("_")[0]
    wanted = [stem for stem in (subject, path.stem) if stem]
    for stem in wanted:
        found = [entry for entry in there if entry.stem.lower() == stem.lower()]
        if found:
            return found[0]
    if len(there) == 1:
        return there[0]
    names = " or ".join(f"{stem}.asf" for stem in wanted)
    exist = (
        f"there are: {', '.join(entry.name for entry in there[:8])}"
        if there
        else "there is no .asf file"
    )
    raise MissingOptions(
        f"{path} needs its skeleton: looked for {names} in its folder, {exist}; give asf=", ("asf",)
    )


# --- the skeleton
# -----------------------------------------------------------------------------------------------------


def read_asf(path: str | os.PathLike[str]) -> Skeleton:
    """The skeleton of an ASF file.

    Raises:
      InputError: naming file and line for one that is garbled or cut short.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no skeleton {str(path)!r} (asf=)")
    data = content(path)
    if not data.strip():
        raise InputError(f"{path} is empty, expected an ASF skeleton")
    if why := not_text(path, data):
        raise InputError(why)
    sections = _sections(path, data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace"))
    for needed in ("root", "bonedata", "hierarchy"):
        if needed not in sections:
            raise InputError(
                f"{path}: no :{needed} section; the file is cut short or is no ASF skeleton"
            )
    units = _units(path, sections.get("units", []))
    degrees = units.get("angle", "deg") == "deg"
    root, position = _root(path, sections["root"], degrees)
    loose = {ROOT: root}  # bones before they have a parent
    for bone in _bones(path, sections["bonedata"], degrees):
        if bone.name in loose:
            raise InputError(f"{path}: bone {bone.name!r} appears more than once in :bonedata")
        loose[bone.name] = bone
        if len(loose) > MAX_KEYPOINTS:
            raise InputError(
                f"{path} has more than {MAX_KEYPOINTS:,} bones, which is all that are read"
            )
    parents = _parents(path, sections["hierarchy"], loose)
    names = list(parents)
    bones = [
        replace(loose[name], parent=-1 if parent is None else names.index(parent))
        for name, parent in parents.items()
    ]
    length = float(units.get("length", 1.0))
    title = " ".join(word for _, line in sections.get("name", [])[:1] for word in line)
    return Skeleton(title or path.stem, tuple(bones), position, 0.0254 / length, degrees)


Lines = list[tuple[int, list[str]]]  # (number in the file, words) of lines that are not blank


def _sections(path: Path, text: str) -> dict[str, Lines]:
    """Per ":keyword" its lines; what stands on the keyword's own line comes first. Comments and
    blank lines are left out."""
    sections: dict[str, Lines] = {}
    current: Lines | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0].startswith(":"):
            key = words[0][1:].lower()
            if key in sections:
                raise InputError(f"{path}, line {number}: section :{key} appears twice")
            current = sections[key] = []
            words = words[1:]
        if current is None:
            raise InputError(
                f"{path}, line {number}: expected a section (':version'), found {shown(line)}; is this an ASF file?"
            )
        if words:
            current.append((number, words))
    if not sections:
        raise InputError(f"{path} has no section (':root'), expected an ASF skeleton")
    return sections


def _units(path: Path, lines: Lines) -> dict[str, str]:
    """The entries of :units, checked."""
    units: dict[str, str] = {}
    for number, words in lines:
        key = words[0].lower()
        if key == "length":
            length = _numbers(path, number, words[1:], 1, "length")[0]
            if not 1e-6 < length < 1e6:
                raise InputError(
                    f"{path}, line {number}: a unit of length of {length:g} is not possible"
                )
            units[key] = repr(float(length))
        elif key == "angle":
            angle = words[1].lower()[:3] if len(words) > 1 else ""
            if angle not in ("deg", "rad"):
                raise InputError(
                    f"{path}, line {number}: no unit of angle {shown(' '.join(words[1:]))}; there are: deg, rad"
                )
            units[key] = angle
    return units


def _root(path: Path, lines: Lines, degrees: bool) -> tuple[Bone, Array]:
    """The root with its dofs, and its position."""
    order: tuple[str, ...] = (*_MOVES, *_TURNS)
    axis, position, orientation = "XYZ", np.zeros(3), np.zeros(3)
    for number, words in lines:
        key = words[0].lower()
        if key == "order":
            order = _dofs(path, number, words[1:], ROOT, (*_MOVES, *_TURNS))
        elif key == "axis":
            axis = _order(path, number, words[1] if len(words) > 1 else "", ROOT)
        elif key == "position":
            position = _numbers(path, number, words[1:], 3, "the root's position")
        elif key == "orientation":
            orientation = _numbers(path, number, words[1:], 3, "the root's orientation")
    turn = _fixed_axes(axis, np.deg2rad(orientation) if degrees else orientation)
    return Bone(ROOT, -1, np.zeros(3), 0.0, turn, axis, order), position


def _bones(path: Path, lines: Lines, degrees: bool) -> Iterator[Bone]:
    """The bones of :bonedata, their parents still unknown."""
    entries: dict[str, tuple[int, list[str]]] | None = None
    begun = 0
    for number, words in lines:
        key = words[0].lower()
        if key == "begin":
            if entries is not None:
                raise InputError(
                    f"{path}, line {number}: 'begin' inside the bone that begins on line {begun}; expected 'end'"
                )
            entries, begun = {}, number
        elif entries is None:
            raise InputError(
                f"{path}, line {number}: expected 'begin', found {shown(' '.join(words))}"
            )
        elif key == "end":
            yield _bone(path, begun, entries, degrees)
            entries = None
        elif not key.startswith("("):  # the second and later lines of limits, which are not used
            entries[key] = (number, words[1:])
    if entries is not None:
        raise InputError(
            f"{path}: the bone that begins on line {begun} has no 'end'; the file is cut short"
        )


def _bone(path: Path, begun: int, entries: dict[str, tuple[int, list[str]]], degrees: bool) -> Bone:
    """One bone from its begin ... end block."""
    number, words = entries.get("name", (begun, []))
    name = " ".join(words).strip("\"'")
    if not name:
        raise InputError(f"{path}, line {number}: a bone without a name")
    for needed in ("direction", "length", "axis"):
        if needed not in entries:
            raise InputError(f"{path}, line {begun}: bone {name!r} has no {needed}")
    number, words = entries["direction"]
    direction = _numbers(path, number, words, 3, f"the direction of {name!r}")
    with np.errstate(over="ignore"):
        size = float(np.linalg.norm(direction))
    number, words = entries["length"]
    length = float(_numbers(path, number, words, 1, f"the length of {name!r}")[0])
    if not math.isfinite(size) or (size < 1e-9 and length != 0.0):
        raise InputError(
            f"{path}, line {entries['direction'][0]}: the direction of {name!r} has length {size:g}"
        )
    number, words = entries["axis"]
    angles = _numbers(path, number, words[:3], 3, f"the axis of {name!r}")
    order = _order(path, number, words[3] if len(words) > 3 else "XYZ", name)
    number, words = entries.get("dof", (begun, []))
    dofs = _dofs(path, number, words, name, _TURNS)
    axis = _fixed_axes(order, np.deg2rad(angles) if degrees else angles)
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
                raise InputError(
                    f"{path}, line {number}: no bone {name!r} in :bonedata; there are: {', '.join(bones)}"
                )
        if parent not in parents:
            raise InputError(
                f"{path}, line {number}: {parent!r} has children before it is one itself"
            )
        for child in children:
            if child in parents:
                raise InputError(f"{path}, line {number}: bone {child!r} hangs from two parents")
            parents[child] = parent
    loose = [name for name in bones if name not in parents]
    if loose:
        raise InputError(
            f"{path}: bone {loose[0]!r} is not in :hierarchy; the file is cut short or garbled"
        )
    return parents


def _numbers(path: Path, line: int, words: list[str], count: int, what: str) -> Array:
    """`count` finite numbers."""
    try:
        values = np.array([float(word) for word in words])
    except ValueError:
        values = np.array([])
    if len(values) != count or not np.isfinite(values).all():
        expected = "a number" if count == 1 else f"{count} numbers"
        raise InputError(
            f"{path}, line {line}: {what} must be {expected}, found {shown(' '.join(words))}"
        )
    return values


def _dofs(
    path: Path, line: int, words: list[str], bone: str, known: tuple[str, ...]
) -> tuple[str, ...]:
    """The names after `dof` or `order`, in lower case."""
    dofs = tuple(word.lower() for word in words)
    for i, dof in enumerate(dofs):
        if dof not in known or dof in dofs[:i]:
            kind = "repeated" if dof in dofs[:i] else "unknown"
            raise InputError(
                f"{path}, line {line}: {bone!r} has the {kind} dof {shown(dof)}; there are: {', '.join(known)}"
            )
    return dofs


def _order(path: Path, line: int, word: str, bone: str) -> str:
    """An order of three axes, "XYZ"."""
    if sorted(word.upper()) != ["X", "Y", "Z"]:
        raise InputError(
            f"{path}, line {line}: the axis of {bone!r} has the order {shown(word)}, expected e.g. XYZ"
        )
    return word.upper()


def _fixed_axes(order: str, angles: Array) -> Array:
    """The quaternion of angles (3,) about x, y and z, applied about fixed axes in `order`: "XYZ" is
    Rz Ry Rx."""
    return rotations.from_euler(
        order[::-1], angles[["XYZ".index(letter) for letter in order[::-1]]]
    )


# --- the motion
# -------------------------------------------------------------------------------------------------------


def read_amc(path: str | os.PathLike[str], skeleton: Skeleton) -> Angles:
    """The angles of an AMC file for a skeleton, whose bones and dofs it must give in every frame.

    Raises:
      InputError: naming file and line or frame.
    """
    path = Path(path)
    data = content(path).removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise InputError(f"{path} is empty, expected AMC motion")
    if why := not_text(path, data):
        raise InputError(why)
    degrees, body, first_line = _header(path, data, skeleton.degrees)
    bones = [bone for bone in skeleton.bones if bone.dofs]
    if not bones:
        raise InputError(
            f"{path}: no bone of the skeleton {skeleton.name!r} has a dof, so there is no motion to read"
        )
    values = _frames(path, body, first_line, bones)
    check_size(path, len(next(iter(values.values()))), len(skeleton.bones))
    for bone in bones:
        turns = [i for i, dof in enumerate(bone.dofs) if dof in _TURNS]
        if degrees:
            values[bone.name][:, turns] = np.deg2rad(values[bone.name][:, turns])
    return Angles(values)


_LINE_AT = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n|\Z)")


def _header(path: Path, data: bytes, degrees: bool) -> tuple[bool, bytes, int]:
    """Whether angles are in degrees, what follows the header, and the number (from 1) of its first
    line."""
    for number, line in enumerate(_LINE_AT.finditer(data), start=1):
        text = line[0].strip().upper()
        if text and not text.startswith((b"#", b":")):
            return degrees, data[line.start() :], number
        if text.startswith((b":DEG", b":RAD")):
            degrees = text.startswith(b":DEG")
    raise InputError(f"{path} has a header but no frames; the file is cut short")


def _frames(path: Path, body: bytes, first_line: int, bones: list[Bone]) -> dict[str, Array]:
    """The values of all frames per bone; in a frame bones stand in any order."""
    dofs = {bone.name.encode(): bone.dofs for bone in bones}
    rows: dict[bytes, list[list[bytes]]] = {name: [] for name in dofs}
    numbers: dict[bytes, list[int]] = {name: [] for name in dofs}
    lines = body.splitlines()
    last = max(i for i, line in enumerate(lines) if line.strip())
    frame, frames = -1, 0
    for i, line in enumerate(lines):
        number, words = first_line + i, line.split()
        cut = "; the file is cut short" if i == last else ""
        if not words or words[0].startswith(b"#"):
            continue
        if len(words) == 1 and words[0].isdigit():
            if frames:
                _check_frame(path, number, frame, frames, rows)
                if int(words[0][:12]) != frame + 1:
                    raise InputError(
                        f"{path}, line {number}: frame {shown(words[0])} follows frame {frame}"
                    )
            frame, frames = int(words[0][:12]), frames + 1
            continue
        name = words[0]
        if not frames:
            raise InputError(
                f"{path}, line {number}: expected the number of the first frame, found {shown(line)}"
            )
        if name not in dofs:
            known = ", ".join(bone.name for bone in bones)
            raise InputError(
                f"{path}, line {number}: the skeleton has no bone {shown(name)} with dofs; there are: {known}{cut}"
            )
        if len(words) != 1 + len(dofs[name]):
            expected = f"{len(dofs[name])} ({' '.join(dofs[name])})"
            raise InputError(
                f"{path}, line {number}: {shown(name)} has {len(words) - 1} numbers, expected {expected}{cut}"
            )
        if len(rows[name]) >= frames:
            raise InputError(f"{path}, line {number}: frame {frame} has {shown(name)} twice")
        rows[name].append(words[1:])
        numbers[name].append(number)
    if not frames:
        raise InputError(f"{path} has a header but no frames; the file is cut short")
    _check_frame(path, first_line + last, frame, frames, rows, cut="; the file is cut short")
    return {name.decode(): parse_rows(path, numbers[name], rows[name]) for name in rows}


def _check_frame(
    path: Path,
    line: int,
    frame: int,
    frames: int,
    rows: Mapping[bytes, list[list[bytes]]],
    cut: str = "",
) -> None:
    """Refuse a frame that lacks a bone."""
    lacking = [name.decode() for name, found in rows.items() if len(found) < frames]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise InputError(f"{path}, line {line}: frame {frame} has no {lacking[0]!r}{more}{cut}")


# --- forward kinematics
# -----------------------------------------------------------------------------------------------


def bone_ends(skeleton: Skeleton, angles: Angles) -> Array:
    """The root's position and every bone's end, (T, bones, 3), in the file's units and axes."""
    ends: list[Array] = []
    for bone, turn in zip(skeleton.bones, _orientations(skeleton, angles), strict=True):
        if bone.parent < 0:
            place = np.tile(skeleton.position, (angles.num_frames, 1))
            for column, dof in enumerate(bone.dofs):
                if dof in _MOVES:
                    place[:, _MOVES.index(dof)] += angles.values[bone.name][:, column]
            ends.append(place)
        else:
            ends.append(ends[bone.parent] + rotations.rotate(turn, bone.length * bone.direction))
    return np.stack(ends, axis=1)


def _orientations(skeleton: Skeleton, angles: Angles) -> list[Array]:
    """Per bone (T, 4), in the file's axes: R_b = R_parent C R C^-1."""
    found: list[Array] = []
    for bone in skeleton.bones:
        turn = (
            np.tile(rotations.IDENTITY, (angles.num_frames, 1))
            if bone.parent < 0
            else found[bone.parent]
        )
        # C (Rz Ry Rx) C^-1 is the product of turns about the axes C z, C y and C x
        for letter in reversed(bone.order):
            dof = f"r{letter.lower()}"
            if dof in bone.dofs:
                axis = rotations.rotate(bone.axis, np.eye(3)["XYZ".index(letter)])
                angle = angles.values[bone.name][:, bone.dofs.index(dof)]
                turn = rotations.multiply(turn, rotations.from_axis_angle(axis, angle))
        found.append(turn)
    return found
