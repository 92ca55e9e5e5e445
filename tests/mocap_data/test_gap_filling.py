"""Missing samples: the stretch with the body in the volume, and the gaps that are filled."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import mocap_data
from mocap_data.readers.gap_filling import body_stretches, fill_gaps
from tests.refusals import refusal


def test_gaps_by_hand() -> None:
    # x = 2 t on a line; a gap of two in the middle, three known samples: linear
    points = np.zeros((5, 1, 3))
    points[:, 0, 0] = [0, np.nan, np.nan, 6, 8]
    missing = np.isnan(points).any(axis=2)
    filled = fill_gaps(points, missing, ["m"], max_frames=2, label="w")
    np.testing.assert_allclose(filled[:, 0, 0], [0, 2, 4, 6, 8])
    assert np.isnan(points[1, 0, 0])  # the caller's own
    refusal(
        "'m' is missing in frames 1 to 2",
        fill_gaps,
        points,
        missing,
        ["m"],
        max_frames=1,
        label="w",
    )


def test_ends_are_left_out_up_to_half() -> None:
    points = np.arange(30.0).reshape(10, 1, 3).repeat(2, axis=1)
    missing = np.zeros((10, 2), dtype=bool)
    missing[:2, 0] = missing[8:, 1] = True
    np.testing.assert_array_equal(
        fill_gaps(points, missing, "ab", max_frames=1, label=""), points[2:8]
    )
    missing[:5, 0] = True
    refusal(
        "'a' .* 25 .*'b' .* 27", fill_gaps, points, missing, "ab", max_frames=1, label="", begin=20
    )
    missing[:, 1] = True
    refusal("'b'", fill_gaps, points, missing, "ab", max_frames=1, label="")


def test_stretches_by_hand() -> None:
    visible = np.array([0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 1, 0], bool)
    missing = np.repeat(~visible[:, None], 2, axis=1)
    assert body_stretches(missing, 1) == [slice(1, 5), slice(8, 11)]
    assert body_stretches(missing, 3) == [slice(1, 11)]
    # one of three markers is not half of them, two are
    missing = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1], [0, 1, 1]], bool)
    assert body_stretches(missing, 0) == [slice(1, 4)]
    assert body_stretches(np.ones((4, 2), bool), 1) == [slice(0, 4)]


def test_not_a_number_is_a_missing_sample_of_an_archive(tmp_path: Path) -> None:
    """Keypoints on lines, x = t + m [m] at 10 Hz: there from frame 5 to 14, with gaps of two."""
    positions = np.ones((20, 3, 3))
    positions[..., 0] = np.arange(20)[:, None] / 10.0 + np.arange(3)
    expected = positions[5:15].copy()
    positions[:5] = positions[15:] = np.nan
    positions[7:9, 1] = np.nan
    path = tmp_path / "a.npz"
    np.savez(path, positions=positions, names=["a", "b", "c"], fps=10.0)
    clip = mocap_data.read(path, up="z")
    np.testing.assert_allclose(clip.positions, expected, atol=1e-12)
    assert clip.remarks == ("frames 5 to 14 of 20 are used: the others lack markers",)
    # with bones no keypoint is dropped
    positions[7:11, 1] = np.nan
    np.savez(path, positions=positions, names=["a", "b", "c"], fps=10.0, parents=[-1, 0, 1])
    refusal("'b' is missing in frames 7 to 10", mocap_data.read, path)
