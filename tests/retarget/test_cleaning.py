"""Cleaning: each filter finds what was put in for it, every frame is accounted for, chunks and
mirrors are whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mocap_data.arrays import Array
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp import robots
from npmp.robots import Robot
from retarget import cleaning
from retarget.cleaning import (
    ERROR,
    FEET_FAR,
    LYING,
    POSITION,
    SELF_COLLISION,
    SHORT,
    STANDING,
    VELOCITY,
    Cleaned,
    clean,
    pieces,
)
from retarget.quality import QualityMeter

RATE = 50.0
PLAIN = {"mirrors": "none", "validation": 0.0, "flatten": False}


@pytest.fixture(autouse=True, scope="module")
def exact() -> Iterator[None]:
    """No margin about what is dropped; one test is about the margin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaning, "MARGIN_S", 0.0)
        yield


def set_of(robot: Robot, *motions: ReferenceMotion) -> MotionSet:
    return MotionSet(
        robot.name,
        robot.model_sha256,
        robot.joint_names,
        robot.body_names,
        motions,
        {"source": "made"},
    )


def reasons(cleaned: Cleaned) -> dict[str, list[tuple[float, float]]]:
    """The stretches of each reason, rounded to frames of 0.02 s."""
    result: dict[str, list[tuple[float, float]]] = {}
    for entry in cleaned.dropped:
        result.setdefault(entry.reason, []).append(
            (round(entry.start_s, 6), round(entry.stop_s, 6))
        )
    return result


@pytest.fixture
def walk(robot: Robot, make: SimpleNamespace) -> Array:
    """Poses of 8 s at 0.8 m/s."""
    return np.array(make.walking(robot, 400, 0.8))


def test_a_good_motion_is_kept_whole(robot: Robot, make: SimpleNamespace, walk: Array) -> None:
    motion = make.motion_of(robot, walk, name="walk", contacts=np.ones((400, 4), bool), start_s=2.0)
    cleaned = clean(set_of(robot, motion), robot, **PLAIN)
    assert cleaned.dropped == () and cleaned.dropped_s == {}
    (chunk,) = cleaned.motions.motions
    for key in ("qpos", "qvel", "contacts"):
        np.testing.assert_array_equal(getattr(chunk, key), getattr(motion, key))
    result = (chunk.name, chunk.recording, chunk.start_s, chunk.mirror, chunk.split, chunk.weight)
    assert result == ("walk", "walk", 2.0, "", "", 1.0)
    assert (cleaned.seconds_in, cleaned.seconds_kept) == (8.0, 8.0)
    assert json.loads(cleaned.motions.provenance["cleaning"])["max_chunk_s"] == 10.0
    assert cleaned.motions.provenance["source"] == "made"


