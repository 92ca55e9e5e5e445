"""Doubts about recordings: none about good ones, the right one about each way of misreading."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from mocap_data import Clip, demo_clips
from mocap_data.clip_checks import clip_warnings


@pytest.fixture(scope="module")
def walk() -> Clip:
    return demo_clips()[0]


def changed(clip: Clip, positions: np.ndarray, **fields: object) -> Clip:
    return dataclasses.replace(clip, positions=positions, **fields)


def test_generated_gaits_have_no_warnings() -> None:
    for clip in demo_clips():
        assert clip_warnings(clip) == []


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (100.0, "100 m across (units? scale= should be 100 times smaller)"),
        (1000.0, "1000 times smaller"),
        (0.01, "100 times larger"),
    ],
)
def test_wrong_units(walk: Clip, scale: float, message: str) -> None:
    size = float(np.median(np.linalg.norm(np.ptp(walk.positions, axis=1), axis=-1)))
    (warning,) = clip_warnings(changed(walk, walk.positions / size * scale))
    assert message.replace("1000", "1e+03") in warning


def test_upside_down(walk: Clip) -> None:
    turned = walk.positions * (1.0, -1.0, -1.0)
    assert "is upside down: its head is" in clip_warnings(changed(walk, turned))[0]


def test_a_wrong_axis(walk: Clip) -> None:
    assert any(
        "(axis? up=)" in warning
        for warning in clip_warnings(changed(walk, walk.positions[..., [2, 0, 1]]))
    )
    assert any(
        "m up or down and" in warning
        for warning in clip_warnings(changed(walk, walk.positions[..., [1, 2, 0]]))
    )


def test_nothing_moves(walk: Clip) -> None:
    expected = ["does not move: no keypoint by more than 1 mm"]
    assert clip_warnings(changed(walk, walk.positions[:1].repeat(50, axis=0))) == expected
    assert clip_warnings(walk.crop(0, 1)) == ["has one frame: a pose, no motion"]


def test_rates(walk: Clip) -> None:
    (warning,) = clip_warnings(dataclasses.replace(walk, rate_hz=30.0 * walk.rate_hz))
    assert "moves at" in warning and "source_rate_hz=" in warning
    (warning,) = clip_warnings(dataclasses.replace(walk, rate_hz=walk.num_frames / 1000.0))
    assert warning.startswith("lasts 1000 s at")


def test_jumps_and_floors(walk: Clip) -> None:
    positions = walk.positions.copy()
    positions[40:, 3] += (0.0, 0.7, 0.0)
    (warning,) = clip_warnings(changed(walk, positions))
    assert re.match(f"'{walk.names[3]}' jumps by 0.(69|70)\\d* m after frame 39 .a glitch", warning)
    (warning,) = clip_warnings(changed(walk, walk.positions - (0, 0, 1.0)))
    assert "m below the floor" in warning
    (warning,) = clip_warnings(changed(walk, walk.positions + (0, 0, 1.0)))
    assert "above the floor" in warning
