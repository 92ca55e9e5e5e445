from __future__ import annotations

import numpy as np
import pytest

from mocap_data.clip import Clip
from tests.refusals import refusal


def make(frames: int = 10, rate_hz: float = 10.0) -> Clip:
    """Keypoint "a" moves along x = t, "b" stands at (1, 2, 3)."""
    positions = np.zeros((frames, 2, 3))
    positions[:, 0, 0] = np.arange(frames) / rate_hz
    positions[:, 1] = (1.0, 2.0, 3.0)
    return Clip(positions, ("a", "b"), rate_hz, name="line")


def test_arrays_are_read_only_copies() -> None:
    mine = np.zeros((2, 1, 3))
    clip = Clip(mine, ("a",), 1.0)
    with pytest.raises(ValueError, match="read-only"):
        clip.positions[0] = 1.0
    mine[0] = 5.0  # still writeable, and not part of the clip
    assert clip.positions[0, 0, 0] == 0.0
    assert clip.crop(0, 1).positions.flags.writeable is False


def test_duration_select_index() -> None:
    clip = make()
    assert (clip.num_frames, clip.duration_s, clip.index("b")) == (10, 1.0, 1)
    swapped = clip.select(["b", "a"])
    assert swapped.names == ("b", "a")
    np.testing.assert_array_equal(swapped.positions, clip.positions[:, ::-1])
    refusal("'c'", clip.select, ["c"])


def test_select_keeps_the_hierarchy() -> None:
    #  0 - 1 - 2 - 3, and 4 hangs from 1
    clip = Clip(np.zeros((1, 5, 3)), tuple("abcde"), 1.0, parents=(-1, 0, 1, 2, 1))
    assert clip.select("abcde").parents == (-1, 0, 1, 2, 1)
    assert clip.select("dea").parents == (2, 2, -1)  # d's next ancestor that is left is a
    assert clip.select("ce").parents == (-1, -1)
    assert make().select(["b"]).parents is None
    for names, message in ((["a", "a"], "'a' appears more than once"), ([], "has no keypoints")):
        refusal(message, clip.select, names)


def test_crop() -> None:
    np.testing.assert_array_equal(make().crop(2, 5).positions[:, 0, 0], [0.2, 0.3, 0.4])
    for start, stop in ((0, 11), (5, 5), (-1, 3)):
        refusal("<= 10", make().crop, start, stop)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": np.zeros((2, 3, 3))}, r"expected \(T, 2, 3\)"),
        ({"positions": np.full((2, 2, 3), np.nan)}, "frame 0 of 2"),
        ({"names": ("a", "a")}, "'a' appears more than once"),
        ({"rate_hz": 0.0}, "rate"),
        ({"parents": (1, 0)}, "parents"),
    ],
)
def test_bad_input(change: dict, message: str) -> None:
    good = {"positions": np.zeros((2, 2, 3)), "names": ("a", "b"), "rate_hz": 10.0, "name": "x"}
    refusal(message, Clip, **{**good, **change})
