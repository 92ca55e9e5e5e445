"""C3D: files written here with ezc3d, and the filling of gaps."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path

import numpy as np
import pytest

import mocap_data
from mocap_data.errors import InputError
from mocap_data.readers import c3d
from mocap_data.readers.c3d import fill_gaps
from mocap_data.readers.common import MissingOptions

needs_ezc3d = pytest.mark.skipif(
    importlib.util.find_spec("ezc3d") is None, reason="ezc3d is not installed"
)
NAMES = ("LFOOT", "RFOOT", "HEAD")


def circles(frames: int = 50, rate_hz: float = 100.0) -> np.ndarray:
    """Markers on circles, (T, 3, 3) [m], Z up."""
    t = np.arange(frames) / rate_hz
    places = [
        np.stack([np.cos(6 * t + m), np.sin(6 * t + m), 0.5 + m + 0 * t], axis=1) for m in range(3)
    ]
    return np.stack(places, axis=1)


def write(
    path: Path,
    positions: np.ndarray,
    *,
    units: str = "mm",
    factor: float = 1000.0,
    analog: bool = False,
    **point: object,
) -> Path:
    """A C3D file of positions (T, M, 3) [m]; not-a-number is a missing sample."""
    import ezc3d

    file = ezc3d.c3d()
    parameters = {"RATE": [100.0], "LABELS": list(NAMES), "UNITS": [units], **point}
    for key, value in parameters.items():
        if key in file["parameters"]["POINT"]:
            file["parameters"]["POINT"][key]["value"] = value
        else:
            file.add_parameter("POINT", key, value)
    data = np.ones((4, positions.shape[1], len(positions)))
    data[:3] = factor * positions.transpose(2, 1, 0)
    file["data"]["points"] = data
    if analog:
        file["parameters"]["ANALOG"]["RATE"]["value"] = [1000.0]
        file["parameters"]["ANALOG"]["LABELS"]["value"] = ["force"]
        file["data"]["analogs"] = np.ones((1, 1, 10 * len(positions)))
    file.write(str(path))
    return path


@needs_ezc3d
def test_what_is_written_is_read(tmp_path: Path) -> None:
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


@needs_ezc3d
def test_what_the_file_says_can_be_overruled(tmp_path: Path) -> None:
    path = write(tmp_path / "a.c3d", circles(), Y_SCREEN=["+Y"])
    clip = mocap_data.read(path)
    np.testing.assert_allclose(clip.positions, circles()[..., [2, 0, 1]], atol=1e-6)
    clip = mocap_data.read(path, up="z", scale="cm", rate_hz=50, names=["HEAD", "LFOOT"])
    np.testing.assert_allclose(clip.positions, 10 * circles()[:, [2, 0]], atol=1e-5)
    assert (clip.names, clip.rate_hz) == (("HEAD", "LFOOT"), 50.0)


@needs_ezc3d
def test_a_gap_is_filled(tmp_path: Path) -> None:
    positions = circles()
    positions[20:40, 1] = np.nan  # 0.2 s
    positions[:3, 2] = np.nan  # before the marker is seen
    clip = mocap_data.read(write(tmp_path / "gap.c3d", positions))
    assert clip.num_frames == 47
    # a cubic spline over h = 0.21 s of cos(6 t) is off by at most 5/384 (6 h)^4
    np.testing.assert_allclose(clip.positions, circles()[3:], atol=5 / 384 * (6 * 0.21) ** 4)
    assert np.abs(clip.positions - circles()[3:]).max() > 1e-4  # it is not what was there
    with pytest.raises(
        InputError,
        match=r"marker 'RFOOT' is missing in frames 20 to 39 \(20 frames, more than the 10 ",
    ):
        mocap_data.read(tmp_path / "gap.c3d", max_gap_s=0.1)
    assert mocap_data.read(tmp_path / "gap.c3d", max_gap_s=0.1, names=["LFOOT"]).num_frames == 50


@needs_ezc3d
def test_markers_without_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "a.c3d", circles(), LABELS=["LFOOT", "*7", "HEAD"])
    assert mocap_data.read(path).names == ("LFOOT", "HEAD")
    assert mocap_data.read(path, names=["*7"]).names == ("*7",)
    with pytest.raises(InputError, match=r"no marker .*'TOE'; there are: LFOOT, \*7, HEAD"):
        mocap_data.read(path, names=["TOE"])


@needs_ezc3d
def test_missing_figures(tmp_path: Path) -> None:
    with pytest.raises(
        MissingOptions, match=r"the unit \(POINT:UNITS\) 'yard' is not known; give scale="
    ) as error:
        mocap_data.read(write(tmp_path / "a.c3d", circles(), units="yard"))
    assert error.value.options == ("scale",)
    assert mocap_data.read(tmp_path / "a.c3d", scale=0.9144).num_frames == 50
    path = write(tmp_path / "a.c3d", circles())
    path.write_bytes(path.read_bytes().replace(struct.pack("<f", 100.0), struct.pack("<f", 0.0)))
    with pytest.raises(
        MissingOptions, match=r"a rate \(POINT:RATE\) of 0 Hz is not positive; give rate_hz="
    ):
        mocap_data.read(tmp_path / "a.c3d")


@needs_ezc3d
def test_garbled(tmp_path: Path) -> None:
    path = write(tmp_path / "a.c3d", circles())
    whole = path.read_bytes()
    for data, message in (
        (b"", "is empty"),
        (b"text" * 1000, "is no C3D file, or cut short"),
        (whole[:600], "is no C3D file, or cut short"),
        (whole[:1500], "it is cut short or damaged|parameters are damaged"),
        (
            whole[:-600],
            r"declares 50 frames of 3 points \(2,400 bytes from block 4 on\), .*; it is cut short "
            r"or damaged",
        ),
        (whole[:515] + b"\x55" + whole[516:], "processor type 85, only Intel's"),
        (whole[:2] + struct.pack("<H", 0) + whole[4:], "holds no points"),
        (
            whole[:2] + struct.pack("<H", 4) + whole[4:],
            "its header declares 4 points, POINT:USED 3",
        ),
        (whole[:8] + struct.pack("<H", 60000) + whole[10:], "it is cut short or damaged"),
        (whole[:516] + b"\x7f" + whole[517:], "parameters are damaged at byte 516"),
    ):
        path.write_bytes(data)
        with pytest.raises(InputError, match=message) as error:
            mocap_data.read(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)


@needs_ezc3d
def test_more_frames_than_a_header_can_count(tmp_path: Path) -> None:
    """ezc3d writes them all, says 65535, and would read only those."""
    path = write(tmp_path / "a.c3d", np.ones((66_000, 3, 3)))
    with pytest.raises(
        InputError,
        match=r"holds some 66,00\d frames, but says 65,535, the most that its header can count",
    ):
        mocap_data.read(path)


@needs_ezc3d
def test_a_crash_or_a_hang_of_ezc3d_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.c3d", circles())
    monkeypatch.setattr(c3d, "_CHILD", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(
        InputError, match=r"ezc3d cannot read it; damaged, or no C3D \(it crashes\)"
    ):
        mocap_data.read(path)
    monkeypatch.setattr(c3d, "_CHILD", "import time; time.sleep(60)")
    monkeypatch.setattr(c3d, "_TIMEOUT_S", 0.2)
    with pytest.raises(InputError, match="ezc3d does not come to an end with this file"):
        mocap_data.read(path)


@needs_ezc3d
def test_without_ezc3d_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.c3d", circles())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"needs the package ezc3d; install it with: pip install 'npmp\[c3d\]'"
    ):
        mocap_data.read(path)


def test_gaps_by_hand() -> None:
    # x = 2 t on a line; a gap of two in the middle, three known samples: linear
    points = np.zeros((5, 1, 3))
    points[:, 0, 0] = [0, np.nan, np.nan, 6, 8]
    missing = np.isnan(points).any(axis=2)
    filled = fill_gaps(points, missing, ["m"], max_frames=2, what="w")
    np.testing.assert_allclose(filled[:, 0, 0], [0, 2, 4, 6, 8])
    assert np.isnan(points[1, 0, 0])  # the caller's own
    with pytest.raises(
        InputError, match=r"w: marker 'm' is missing in frames 1 to 2 .2 frames, more than the 1 "
    ):
        fill_gaps(points, missing, ["m"], max_frames=1, what="w")


def test_a_cubic_is_filled_exactly() -> None:
    t = np.arange(12.0)
    points = np.stack([t**3, t**2, t], axis=1)[:, None]
    missing = np.zeros((12, 1), dtype=bool)
    missing[5:8] = True
    np.testing.assert_allclose(
        fill_gaps(
            np.where(missing[..., None], np.nan, points), missing, ["m"], max_frames=3, what=""
        ),
        points,
    )


def test_ends_are_left_out_up_to_half() -> None:
    points = np.arange(30.0).reshape(10, 1, 3).repeat(2, axis=1)
    missing = np.zeros((10, 2), dtype=bool)
    missing[:2, 0] = missing[8:, 1] = True
    np.testing.assert_array_equal(
        fill_gaps(points, missing, "ab", max_frames=1, what=""), points[2:8]
    )
    missing[:5, 0] = True
    with pytest.raises(
        InputError,
        match="marker 'a' appears in frame 5 and 'b' is last seen in frame 7 of 10; less than half",
    ):
        fill_gaps(points, missing, "ab", max_frames=1, what="")
    missing[:, 1] = True
    with pytest.raises(
        InputError, match="marker 'b' is missing in all 10 frames; leave it out with names="
    ):
        fill_gaps(points, missing, "ab", max_frames=1, what="")
