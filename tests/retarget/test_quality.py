"""Quality figures of motions with constructed faults."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mocap_data import rotations
from mocap_data.motion import ReferenceMotion
from npmp.robots import Robot
from retarget.kinematics import body_states, tree_of
from retarget.quality import QualityMeter, overall_rms, trouble
from retarget.recording_checks import motion_warnings, stance_warning

RATE = 50.0


@pytest.fixture(scope="module")
def meter(robot: Robot) -> QualityMeter:
    return QualityMeter(robot)


def motion_of(robot: Robot, qpos: np.ndarray, **more: object) -> ReferenceMotion:
    """The motion through poses (T, nq) at 50 Hz."""
    return ReferenceMotion(name="m", qpos=qpos, rate_hz=RATE, **more)


def standing(robot: Robot, frames: int) -> np.ndarray:
    """(T, nq) the home pose."""
    return np.tile(np.asarray(robot.home_qpos), (frames, 1))


def all_feet(robot: Robot, frames: int, stands: bool = True) -> np.ndarray:
    return np.full((frames, len(robot.foot_bodies)), stands)


def test_standing_still_has_no_faults(robot: Robot, meter: QualityMeter) -> None:
    figures = meter.figures(motion_of(robot, standing(robot, 10), contacts=all_feet(robot, 10)))
    assert "rms_marker_m" not in figures
    assert {key for key, value in figures.items() if abs(value) > 1e-9} == set()


def test_foot_slide(robot: Robot, meter: QualityMeter) -> None:
    """All feet stand while the robot glides 2 mm a frame, 0.1 m/s, in its first half, and 0.4 mm,
    0.02 m/s, in its second."""
    qpos = standing(robot, 21)
    qpos[:, 0] = np.concatenate([np.arange(11) * 0.002, 0.02 + np.arange(1, 11) * 0.0004])
    figures = meter.figures(motion_of(robot, qpos, contacts=all_feet(robot, 21)))
    assert figures["foot_slide_mps"] == pytest.approx(0.06)
    assert figures["foot_slide_share"] == pytest.approx(0.5)
    half = all_feet(robot, 21)
    half[:11] = False  # the fast half is a swing, and so is the step out of it
    figures = meter.figures(motion_of(robot, qpos, contacts=half))
    assert figures["foot_slide_mps"] == pytest.approx(0.02) and figures["foot_slide_share"] == 0.0


def test_feet_that_never_stand_have_no_slide(robot: Robot, meter: QualityMeter) -> None:
    """At 0.5 m/s, 1 cm a frame, all of the speed near the floor is sliding: 5 times what is bad.
    Figures of an earlier stance go."""
    qpos = standing(robot, 21)
    qpos[:, 0] = np.arange(21) * 0.01
    stood = {"foot_slide_mps": 0.0, "foot_slide_share": 0.0, "float_m": 0.0, "rms_marker_m": 0.01}
    glide = motion_of(robot, qpos, contacts=all_feet(robot, 21, stands=False), quality=stood)
    quality = meter.measured(glide).quality
    assert not {"foot_slide_mps", "foot_slide_share", "float_m"} & set(quality)
    assert quality["near_floor_mps"] == pytest.approx(0.5) and quality["rms_marker_m"] == 0.01
    assert trouble(quality) == pytest.approx(5.0)
    [warning] = motion_warnings(glide, meter)
    assert (
        "no foot stands: near the floor they move at 0.5 m/s (radians read as degrees?" in warning
    )
    assert "at 0.5 m/s (a treadmill?)" in stance_warning(meter.measured(glide))
    high = qpos + np.eye(len(qpos[0]))[2]
    assert "near_floor_mps" not in meter.figures(motion_of(robot, high))


def test_speed_near_the_floor_needs_no_contacts(robot: Robot, meter: QualityMeter) -> None:
    """The robot glides 2 mm a frame, 0.1 m/s; in the second half its feet are 6 mm over the floor,
    which is not near it."""
    qpos = standing(robot, 21)
    qpos[:, 0] = np.arange(21) * 0.002
    qpos[11:, 0] += np.arange(10) * 0.01
    qpos[11:, 2] += 0.006
    for stands in (True, False):
        figures = meter.figures(motion_of(robot, qpos, contacts=all_feet(robot, 21, stands)))
        assert figures["near_floor_mps"] == pytest.approx(0.1)


def test_depths_and_heights(robot: Robot, meter: QualityMeter) -> None:
    """100 frames: 7 mm below the floor in two of them, 4 mm above it in fifty, where the feet count
    as standing."""
    qpos = standing(robot, 100)
    qpos[:2, 2] -= 0.007
    qpos[50:, 2] += 0.004
    figures = meter.figures(motion_of(robot, qpos, contacts=all_feet(robot, 100)))
    assert figures["penetration_m"] == pytest.approx(0.007)
    # one frame in a hundred may be deeper: two are
    assert figures["penetration_p99_m"] == pytest.approx(0.007)
    assert figures["float_m"] == pytest.approx(0.004)
    qpos[1, 2] += 0.007
    figures = meter.figures(motion_of(robot, qpos, contacts=all_feet(robot, 100)))
    assert figures["penetration_p99_m"] == pytest.approx(
        0.01 * 0.007, rel=1e-6
    )  # between the two deepest, by interpolation
    assert figures["penetration_m"] == pytest.approx(0.007)


def test_a_sole_on_its_edge_floats(robot: Robot) -> None:
    """With the foot's points 10 cm apart, a foot pitched by 0.1 rad has one of them 0.1 sin(0.1) =
    9.98 mm above the other."""
    points = np.repeat(np.asarray(robot.foot_points), 2, axis=1)
    points[:, 0, 0] += 0.05
    points[:, 1, 0] -= 0.05
    flat = dataclasses.replace(robot, foot_points=points)
    qpos = standing(robot, 5)
    foot = robot.body_names.index(robot.foot_bodies[0])
    upright = body_states(tree_of(robot.model()), motion_of(robot, qpos)).quaternion[:, foot]
    pitched = rotations.from_axis_angle([0.0, 1.0, 0.0], 0.1)
    qpos[:, 3:7] = rotations.multiply(
        pitched, rotations.multiply(rotations.conjugate(upright), qpos[:, 3:7])
    )
    meter = QualityMeter(flat)
    feet = meter.feet(motion_of(robot, qpos, contacts=all_feet(robot, 5)))
    np.testing.assert_allclose(np.ptp(feet[:, 0, :, 2], axis=1), 0.1 * np.sin(0.1))


def test_jerk_and_violations(robot: Robot, meter: QualityMeter) -> None:
    """One of 12 joints follows a t^3 / 6 with a = 24 rad/s^3: root mean square 24 / sqrt(12) over
    all of them."""
    t = np.arange(26) / RATE
    qpos = standing(robot, 26)
    qpos[:, 7] += 24.0 * t**3 / 6.0
    figures = meter.figures(motion_of(robot, qpos))
    assert figures["jerk_rms"] == pytest.approx(24.0 / np.sqrt(12.0), rel=1e-6)
    assert figures["limit_violations"] == figures["velocity_violations"] == 0.0
    qpos = standing(robot, 10)
    qpos[4:7, 7] = (
        robot.joint_upper[0] + 0.01
    )  # three frames beyond, reached and left within one frame: 0.91 rad, 45 rad/s
    figures = meter.figures(motion_of(robot, qpos))
    assert figures["limit_violations"] == 3.0 and figures["velocity_violations"] == 2.0
    qpos[4:7, 7] = robot.joint_upper[0]  # at its bound a joint is within it
    assert meter.figures(motion_of(robot, qpos))["limit_violations"] == 0.0


def test_markers_come_from_the_frames(robot: Robot, meter: QualityMeter) -> None:
    frames = {
        "marker_rms_m": np.array([0.03, 0.04, 0.0, 0.0]),
        "marker_max_m": np.array([0.05, 0.06, 0.01, 0.01]),
    }
    motion = motion_of(
        robot, standing(robot, 4), frame_quality=frames, quality={"rms_marker_m": 9.0, "own": 1.0}
    )
    measured = meter.measured(motion)
    assert measured.quality["rms_marker_m"] == pytest.approx(0.025)  # mean square (9 + 16) / 4 cm2
    assert measured.quality["max_marker_m"] == pytest.approx(0.06)
    assert measured.quality["own"] == 1.0
    part = meter.measured(motion.crop(0, 1))
    assert part.quality["rms_marker_m"] == pytest.approx(0.03)
    unknown = motion_of(robot, standing(robot, 12))
    assert overall_rms([measured, part]) == pytest.approx(np.sqrt((0.025**2 * 4 + 0.03**2) / 5))
    assert overall_rms([measured, unknown]) == pytest.approx(0.025) and np.isnan(
        overall_rms([unknown])
    )


def test_crossed_legs_and_a_sunk_trunk(robot: Robot, meter: QualityMeter) -> None:
    qpos = standing(robot, 10)
    joints = {name: 7 + i for i, name in enumerate(robot.joint_names)}
    qpos[:3, joints["LF_HFE"]] = 1.2
    qpos[:3, joints["LF_KFE"]] = -0.05
    qpos[:3, joints["LH_HFE"]] = -1.2
    qpos[:3, joints["LH_KFE"]] = 0.05
    figures = meter.figures(motion_of(robot, qpos))
    assert figures["self_collision_share"] == pytest.approx(0.3)
    assert figures["body_penetration_m"] == 0.0
    qpos = standing(robot, 10)
    qpos[:, 2] = 0.1  # the belly's underside is 0.125 m below the base
    assert meter.figures(motion_of(robot, qpos))["body_penetration_m"] > 0.02


def test_feet_in_the_air_do_not_stand(robot: Robot, meter: QualityMeter) -> None:
    """ANYmal's hips are 0.5 m high: 4 % of that are 2 cm. Standing still 1.5 cm up it stands, at 5
    cm not, which is a warning."""
    for height, stands in ((0.0, True), (0.015, True), (0.05, False), (3.0, False)):
        qpos = standing(robot, 20)
        qpos[:, 2] += height
        contacts = meter.contacts(motion_of(robot, qpos))
        assert contacts.all() == contacts.any() == stands, height
        warnings = motion_warnings(motion_of(robot, qpos, contacts=contacts), meter)
        assert ["no foot on the floor" in warning for warning in warnings] == [True] * (not stands)
    lying = standing(robot, 20)
    lying[:, 3:7] = [0.0, 1.0, 0.0, 0.0]
    [warning] = motion_warnings(motion_of(robot, lying), meter)
    assert "upside down most of the time" in warning