def test_joints_beyond_their_limits(
    robot: Robot, make: SimpleNamespace, walk: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk[200:205, 7] = robot.joint_upper[0] + 0.1
    motion = make.motion_of(robot, walk)
    options = PLAIN | {"velocity_limits": False}  # the jump itself is another test's
    assert reasons(clean(set_of(robot, motion), robot, **options)) == {POSITION: [(4.0, 4.1)]}
    assert clean(set_of(robot, motion), robot, **options, position_limits=False).dropped == ()
    monkeypatch.setattr(cleaning, "MARGIN_S", 0.1)
    assert reasons(clean(set_of(robot, motion), robot, **options)) == {POSITION: [(3.9, 4.2)]}


def test_joints_too_fast(robot: Robot, make: SimpleNamespace, walk: Array) -> None:
    walk[:, 9:11] = robot.home_joints[2:4]
    # a step within one frame, into frame 100
    walk[100:, 9] += (robot.velocity_limit[2] + 0.1) / 50.0
    walk[103:, 10] -= (robot.velocity_limit[3] + 0.1) / 50.0
    motion = make.motion_of(robot, walk)
    # the two frames in between are a rest too short to be a chunk
    expected = {VELOCITY: [(2.0, 2.02), (2.06, 2.08)], SHORT: [(2.02, 2.06)]}
    options = PLAIN | {"body_penetration_m": None}  # the legs are elsewhere after the steps
    assert reasons(clean(set_of(robot, motion), robot, **options)) == expected
    assert clean(set_of(robot, motion), robot, **options, velocity_limits=False).dropped == ()


def test_jumps_and_platforms(robot: Robot, make: SimpleNamespace, walk: Array) -> None:
    walk[150:200, 2] += 0.3  # all feet in the air for a second
    walk[300:303, 2] += 0.3  # a moment of flight
    motion = make.motion_of(robot, walk)
    assert reasons(clean(set_of(robot, motion), robot, **PLAIN)) == {FEET_FAR: [(3.0, 4.0)]}
    assert clean(set_of(robot, motion), robot, **PLAIN, feet_far_m=None).dropped == ()
    assert clean(set_of(robot, motion), robot, **PLAIN, feet_far_m=0.4).dropped == ()


@pytest.mark.parametrize(("gravities", "kept"), [(1.0, True), (0.7, True), (0.3, False)])
def test_a_flight_is_kept_if_it_falls_freely(
    robot: Robot, make: SimpleNamespace, walk: Array, gravities: float, kept: bool
) -> None:
    """Half a second in the air on a parabola; 0.3 of gravity is no fall of any robot."""
    time = np.arange(25) / 50.0
    walk[150:175, 2] += 0.1 + 0.5 * gravities * 9.81 * time * (0.48 - time)
    dropped = clean(set_of(robot, make.motion_of(robot, walk)), robot, **PLAIN).dropped
    assert (dropped == ()) == kept


def test_far_from_the_recording(robot: Robot, make: SimpleNamespace, walk: Array) -> None:
    error = np.full(400, 0.012)
    error[200:300] = 0.08
    error[50] = 0.06  # one bad frame of half a second is no matter
    motion = make.motion_of(robot, walk, frame_quality={"marker_rms_m": error})
    ((start, stop),) = reasons(clean(set_of(robot, motion), robot, **PLAIN))[ERROR]
    assert 3.75 <= start <= 4.0 and 6.0 <= stop <= 6.25
    assert clean(set_of(robot, motion), robot, **PLAIN, max_error_m=None).dropped == ()
    # no figure, no filter
    assert clean(set_of(robot, make.motion_of(robot, walk)), robot, **PLAIN).dropped == ()


def test_self_collision_and_ground_penetration(
    robot: Robot, make: SimpleNamespace, walk: Array
) -> None:
    walk[100:150, 2] -= 0.45  # the trunk below the floor
    cleaned = clean(set_of(robot, make.motion_of(robot, walk)), robot, **PLAIN)
    assert reasons(cleaned) == {LYING: [(2.0, 3.0)]}
    assert (
        clean(
            set_of(robot, make.motion_of(robot, walk)), robot, **PLAIN, body_penetration_m=None
        ).dropped
        == ()
    )

    crossed = np.array(make.walking(robot, 400, 0.8))
    # both fore legs inwards, through each other
    crossed[200:250, 7] = -0.7
    crossed[200:250, 10] = 0.7
    motion = make.motion_of(robot, crossed)
    only = PLAIN | {
        "velocity_limits": False,
        "feet_far_m": None,
        "position_limits": False,
        "body_penetration_m": None,
    }
    cleaned = clean(set_of(robot, motion), robot, **only)
    assert reasons(cleaned) == {SELF_COLLISION: [(4.0, 5.0)]}
    # 50 of 400 frames at 50 Hz
    worst = cleaned.collisions[0]
    assert worst.pair == ("LF_SHANK", "RF_SHANK")
    assert (worst.seconds, worst.share) == (pytest.approx(1.0), pytest.approx(0.125))
    assert str(worst).startswith("LF_SHANK with RF_SHANK: 12 % of frames, ")
    assert cleaned.worst_collisions.startswith(str(worst))
    assert clean(set_of(robot, motion), robot, **only, self_collision_m=None).dropped == ()


def test_standing_keeps_its_first_second(robot: Robot, make: SimpleNamespace) -> None:
    qpos = make.walking(robot, 600, 0.8)
    qpos[200:450] = qpos[200]  # 5 s still, 4 s to 9 s; movement is averaged over half a second
    qpos[450:, :2] += qpos[200, :2] - qpos[450, :2]
    motion = make.motion_of(robot, qpos)
    ((start, stop),) = reasons(clean(set_of(robot, motion), robot, **PLAIN))[STANDING]
    assert 5.0 <= start <= 5.3 and 8.7 <= stop <= 9.0
    assert clean(set_of(robot, motion), robot, **PLAIN, standing_s=5.5).dropped == ()
    assert clean(set_of(robot, motion), robot, **PLAIN, standing_s=None).dropped == ()


def test_the_first_reason_is_given(robot: Robot, make: SimpleNamespace, walk: Array) -> None:
    walk[150:250, 2] += 0.3
    error = np.full(400, 0.01)
    error[100:200] = 0.1
    motion = make.motion_of(robot, walk, frame_quality={"marker_rms_m": error})
    result = reasons(clean(set_of(robot, motion), robot, **PLAIN))
    assert result[FEET_FAR] == [(3.0, 5.0)] and result[ERROR][0][1] == 3.0


@given(start=st.integers(0, 50), frames=st.integers(1, 3000), longest=st.floats(1.0, 700.0))
def test_pieces_cover(start: int, frames: int, longest: float) -> None:
    result = pieces(start, start + frames, longest)
    assert result[0][0] == start and result[-1][1] == start + frames
    assert all(a[1] == b[0] for a, b in pairwise(result))
    lengths = [b - a for a, b in result]
    assert max(lengths) <= longest and max(lengths) - min(lengths) <= 1
    assert (len(result) - 1) * int(longest) < frames  # one fewer would not do


def accounted(cleaned: Cleaned, motions: Sequence[ReferenceMotion]) -> None:
    """Every frame of every recording is in one chunk or one dropped stretch."""
    for motion in motions:
        count = np.zeros(motion.num_frames, int)
        for entry in cleaned.dropped:
            if entry.recording == motion.name:
                count[round(entry.start_s * RATE) : round(entry.stop_s * RATE)] += 1
        for chunk in cleaned.motions.motions:
            if chunk.recording == motion.name and not chunk.mirror:
                first = round(chunk.start_s * RATE)
                expected = motion.qpos[first : first + chunk.num_frames]
                np.testing.assert_array_equal(chunk.qpos, expected)
                count[first : first + chunk.num_frames] += 1
        assert (count == 1).all()
    expected = pytest.approx(cleaned.seconds_kept + sum(cleaned.dropped_s.values()))
    assert cleaned.seconds_in == expected


@settings(max_examples=8)
@given(
    bad=st.lists(st.tuples(st.integers(0, 1199), st.integers(1, 60)), max_size=6),
    shortest=st.floats(0.02, 2.0),
    longest=st.floats(4.0, 12.0),
)
def test_every_frame_is_accounted_for(
    make: SimpleNamespace, bad: list[tuple[int, int]], shortest: float, longest: float
) -> None:
    robot = robots.load("anymal_b")
    qpos = make.walking(robot, 1200, 0.8)
    for start, length in bad:  # to and fro, too fast
        qpos[start : start + length, 11] = robot.home_joints[4] + 0.011 * robot.velocity_limit[
            4
        ] * (-1.0) ** np.arange(len(qpos[start : start + length]))
    motion = make.motion_of(robot, qpos, name="walk")
    options = PLAIN | {"min_chunk_s": shortest, "max_chunk_s": longest}
    options |= {"self_collision_m": None, "body_penetration_m": None}
    cleaned = clean(set_of(robot, motion), robot, **options)
    accounted(cleaned, [motion])
    for chunk in cleaned.motions.motions:
        assert shortest - 1e-9 <= chunk.duration_s <= longest + 1e-9
        assert chunk.quality["velocity_violations"] == 0
    if cleaned.motions.motions:
        assert clean(cleaned.motions, robot, **options).dropped == ()  # clean is clean


def test_chunks_and_mirrors(robot: Robot, make: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    motions = [
        make.motion_of(
            robot,
            make.walking(robot, 1100, 0.5 + 0.3 * i),
            name=name,
            contacts=rng.random((1100, 4)) < 0.5,
            frame_quality={"marker_rms_m": np.full(1100, 0.01)},
        )
        for i, name in enumerate(("a", "b"))
    ]
    cleaned = clean(set_of(robot, *motions), robot, mirrors="all", validation=0.4)
    ends = ("", "_lr", "_fb", "_lrfb")
    expected = tuple(f"{r}_c0{c}{end}" for r in "ab" for c in range(3) for end in ends)
    assert cleaned.motions.names == expected
    accounted(cleaned, motions)
    meter = QualityMeter(robot)
    for motion in cleaned.motions.motions:
        assert motion.num_frames in (366, 367) and motion.recording == motion.name[0]
        assert motion.split == cleaned.motions[f"{motion.recording}_c00"].split
        assert motion.weight == cleaned.motions[motion.name[:5]].weight
        # the figures of a mirror are copied; found anew they are the same
        for key, value in meter.figures(motion).items():
            assert motion.quality[key] == pytest.approx(value, rel=1e-6, abs=1e-9), key
    assert {m.split for m in cleaned.motions.motions} == {"train", "validation"}
    expected = ("a_c00", "a_c00_lr", "a_c01")
    assert clean(set_of(robot, *motions), robot, mirrors="left_right").motions.names[:3] == expected


def test_repeated_names(robot: Robot, make: SimpleNamespace) -> None:
    """A folder may hold a recording and someone's mirror of it, named alike."""
    poses = make.walking(robot, 100, 0.8)
    motions = [make.motion_of(robot, poses, name=name) for name in ("a", "a_lr", "b")]
    cleaned = clean(set_of(robot, *motions), robot, mirrors="left_right")
    assert cleaned.motions.names == ("a", "a_lr_2", "a_lr", "a_lr_lr", "b", "b_lr")
    assert [m.recording for m in cleaned.motions.motions] == ["a", "a", "a_lr", "a_lr", "b", "b"]


def test_nothing_left(robot: Robot, make: SimpleNamespace) -> None:
    motion = make.motion_of(robot, make.standing(robot, 40))
    cleaned = clean(set_of(robot, motion), robot, min_chunk_s=1.0)
    assert cleaned.motions.motions == () and reasons(cleaned) == {SHORT: [(0.0, 0.8)]}
    assert (cleaned.seconds_in, cleaned.seconds_kept) == (0.8, 0.0)
