"""C3D: files written here, as by ezc3d, and the filling of gaps."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import mocap_data
from mocap_data.readers.common import MissingOptions
from tests.refusals import refusal

NAMES = ("LFOOT", "RFOOT", "HEAD")


def circles(frames: int = 50, rate_hz: float = 100.0) -> np.ndarray:
    """Markers on circles, (T, 3, 3) [m], Z up."""
    t = np.arange(frames) / rate_hz
    places = [
        np.stack([np.cos(6 * t + m), np.sin(6 * t + m), 0.5 + m + 0 * t], axis=1) for m in range(3)
    ]
    return np.stack(places, axis=1)


def parameter(group: int, name: str, value: object) -> bytes:
    """A parameter of a group: floats, an int16, or texts of one width."""
    if isinstance(value, list) and isinstance(value[0], str):
        width = max(map(len, value))
        data = "".join(text.ljust(width) for text in value).encode()
        body = struct.pack("<bBBB", -1, 2, width, len(value)) + data
    elif isinstance(value, int):
        body = struct.pack("<bBH", 2, 0, value)
    else:
        body = struct.pack("<bBBf", 4, 1, 1, value)
    return struct.pack("<2b", len(name), group) + name.encode() + _linked(body + b"\0")


def _linked(body: bytes) -> bytes:
    return struct.pack("<H", 2 + len(body)) + body


def c3d_bytes(
    positions: np.ndarray,
    *,
    units: str = "mm",
    factor: float = 1000.0,
    analog: bool = False,
    scale: float = -1.0,
    **point: object,
) -> bytes:
    """A C3D file of positions (T, M, 3) [m]; not-a-number is a missing sample. scale: negative for
    float32, else of int16."""
    frames, markers = positions.shape[:2]
    group = struct.pack("<2b", len("POINT"), -1) + b"POINT" + _linked(b"\0")
    table = {"USED": markers, "RATE": 100.0, "LABELS": list(NAMES[:markers]), "UNITS": [units]}
    described = b"".join(parameter(1, key, value) for key, value in (table | point).items())
    parameters = b"\x01\x50\x01\x54" + group + described
    words = 10 if analog else 0
    header = struct.pack("<2B4HH", 2, 0x50, markers, words, 1, min(frames, 65535), 10)
    header += struct.pack("<fHHf", scale, 3, 10, 100.0)
    rows = np.zeros((frames, 4 * markers + words))
    xyz = rows[:, : 4 * markers].reshape(frames, markers, 4)
    xyz[..., :3] = factor * positions / (1.0 if scale < 0 else scale)
    xyz[..., 3] = np.where(np.isnan(xyz[..., :3]).any(axis=-1), -1.0, 0.0)
    packed = rows.astype("<f4") if scale < 0 else np.nan_to_num(rows).round().astype("<i2")
    return header.ljust(512, b"\0") + parameters.ljust(512, b"\0") + packed.tobytes()


def write(path: Path, positions: np.ndarray, **options: object) -> Path:
    path.write_bytes(c3d_bytes(positions, **options))
    return path


def test_round_trip(tmp_path: Path) -> None:
    clip = mocap_data.read(write(tmp_path / "a.c3d", circles(), analog=True))
    assert (clip.names, clip.parents, clip.rate_hz, clip.name, clip.source) == (
        NAMES,
        None,
        100.0,
        "a",
        "a.c3d",
    )
    np.testing.assert_allclose(clip.positions, circles(), atol=1e-6)  # float32 millimetres
    metres = mocap_data.read(write(tmp_path / "m.c3d", circles(), units="m", factor=1.0))
    np.testing.assert_allclose(metres.positions, circles(), atol=1e-6)
    integers = mocap_data.read(write(tmp_path / "i.c3d", circles(), scale=0.1))
    # int16 tenths of a millimetre
    np.testing.assert_allclose(integers.positions, circles(), atol=0.5e-4)


def test_options_override_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.c3d", circles(), Y_SCREEN=["+Y"])
    clip = mocap_data.read(path)
    np.testing.assert_allclose(clip.positions, circles()[..., [2, 0, 1]], atol=1e-6)
    assert clip.assumed == ()
    assert mocap_data.read(write(tmp_path / "b.c3d", circles())).assumed == ("up",)
    clip = mocap_data.read(path, up="z", scale="cm", rate_hz=50, names=["HEAD", "LFOOT"])
    np.testing.assert_allclose(clip.positions, 10 * circles()[:, [2, 0]], atol=1e-5)
    assert (clip.names, clip.rate_hz) == (("HEAD", "LFOOT"), 50.0)


def test_a_gap_is_filled(tmp_path: Path) -> None:
    positions = circles()
    positions[20:40, 1] = np.nan  # 0.2 s
    positions[:3, 2] = np.nan  # before the marker appears
    clip = mocap_data.read(write(tmp_path / "gap.c3d", positions))
    assert clip.num_frames == 47
    # a cubic spline over h = 0.21 s of cos(6 t) is off by at most 5/384 (6 h)^4
    np.testing.assert_allclose(clip.positions, circles()[3:], atol=5 / 384 * (6 * 0.21) ** 4)
    assert np.abs(clip.positions - circles()[3:]).max() > 1e-4  # it is not what was there


def test_markers_without_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "a.c3d", circles(), LABELS=["LFOOT", "*7", "HEAD"])
    assert mocap_data.read(path).names == ("LFOOT", "HEAD")
    assert mocap_data.read(path, names=["*7"]).names == ("*7",)
    refusal("'TOE'", mocap_data.read, path, names=["TOE"])


def test_missing_unit_and_rate(tmp_path: Path) -> None:
    with pytest.raises(MissingOptions, match="POINT:UNITS") as error:
        mocap_data.read(write(tmp_path / "a.c3d", circles(), units="yard"))
    assert error.value.options == ("scale",)
    assert mocap_data.read(tmp_path / "a.c3d", scale=0.9144).num_frames == 50
    path = write(tmp_path / "a.c3d", circles())
    path.write_bytes(path.read_bytes().replace(struct.pack("<f", 100.0), struct.pack("<f", 0.0)))
    with pytest.raises(MissingOptions, match="POINT:RATE"):
        mocap_data.read(tmp_path / "a.c3d")


def test_a_marker_that_is_missing_for_long_is_left_out(tmp_path: Path) -> None:
    """HEAD is gone for 26 frames of 100 Hz, one more than is filled; by names= it is
    refused."""
    places = circles(80)
    places[20:46, 2] = np.nan
    path = write(tmp_path / "a.c3d", places)
    assert mocap_data.read(path).names == NAMES[:2]
    refusal("'HEAD' is missing in frames 20 to 45", mocap_data.read, path, names=NAMES)


def test_a_models_outputs_are_no_markers(tmp_path: Path) -> None:
    """Listed by POINT's groups and their continuations, with or without subject, or by name."""
    positions = np.repeat(circles(), 2, axis=1)
    labels = ["S:HEAD", "S:TOE", "S:LKA", "S:Work", "S:LHipMoment", "S:T10"]
    groups = {"ANGLES": ["S:LKA", ""], "SCALARS2": ["Work"]}
    path = write(tmp_path / "a.c3d", positions, LABELS=labels, **groups)
    assert mocap_data.read(path).names == ("S:HEAD", "S:TOE", "S:T10")
    # names= takes them
    assert mocap_data.read(path, names=["S:LKA"]).names == ("S:LKA",)
    path = write(tmp_path / "b.c3d", circles(), LABELS=["LHipPower", "LKneeForce", "LKneeAngles"])
    refusal("no labelled marker; its points are: LHipPower", mocap_data.read, path)


