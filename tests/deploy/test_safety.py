"""What stands between policy and drives, by numbers derived by hand; the contract is that of two
joints in standins.py."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npmp.deploy.contract import Command
from npmp.deploy.robot import State
from npmp.deploy.safety import (
    Limits,
    SafetyConfig,
    Watchdog,
    clip_command,
    ramp_command,
    safe_drive,
)
from tests.deploy.standins import state_of, two_joints

CONFIG = SafetyConfig()
LIMITS = Limits(two_joints(), CONFIG)


def pair(first: float, second: float = 0.0) -> np.ndarray:
    return np.array([first, second])


def test_limits_are_the_bundle_s_times_the_shares() -> None:
    assert LIMITS.torque.tolist() == [8.0, 8.0]  # 0.8 of 10
    assert LIMITS.velocity.tolist() == [6.0, 6.0]  # 1.2 of 5


@pytest.mark.parametrize(
    ("target", "angle", "velocity", "expected"),
    [
        (0.5, 0.0, 0.0, 0.5),  # 5 Nm
        (0.9, 0.0, 0.0, 0.8),  # 9 Nm would be asked for; 8 are at 0.8
        (-0.9, 0.0, 0.0, -0.8),
        (0.9, 0.5, 0.0, 0.9),  # 4 Nm
        (3.0, 0.9, 0.0, 1.0),  # the joint ends at 1
        (0.9, 0.0, 2.0, 0.9),  # 9 - 2 = 7 Nm
        (-0.9, 0.0, 2.0, -0.6),  # braking: -9 - 2 = -11 Nm; -8 = -6 - 2
        (0.0, 0.0, 1000.0, 1.0),  # 100 - 0.8 = 99.2 would be a target, but not one within the range
        (0.0, 1.9, 1000.0, 1.9),
        (0.0, 0.0, -1000.0, -1.0),
        (0.0, 1.9, 0.0, 1.1),  # far out of its range: back with 8 Nm, not to 1 with 9
    ],
)
def test_a_target_stays_within_torque_and_range(
    target: float, angle: float, velocity: float, expected: float
) -> None:
    state = state_of(joint_pos=pair(angle), joint_vel=pair(velocity))
    sent, _ = safe_drive(pair(target), LIMITS.kp, LIMITS.kd, state, LIMITS)
    assert sent[0] == pytest.approx(expected)


@given(*(st.floats(-1e6, 1e6) for _ in range(3)))
def test_no_target_asks_for_more_torque(target: float, angle: float, velocity: float) -> None:
    state = state_of(joint_pos=pair(angle), joint_vel=pair(velocity))
    sent, kd = safe_drive(pair(target), LIMITS.kp, LIMITS.kd, state, LIMITS)
    assert min(-1.0, angle) <= sent[0] <= max(1.0, angle)
    assert 0.0 <= kd[0] <= 1.0
    torque = 10 * (sent[0] - angle) - kd[0] * velocity
    assert abs(torque) <= 8 * (1 + 1e-9) + 1e-8 * (abs(angle) + abs(velocity))


def test_a_joint_that_runs_out_of_its_range_brakes_with_less_than_kd() -> None:
    """At 0.9 rad and 20 rad/s: 1 rad, where the range ends, gives 10 (1 - 0.9) - 20 = -19 Nm with
    kd 1; -8 = 1 - 20 kd Nm is at 0.45."""
    state = state_of(joint_pos=pair(0.9), joint_vel=pair(20.0))
    sent, kd = safe_drive(pair(0.0), LIMITS.kp, LIMITS.kd, state, LIMITS)
    assert (sent[0], kd[0]) == pytest.approx((1.0, 0.45))
    assert (sent[1], kd[1]) == (0.0, 1.0)


@pytest.mark.parametrize("wrong", [np.zeros(3), np.zeros((2, 1)), pair(math.nan), pair(math.inf)])
def test_no_target_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError):
        safe_drive(wrong, LIMITS.kp, LIMITS.kd, state_of(), LIMITS)


def test_commands_stay_in_their_range_and_ramp() -> None:
    assert clip_command([9.0, -9.0], LIMITS).tolist() == [1.5, -1.0]
    for wrong in ([0.0], [math.nan, 0.0], [0.0, math.inf], 1.0):
        with pytest.raises(ValueError):
            clip_command(wrong, LIMITS)
    # from zero to the range's end of 1.5 in 1 s of 50 steps: 0.03 a step
    assert ramp_command(pair(0.0), pair(1.5, -0.01), LIMITS, 0.02) == pytest.approx([0.03, -0.01])
    course = pair(0.0)
    for _ in range(50):
        course = ramp_command(course, pair(1.5, -1.0), LIMITS, 0.02)
    assert course == pytest.approx([1.5, -1.0])


def test_a_place_that_is_measured_is_neither_ramped_nor_cut_short_of_its_range() -> None:
    """A ball that is seen 3 m ahead is there at once."""
    limits = Limits(two_joints(commands=[Command("ball_forward_m", "m", [-5.0, 5.0])]), CONFIG)
    assert clip_command([3.0], limits).tolist() == [3.0]
    assert ramp_command(np.zeros(1), np.array([3.0]), limits, 0.02).tolist() == [3.0]


def trip(now: float = 0.0, missed: int = 0, **changed: object) -> str:
    return Watchdog(two_joints(), CONFIG).trip(now, state_of(**changed), missed)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"joint_pos": np.zeros(3)}, "joint_pos: expected 2 finite numbers"),
        ({"joint_vel": pair(math.nan)}, "joint_vel: expected 2 finite numbers"),
        ({"gyro": np.full(3, math.inf)}, "gyro: expected 3 finite numbers"),
        ({"up": np.zeros(3)}, "up: length 0.00, expected 1"),
        ({"up": np.zeros(2)}, "up: expected 3 finite numbers"),
        ({"up": 1.4 * np.array([math.sin(0.8), 0.0, math.cos(0.8)])}, "tilted by 46 degrees"),
        ({"time_s": math.nan}, "time_s=nan: expected a finite number"),
        ({"temperature": np.zeros(1)}, "temperature: expected 2 finite numbers"),
        ({"temperature": pair(20.0, 71.0)}, "knee: motor at 71 degrees"),
        ({"temperature": pair(20.0, 69.0)}, ""),
        ({"joint_vel": pair(0.0, -14.9)}, ""),
        ({"joint_vel": pair(0.0, -15.1)}, "knee: impossible velocity 15.1 rad/s"),  # 3 times 5
        ({"joint_torque": pair(0.0, 29.9)}, ""),
        ({"joint_torque": pair(1e308, 0.0)}, "hip: impossible torque 1e+308 Nm"),
        ({"joint_vel": np.array([-128, 0], np.int8)}, "hip: impossible velocity 128 rad/s"),
        ({"gyro": np.array([0.0, 34.9, 0.0])}, ""),
        ({"gyro": np.array([0.0, -36.0, 0.0])}, "gyro: impossible 36 rad/s"),
        ({"accelerometer": np.array([0.0, 0.0, 196.0])}, ""),
        ({"accelerometer": np.array([0.0, 0.0, -206.01])}, "accelerometer: impossible 21 g"),
        ({"joint_pos": pair(0.0, 1.14)}, ""),
        ({"joint_pos": pair(0.0, -1.16)}, "knee: 0.16 rad beyond its range"),
        ({"up": np.array([math.sin(0.7), 0.0, math.cos(0.7)])}, ""),  # 40 degrees
        ({"up": np.array([math.sin(0.8), 0.0, math.cos(0.8)])}, "tilted by 46 degrees"),
        ({"up": np.array([0.0, 0.0, -1.0])}, "tilted by 180 degrees"),
    ],
)
def test_what_a_state_trips(changed: dict[str, object], reason: str) -> None:
    assert trip(**changed) == reason  # type: ignore[arg-type]


def test_time_trips() -> None:
    assert trip(now=0.09) == ""
    assert trip(now=0.11) == "the state is 110 ms old"
    assert trip(now=-0.05) == ""  # clocks of two computers
    assert trip(now=-0.06).startswith("the state is 60 ms ahead of the clock")
    assert trip(missed=4) == ""
    assert trip(missed=5) == "5 deadlines missed in a row"
    assert Watchdog(two_joints(), CONFIG).trip(0.0, None, 0) == "no state"


def test_readings_that_do_not_change_trip() -> None:
    """For more than 0.5 s of the readings' own time; looking at one again is no new reading."""
    watchdog, still = Watchdog(two_joints(), CONFIG), state_of(gyro=np.array([0.0, 0.0, 1e-9]))
    assert [watchdog.trip(0.0, still, 0) for _ in range(2)] == [""] * 2
    assert watchdog.trip(0.5, still._replace(time_s=0.5), 0) == ""
    expected = "the IMU's readings have been equal for 0.52 s"
    assert watchdog.trip(0.52, still._replace(time_s=0.52), 0) == expected
    moved = still._replace(time_s=0.54)
    moved.gyro[2] = 2e-9  # in the driver's own array
    assert watchdog.trip(0.54, moved, 0) == ""
    assert watchdog.trip(1.0, moved._replace(time_s=1.0), 0) == ""
    assert watchdog.trip(1.06, moved._replace(time_s=1.06), 0) != ""


