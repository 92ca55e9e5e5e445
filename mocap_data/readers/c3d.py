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
from mocap_data.errors import InputError, check_known
from mocap_data.readers import common
from mocap_data.readers.gaps import without_gaps
from mocap_data.readers.subjects import Keypoints, columns_of

# bytes; what C3D counts in
_BLOCK = 512
# bytes per value of a parameter, by its type: text, byte, int16, float
_SIZES = {-1: 1, 1: 1, 2: 2, 4: 4}
# processor types; DEC writes floats in its own way, MIPS (86) all numbers the other way round
_INTEL = 84
_DEC = 85
# a number of frames that the header cannot count
_UNCOUNTED = 0xFFFF
# parameters of POINT that list points that are no positions, and how such points are called
_OUTPUTS = ("ANGLES", "FORCES", "MOMENTS", "POWERS", "REACTIONS", "SCALARS")
_OUTPUT = re.compile(r"(Angle|Force|Moment|Power|GRF)s?$")


@dataclass(frozen=True)
class _Header:
    """The first blocks of a C3D file."""

    points: int
    # analog samples in a frame
    analogs: int
    frames: int
    # of the points where they are int16; negative where they are float32
    scale: float
    # where the frames begin [bytes]
    begin: int
    rate_hz: float
    # a name per point: its label, or "point17" where the file gives none
    labels: list[str]
    # of points that are no positions: a model's angles, forces, moments, powers
    outputs: frozenset[str]
    units: str
    # "" where the file does not say
    up: str
    # floats are DEC's
    dec: bool


def read_c3d(
    path: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    rate_hz: float | None = None,
    scale: float | str | None = None,
    up: str | None = None,
    subject: str | None = None,
) -> Clip:
    """The labelled markers of a C3D file, gaps filled, while the body is in the volume.

    names: the markers to take, in this order; None: all of the subject but unlabelled ones ("*12"),
      a model's outputs (angles, moments, ...) and those that are missing for longer; see
      `mocap_data.readers.gaps`.
    rate_hz, scale, up: in place of POINT:RATE, POINT:UNITS and POINT:Y_SCREEN (else "z").
    subject: the prefix of "SUBJECT:MARKER" to take of several; None: the first body's.

    Raises:
      InputError: naming the file: no C3D, damaged or cut short, an unknown marker, subject or unit,
        names and subject together, a marker that is missing for longer (with its frames).
    """
    path = Path(path)
    data = common.content(path)
    header = _header(path, data)
    rate = header.rate_hz if rate_hz is None else float(rate_hz)
    if not (math.isfinite(rate) and rate > 0.0):
        message = f"{path}: a rate (POINT:RATE) of {rate:g} Hz is not positive; give rate_hz="
        raise common.MissingOptions(message, ("rate_hz",))
    if rate_hz is None:
        common.rate_said(path, rate)
    if scale is None and header.units.lower() not in common.UNITS:
        what = f"the unit (POINT:UNITS) {common.shown(header.units)} is not known"
        raise common.MissingOptions(f"{path}: {what}; give scale=", ("scale",))
    chosen, remarks = _chosen(path, header, names, subject)
    points, missing = _points(data, header)
    columns = [header.labels.index(label) for label in chosen]
    whole = Keypoints(points[:, columns], chosen, remarks=remarks)
    taken = without_gaps(path, whole, missing[:, columns], rate, drop=names is None)
    return common.world_clip(
        path,
        taken,
        rate_hz=rate,
        scale=header.units if scale is None else scale,
        up=(header.up or "z") if up is None else up,
        assumed=() if header.up else ("up",),
    )


def _chosen(
    path: Path, header: _Header, names: Sequence[str] | None, subject: str | None
) -> tuple[list[str], tuple[str, ...]]:
    """The labels to take, and the remarks about other subjects."""
    labels = header.labels
    if names and subject is not None:
        both = "must be left out with names=, which may be of any subject; give one of the two"
        raise InputError(f"{path}: subject={subject}: {both}")
    if names:
        check_known(f"marker (in {path})", names, labels)
        return list(names), ()
    markers = [label for label in labels if not (label.startswith("*") or label in header.outputs)]
    if not markers:
        raise InputError(f"{path} has no labelled marker; its points are: {', '.join(labels[:8])}")
    columns, remarks = columns_of(path, markers, None, subject)
    return [markers[column] for column in columns], remarks


