"""What a log needs to be that of a robot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mocap_data.errors import InputError
from npmp import robots
from npmp.actuators.actuator_log import JointRecording, StandLog
from npmp.actuators.identification.robot_log import match_robot
from tests.refusals import refusal


@pytest.fixture(scope="module")
def log() -> StandLog:
    """ANYmal B's joints in reverse order, each 0.3 rad about home, followed a sample late."""
    robot = robots.load("anymal_b")
    wave = 0.3 * np.sin(np.arange(100) / 5)[:, None]
    command = np.asarray(robot.home_joints)[::-1] + wave
    position = np.concatenate((command[:1], command[:-1]))
    return StandLog(
        100.0, tuple(reversed(robot.joint_names)), (JointRecording("r", command, position),)
    )


def changed(log: StandLog, factor: float, offset: float = 0.0) -> StandLog:
    recording = log.recordings[0]
    position = recording.position.copy()
    position[:, 0] = factor * position[:, 0] + offset
    return replace(log, recordings=(replace(recording, position=position),))


def test_joints_come_in_the_robots_order(log: StandLog) -> None:
    robot = robots.load("anymal_b")
    result = match_robot(log, robot)
    assert result.joints == robot.joint_names
    np.testing.assert_array_equal(result.recordings[0].command, log.recordings[0].command[:, ::-1])


def test_other_units_signs_and_no_motion_are_refused(log: StandLog) -> None:
    robot, joint = robots.load("anymal_b"), log.joints[0]
    home = float(robot.home_joints[-1])
    with pytest.raises(InputError, match=f"{joint}: position is"):
        match_robot(changed(log, 180.0 / np.pi), robot)
    with pytest.raises(InputError, match=f"{joint}: position and command"):
        match_robot(changed(log, -1.0, 2.0 * home), robot)
    refusal(f"{joint}: position", match_robot, changed(log, 0.0, home), robot)
    refusal("missing: LF_HAA", match_robot, replace(log, joints=log.joints[:-1]), robot)
    refusal(r"rate_hz=0\.1", match_robot, replace(log, rate_hz=0.1), robot)
