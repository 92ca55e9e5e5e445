"""C3D: positions of markers, the format of optical motion capture systems. Read through ezc3d (the
extra `c3d`).

ezc3d crashes or hangs on some damaged files, so the file's structure is checked here first, and
ezc3d runs in a process of its own. Only the points are read; analog channels, force plates and
events are left alone.
"""

from __future__ import annotations

import importlib.util
import io
import math
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError, unknown
from mocap_data.readers.common import (
    UNITS,
    UP_AXES,
    MissingOptions,
    check_size,
    content,
    rate_said,
    shown,
    world_clip,
)

_BLOCK = 512  # bytes; what C3D counts in
# bytes per value of a parameter, by its type: text, byte, int16, float
_SIZES = {-1: 1, 1: 1, 2: 2, 4: 4}
_INTEL = 84  # processor type; the others (DEC 85, MIPS 86) are of the last century

# Runs in the process of its own: prints an npz with the points (T, M, 3) and which samples are
# missing.
_CHILD = """
import io, sys
import numpy as np
try:
    import resource
    limit = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
except (ImportError, ValueError, OSError):
    pass
import ezc3d
file = ezc3d.c3d(sys.argv[1])
points = np.asarray(file["data"]["points"], dtype=np.float64)
residuals = np.asarray(file["data"]["meta_points"]["residuals"], dtype=np.float64).reshape(points.shape[1:])
missing = (residuals < 0.0) | ~np.isfinite(points[:3]).all(axis=0)
out = io.BytesIO()
np.savez(out, points=points[:3].transpose(2, 1, 0), missing=missing.T)
sys.stdout.buffer.write(out.getvalue())
"""
_MEMORY = 4 * 2**30  # [bytes] address space of that process, and 100 times the file's size
_TIMEOUT_S, _TIMEOUT_S_PER_MB = 30.0, 2.0


@dataclass(frozen=True)
class _Header:
    """What the first blocks of a C3D file say."""

    points: int
    frames: int
    rate_hz: float
    labels: tuple[str, ...]
    units: str
    up: str  # "" where the file does not say


def read_c3d(
    path: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    max_gap_s: float = 0.25,
    rate_hz: float | None = None,
    scale: float | str | None = None,
    up: str | None = None,
) -> Clip:
    """The labelled markers of a C3D file, gaps filled.

    names: the markers to take, in this order; left out, all but unlabelled ones ("*12").
    max_gap_s: the longest time for which a marker may be missing; such gaps are filled by a cubic
    spline through the
      marker's
        other samples. Frames at the start and the end in which a marker is missing are left out, up
        to half of the recording.
    rate_hz: in place of POINT:RATE. scale: in place of POINT:UNITS; metres per unit, or the unit's
    name. up: the upward axis; left out, the one that POINT:Y_SCREEN names, else "z".

    Raises:
      InputError: naming the file: ezc3d is not installed, no C3D, damaged or cut short, an unknown
        marker or unit, a marker that is missing for longer (with its frames).
    """
    path = Path(path)
    header = _header(path, content(path))
    rate = header.rate_hz if rate_hz is None else float(rate_hz)
    if not (math.isfinite(rate) and rate > 0.0):
        raise MissingOptions(
            f"{path}: a rate (POINT:RATE) of {rate:g} Hz is not positive; give rate_hz=",
            ("rate_hz",),
        )
    if rate_hz is None:
        rate_said(path, rate)
    unit: float | str = header.units if scale is None else scale
    if scale is None and header.units.lower() not in UNITS:
        raise MissingOptions(
            f"{path}: the unit (POINT:UNITS) {shown(header.units)} is not known; give scale=",
            ("scale",),
        )
    labels = _labels(header)
    chosen = _chosen(path, labels, names)
    points, missing = _points(path, header)
    columns = [labels.index(label) for label in chosen]
    positions = fill_gaps(
        points[:, columns],
        missing[:, columns],
        chosen,
        max_frames=math.floor(max_gap_s * rate + 1e-9),
        what=path,
    )
    return world_clip(
        path,
        positions,
        chosen,
        None,
        rate_hz=rate,
        scale=unit,
        up=(header.up or "z") if up is None else up,
    )


