"""The simulated robot: physics, drives and sensors."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from npmp import robots
from npmp.deploy.simulated import FloorCamera, SimulatedRobot


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_it_rests_crouched_and_measures_that_it_does(name: str) -> None:
    robot = SimulatedRobot(robots.load(name))
    state = robot.sense(3.0)
    assert state.time_s == 3.0
    assert np.abs(state.joint_vel).max() < 0.05 and np.abs(state.gyro).max() < 0.05
    assert state.up[2] > 0.99
    # at rest an accelerometer measures what holds it up
    assert state.accelerometer == pytest.approx(9.81 * state.up, abs=0.05)
    assert robot.data.qpos[2] < 0.8 * robot.robot.home_qpos[2]


@pytest.mark.parametrize("kind", ["imu", "root"])
def test_its_sensors_are_those_that_policies_were_trained_on(kind: str) -> None:
    """Compared with the environment's over one control step of a moving robot, to its float32."""
    torch = pytest.importorskip("torch")
    from npmp.core import geometry
    from npmp.envs.state import RobotState, arrive, pose_from_qpos

    robot = robots.load("anymal_b")
    simulated = SimulatedRobot(robot, accelerometer=kind)
    offset = torch.tensor(simulated.imu_offset, dtype=torch.float32)
    imu_cross = geometry.skew(offset) if kind == "imu" else None
    simulated.command(robot.home_joints, robot.kp, robot.kd, 0.0)
    states = []
    for _ in range(3):
        for _ in range(robot.substeps):
            simulated.step()
        states.append([torch.tensor(x)[None] for x in (simulated.data.qpos, simulated.data.qvel)])
    state = RobotState.still(*pose_from_qpos(states[0][0]))
    for qpos, qvel in states[1:]:
        state = arrive(state, qpos, qvel, state.joint_pos, 1 / robot.control_rate_hz, imu_cross)
    result = simulated.sense(0.0)
    assert result.gyro == pytest.approx(state.root_ang[0].numpy(), abs=1e-3)
    assert result.accelerometer == pytest.approx(state.accel[0].numpy(), abs=0.02)
    assert result.up == pytest.approx(state.root_rot[0, 2].numpy(), abs=1e-6)


def test_targets_are_approached_along_a_line() -> None:
    robot = robots.load("anymal_b")
    simulated = SimulatedRobot(robot)
    simulated.command(robot.home_joints, robot.kp, robot.kd, 0.0)
    assert simulated.setpoint() == pytest.approx(robot.home_joints)
    goal = robot.home_joints + 0.08
    simulated.command(goal, robot.kp, robot.kd, 0.02)  # 8 physics steps of 2.5 ms
    for k in range(1, 5):
        simulated.step()
        assert simulated.data.ctrl == pytest.approx(robot.home_joints + 0.01 * k)
    simulated.command(goal, robot.kp, robot.kd, 0.01)  # again with what is left: the same line
    simulated.step()
    assert simulated.data.ctrl == pytest.approx(robot.home_joints + 0.05)


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_limp_drives_begin_where_the_joints_lie(name: str) -> None:
    """Sent to where they are, they hardly pull."""
    robot = robots.load(name)
    simulated = SimulatedRobot(robot)
    simulated.command(simulated.data.qpos[7:].copy(), robot.kp, robot.kd, 0.02)
    for _ in range(8):
        simulated.step()
        assert (np.abs(simulated.data.actuator_force) / robot.torque_limit).max() < 0.3


def test_its_camera_has_the_depths_of_training() -> None:
    """Compared with `DepthCamera` over level ground, from a turned and tilted root."""
    torch = pytest.importorskip("torch")
    from npmp.envs.camera import CameraConfig, DepthCamera, recorded

    config = CameraConfig(size=(6, 4), pitch_deg=40.0)
    simulated = SimulatedRobot(robots.load("anymal_b"))
    simulated.data.qpos[:7] = 3.0, -2.0, 0.6, *(np.array([0.9, 0.1, -0.2, 0.3]) / 0.95**0.5)
    mujoco.mj_kinematics(simulated.model, simulated.data)
    camera = DepthCamera(config)
    camera.allocate(1, 0.02, torch.device("cpu"))
    position = torch.tensor(simulated.data.xpos[1], dtype=torch.float32)[None]
    rotation = torch.tensor(simulated.data.xmat[1], dtype=torch.float32).view(1, 3, 3)
    expected = camera.depths(position, rotation, lambda at: torch.zeros(at.shape[:-1]))[0]
    depths = FloorCamera(recorded(config)).depths(simulated.data)
    assert depths.min() > 0.3 and depths.max() == 4.0
    np.testing.assert_allclose(depths, expected.numpy(), rtol=0.02)
