"""Trials of bundles in MuJoCo: commands, episodes, and metrics against hand-computed values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mocap_data.errors import InputError
from npmp import robots
from npmp.deploy import trial
from npmp.deploy.contract import BundleContract, Command
from npmp.deploy.controller import ControlMode, ControlStep
from npmp.deploy.onnx_policy import Readings
from npmp.deploy.robot import FloatArray
from npmp.deploy.simulated import SimulatedRobot, check_model
from npmp.deploy.trial import (
    COMMAND,
    Episode,
    episodes,
    metrics,
    sample_commands,
    to_heading,
    velocity_error_1s,
)
from tests.deploy.standins import Standing, contract_of

RANGE = [[0.2, 1.5], [-0.3, 0.3], [-1.0, 1.0]]


def walking() -> BundleContract:
    units = ("m/s", "m/s", "rad/s")
    return replace(contract_of(), commands=list(map(Command, COMMAND, units, RANGE)))


def test_commands_are_the_same_for_the_same_seed_and_within_the_ranges() -> None:
    command = sample_commands(walking(), 400, 3)
    assert command.shape == (400, 3)
    assert (command == sample_commands(walking(), 400, 3)).all()
    assert (command[:150] != sample_commands(walking(), 400, 4)[:150]).any()
    assert (sample_commands(walking(), 100, 3) == command[:100]).all()  # however long it goes on
    assert (
        command[:150] != sample_commands(walking(), 400, 2, 1)[:150]
    ).any()  # seeds share no episodes
    low, high = np.array(RANGE).T
    many = sample_commands(walking(), 150 * 2000, 0)[::150]
    assert (many >= low).all() and (many <= high).all()
    assert set(np.flatnonzero(np.diff(command, axis=0).any(1)) + 1) <= {150, 300}
    # a tenth of forward speeds would be zero, which this range has not: its nearest, 0.2
    assert (many[:, 0] == 0.2).mean() == pytest.approx(0.1, abs=0.02)
    assert (many[:, 1] == 0.0).mean() == pytest.approx(0.75, abs=0.03)


def test_another_bundle_is_refused() -> None:
    with pytest.raises(InputError, match="forward_mps, turn_rps"):
        sample_commands(contract_of(), 1, 0)
    robot = robots.load("anymal_b")
    check_model(walking(), robot)
    with pytest.raises(InputError, match="'anymal_b'"):
        check_model(replace(walking(), physics_rate_hz=200.0), robot)


def test_the_heading_is_the_robots_own() -> None:
    # turned to the left by a right angle, it goes on along the world's y
    turned = np.sqrt([0.5, 0.0, 0.0, 0.5])
    assert to_heading(np.array([0.0, 2.0, 5.0]), turned) == pytest.approx((2.0, 0.0))
    assert to_heading(np.array([-1.0, 0.0, 0.0]), turned) == pytest.approx((0.0, 1.0))


def test_figures_by_hand() -> None:
    """Sway within a second is no error; 0.3 and 0.4 off make 0.5; half a second at the end is left
    out."""
    sway = np.tile([[0.1, 0, 0], [-0.1, 0, 0]], (5, 1))
    command = np.tile([1.0, 0.0, 0.0], (25, 1))
    achieved = command + np.concatenate(
        (sway, np.tile([0.3, 0.4, 0.0], (10, 1)), np.full((5, 3), 9.0))
    )
    assert velocity_error_1s(Episode(False, command, achieved), 10.0) == pytest.approx([0.0, 0.5])
    fallen = Episode(True, command[:5], achieved[:5])
    assert metrics([Episode(False, command, achieved), fallen], 25, 10.0) == {
        "falls": 1,
        "survived": 0.5,
        "steps_survived": 0.6,
        "velocity_error_1s": pytest.approx(0.25),
    }
    assert metrics([fallen], 25, 10.0)["velocity_error_1s"] is None


def test_an_episode_in_mujoco(monkeypatch: pytest.MonkeyPatch) -> None:
    robot, steps = SimulatedRobot(robots.load("anymal_b"), crouch=1.0), list[ControlStep]()
    policy = Standing(walking().home_pose)
    once, again = (
        next(episodes(robot, policy, walking(), count=1, steps=30, seed=0, record=steps.append))
        for _ in range(2)
    )
    assert policy.resets == 2 and not once.fell and (once.achieved == again.achieved).all()
    assert np.abs(once.achieved[10:]).max() < 0.05 and once.command.shape == (30, 3)
    first, last = steps[0], steps[29]
    assert first.state is not None and last.state is not None
    assert first.state.joint_pos == pytest.approx(walking().home_pose)
    assert first.state.accelerometer == pytest.approx([0, 0, 9.81])
    assert first.state.gyro == pytest.approx([0, 0, 0])
    assert last.state.up[2] > 0.999 and last.output.mode is ControlMode.POLICY
    assert last.now == pytest.approx(29 / 50)
    # beyond a joint's range nothing is command for
    far = Standing(np.full(12, 9.0))
    next(episodes(robot, far, walking(), count=1, steps=1, seed=0, record=steps.append))
    assert steps[-1].output.target == pytest.approx(walking().joint_range[1])
    assert steps[-1].output.proposed == pytest.approx(np.full(12, 9.0))
    # targets are held as in training
    setpoints: list[float] = []
    # of 0.08 rad, after two of eight steps
    for hold, goal in (("first_order", 0.02), ("zero_order", 0.08)):
        robot.reset()
        setpoints.clear()
        with monkeypatch.context() as watched:
            watched.setattr(robot, "_advance", lambda setpoint: setpoints.append(setpoint[0]))
            held = replace(walking(), hold=hold)
            near = Standing(walking().home_pose + 0.08)
            next(episodes(robot, near, held, count=1, steps=1, seed=0, record=steps.append))
        assert setpoints[1] - walking().home_pose[0] == pytest.approx(goal)
    monkeypatch.setattr(trial, "UPRIGHT", 1.1)
    (fallen,) = episodes(robot, policy, walking(), count=1, steps=30, seed=0, record=steps.append)
    assert fallen.fell and fallen.command.shape == fallen.achieved.shape == (1, 3)


def test_a_simulation_that_breaks_down_is_a_fall() -> None:
    """MuJoCo goes on from the default state, which stands."""
    robot, steps = SimulatedRobot(robots.load("anymal_b"), crouch=1.0), list[ControlStep]()

    class Kicked(Standing):
        def act(self, readings: Readings, command: FloatArray) -> FloatArray:
            if self.acts == 4:
                robot.data.qvel[2] = 1e12
            return super().act(readings, command)

    policy = Kicked(walking().home_pose)
    broke, sound = episodes(
        robot, policy, walking(), count=2, steps=10, seed=0, record=steps.append
    )
    assert len(steps) == 15 and [step.now for step in steps[4:6]] == [pytest.approx(4 / 50), 0.0]
    assert broke.fell and len(broke.command) == 5 and not sound.fell