def test_one_frame_again_and_again_trips_however_often_it_is_averaged() -> None:
    """A mean of n times the same differs in its last bit with n; and joints that still move excuse
    no IMU."""
    watchdog, rng = Watchdog(two_joints(), CONFIG), np.random.default_rng(0)
    frame, message = np.array([0.1, -0.03, 9.79]), []
    for k in range(120):
        mean = np.mean([frame] * int(rng.integers(3, 6)), axis=0)
        moved = state_of(
            0.005 * k,
            joint_pos=pair(0.01 * rng.random(), 0.0),
            gyro=np.zeros(3),
            accelerometer=mean,
        )
        message.append(watchdog.trip(0.005 * k, moved, 0))
    assert len({tuple(np.mean([frame] * n, axis=0)) for n in (3, 4, 5)}) > 1
    assert message[:100] == [""] * 100 and "equal for" in message[101]


def test_a_clock_that_steps_back_is_no_overload() -> None:
    watchdog = Watchdog(two_joints(), CONFIG)
    assert watchdog.trip(20.0, state_of(20.0), 0) == ""
    assert watchdog.trip(0.0, state_of(0.0), 0) == ""


@pytest.mark.parametrize(
    ("field", "least", "name"),
    [("joint_torque", 8.0, "torque"), ("joint_vel", 6.0, "velocity")],
    ids=["torque", "speed"],
)
def test_overload_trips_when_it_lasts(field: str, least: float, name: str) -> None:
    watchdog = Watchdog(two_joints(), CONFIG)

    def at(step: int, share: float) -> str:
        values = {field: pair(0.0, -share * least), "joint_pos": pair(0.0, 1e-3 * step)}
        return watchdog.trip(0.02 * step, state_of(0.02 * step, **values), 0)

    assert [at(k, 1.01) for k in range(10)] == [""] * 10  # 0.18 s above the limit
    assert at(10, 1.0) == ""  # at it: 0.02 s are taken off
    assert at(11, 1.01) == ""  # 0.18 s again
    assert at(12, 1.01) == f"knee: {name} above its limit for 0.2 s"
    watchdog = Watchdog(two_joints(), CONFIG)
    assert {at(k, 1.01 if k % 2 else 0.9) for k in range(200)} == {""}  # as long below as above


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (0.32, ""),
        # 3 times 5 rad/s for 20 ms are 0.3 rad; readings may be 2 ms further apart: 0.33
        (0.34, "knee: jumped by 0.34 rad in 20 ms"),
        (-0.34, "knee: jumped by 0.34 rad in 20 ms"),
    ],
)
def test_an_angle_that_jumps_trips(step: float, reason: str) -> None:
    watchdog = Watchdog(two_joints(), CONFIG)
    angles = pair(0.0)  # which the driver fills anew
    assert watchdog.trip(0.0, state_of(0.0, joint_pos=angles), 0) == ""
    angles[1] = step
    assert watchdog.trip(0.02, state_of(0.02, joint_pos=angles), 0) == reason