def fill_gaps(
    points: Array, missing: Array, names: Sequence[str], *, max_frames: int, what: object
) -> Array:
    """Positions (T', M, 3) without gaps, of points (T, M, 3) of which some are missing (T, M).

    Gaps of up to `max_frames` frames between known samples are filled by a cubic spline through all
    of the marker's known samples (a line where there are fewer than four). Frames before the last
    marker appears and after the first disappears are left out, up to half of all.

    Raises:
      InputError: naming the marker and its frames (of the recording, from 0) where that is not
        enough.
    """
    from scipy.interpolate import CubicSpline

    frames = len(points)
    known = np.logical_not(missing)
    never = ~known.any(axis=0)
    if never.any():
        raise InputError(
            f"{what}: marker {names[int(np.argmax(never))]!r} is missing in all {frames} frames; "
            "leave it out with names="
        )
    first = np.argmax(known, axis=0)
    last = frames - 1 - np.argmax(known[::-1], axis=0)
    start, stop = int(first.max()), int(last.min()) + 1
    if stop - start < max(1, (frames + 1) // 2):
        late, early = int(np.argmax(first)), int(np.argmin(last))
        raise InputError(
            f"{what}: marker {names[late]!r} appears in frame {start} and {names[early]!r} is last seen in frame "
            f"{stop - 1} of {frames}; less than half of the recording has all markers; leave them out with names="
        )
    filled = points.copy()
    for m, name in enumerate(names):
        gone = np.flatnonzero(missing[start:stop, m]) + start
        if not len(gone):
            continue
        for gap in np.split(gone, np.flatnonzero(np.diff(gone) > 1) + 1):
            if len(gap) > max_frames:
                raise InputError(
                    f"{what}: marker {name!r} is missing in frames {gap[0]} to {gap[-1]} ({len(gap)} frames, more than "
                    f"the {max_frames} that are filled: max_gap_s)"
                )
        seen = np.flatnonzero(known[:, m])
        if len(seen) >= 4:
            filled[gone, m] = CubicSpline(seen, points[seen, m], axis=0)(gone)
        else:
            filled[gone, m] = np.stack(
                [np.interp(gone, seen, points[seen, m, axis]) for axis in range(3)], axis=1
            )
    return filled[start:stop]


def _chosen(path: Path, labels: Sequence[str], names: Sequence[str] | None) -> list[str]:
    """The markers to take: those that are asked for, else all labelled ones."""
    chosen = (
        [label for label in labels if not label.startswith("*")]
        if names is None
        else [str(n) for n in names]
    )
    for label in chosen:
        if label not in labels:
            raise unknown(f"marker (in {path})", label, labels)
    if not chosen:
        raise InputError(f"{path} has no labelled marker; its points are: {', '.join(labels[:8])}")
    return chosen


def _labels(header: _Header) -> list[str]:
    """A name per point: its label, or "point17" where the file gives none."""
    given = [label.strip() for label in header.labels[: header.points]]
    given += [""] * (header.points - len(given))
    return [label or f"point{i}" for i, label in enumerate(given)]


def _points(path: Path, header: _Header) -> tuple[Array, Array]:
    """The points (T, M, 3) in the file's units and which samples are missing (T, M), as ezc3d reads
    them."""
    if importlib.util.find_spec("ezc3d") is None:
        raise InputError(
            f"{path}: reading C3D needs the package ezc3d; install it with: pip install 'npmp[c3d]'"
        )
    megabytes = path.stat().st_size / 2**20
    command = [
        sys.executable,
        "-P",
        "-c",
        _CHILD,
        str(path.resolve()),
        str(int(_MEMORY + 100 * megabytes * 2**20)),
    ]
    try:
        child = subprocess.run(
            command, capture_output=True, timeout=_TIMEOUT_S + _TIMEOUT_S_PER_MB * megabytes
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            f"{path}: ezc3d does not come to an end with this file; it is damaged"
        ) from None
    if child.returncode != 0:
        said = [
            line for line in child.stderr.decode("utf-8", "replace").splitlines() if line.strip()
        ]
        why = shown(said[-1]) if said and child.returncode > 0 else "it crashes"
        raise InputError(f"{path}: ezc3d cannot read it; damaged, or no C3D ({why})")
    with np.load(io.BytesIO(child.stdout), allow_pickle=False) as arrays:
        points, missing = arrays["points"], arrays["missing"]
    if points.shape != (header.frames, header.points, 3):
        raise InputError(
            f"{path}: ezc3d finds {points.shape[0]} frames of {points.shape[1]} points, the file declares "
            f"{header.frames} of {header.points}"
        )
    return points, missing


# --- the structure of the file
# ----------------------------------------------------------------------------------------


def _header(path: Path, data: bytes) -> _Header:
    """The header and the parameters that matter here, all places and counts checked against the
    file's size."""
    if not data:
        raise InputError(f"{path} is empty, expected a C3D file")
    if len(data) < 2 * _BLOCK or data[1] != 0x50:
        raise InputError(f"{path} is no C3D file, or cut short")
    at = _BLOCK * (data[0] - 1)
    if data[0] < 2 or at + 4 > len(data):
        raise InputError(
            f"{path}: the parameters should begin at block {data[0]}, which the file does not have"
        )
    if data[at + 3] != _INTEL:
        raise InputError(
            f"{path}: processor type {data[at + 3]}, only Intel's ({_INTEL}) is read; convert the file"
        )
    parameters = _parameters(path, data, at + 4, at + _BLOCK * max(data[at + 2], 1))
    points, analogs, first, last = struct.unpack_from("<4H", data, 2)
    (data_scale,) = struct.unpack_from("<f", data, 12)
    (data_start,) = struct.unpack_from("<H", data, 16)
    if points == 0:
        raise InputError(f"{path} holds no points")
    if parameters.integer("USED", points) != points:
        raise InputError(
            f"{path}: its header declares {points} points, POINT:USED {parameters.integer('USED', points)}"
        )
    frames = last - first + 1
    if last == 0xFFFF or frames < 1:  # more than the header can count
        frames = parameters.frames(first)
    if frames < 1:
        raise InputError(f"{path} has no frames (first {first}, last {last})")
    check_size(path, frames, points)
    if not math.isfinite(data_scale) or data_scale == 0.0:
        raise InputError(f"{path}: its points have the scale {data_scale:g}; the header is damaged")
    begin = _BLOCK * (data_start - 1)
    needed = frames * (4 * points + analogs) * (4 if data_scale < 0.0 else 2)
    if data_start < 2 or begin + needed > len(data):
        raise InputError(
            f"{path} declares {frames} frames of {points} points ({needed:,} bytes from block {data_start} on), "
            "the file "
            f"has {len(data):,} bytes; it is cut short or damaged"
        )
    size = needed // frames
    if last == 0xFFFF and len(data) - begin - needed > size + _BLOCK:
        raise InputError(
            f"{path} holds some {(len(data) - begin) // size:,} frames, but says {frames:,}, the most that its "
            "header can count; cut it into parts"
        )
    labels = [label for n in ("", *range(2, 100)) for label in parameters.texts(f"LABELS{n}")]
    screen = (parameters.texts("Y_SCREEN") or ("",))[0].strip().lower().removeprefix("+")
    return _Header(
        points=points,
        frames=frames,
        rate_hz=parameters.number("RATE"),
        labels=tuple(labels),
        units=(parameters.texts("UNITS") or ("",))[0].strip(),
        up=screen if screen in UP_AXES else "",
    )


@dataclass(frozen=True)
class _Value:
    """A parameter's values where they lie in the file."""

    kind: int
    sizes: tuple[int, ...]
    data: bytes


class _Parameters:
    """The parameters of the groups POINT and TRIAL by (group, name)."""

    def __init__(self, values: dict[tuple[str, str], _Value]) -> None:
        self.values = values

    def texts(self, name: str) -> tuple[str, ...]:
        """The texts of POINT:name; none where it is absent or no text."""
        value = self.values.get(("POINT", name))
        if value is None or value.kind != -1 or not value.data:
            return ()
        width = value.sizes[0] if value.sizes else 1
        pieces = [value.data[i : i + width] for i in range(0, len(value.data), max(width, 1))]
        return tuple(piece.decode("latin-1").strip(" \0") for piece in pieces)

    def number(self, name: str) -> float:
        """The first number of POINT:name; 0 where it is absent."""
        value = self.values.get(("POINT", name))
        if value is None or value.kind not in (2, 4) or not value.data:
            return 0.0
        return float(struct.unpack_from("<f" if value.kind == 4 else "<H", value.data)[0])

    def integer(self, name: str, otherwise: int) -> int:
        value = self.number(name) if ("POINT", name) in self.values else float(otherwise)
        return int(value) if math.isfinite(value) else -1

    def frames(self, first: int) -> int:
        """The number of frames by TRIAL:ACTUAL_END_FIELD (two words, low one first) or
        POINT:FRAMES; 0 where neither is there."""
        end = self.values.get(("TRIAL", "ACTUAL_END_FIELD"))
        if end is not None and end.kind == 2 and len(end.data) >= 4:
            start = self.values.get(("TRIAL", "ACTUAL_START_FIELD"))
            begin = (
                struct.unpack_from("<I", start.data)[0]
                if start is not None and len(start.data) >= 4
                else first
            )
            return int(struct.unpack_from("<I", end.data)[0] - begin + 1)
        return self.integer("FRAMES", 0)


def _parameters(path: Path, data: bytes, at: int, stop: int) -> _Parameters:
    """Walk the chain of groups and parameters.

    Raises:
      InputError: for one that leads out of its section or the file.
    """
    groups: dict[int, str] = {}
    found: list[tuple[int, str, _Value]] = []
    stop = min(stop, len(data))
    while True:
        if at + 2 > stop:
            break
        length, group = struct.unpack_from("<2b", data, at)
        if length == 0:
            break
        place = at + 2 + abs(length)
        if place + 3 > stop or group == 0:
            raise _damaged(path, at)
        name = data[at + 2 : place].decode("latin-1").strip().upper()
        (step,) = struct.unpack_from("<H", data, place)
        if group < 0:
            if -group in groups:
                raise _damaged(path, at)
            groups[-group] = name
            end = place + 3 + data[place + 2]
        else:
            value, end = _value(path, data, place + 2, stop)
            found.append((group, name, value))
        if end > stop or (step and step != end - place):
            raise _damaged(path, at)
        if step == 0:
            break
        at = place + step
    values = {(groups.get(group, ""), name): value for group, name, value in found}
    if "POINT" not in groups.values():
        raise InputError(f"{path} has no group POINT among its parameters; damaged, or no C3D")
    if len(values) != len(found):
        raise InputError(f"{path} has a parameter twice; damaged, or no C3D")
    return _Parameters(values)


def _value(path: Path, data: bytes, place: int, stop: int) -> tuple[_Value, int]:
    """A parameter's values and where its record ends."""
    if place + 2 > stop:
        raise _damaged(path, place)
    kind, dimensions = struct.unpack_from("<bB", data, place)
    if kind not in _SIZES or dimensions > 7 or place + 2 + dimensions > stop:
        raise _damaged(path, place)
    sizes = tuple(data[place + 2 : place + 2 + dimensions])
    begin = place + 2 + dimensions
    end = begin + _SIZES[kind] * math.prod(sizes)
    if end + 1 > stop:
        raise _damaged(path, place)
    return _Value(kind, sizes, data[begin:end]), end + 1 + data[end]


def _damaged(path: Path, at: int) -> InputError:
    return InputError(f"{path}: its parameters are damaged at byte {at:,}")
