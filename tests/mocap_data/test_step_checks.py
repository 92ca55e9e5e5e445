"""Checks of steps on generated motions of a set speed."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from mocap_data import Clip, dog_gait
from mocap_data.clip_checks import clip_warnings
from mocap_data.step_checks import rate_warning, rates_in, sliding_warning
from tests.retarget.bodies import person

RATE = 60.0
TIME = np.arange(240) / RATE


def in_place(clip: Clip) -> Clip:
    """The clip without its mean velocity."""
    positions = clip.positions.copy()
    ends = positions.mean(axis=1)[[0, -1], :2]
    share = np.linspace(0.0, 1.0, clip.num_frames)[:, None, None]
    positions[..., :2] -= share * (ends[1] - ends[0])
    return dataclasses.replace(clip, positions=positions)


def near_floor_mps(warnings: list[str]) -> float:
    """The speed that the only warning names."""
    [warning] = warnings
    match = re.match(r"no foot stands: near the floor they move at ([\d.]+) m/s", warning)
    assert match, warning
    return float(match[1])


@pytest.mark.parametrize(
    ("clip", "speed"),
    [
        (dog_gait("trot", speed_mps=1.0, duration_s=4.0), 1.0),
        (dog_gait("walk", speed_mps=0.5, duration_s=4.0), 0.5),
        (dog_gait("walk", speed_mps=0.2, duration_s=4.0), 0.2),
        (dog_gait("walk", speed_mps=-0.4, duration_s=4.0), 0.4),
        (dog_gait("pace", speed_mps=1.5, stride_s=0.45, duration_s=4.0), 1.5),
    ],
    ids=["trot", "walk", "slow", "backwards", "pace"],
)
def test_a_treadmill_is_warned_of_at_its_speed(clip: Clip, speed: float) -> None:
    assert clip_warnings(clip) == []
    warnings = clip_warnings(in_place(clip))
    assert near_floor_mps(warnings) == pytest.approx(speed, rel=0.15)
    assert "a treadmill?" in warnings[0]


def test_a_person_in_place_is_warned_of() -> None:
    walk = person(speed=1.2, seconds=4.0)
    assert clip_warnings(walk) == []
    [warning] = clip_warnings(in_place(walk))
    assert "an animation in place?" in warning


def test_legs_that_do_not_move_are_radians() -> None:
    """Angles of a hundredth leave the legs as in the first frame; the root travels at 0.9 m/s."""
    trot = dog_gait("trot", speed_mps=0.9, duration_s=4.0)
    pose = trot.positions[:1] + 0.01 * (trot.positions - trot.positions[:1])
    pose[..., 0] += 0.99 * 0.9 * (np.arange(240) / 60.0)[:, None]
    warnings = clip_warnings(dataclasses.replace(trot, positions=pose))
    assert near_floor_mps(warnings) == pytest.approx(0.9, rel=0.05)
    assert "radians read as degrees?" in warnings[0]


def test_few_stances_have_no_warnings() -> None:
    """A paw shifted while standing, and a jump of 0.5 s out of standing."""
    stand = dog_gait("stand", duration_s=4.0)
    paw = stand.positions.copy()
    paw[:, stand.index("LeftHand_end"), 0] += 0.05 * np.sin(2.0 * np.pi * TIME)
    jump = stand.positions.copy()
    flight = np.clip(TIME - 1.0, 0.0, 0.5)
    jump[..., 2] += (0.5 * 9.81 * flight * (0.5 - flight))[:, None]
    jump[..., 0] += (2.0 * flight)[:, None]
    for positions in (paw, jump):
        assert clip_warnings(dataclasses.replace(stand, positions=positions)) == []


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("G1_Take_102.bvh_60hz.csv", {60.0}),
        ("dance-120fps.csv", {120.0}),
        ("trial_60hz_to_30hz.csv", {60.0, 30.0}),
        ("take_102.csv", set()),
        ("0.50hzband.csv", set()),
        ("walk_2025fps1.csv", set()),
    ],
)
def test_rates_in_a_name(name: str, rates: set[float]) -> None:
    assert rates_in(name) == rates


def test_a_name_of_two_rates_warns_of_none() -> None:
    assert rate_warning(30.0, "trial_60hz_to_30hz.csv") == ""
    assert rate_warning(50.0, "trial_60hz_to_30hz.csv") == ""
    assert "source_rate_hz=60" in rate_warning(50.0, "60hz_take_60fps.csv")


def test_only_an_assumed_rate_is_warned_of() -> None:
    trot = dog_gait("trot", speed_mps=1.0, duration_s=4.0)
    slow = dataclasses.replace(trot, rate_hz=20.0, source="trot_60hz.csv")
    assert clip_warnings(slow) == []
    [warning] = clip_warnings(dataclasses.replace(slow, assumed=("rate_hz",)))
    assert "source_rate_hz=60" in warning


def test_short_motions_have_no_warnings() -> None:
    feet = np.zeros((2, 1, 3))
    assert sliding_warning(feet, feet[:, 0], RATE, 1.0) == ""