def moved(
    angle: Callable[[int], float],
    target: Callable[[int], float] | None = None,
    velocity: float = 0.0,
    first: int = 0,
    torque: Callable[[int], float] = lambda k: 0.0,
) -> list[str]:
    """What 100 readings at 50 Hz trip, the knee's angle, target, velocity and torque as they
    say."""
    watchdog = Watchdog(two_joints(), CONFIG)
    message = []
    for k in range(100):
        state = state_of(
            0.02 * k,
            joint_pos=pair(0.0, angle(k)),
            joint_vel=pair(0.0, velocity),
            joint_torque=pair(0.0, torque(k)),
        )
        sent = pair(0.0, target(k)) if target is not None and k >= first else None
        message.append(watchdog.trip(0.02 * k, state, 0, sent))
    return message


def test_an_angle_that_freezes_while_the_joint_should_move_trips() -> None:
    """A target that moves by 1 rad/s is further than 0.1 rad from the sixth reading on, and 0.2 s
    later that has lasted for too long."""
    message = moved(lambda k: 0.2, lambda k: 0.02 * k)
    assert message[:16] == [""] * 16
    assert "knee: stuck at 0.200 rad" in message[17]
    assert "knee: stuck at" in moved(lambda k: 0.2, None, velocity=1.0)[20]
    swings = moved(lambda k: 0.2, None, velocity=1.0, torque=lambda k: 0.1 * k)
    assert "knee: stuck at" in swings[20]


def test_a_joint_at_its_stop_may_stay_while_its_torque_follows_the_target() -> None:
    """kp 10 times up to 0.3 rad, there and back."""

    def target(k: int) -> float:
        return 0.2 + 0.3 * math.sin(0.1 * k)

    assert set(moved(lambda k: 0.2, target, torque=lambda k: 10.0 * (target(k) - 0.2))) == {""}
    assert "knee: stuck at" in moved(lambda k: 0.2, target, torque=lambda k: 0.5)[30]


