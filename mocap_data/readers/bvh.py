"""BVH: a skeleton, and per frame its root's position and every joint's Euler angles.

Channels may come in any order and number, on any joint. A position channel replaces that component
of the joint's OFFSET, so positions of a root are absolute, as most exporters mean it; some mean
them relative to the root's OFFSET, and no file says which (option `add_root_offset`). Rotation
channels apply in the order they are listed, intrinsically: "Zrotation Xrotation Yrotation" is R =
Rz Rx Ry.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.readers.common import (
    MAX_KEYPOINTS,
    check_size,
    content,
    fast_table,
    not_text,
    parse_rows,
    rate_said,
    shown,
    whole_rate,
    world_clip,
)

_CHANNELS = {f"{axis}{kind}".lower() for axis in "XYZ" for kind in ("position", "rotation")}


@dataclass
class Joint:
    """A joint or End Site: its parent's index (-1 for a root), OFFSET in the parent's frame, and
    channels."""

    name: str
    parent: int
    offset: Array = field(default_factory=lambda: np.zeros(3))
    channels: list[str] = field(default_factory=list)  # lower case, e.g. "zrotation"
    first_column: int = 0  # of its channels in a frame's numbers
    is_end: bool = False  # an End Site


def read_bvh(
    path: str | os.PathLike[str],
    *,
    scale: float | str = 0.01,
    up: str = "y",
    add_root_offset: bool = False,
) -> Clip:
    """The joints and End Sites of a BVH file, in file order, by forward kinematics.

    The End Site of joint "Head" is called "Head_end" (a second one "Head_end2").

    scale: metres per unit, or the unit's name ("cm", "m", "mm", "in"); the default takes
    centimetres. The file does not
        say, so nothing is guessed.
    up: the world's upward axis, "x", "y" or "z"; see `to_world`. It is the axis of the root's
    positions; in which
        direction bones lie at rest (their OFFSETs) does not matter.
    add_root_offset: take the root's positions relative to its OFFSET. Needed where the motion comes
    out with
        its hips at floor height.

    A frame time that is a rounded 1/60 s gives 60 Hz, not 59.9999.

    Raises:
      InputError: naming file and line: a garbled hierarchy, fewer or more frames than declared, a
        line with too few or too many numbers, a text or a value that is not finite, no frames.
    """
    path = Path(path)
    header, first_line, motion = _split(path, content(path))
    joints = _hierarchy(path, header)
    rate_hz, values = _frames(path, motion, first_line, joints)
    # numbers too large end as a value that is not finite
    with np.errstate(over="ignore", invalid="ignore"):
        positions = forward_kinematics(joints, values, add_root_offset=add_root_offset)
    return world_clip(
        path,
        positions,
        [joint.name for joint in joints],
        [joint.parent for joint in joints],
        rate_hz=rate_hz,
        scale=scale,
        up=up,
    )


def forward_kinematics(
    joints: list[Joint], values: Array, *, add_root_offset: bool = False
) -> Array:
    """World positions (T, J, 3), in the file's units and axes, of channel values (T, C) [units,
    degrees]."""
    frames = len(values)
    local = _local_rotations(joints, values)
    orientation: list[Array] = []
    positions = np.empty((len(joints), frames, 3))
    for j, joint in enumerate(joints):
        offset = np.broadcast_to(joint.offset, (frames, 3))
        moved = [(i, c) for i, c in enumerate(joint.channels) if c.endswith("position")]
        if moved:
            offset = offset.copy()
            for i, channel in moved:
                offset[:, "xyz".index(channel[0])] = values[:, joint.first_column + i]
        if joint.parent < 0:
            positions[j] = offset + joint.offset if moved and add_root_offset else offset
            orientation.append(local[j])
        else:
            parent = orientation[joint.parent]
            positions[j] = positions[joint.parent] + rotations.rotate(parent, offset)
            # nothing hangs from an End Site, and a joint without rotations turns with its parent
            turns = any(channel.endswith("rotation") for channel in joint.channels)
            orientation.append(rotations.multiply(parent, local[j]) if turns else parent)
    return positions.transpose(1, 0, 2)


def _local_rotations(joints: list[Joint], values: Array) -> list[Array]:
    """Per joint its rotation relative to its parent, (T, 4); joints of the same order are done
    together."""
    local = [np.broadcast_to(rotations.IDENTITY, (len(values), 4))] * len(joints)
    groups: dict[str, list[int]] = {}
    for j, joint in enumerate(joints):
        order = "".join(c[0] for c in joint.channels if c.endswith("rotation")).upper()
        if order:
            groups.setdefault(order, []).append(j)
    for order, members in groups.items():
        columns = [
            [
                joints[j].first_column + i
                for i, c in enumerate(joints[j].channels)
                if c.endswith("rotation")
            ]
            for j in members
        ]
        angles = np.deg2rad(values.T[np.array(columns)])  # (members, len(order), T)
        quaternions = rotations.from_euler(order, angles.swapaxes(1, 2))
        for row, j in enumerate(members):
            local[j] = quaternions[row]
    return local


_MOTION = re.compile(rb"(?:^|[\r\n])[ \t]*MOTION[ \t]*(?=[\r\n]|$)", re.IGNORECASE)


def _split(path: Path, data: bytes) -> tuple[list[str], int, bytes]:
    """The lines before MOTION as text, the number (from 1) of the line after it, and what follows
    it."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    found = _MOTION.search(data)
    if found:
        before = data[: found.end()].splitlines()
        header = [line.decode("utf-8", "replace") for line in before[:-1]]
        newline = 2 if data[found.end() : found.end() + 2] == b"\r\n" else 1
        return header, len(before) + 1, data[found.end() + newline :]
    if not data.strip():
        raise InputError(f"{path} is empty, expected a BVH file")
    first = data[:200].splitlines()[0]
    if first.strip().upper() != b"HIERARCHY":
        why = not_text(path, data)
        raise InputError(
            why or f"{path}, line 1: expected HIERARCHY, found {shown(first)}; is this a BVH file?"
        )
    raise InputError(f"{path}: no MOTION block; the file is cut short or is no BVH file")


