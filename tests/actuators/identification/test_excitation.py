"""Commands for a stand, and simulated robots on it."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from mocap_data.errors import InputError
from npmp.actuators.identification.excitation import (
    ExcitationConfig,
    excitation,
    random_parameters,
    simulate_log,
)
from npmp.actuators.identification.stand import KINDS, stand_of
from npmp.robots import Robot

SHORT = ExcitationConfig(seconds=8.0, lowest_hz=0.4)


def test_commands_keep_the_limits_and_start_at_rest(robot: Robot) -> None:
    stand = stand_of(robot, robot.control_rate_hz)
    command = excitation(robot, stand, SHORT, np.random.default_rng(0))
    assert command.shape == (400, 12) and (np.abs(command[:50] - command[0]) < 1e-12).all()
    assert (command > robot.joint_lower).all() and (command < robot.joint_upper).all()
    motion = stand.run(stand.nominal[None], command, command[0], torque=True)
    assert motion.torque is not None
    assert (np.abs(motion.torque) <= 0.5 * robot.torque_limit + 1e-9).all()
    assert (np.ptp(command, axis=0) > 0.2).all()
    for tree in stand.trees:  # joints of a limb move at frequencies of their own: hardly alike
        assert np.abs(np.corrcoef(command[:, tree].T) - np.eye(3)).max() < 0.35
    assert np.array_equal(command, excitation(robot, stand, SHORT, np.random.default_rng(0)))


def test_a_hidden_robot_is_within_what_was_said(robot: Robot) -> None:
    stand = stand_of(robot, robot.control_rate_hz)
    hidden = random_parameters(stand, np.random.default_rng(0))
    kp, delay, bias = (hidden[:, KINDS.index(kind)] for kind in ("kp", "delay_s", "bias"))
    assert (np.abs(kp / robot.kp - 1.0) <= 0.2).all() and (np.abs(bias) <= 0.05).all()
    assert (delay >= 0.0).all() and (delay <= 3.0 / robot.control_rate_hz).all()
    assert (hidden[:, :3] >= 0.0).all()
    command = np.tile(robot.home_joints, (100, 1))
    log = simulate_log(stand, hidden, command, np.random.default_rng(1))
    # it stood still before the log began and goes on so: only noise of 0.5 mrad is seen
    assert log.recordings[0].position.std(0) == pytest.approx(5e-4, rel=0.4)


def test_a_motion_whose_parts_touch_is_refused(
    robot: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    motions = sys.modules[excitation.__module__]
    monkeypatch.setattr(motions, "_TRIES", 2)
    monkeypatch.setattr(
        vars(motions)["_Contacts"], "joints", lambda self, position: np.arange(12) == 4
    )
    still = ExcitationConfig(seconds=8.0, lowest_hz=0.4, amplitude=0.01)  # keeps all other limits
    with pytest.raises(InputError, match=f"amplitude=.*{robot.joint_names[4]}"):
        excitation(robot, stand_of(robot, robot.control_rate_hz), still, np.random.default_rng(0))
