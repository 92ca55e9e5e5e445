"""C3D: positions of markers, the format of optical motion capture.

Only the points are read. A frame is x, y, z and a residual per point, then the analog samples, as
float32 (a negative scale in the header) or int16; a negative residual is a missing sample.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mocap_data.arrays import Array, Bools
from mocap_data.clip import Clip
from mocap_data.errors import InputError, check_available
from mocap_data.readers import common
from mocap_data.readers.gap_filling import fill_recording
from mocap_data.readers.subject_selection import Keypoints, subject_columns

# bytes; the unit of positions in a C3D file
_BLOCK = 512
# bytes per value of a parameter, by its type: text, byte, int16, float
_SIZES = {-1: 1, 1: 1, 2: 2, 4: 4}
# processor type; DEC (85) and MIPS (86) write other floats
_INTEL = 84
# value of the header for more frames than it can count
_UNCOUNTED = 0xFFFF
# parameters of POINT that list a model's outputs, and the endings of their names
_OUTPUTS = ("ANGLES", "FORCES", "MOMENTS", "POWERS", "REACTIONS", "SCALARS")
_OUTPUT = re.compile(r"(Angle|Force|Moment|Power|GRF)s?$")


@dataclass(frozen=True)
class _Header:
    """The first blocks of a C3D file."""

    points: int
    # analog samples in a frame
    analogs: int
    frames: int
    # scale of the points if they are int16; negative if they are float32
    scale: float
    # offset of the frames [bytes]
    begin: int
    rate_hz: float
    # a name per point: its label, or "point17" for none
    labels: list[str]
    # points that are not positions: a model's angles, forces, moments, powers
    outputs: frozenset[str]
    units: str
    # "" where the file has no POINT:Y_SCREEN
    up: str


def read_c3d(
    path: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    rate_hz: float | None = None,
    scale: float | str | None = None,
    up: str | None = None,
    subject: str | None = None,
) -> Clip:
    """The labelled markers of a C3D file, without gaps, while the body is in the volume.

    names: the markers to take, in this order; None: all of the subject but unlabelled ones ("*12"),
      a model's outputs (angles, moments, ...) and those with long gaps; see
      `mocap_data.readers.gap_filling`.
    rate_hz, scale, up: in place of POINT:RATE, POINT:UNITS and POINT:Y_SCREEN (else "z").
    subject: the prefix of "SUBJECT:MARKER" to take of several; None: the first body's.

    Raises:
      InputError: with the file: no C3D, damaged or truncated, an unknown marker, subject or unit,
        names and subject together, a marker with a long gap (with its frames).
    """
    path = Path(path)
    data = common.content(path)
    header = _header(path, data)
    rate = header.rate_hz if rate_hz is None else float(rate_hz)
    if not (math.isfinite(rate) and rate > 0.0):
        message = f"{path}: POINT:RATE is {rate:g} Hz, expected above 0; set rate_hz="
        raise common.MissingOptions(message, ("rate_hz",))
    if rate_hz is None:
        common.file_rate(path, rate)
    if scale is None and header.units.lower() not in common.UNITS:
        message = f"{path}: POINT:UNITS is {common.quoted(header.units)}, no known unit; set scale="
        raise common.MissingOptions(message, ("scale",))
    markers, remarks = _markers(path, header, names, subject)
    points, missing = _points(data, header)
    columns = [header.labels.index(label) for label in markers]
    keypoints = Keypoints(points[:, columns], markers, remarks=remarks)
    filled = fill_recording(path, keypoints, missing[:, columns], rate, drop=names is None)
    return common.world_clip(
        path,
        filled,
        rate_hz=rate,
        scale=header.units if scale is None else scale,
        up=(header.up or "z") if up is None else up,
        assumed=() if header.up else ("up",),
    )


def _markers(
    path: Path, header: _Header, names: Sequence[str] | None, subject: str | None
) -> tuple[list[str], tuple[str, ...]]:
    """The labels to take, and the remarks about other subjects."""
    labels = header.labels
    if names and subject is not None:
        raise InputError(f"{path}: subject={subject}: must be left out with names=")
    if names:
        check_available(f"marker (in {path})", names, labels)
        return list(names), ()
    markers = [label for label in labels if not (label.startswith("*") or label in header.outputs)]
    if not markers:
        raise InputError(f"{path} has no labelled marker; its points are: {', '.join(labels[:8])}")
    columns, remarks = subject_columns(path, markers, None, subject)
    return [markers[column] for column in columns], remarks


def _points(data: bytes, header: _Header) -> tuple[Array, Bools]:
    """The points (T, M, 3) in the file's units and missing samples (T, M)."""
    kind, unit = ("<f4", 1.0) if header.scale < 0.0 else ("<i2", header.scale)
    width = 4 * header.points + header.analogs
    numbers = np.frombuffer(data, kind, header.frames * width, header.begin)
    frames = numbers.reshape(-1, width)[:, : 4 * header.points].reshape(-1, header.points, 4)
    points = unit * frames[..., :3].astype(np.float64)
    # many programs write a missing sample as zeros
    absent = (frames[..., 3] < 0) | (points == 0.0).all(axis=-1)
    return points, absent | ~np.isfinite(points).all(axis=-1)


# --- the structure of the file ---


def _header(path: Path, data: bytes) -> _Header:
    """The header and the parameters used here, checked against the file's size."""
    if len(data) < 2 * _BLOCK or data[1] != 0x50:
        raise InputError(f"{path} is not a C3D file, or truncated")
    start = _BLOCK * (data[0] - 1)
    try:
        if data[start + 3] != _INTEL:
            expected = f"expected {_INTEL} (Intel); convert the file"
            raise InputError(f"{path}: processor type is {data[start + 3]}, {expected}")
        stop = start + _BLOCK * max(data[start + 2], 1)
        return _checked(path, data, _Parameters(data, start + 4, stop))
    except (struct.error, LookupError):
        raise InputError(f"{path}: its parameters are damaged, or it is not C3D") from None


