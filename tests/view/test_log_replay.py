"""A log's poses, and its recording for Foxglove and Rerun."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mcap.reader import make_reader
from rerun.chunk import McapReader, RrdReader

from mocap_data import rotations
from npmp.actuators.joint_states import read_joint_states
from npmp.deploy.controller import ControlMode
from npmp.deploy.run_log import DeployLog, layout
from npmp.robots import Robot
from npmp.view.log_replay import poses_of_log, shot_of_log
from npmp.view.mcap_file import TOPICS, check_mcap, write_mcap
from npmp.view.render.rerun_file import write_rrd
from tests.refusals import refusal

STEPS = 50
# lean to the front: the vertical in the root frame points backwards [rad]
PITCH = 0.2
# turn to the left about the world's vertical [rad/s]
YAW_RATE = 0.5


@pytest.fixture
def log(robot: Robot) -> DeployLog:
    """A second at the home pose that leans and turns; the first two steps have no readings."""
    widths = layout(len(robot.joint_names), 3)
    columns = {name: np.full((STEPS, width), np.nan) for name, width in widths.items()}
    up = np.array([-np.sin(PITCH), 0.0, np.cos(PITCH)])
    columns["time_s"][:, 0] = 7.0 + np.arange(STEPS) / 50.0
    columns["mode"][:] = ControlMode.POLICY
    columns["mode"][:10] = ControlMode.STAND
    columns["joint_pos"][2:] = robot.home_joints
    columns["joint_vel"][2:] = 0.1
    columns["joint_torque"][2:] = np.arange(STEPS - 2)[:, None]
    columns["gyro"][2:] = YAW_RATE * up
    columns["up"][2:] = up
    columns["accelerometer"][2:] = 9.81 * up
    columns["target"][10:] = robot.home_joints + 0.05
    columns["command"][:] = [0.4, 0.1, 0.2]
    names = ("forward_mps", "lateral_mps", "yaw_rate_rps")
    return DeployLog(robot.name, robot.joint_names, names, 50.0, "sim", columns)


def test_poses_are_as_measured(robot: Robot, log: DeployLog) -> None:
    qpos = poses_of_log(robot, log)
    np.testing.assert_array_equal(qpos[:, 7:], np.tile(robot.home_joints, (STEPS, 1)))
    turned = rotations.rotate(qpos[:, 3:7], np.tile(log.columns["up"][-1], (STEPS, 1)))
    np.testing.assert_allclose(turned, np.tile([0.0, 0.0, 1.0], (STEPS, 1)), atol=1e-12)
    heading = rotations.yaw(qpos[:, 3:7])
    np.testing.assert_allclose(np.diff(heading), YAW_RATE / 50.0, atol=1e-9)
    # the front feet carry it: the trunk is lower than upright by less than half a length
    assert (qpos[:, :2] == 0.0).all() and abs(qpos[0, 2] - robot.home_qpos[2]) < 0.15

    upright = {name: values.copy() for name, values in log.columns.items()}
    upright["up"][:] = [0.0, 0.0, 1.0]
    upright["gyro"][:] = 0.0
    level = poses_of_log(robot, replace(log, columns=upright))
    np.testing.assert_allclose(level, np.tile(robot.home_qpos, (STEPS, 1)), atol=1e-9)


def test_a_log_of_another_robot_or_without_readings(robot: Robot, log: DeployLog) -> None:
    refusal("joints", poses_of_log, robot, replace(log, joint_names=log.joint_names[::-1]))
    nothing = {name: np.full_like(values, np.nan) for name, values in log.columns.items()}
    refusal("no step", poses_of_log, robot, replace(log, columns=nothing))


def test_an_mcap_opens_in_the_readers_of_foxglove_rerun_and_ros(
    robot: Robot, log: DeployLog, tmp_path: Path
) -> None:
    path = tmp_path / "run.mcap"
    write_mcap(path, log, robot)
    with path.open("rb") as file:
        reader = make_reader(file)
        counts = Counter(channel.topic for _, channel, _ in reader.iter_messages())
        assert reader.get_header().profile == "ros2"
    read = STEPS - 2
    driven = STEPS - 10
    expected = dict(zip(TOPICS, (read, driven, read), strict=True))
    assert counts == expected

    # rerun's own decoder of ROS 2 knows all of them
    chunks = McapReader(str(path)).stream().to_chunks()
    transforms = [chunk for chunk in chunks if chunk.entity_path == "/tf"]
    names = {name for chunk in transforms for name in chunk.to_record_batch().schema.names}
    assert {"Transform3D:translation", "Transform3D:child_frame"} <= names
    assert set(TOPICS) <= {chunk.entity_path for chunk in chunks}

    result = read_joint_states(path)
    assert result["actuators"].tolist() == list(robot.joint_names)
    np.testing.assert_allclose(result["time_s"], np.arange(driven) / 50.0, atol=1e-9)
    arrays = {"position": "joint_pos", "torque": "joint_torque", "command": "target"}
    for name, column in arrays.items():
        np.testing.assert_array_equal(result[name], log.columns[column][10:])


def test_a_logs_curves_in_rerun(robot: Robot, log: DeployLog, tmp_path: Path) -> None:
    write_rrd(tmp_path / "run.rrd", shot_of_log(robot, log))
    chunks = RrdReader(str(tmp_path / "run.rrd")).stream().to_chunks()
    joint = robot.joint_names[0]
    values = {}
    for chunk in chunks:
        batch = chunk.to_record_batch()
        if "Scalars:scalars" in batch.schema.names:
            rows = batch["Scalars:scalars"].to_pylist()
            values[chunk.entity_path] = np.array([row[0] for row in rows])
    assert values[f"/joint_torque/{joint}/joint_torque"][-1] == STEPS - 3
    assert values[f"/angle/{joint}/target"][-1] == pytest.approx(robot.home_joints[0] + 0.05)
    np.testing.assert_allclose(values["/command/forward_mps/command"], 0.4)


def test_a_recordings_name(tmp_path: Path) -> None:
    refusal("mcap", check_mcap, tmp_path / "run.bag")
    check_mcap(tmp_path / "run.mcap")