def _words(line: str) -> list[str]:
    """The words of a line, braces for themselves."""
    return line.replace("{", " { ").replace("}", " } ").split()


class _Tokens:
    """The words of the hierarchy with their line numbers, read one after the other."""

    def __init__(self, path: Path, lines: list[str]) -> None:
        self.path = path
        self.tokens = [(n, word) for n, line in enumerate(lines, start=1) for word in _words(line)]
        self.last_line = len(lines)
        self.at = 0

    @property
    def line(self) -> int:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else self.last_line

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        word = self.peek()
        self.at += 1
        return word

    def expect(self, *words: str) -> str:
        line, word = self.line, self.take()
        if word.upper() not in words:
            raise self.error(
                line, f"expected {' or '.join(words)}, found {shown(word) if word else 'the end'}"
            )
        return word.upper()

    def rest_of_line(self) -> str:
        """What is left on the line of the last word taken, up to an opening brace."""
        line, words = self.tokens[self.at - 1][0], []
        while self.at < len(self.tokens) and self.line == line and self.peek() != "{":
            words.append(self.take())
        return " ".join(words)

    def name(self) -> str:
        """The name after ROOT or JOINT; it may have spaces."""
        line = self.tokens[self.at - 1][0]
        name = self.rest_of_line()
        if not name:
            raise self.error(line, "a joint without a name")
        return name

    def number(self, what: str) -> float:
        line, word = self.line, self.take()
        try:
            value = float(word)
        except ValueError:
            value = float("nan")
        if not np.isfinite(value):
            raise self.error(
                line, f"{what} must be a number, found {shown(word) if word else 'the end'}"
            )
        return value

    def error(self, line: int, message: str) -> InputError:
        return InputError(f"{self.path}, line {line}: {message}")


def _hierarchy(path: Path, lines: list[str]) -> list[Joint]:
    """The joints and End Sites in file order, parents before children."""
    tokens = _Tokens(path, lines)
    tokens.expect("HIERARCHY")
    joints: list[Joint] = []
    columns = 0
    while tokens.peek() or not joints:
        tokens.expect("ROOT")
        joints.append(Joint(tokens.name(), parent=-1))
        tokens.expect("{")
        open_joints = [len(joints) - 1]
        while open_joints:
            parent = open_joints[-1]
            joint, line = joints[parent], tokens.line
            inside = (
                ("OFFSET", "}") if joint.is_end else ("OFFSET", "CHANNELS", "JOINT", "END", "}")
            )
            word = tokens.expect(*inside)
            if word == "OFFSET":
                joint.offset = np.array(
                    [tokens.number(f"OFFSET of {joint.name!r}") for _ in range(3)]
                )
            elif word == "CHANNELS":
                if joint.channels:
                    raise tokens.error(line, f"joint {joint.name!r} has CHANNELS twice")
                joint.first_column = columns
                joint.channels = _channels(tokens, joint.name)
                columns += len(joint.channels)
            elif word == "}":
                open_joints.pop()
            else:
                if word == "JOINT":
                    child = Joint(tokens.name(), parent)
                else:
                    tokens.expect("SITE")
                    # some exporters name End Sites; they go by their joint's name here
                    tokens.rest_of_line()
                    siblings = sum(other.is_end and other.parent == parent for other in joints)
                    number = str(siblings + 1) if siblings else ""
                    child = Joint(f"{joint.name}_end{number}", parent, is_end=True)
                tokens.expect("{")
                if len(joints) >= MAX_KEYPOINTS:
                    raise tokens.error(
                        line, f"more than {MAX_KEYPOINTS:,} joints, which is all that are read"
                    )
                joints.append(child)
                open_joints.append(len(joints) - 1)
    if columns == 0:
        raise InputError(f"{path}: no joint has CHANNELS, so there is no motion to read")
    return joints