def test_an_encoder_at_rest_may_repeat_itself() -> None:
    assert set(moved(lambda k: 0.2, lambda k: 0.2)) == {""}
    # a sensor of velocity that is a little off
    assert set(moved(lambda k: 0.2, lambda k: 0.2, velocity=0.09)) == {""}
    assert set(moved(lambda k: 0.2, lambda k: 0.2 + 0.09 * (k % 2))) == {""}
    # not told where to go for a second; then at once, to which it takes a while
    late = moved(lambda k: 0.2 + 0.1 * (k > 58), lambda k: 0.5, first=50)
    assert set(late) == {""}
    # a step of an encoder, or of a target, now and then
    assert set(moved(lambda k: 0.01 * (k // 8), lambda k: 0.02 * k)) == {""}


@pytest.mark.parametrize(
    ("degrees", "reason"),
    [
        (lambda t: 30.0 + 2.9 * t, ""),
        (lambda t: 30.0 + round(2.9 * t), ""),
        (lambda t: 30.0 + 4.0 * t, "knee: motor heated from 30 to 4"),
        (lambda t: 30.0 if t < 3.0 else 46.0, "knee: motor heated from 30 to 46 degrees"),
        # a sensor that says 0 until its motor answers, and one that begins to
        (lambda t: 0.0 if t < 3.0 else 46.0, ""),
        (lambda t: 1.0 if t < 0.1 else 40.0, "knee: motor heated from 1 to 40 degrees in 0.5 s"),
        (lambda t: 60.0 if t < 3.0 else 0.0, ""),
    ],
)
def test_a_motor_warms_slowly(degrees: Callable[[float], float], reason: str) -> None:
    """15 degrees in 5 s are 3 a second."""
    watchdog = Watchdog(two_joints(), CONFIG)
    trips = [
        watchdog.trip(0.02 * k, state_of(0.02 * k, temperature=pair(30.0, degrees(0.02 * k))), 0)
        for k in range(600)
    ]
    first = next(filter(None, trips), "")
    assert first.startswith(reason) if reason else first == ""


@pytest.mark.parametrize(
    "wrong",
    [{"torque_share": 1.1}, {"torque_share": 0.0}, {"missed_deadlines": 0}, {"state_age_s": -1.0}],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SafetyConfig(**wrong)  # type: ignore[arg-type]


def rocking(k: int, most: float) -> State:
    """Rolls by so many rad at 1 Hz, read at 50 Hz with noise."""
    rng, (before, angle) = (
        np.random.default_rng(k),
        most * np.sin(0.04 * np.pi * np.array([k - 1, k])),
    )
    up = np.array([0.0, np.sin(angle), np.cos(angle)])
    gyro = np.array([(angle - before) / 0.02, 0.0, 0.0]) + 1e-3 * rng.normal(size=3)
    force = 9.81 * up + 0.1 * rng.normal(size=3)
    return state_of(0.02 * k, up=up, gyro=gyro, accelerometer=force)


@pytest.mark.parametrize(
    ("name", "wrong", "reason"),
    [
        ("accelerometer", lambda a: a, ""),
        ("accelerometer", lambda a: -a, "accelerometer: mean differs"),
        ("accelerometer", lambda a: 0.0 * a, "accelerometer: mean differs"),
        ("accelerometer", lambda a: a[[2, 0, 1]], "accelerometer: mean differs"),
        ("accelerometer", lambda a: a / 9.81, "accelerometer: mean differs"),
        ("gyro", np.degrees, "gyro: mean differs"),
        ("gyro", lambda g: -g, "gyro: mean differs"),
        ("gyro", lambda g: g[[1, 0, 2]], "gyro: mean differs"),
        ("gyro", lambda g: 0.0 * g, "gyro: mean differs"),
        ("gyro", lambda g: g + [0.0, 0.2, 3.0], ""),  # a turn and some drift
    ],
)
def test_an_imu_of_another_unit_sign_or_axis_trips_within_two_seconds(
    name: str, wrong: Callable[[np.ndarray], np.ndarray], reason: str
) -> None:
    watchdog = Watchdog(two_joints(), CONFIG)
    # degrees of much more would be more than any gyro measures
    states = (rocking(k, 0.05 if wrong is np.degrees else 0.2) for k in range(100))
    result = [
        watchdog.trip(state.time_s, state._replace(**{name: wrong(getattr(state, name))}), 0)
        for state in states
    ]
    assert result[:50] == [""] * 50
    assert result[-1].startswith(reason) if reason else set(result) == {""}