def _checked(path: Path, data: bytes, parameters: _Parameters) -> _Header:
    """The header, its sizes compared with those of the file and of the parameters."""
    points, analogs, first, last = struct.unpack_from("<4H", data, 2)
    data_scale = struct.unpack_from("<f", data, 12)[0]
    data_start = struct.unpack_from("<H", data, 16)[0]
    if (used := parameters.integer("USED", points)) != points or points == 0:
        raise InputError(f"{path}: its header has {points} points, POINT:USED {used}")
    frames = last - first + 1
    if last == _UNCOUNTED or frames < 1:
        frames = parameters.frames(first)
    if frames < 1:
        raise InputError(f"{path} has no frames (first {first}, last {last})")
    common.check_size(path, frames, points)
    if not math.isfinite(data_scale) or data_scale == 0.0:
        raise InputError(f"{path}: its points have the scale {data_scale:g}; the header is damaged")
    begin = _BLOCK * (data_start - 1)
    size = (4 * points + analogs) * (4 if data_scale < 0.0 else 2)
    left = len(data) - begin
    if data_start < 2 or frames * size > left:
        needed = f"{frames} frames of {points} points take {frames * size:,} bytes"
        raise InputError(f"{path}: {needed}, the file has {max(left, 0):,}; truncated or damaged")
    if last == _UNCOUNTED and left - frames * size > size + _BLOCK:
        expected = f"its header counts {frames:,}; cut it into parts"
        raise InputError(f"{path} has some {left // size:,} frames, {expected}")
    labels = parameters.all_texts("LABELS")
    labels += [""] * (points - len(labels))
    listed = {_bare(name) for group in _OUTPUTS for name in parameters.all_texts(group)}
    screen = (parameters.texts("Y_SCREEN") or ("",))[0].lower().removeprefix("+")
    return _Header(
        points=points,
        analogs=analogs,
        frames=frames,
        scale=data_scale,
        begin=begin,
        rate_hz=parameters.number("RATE"),
        labels=[label.strip() or f"point{i}" for i, label in enumerate(labels[:points])],
        outputs=frozenset(
            label for label in labels if _bare(label) in listed or _OUTPUT.search(label)
        ),
        units=(parameters.texts("UNITS") or ("",))[0].strip(),
        up=screen if screen in common.UP_AXES else "",
    )


def _bare(label: str) -> str:
    """A label without its subject."""
    return label.rpartition(":")[2].strip()


@dataclass(frozen=True)
class _Value:
    """A parameter's values, as bytes."""

    # a key of `_SIZES`
    kind: int
    sizes: tuple[int, ...]
    data: bytes


class _Parameters:
    """The values of the chain of groups and parameters from `at` to `stop`."""

    def __init__(self, data: bytes, at: int, stop: int) -> None:
        groups: dict[int, str] = {}
        parameters: list[tuple[int, str, _Value]] = []
        while at + 2 <= stop:
            length, group = struct.unpack_from("<2b", data, at)
            if length == 0:
                break
            place = at + 2 + abs(length)
            name = data[at + 2 : place].decode("latin-1").strip().upper()
            (step,) = struct.unpack_from("<H", data, place)
            if group < 0:
                groups[-group] = name
            else:
                kind, dimensions = struct.unpack_from("<bB", data, place + 2)
                begin = place + 4 + dimensions
                sizes = tuple(data[place + 4 : begin])
                end = begin + _SIZES[kind] * math.prod(sizes)
                parameters.append((group, name, _Value(kind, sizes, data[begin:end])))
            if step == 0:
                break
            at = place + step
        if "POINT" not in groups.values():
            raise LookupError("POINT")
        self.values = {(groups[group], name): value for group, name, value in parameters}

    def texts(self, name: str) -> tuple[str, ...]:
        """The texts of POINT:name; none where it is missing or no text."""
        value = self.values.get(("POINT", name))
        if value is None or value.kind != -1 or not value.data:
            return ()
        width = max(value.sizes[0] if value.sizes else 1, 1)
        pieces = [value.data[i : i + width] for i in range(0, len(value.data), width)]
        return tuple(piece.decode("latin-1").strip(" \0") for piece in pieces)

    def all_texts(self, name: str) -> list[str]:
        """The texts of POINT:name and its continuations, as in LABELS, LABELS2."""
        return [text for n in ("", *range(2, 100)) for text in self.texts(f"{name}{n}")]

    def number(self, name: str) -> float:
        """The first number of POINT:name; 0 where it is missing."""
        value = self.values.get(("POINT", name))
        if value is None or value.kind not in (2, 4) or not value.data:
            return 0.0
        return float(struct.unpack_from("<f" if value.kind == 4 else "<H", value.data)[0])

    def integer(self, name: str, otherwise: int) -> int:
        """The first number of POINT:name as an integer, -1 for none."""
        value = self.number(name) if ("POINT", name) in self.values else float(otherwise)
        return int(value) if math.isfinite(value) else -1

    def frames(self, first: int) -> int:
        """The number of frames by TRIAL:ACTUAL_END_FIELD (two words), or POINT:FRAMES."""
        end = self.values.get(("TRIAL", "ACTUAL_END_FIELD"))
        if end is None or end.kind != 2 or len(end.data) < 4:
            return self.integer("FRAMES", 0)
        start = self.values.get(("TRIAL", "ACTUAL_START_FIELD"))
        if start is not None and len(start.data) >= 4:
            first = struct.unpack_from("<I", start.data)[0]
        return int(struct.unpack_from("<I", end.data)[0] - first + 1)