def _channels(tokens: _Tokens, joint: str) -> list[str]:
    """The names after CHANNELS, in lower case."""
    line = tokens.line
    count = tokens.number(f"the number of CHANNELS of {joint!r}")
    if count != int(count) or count < 0:
        raise tokens.error(line, f"joint {joint!r} cannot have {count:g} CHANNELS")
    channels: list[str] = []
    for _ in range(int(count)):
        line, word = tokens.line, tokens.take()
        if word.lower() not in _CHANNELS or word.lower() in channels:
            kind = "repeated" if word.lower() in channels else "unknown"
            known = "Xposition ... Zrotation"
            raise tokens.error(
                line, f"joint {joint!r} has the {kind} channel {shown(word)}; there are: {known}"
            )
        channels.append(word.lower())
    return channels


_LINE = re.compile(rb"\S[^\r\n]*")  # from its first word on


def _frames(path: Path, text: bytes, first_line: int, joints: list[Joint]) -> tuple[float, Array]:
    """The rate [Hz] and the channel values (T, channels) of what follows MOTION.

    first_line: the number in the file of the first line of the text.
    """
    count, time = _LINE.search(text), None
    if count:
        time = _LINE.search(text, count.end())
    if not count or not time:
        raise InputError(
            f"{path}: the file ends after MOTION; expected 'Frames:' and 'Frame Time:'"
        )
    count_line = first_line + _lines_in(text[: count.start()])
    time_line = first_line + _lines_in(text[: time.start()])
    declared = _declared(path, count_line, count[0], "Frames")
    frame_time = _declared(path, time_line, time[0], "Frame Time")
    if declared != int(declared) or declared < 0:
        raise InputError(f"{path}, line {count_line}: {declared:g} is no number of frames")
    if not frame_time > 0.0:
        raise InputError(
            f"{path}, line {time_line}: a frame time of {frame_time:g} s is not positive"
        )
    digits = len(time[0].split(b":")[1].strip().partition(b".")[2])
    rate_hz = rate_said(f"{path}, line {time_line}", whole_rate(frame_time, digits))
    table = text[time.end() :]
    if declared == 0 and not table.strip():
        raise InputError(f"{path}, line {count_line}: the file has no frames")
    columns = sum(len(joint.channels) for joint in joints)
    values = fast_table(table, columns)
    if values is None:
        values = _slow_table(path, table, time_line, columns, declared)
    _check_count(path, len(values), declared)
    check_size(path, len(values), len(joints))
    return rate_hz, values


def _lines_in(text: bytes) -> int:
    """How many lines end in a text."""
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")


def _slow_table(path: Path, table: bytes, first_line: int, columns: int, declared: float) -> Array:
    """The rows of a table word by word, to say which line is wrong."""
    rows = [
        (n, line.split())
        for n, line in enumerate(table.splitlines(), start=first_line)
        if line.strip()
    ]
    for number, row in rows:
        if len(row) != columns:
            cut = "; the file is cut short" if number == rows[-1][0] and len(row) < columns else ""
            raise InputError(
                f"{path}, line {number}: {len(row)} numbers, expected {columns} (one per channel){cut}"
            )
    _check_count(path, len(rows), declared)
    return parse_rows(path, [number for number, _ in rows], [row for _, row in rows])


def _check_count(path: Path, frames: int, declared: float) -> None:
    """Refuse a file with more or fewer frames than it declares."""
    if frames != declared:
        cut = "; the file is cut short" if frames < declared else ""
        raise InputError(f"{path} has {frames} frames, its header declares {declared:.10g}{cut}")


def _declared(path: Path, line: int, text: bytes, key: str) -> float:
    """The number of a line "KEY: number"."""
    label, colon, value = text.partition(b":")
    if not colon or b" ".join(label.split()).lower() != key.lower().encode():
        raise InputError(f"{path}, line {line}: expected '{key}: ...', found {shown(text)}")
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise InputError(f"{path}, line {line}: '{key}' must be a number, found {shown(value)}")
    return number