@pytest.mark.parametrize("absent", [np.nan, 0.0])
def test_the_stretch_with_the_body_in_the_volume_is_taken(tmp_path: Path, absent: float) -> None:
    """100 Hz: markers come one by one from frame 60 on, and go from frame 109 on, of 200."""
    positions = circles(200)
    for marker in range(3):
        positions[: 60 + 2 * marker, marker] = absent
        positions[110 + marker :, marker] = absent
    # a reflection before
    positions[20:25] = 1.0
    clip = mocap_data.read(write(tmp_path / "a.c3d", positions))
    np.testing.assert_allclose(clip.positions, circles(200)[64:110], atol=1e-6)
    assert clip.remarks == ("frames 64 to 109 of 200 are used: the others lack markers",)


def test_the_longest_of_several_passes_is_taken(tmp_path: Path) -> None:
    positions = np.full((300, 3, 3), np.nan)
    positions[10:70] = circles(300)[10:70]
    positions[150:250] = circles(300)[150:250]
    # a marker is hidden in the second pass
    positions[160:240, 1] = np.nan
    clip = mocap_data.read(write(tmp_path / "a.c3d", positions))
    assert (clip.names, clip.num_frames) == (("LFOOT", "HEAD"), 100)
    assert clip.remarks == (
        "1 marker missing for longer than 0.25 s, left out: RFOOT",
        "frames 150 to 249 of 300 are used: the longest of 2 stretches with all markers",
    )