def _points(data: bytes, header: _Header) -> tuple[Array, Bools]:
    """The points (T, M, 3) in the file's units and missing samples (T, M)."""
    kind, unit = ("<f4", 1.0) if header.scale < 0.0 else ("<i2", header.scale)
    width = 4 * header.points + header.analogs
    numbers = np.frombuffer(data, kind, header.frames * width, header.begin)
    if header.dec and kind == "<f4":
        numbers = _of_dec(numbers)
    frames = numbers.reshape(-1, width)[:, : 4 * header.points].reshape(-1, header.points, 4)
    points = unit * frames[..., :3].astype(np.float64)
    # many programs write a missing sample as zeros
    absent = (frames[..., 3] < 0) | (points == 0.0).all(axis=-1)
    return points, absent | ~np.isfinite(points).all(axis=-1)


def _of_dec(numbers: np.ndarray) -> np.ndarray:
    """DEC's floats (F_floating), read as Intel's: halves swapped, exponents larger by two."""
    words = numbers.view("<u2").reshape(*numbers.shape, 2)[..., ::-1]
    return np.ascontiguousarray(words).view("<f4")[..., 0] / 4.0


# --- the structure of the file ---


def _header(path: Path, data: bytes) -> _Header:
    """The header and the parameters that matter here, all checked against the file's size."""
    if not data:
        raise InputError(f"{path} is empty, expected a C3D file")
    if len(data) < 2 * _BLOCK or data[1] != 0x50:
        raise InputError(f"{path} is no C3D file, or cut short")
    at = _BLOCK * (data[0] - 1)
    if data[0] < 2 or at + 4 > len(data):
        begin = f"should begin at block {data[0]}, which the file does not have"
        raise InputError(f"{path}: the parameters {begin}")
    if data[at + 3] not in (_INTEL, _DEC):
        only = f"Intel's ({_INTEL}) and DEC's ({_DEC}) are read; convert the file"
        raise InputError(f"{path}: processor type {data[at + 3]}, {only}")
    try:
        stop = at + _BLOCK * max(data[at + 2], 1)
        dec = data[at + 3] == _DEC
        return _checked(path, data, _Parameters(data, at + 4, stop, dec=dec))
    except (struct.error, LookupError):
        raise InputError(f"{path}: its parameters are damaged, or it is no C3D") from None


def _checked(path: Path, data: bytes, parameters: _Parameters) -> _Header:
    """The header, its sizes held against the file's and the parameters'."""
    points, analogs, first, last = struct.unpack_from("<4H", data, 2)
    data_start = struct.unpack_from("<H", data, 16)[0]
    data_scale = parameters.float_at(data, 12)
    if points == 0:
        raise InputError(f"{path} holds no points")
    if (used := parameters.integer("USED", points)) != points:
        raise InputError(f"{path}: its header declares {points} points, POINT:USED {used}")
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
        declares = f"{frames} frames of {points} points ({frames * size:,} bytes from block"
        has = f"the file has {len(data):,} bytes; it is cut short or damaged"
        raise InputError(f"{path} declares {declares} {data_start} on), {has}")
    if last == _UNCOUNTED and left - frames * size > size + _BLOCK:
        says = f"but says {frames:,}, the most that its header can count; cut it into parts"
        raise InputError(f"{path} holds some {left // size:,} frames, {says}")
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
        dec=parameters.dec,
    )


def _bare(label: str) -> str:
    """A label without its subject."""
    return label.rpartition(":")[2].strip()


@dataclass(frozen=True)
class _Value:
    """A parameter's values where they lie in the file."""

    # its type, a key of `_SIZES`
    kind: int
    sizes: tuple[int, ...]
    data: bytes


class _Parameters:
    """The values of the chain of groups and parameters from `at` to `stop`."""

    def __init__(self, data: bytes, at: int, stop: int, *, dec: bool) -> None:
        self.dec = dec
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
        """The texts of POINT:name; none where it is absent or no text."""
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
        """The first number of POINT:name; 0 where it is absent."""
        value = self.values.get(("POINT", name))
        if value is None or value.kind not in (2, 4) or not value.data:
            return 0.0
        if value.kind == 4:
            return self.float_at(value.data, 0)
        return float(struct.unpack_from("<H", value.data)[0])

    def float_at(self, data: bytes, place: int) -> float:
        """A float of the file."""
        (number,) = np.frombuffer(data, "<f4", 1, place)
        return float(_of_dec(np.array([number]))[0] if self.dec else number)

    def integer(self, name: str, otherwise: int) -> int:
        """The first number of POINT:name as a whole one, -1 for none."""
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
