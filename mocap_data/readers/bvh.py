"""BVH: a skeleton, and per frame its root's position and every joint's Euler angles.

Channels may come in any order and number, on any joint. A position channel replaces that component
of the joint's OFFSET, so a root's positions are absolute, as in most exporters. Rotation
channels apply in the order they are listed, intrinsically: "Zrotation Xrotation Yrotation" is
R = Rz Rx Ry.
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
from mocap_data.readers import common
from mocap_data.readers.subject_selection import Keypoints, select_subject

_CHANNELS = {f"{axis}{kind}" for axis in "xyz" for kind in ("position", "rotation")}
_MOTION = re.compile(rb"(?:^|[\r\n])[ \t]*MOTION[ \t]*(?=[\r\n]|$)", re.IGNORECASE)
# from its first word on
_LINE = re.compile(rb"\S[^\r\n]*")


@dataclass
class Node:
    """A joint or End Site of a hierarchy."""

    name: str
    # index of the parent, -1 for a root
    parent: int
    # OFFSET in the parent's frame
    offset: Array = field(default_factory=lambda: np.zeros(3))
    # channels in lower case, e.g. "zrotation"
    channels: list[str] = field(default_factory=list)
    # columns of its channels in a frame
    first_column: int = 0
    # whether it is an End Site
    is_end: bool = False

    def columns(self, kind: str) -> list[tuple[str, int]]:
        """Axis letter and column of each channel that is a "position" or a "rotation"."""
        numbered = enumerate(self.channels, start=self.first_column)
        return [(channel[0], column) for column, channel in numbered if channel.endswith(kind)]


def read_bvh(
    path: str | os.PathLike[str],
    *,
    scale: float | str = 0.01,
    up: str = "y",
    subject: str | None = None,
) -> Clip:
    """The joints and End Sites of a BVH file, in file order, by forward kinematics.

    The End Site of joint "Head" is called "Head_end" (a second one "Head_end2"). A rounded frame
    time of 1/60 s becomes 60 Hz.

    scale: centimetres by default; the file has no unit. up: the axis of the root's positions. See
      `to_world`.
    subject: the ROOT to take of several; None: the first body's.

    Raises:
      InputError: with file and line: a garbled hierarchy, another number of frames or of numbers
        than declared, a value that is not finite, no frames.
    """
    path = Path(path)
    header, first_line, motion = _split(path, common.text_content(path, "a BVH file"))
    nodes = _hierarchy(path, header)
    rate_hz, values = _frames(path, motion, first_line, nodes)
    # too large numbers become infinite
    with np.errstate(over="ignore", invalid="ignore"):
        positions = node_positions(nodes, values)
    names = [node.name for node in nodes]
    parents = [node.parent for node in nodes]
    keypoints = select_subject(path, Keypoints(positions, names, parents), subject)
    return common.world_clip(path, keypoints, rate_hz=rate_hz, scale=scale, up=up)


def node_positions(nodes: list[Node], values: Array) -> Array:
    """World positions (T, J, 3) in the file's units and axes of channel values (T, C) [deg]."""
    offsets: list[Array] = []
    turns: list[Array | None] = []
    for node in nodes:
        offset = np.tile(node.offset, (len(values), 1))
        for axis, column in node.columns("position"):
            offset[:, "xyz".index(axis)] = values[:, column]
        offsets.append(offset)
        channels = node.columns("rotation")
        order = "".join(axis for axis, _ in channels).upper()
        angles = np.deg2rad(values[:, [column for _, column in channels]])
        turns.append(rotations.from_euler(order, angles) if order else None)
    return common.forward_kinematics([node.parent for node in nodes], offsets, turns)


def _split(path: Path, data: bytes) -> tuple[list[str], int, bytes]:
    """The lines before MOTION, the number of the line after it, and the bytes after it."""
    match = _MOTION.search(data)
    if match is None:
        raise InputError(f"{path}: no MOTION block; is it a complete BVH file?")
    before = data[: match.end()].splitlines()
    header = [line.decode("utf-8", "replace") for line in before[:-1]]
    newline = 2 if data[match.end() : match.end() + 2] == b"\r\n" else 1
    return header, len(before) + 1, data[match.end() + newline :]


class _Tokens:
    """The words of the hierarchy with their line numbers, read one after the other."""

    def __init__(self, path: Path, lines: list[str]) -> None:
        self.path = path
        self.last_line = len(lines)
        self.position = 0
        self.tokens = [
            (number, word)
            for number, line in enumerate(lines, start=1)
            for word in line.replace("{", " { ").replace("}", " } ").split()
        ]

    @property
    def line(self) -> int:
        at_end = self.position >= len(self.tokens)
        return self.last_line if at_end else self.tokens[self.position][0]

    def peek(self) -> str:
        at_end = self.position >= len(self.tokens)
        return "" if at_end else self.tokens[self.position][1]

    def take(self) -> str:
        word = self.peek()
        self.position += 1
        return word

    def expect(self, *words: str) -> str:
        line = self.line
        word = self.take()
        if word.upper() not in words:
            got = common.quoted(word) if word else "the end"
            raise common.at_line(self.path, line, f"expected {' or '.join(words)}, got {got}")
        return word.upper()

    def rest_of_line(self) -> str:
        """The words up to the end of the line or an opening brace: names may have spaces."""
        line = self.tokens[self.position - 1][0]
        words = []
        while self.position < len(self.tokens) and self.line == line and self.peek() != "{":
            words.append(self.take())
        return " ".join(words)

    def number(self, label: str) -> float:
        line = self.line
        word = self.take()
        value = common.number_or_nan(word)
        if not np.isfinite(value):
            got = common.quoted(word) if word else "the end"
            raise common.at_line(self.path, line, f"{label} must be a number, got {got}")
        return value


