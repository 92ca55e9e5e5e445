"""Steps against floor and rate: generated motions whose speeds, strides and falls are known."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from mocap_data import Clip, dog_gait
from mocap_data.sanity import warnings_of
from mocap_data.stepping import fall_of, name_doubt, pace_of, rate_doubt, rates_in, sliding_doubt
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


def near_floor_mps(doubts: list[str]) -> float:
    """The speed that the only doubt names."""
    [doubt] = doubts
    found = re.match(r"no foot stands: near the floor they move at ([\d.]+) m/s", doubt)
    assert found, doubt
    return float(found[1])


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
def test_a_treadmill_is_doubted_at_its_speed(clip: Clip, speed: float) -> None:
    assert warnings_of(clip) == []
    doubts = warnings_of(in_place(clip))
    assert near_floor_mps(doubts) == pytest.approx(speed, rel=0.15)
    assert "a treadmill?" in doubts[0]


def test_a_person_in_place_is_doubted() -> None:
    walk = person(speed=1.2, seconds=4.0)
    assert warnings_of(walk) == []
    [doubt] = warnings_of(in_place(walk))
    assert "an animation in place?" in doubt


def test_legs_that_do_not_move_are_radians() -> None:
    """Angles of a hundredth leave the legs as in the first frame; the root travels at 0.9 m/s."""
    trot = dog_gait("trot", speed_mps=0.9, duration_s=4.0)
    pose = trot.positions[:1] + 0.01 * (trot.positions - trot.positions[:1])
    pose[..., 0] += 0.99 * 0.9 * (np.arange(240) / 60.0)[:, None]
    doubts = warnings_of(dataclasses.replace(trot, positions=pose))
    assert near_floor_mps(doubts) == pytest.approx(0.9, rel=0.05)
    assert "radians read as degrees?" in doubts[0]


def test_few_stances_are_no_fault() -> None:
    """A paw shifted while standing, and a jump of 0.5 s out of standing."""
    stand = dog_gait("stand", duration_s=4.0)
    paw = stand.positions.copy()
    paw[:, stand.index("LeftHand_end"), 0] += 0.05 * np.sin(2.0 * np.pi * TIME)
    jump = stand.positions.copy()
    flight = np.clip(TIME - 1.0, 0.0, 0.5)
    jump[..., 2] += (0.5 * 9.81 * flight * (0.5 - flight))[:, None]
    jump[..., 0] += (2.0 * flight)[:, None]
    for positions in (paw, jump):
        assert warnings_of(dataclasses.replace(stand, positions=positions)) == []


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("G1_Take_102.bvh_60hz.csv", {60.0}),
        ("walk_50hz.csv", {50.0}),
        ("dance-120fps.csv", {120.0}),
        ("Run 30 FPS", {30.0}),
        ("fps_24_jump", {24.0}),
        ("trial_60hz_to_30hz.csv", {60.0, 30.0}),
        ("take_102.csv", set()),
        ("walk1200.csv", set()),
        ("schultz5.csv", set()),
        ("0.50hzband.csv", set()),
        ("walk_2025fps1.csv", set()),
    ],
)
def test_rates_in_a_name(name: str, rates: set[float]) -> None:
    assert rates_in(name) == rates


def test_a_name_of_two_rates_doubts_none() -> None:
    assert name_doubt(30.0, "trial_60hz_to_30hz.csv") == ""
    assert name_doubt(50.0, "trial_60hz_to_30hz.csv") == ""
    assert "source_rate_hz=60" in name_doubt(50.0, "60hz_take_60fps.csv")


def test_strides_tell_the_rate() -> None:
    """A body 1 m high at 1.2 m/s with strides of 1.25 s, 1.5 m.

    Fr = (1.5 / 2.4)^(1 / 0.34) = 0.251, a speed of sqrt(9.81 0.251) = 1.569 m/s, of which it has
    0.765. At half the rate it has 0.382, and usual is 0.8: 30 frames/s times 0.8 / 0.382 = 63.
    """
    phases = 2.0 * np.pi * TIME / 1.25 + np.array([[0.0], [np.pi]])
    body = np.stack([1.2 * TIME, 0.0 * TIME, 0.0 * TIME + 1.0], axis=-1)
    feet = np.zeros((240, 2, 3))
    feet[..., 0] = body[:, :1] + 0.3 * np.sin(phases.T)
    assert pace_of(feet, body, RATE) == pytest.approx(0.765, abs=0.01)
    assert rate_doubt(feet, body, RATE, 1.8, "a.csv") == ""
    assert "strides are slow (rate? about 63," in rate_doubt(feet, body, RATE / 2, 1.8, "a.csv")
    assert "strides are fast" in rate_doubt(feet, body, RATE * 2, 1.8, "a.csv")
    # a body that hardly travels has no stride
    assert pace_of(feet - body[:, None], 0.0 * body + [0, 0, 1.0], RATE) == 0.0


def test_a_jump_tells_the_rate() -> None:
    """All of a body falls at 1 g; read at half its rate at a quarter: 30 sqrt(0.8 / 0.25) = 54."""
    flight = np.clip(TIME - 1.0, 0.0, 0.6)
    height = 0.5 * 9.81 * flight * (0.6 - flight)
    body = np.stack([0.0 * TIME, 0.0 * TIME, 1.0 + height], axis=-1)
    feet = np.stack([body, body], axis=1) - [0.0, 0.0, 1.0]
    assert fall_of(feet, body, RATE, 1.8) == pytest.approx(1.0, abs=0.02)
    assert rate_doubt(feet, body, RATE, 1.8, "a.csv") == ""
    assert "falls at 0.25 g (rate? about 54," in rate_doubt(feet, body, RATE / 2, 1.8, "a.csv")
    # a climb is no jump
    climb = np.linspace(0.0, 1.0, 240)[:, None] * [0.0, 0.0, 1.0]
    assert fall_of(feet * 0.0 + climb[:, None], climb + [0, 0, 1.0], RATE, 1.8) == 0.0


def test_only_an_assumed_rate_is_doubted() -> None:
    trot = dog_gait("trot", speed_mps=1.0, duration_s=4.0)
    slow = dataclasses.replace(trot, rate_hz=20.0, source="trot_60hz.csv")
    assert warnings_of(slow) == []
    [doubt] = warnings_of(dataclasses.replace(slow, assumed=("rate_hz",)))
    assert "its name says 60 (rate? source_rate_hz=60)" in doubt
    [doubt] = warnings_of(dataclasses.replace(slow, assumed=("rate_hz",), source="a.csv"))
    assert "strides are slow (rate?" in doubt


def test_short_motions_say_nothing() -> None:
    feet = np.zeros((2, 1, 3))
    assert sliding_doubt(feet, feet[:, 0], RATE, 1.0) == ""
    assert rate_doubt(feet, feet[:, 0], RATE, 1.0, "a") == ""
