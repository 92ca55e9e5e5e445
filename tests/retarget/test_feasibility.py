"""Motions that a robot can and cannot do, with values by hand: SI units, g = 9.81 m/s^2."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import mujoco
import numpy as np
import pytest

from mocap_data.arrays import Array
from npmp.robots import Robot
from retarget import feasibility
from retarget.feasibility import MAX_DEVIATION, FeasibilityMeter

GRAVITY = 9.81
FRAMES = 60
# height of ANYmal's hips in the home pose [m]
LEG_M = 0.4968


@pytest.fixture(scope="module")
def meter(robot: Robot) -> FeasibilityMeter:
    return FeasibilityMeter(robot)


def frames_of(robot: Robot, meter: FeasibilityMeter) -> int:
    """The frames of h: 0.45 s of 50 Hz, as sqrt(LEG_M / g) is half of it."""
    count = round(50 * 2 * math.sqrt(LEG_M / GRAVITY))
    assert count == round(50 * meter.step_s) == 23
    return count


def test_standing_asks_for_the_weight(
    robot: Robot, meter: FeasibilityMeter, make: SimpleNamespace
) -> None:
    motion = make.motion_of(robot, make.standing(robot, FRAMES))
    wrench, _, push, _ = meter.dynamics(motion)
    np.testing.assert_allclose(wrench, np.tile([0, 0, 1, 0, 0, 0], (FRAMES, 1)), atol=1e-9)
    # four edges of four feet, with friction 0.8
    assert push.shape == (FRAMES, 6, 16)
    edges = [[0.8, 0, 1], [-0.8, 0, 1], [0, 0.8, 1], [0, -0.8, 1]]
    np.testing.assert_allclose(push[0, :3, :4].T, edges)
    result = meter(motion)
    assert result.deviation_m < 0.005 and result.excess == 0 and result.speed == 0
    assert result.reason == ""


def test_a_flight_needs_no_forces(
    robot: Robot, meter: FeasibilityMeter, make: SimpleNamespace
) -> None:
    """Thrown up at 2 m/s from 6 m."""
    time = np.arange(FRAMES) / 50
    qpos = make.standing(robot, FRAMES)
    qpos[:, 2] += 6.0 + 2.0 * time - 0.5 * GRAVITY * time**2
    wrench, _, push, _ = meter.dynamics(make.motion_of(robot, qpos))
    np.testing.assert_allclose(wrench, 0.0, atol=1e-9)
    assert not push.any()
    assert meter(make.motion_of(robot, qpos)).reason == ""


def test_a_levitating_robot_would_fall(
    robot: Robot, meter: FeasibilityMeter, make: SimpleNamespace
) -> None:
    """Without a foot within reach of the floor the residual is the weight. In h it falls by
    g h^2 / 2 = 2 leg lengths, in steps by (1 + 1 / 23) times as much."""
    qpos = make.standing(robot, FRAMES)
    qpos[:, 2] += 0.1
    result = meter(make.motion_of(robot, qpos))
    count = frames_of(robot, meter)
    assert result.deviation_m == pytest.approx(2.0 * LEG_M * (1.0 + 1.0 / count), rel=1e-3)
    assert result.reason == "balance"


def on_hind_legs(robot: Robot, make: SimpleNamespace) -> Array:
    """The home pose with bent front legs, whose feet leave the floor."""
    qpos = make.standing(robot, FRAMES)
    for side in ("LF", "RF"):
        qpos[:, 7 + robot.joint_names.index(f"{side}_HFE")] = 1.2
        qpos[:, 7 + robot.joint_names.index(f"{side}_KFE")] = -2.4
    return qpos


def test_a_lean_is_out_of_balance(
    robot: Robot, meter: FeasibilityMeter, make: SimpleNamespace
) -> None:
    """Level on its hind feet, which are d behind the centre of mass, the vertical edges have the
    moment m g d about it, nose down."""
    motion = make.motion_of(robot, on_hind_legs(robot, make))
    wrench, _, push, _ = meter.dynamics(motion)
    np.testing.assert_allclose(wrench[5], [0, 0, 1, 0, 0, 0], atol=1e-9)
    assert not push[:, :, :8].any()
    # opposite edges of a foot, halved: its vertical force
    vertical = 0.5 * (push[5, :, 8] + push[5, :, 9])
    model = robot.model()
    data = mujoco.MjData(model)
    data.qpos[:] = motion.qpos[5]
    mujoco.mj_forward(model, data)
    behind = data.subtree_com[1, 0] - data.geom("LH_foot").xpos[0]
    assert behind > 0.3
    assert vertical[2] == pytest.approx(1.0)
    assert vertical[4] * meter.gyration_m == pytest.approx(behind)
    result = meter(motion)
    assert result.deviation_m > MAX_DEVIATION * LEG_M and result.reason == "balance"


def test_the_radius_of_gyration(robot: Robot, meter: FeasibilityMeter) -> None:
    """By the mass matrix about the root: 3 m k^2 + 2 m c^2, with the centre of mass c away."""
    model = robot.model()
    data = mujoco.MjData(model)
    data.qpos[:] = robot.home_qpos
    mujoco.mj_forward(model, data)
    matrix = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, matrix)
    mass = matrix[0, 0]
    square = np.square(data.subtree_com[1] - data.qpos[:3]).sum()
    inertia = matrix[3:6, 3:6].trace() - 2.0 * mass * square
    assert meter.gyration_m == pytest.approx(math.sqrt(inertia / (3.0 * mass)))


def test_weak_drives_cannot_stand(robot: Robot, make: SimpleNamespace) -> None:
    """On drives of 1 Nm; knees at home carry 75 N at 0.1 m and more."""
    weak = replace(robot, torque_limit=np.ones(12))
    result = FeasibilityMeter(weak)(make.motion_of(weak, make.standing(weak, FRAMES)))
    assert result.reason == "torque"


def test_a_joint_above_its_speed_limit(
    robot: Robot, meter: FeasibilityMeter, make: SimpleNamespace
) -> None:
    """A thigh at 18 rad/s for 0.14 s in a flight; the limit is 15 rad/s."""
    qpos = make.standing(robot, FRAMES)
    time = np.arange(FRAMES) / 50
    qpos[:, 2] += 8.0 - 0.5 * GRAVITY * time**2
    qpos[20:28, 8] += np.linspace(0.0, 18.0 * 0.14, 8)
    qpos[28:, 8] += 18.0 * 0.14
    result = meter(make.motion_of(robot, qpos))
    assert result.speed == pytest.approx(18.0 / 15.0)
    assert "joint speed" in result.reason


def test_a_single_frame_is_feasible(
    robot: Robot, meter: FeasibilityMeter, make: SimpleNamespace
) -> None:
    result = meter(make.motion_of(robot, make.standing(robot, 1)))
    assert not result.reason


def test_the_second_difference_of_a_constant_acceleration() -> None:
    """x'' = 1: x = t^2 / 2 at t = h, then at most 4 max|x| = h^2."""
    bound = feasibility.least_deviation(np.ones((40, 1)), 10)[:, 0]
    # 1 + 2 + ... + 10 of 100, as steps
    assert bound[9] == pytest.approx(0.55)
    assert bound[19] == pytest.approx(1.0 / 3.0)
    np.testing.assert_allclose(bound[20:], 0.25)


def test_the_least_residual_of_one_foot() -> None:
    """A foot s beside the centre of mass, no friction: (1 - f)^2 + (f s)^2 is least at
    f = 1 / (1 + s^2)."""
    wrench = np.tile([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], (3, 1))
    push = np.zeros((3, 6, 1))
    push[:, 2, 0] = 1.0
    push[:, 4, 0] = [0.0, 0.5, -2.0]
    force = feasibility._least_residual(wrench, np.zeros((3, 1)), push, np.zeros((3, 1, 1)), 1)
    np.testing.assert_allclose(force[:, 0], [1.0, 0.8, 0.2], atol=1e-6)