def _hierarchy(path: Path, lines: list[str]) -> list[Node]:
    """The joints and End Sites in file order, parents before children."""
    tokens = _Tokens(path, lines)
    tokens.expect("HIERARCHY")
    nodes: list[Node] = []
    columns = 0
    while tokens.peek() or not nodes:
        tokens.expect("ROOT")
        nodes.append(Node(tokens.rest_of_line(), parent=-1))
        tokens.expect("{")
        open_nodes = [len(nodes) - 1]
        while open_nodes:
            node = nodes[open_nodes[-1]]
            inside = () if node.is_end else ("CHANNELS", "JOINT", "END")
            word = tokens.expect("OFFSET", *inside, "}")
            if word == "OFFSET":
                label = f"OFFSET of {node.name!r}"
                node.offset = np.array([tokens.number(label) for _ in range(3)])
            elif word == "CHANNELS":
                node.first_column = columns
                node.channels = _channels(tokens, node.name)
                columns += len(node.channels)
            elif word == "}":
                open_nodes.pop()
            else:
                nodes.append(_child(tokens, nodes, open_nodes[-1], word))
                tokens.expect("{")
                common.check_size(path, 1, len(nodes))
                open_nodes.append(len(nodes) - 1)
    if columns == 0:
        raise InputError(f"{path}: no joint has CHANNELS")
    return nodes


def _child(tokens: _Tokens, nodes: list[Node], parent: int, word: str) -> Node:
    """The node that a JOINT or an END begins."""
    if word == "JOINT":
        return Node(tokens.rest_of_line(), parent)
    tokens.expect("SITE")
    # names of End Sites are replaced by their joint's
    tokens.rest_of_line()
    siblings = sum(node.is_end and node.parent == parent for node in nodes)
    number = str(siblings + 1) if siblings else ""
    return Node(f"{nodes[parent].name}_end{number}", parent, is_end=True)


def _channels(tokens: _Tokens, joint: str) -> list[str]:
    """The names after CHANNELS, in lower case."""
    count = tokens.number(f"the number of CHANNELS of {joint!r}")
    channels: list[str] = []
    for _ in range(int(count)):
        line = tokens.line
        word = tokens.take()
        if word.lower() not in _CHANNELS or word.lower() in channels:
            kind = "repeated" if word.lower() in channels else "unknown"
            message = f"joint {joint!r} has the {kind} channel {common.quoted(word)}"
            expected = "expected Xposition ... Zrotation"
            raise common.at_line(tokens.path, line, f"{message}, {expected}")
        channels.append(word.lower())
    return channels


def _frames(path: Path, text: bytes, first_line: int, nodes: list[Node]) -> tuple[float, Array]:
    """The rate [Hz] and the channel values (T, channels) of the text after MOTION.

    first_line: number of the first line of text in the file, from 1.
    """
    count = _LINE.search(text)
    time = _LINE.search(text, count.end()) if count else None
    if not count or not time:
        expected = "expected 'Frames:' and 'Frame Time:'"
        raise InputError(f"{path}: the file ends after MOTION; {expected}")
    count_line = first_line + common.line_breaks(text[: count.start()])
    time_line = first_line + common.line_breaks(text[: time.start()])
    declared = _declared(path, count_line, count[0], "Frames")
    frame_time = _declared(path, time_line, time[0], "Frame Time")
    if not frame_time > 0.0:
        raise common.at_line(path, time_line, f"Frame Time is {frame_time:g} s, expected above 0")
    digits = len(time[0].split(b":")[1].strip().partition(b".")[2])
    rate_hz = common.file_rate(f"{path}, line {time_line}", common.whole_rate(frame_time, digits))

    columns = sum(len(node.channels) for node in nodes)
    expected = f"expected {columns} (one per channel)"
    table = text[time.end() :]
    values = common.number_lines(path, table, columns, expected, first_line=time_line)
    frames = len(values)
    if frames != declared or not frames:
        cut = common.CUT if frames < declared else ""
        raise InputError(f"{path} has {frames} frames, its header declares {declared:.10g}{cut}")
    common.check_size(path, frames, len(nodes))
    return rate_hz, values


def _declared(path: Path, line: int, text: bytes, key: str) -> float:
    """The number of a line "KEY: number"."""
    label, _, value = text.partition(b":")
    number = common.number_or_nan(value)
    if b" ".join(label.split()).lower() != key.lower().encode() or not np.isfinite(number):
        got = common.quoted(text)
        raise common.at_line(path, line, f"expected '{key}:' and a number, got {got}")
    return number
