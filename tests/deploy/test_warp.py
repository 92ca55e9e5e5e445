"""The robot in mujoco_warp against the one in MuJoCo; without mujoco_warp, what is said."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import pytest

from mocap_data.errors import InputError
from npmp import robots
from npmp.deploy.simulated import SimulatedRobot
from npmp.deploy.trial import episodes
from npmp.deploy.warp import WarpRobot
from tests.deploy.standins import Standing
from tests.deploy.test_trial import walking


def test_without_mujoco_warp_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco_warp", None)
    with pytest.raises(InputError, match=r"pip install 'npmp\[warp\]'"):
        WarpRobot(robots.load("anymal_b"))


def test_it_moves_as_in_mujoco() -> None:
    """The same equations: in 0.2 s of single precision they part by no more than a tenth of a
    millimetre."""
    pytest.importorskip("mujoco_warp")
    robot = robots.load("anymal_b")
    mine, other = (made(robot, crouch=1.0) for made in (WarpRobot, SimulatedRobot))
    for simulated in (mine, other):
        simulated.place()
        simulated.command(
            robot.home_joints + 0.2 * np.sin(np.arange(12)), 0.7 * robot.kp, robot.kd, 0.1
        )
        for _ in range(80):
            simulated.step()
    first, second = (simulated.sense(0.0) for simulated in (mine, other))
    assert first.joint_pos == pytest.approx(second.joint_pos, abs=1e-4)
    assert first.joint_torque == pytest.approx(second.joint_torque, abs=0.05)
    assert first.accelerometer == pytest.approx(second.accelerometer, abs=0.05)
    assert mine.data.qpos == pytest.approx(other.data.qpos, abs=1e-4)
    assert np.abs(second.joint_pos - robot.home_joints).max() > 0.05 and not mine.broken
    mine.data.qpos[0] = np.nan
    assert mine.broken


def test_side_by_side_each_walks_as_it_would_alone() -> None:
    """Whatever the others do: one of them folds its legs."""
    pytest.importorskip("mujoco_warp")
    robot, contract = robots.load("anymal_b"), walking()
    home = np.array(contract.home_pose)
    poses = (home, np.tile([0.0, 1.5, 0.0], 4), home + 0.1 * np.sin(np.arange(12)))
    side_by_side = WarpRobot.several(robot, 3, accelerometer="imu")
    assert len(side_by_side) == 3
    run = partial(episodes, contract=contract, steps=12, seed=0, note=lambda step: None)
    together = list(run(side_by_side, [Standing(pose) for pose in poses], count=3))
    for pose, one in zip(poses, together):
        (alone,) = run(WarpRobot.several(robot, 1, accelerometer="imu"), [Standing(pose)], count=1)
        assert one.fell == alone.fell and one.achieved == pytest.approx(alone.achieved, abs=1e-4)
    assert (
        np.abs(together[1].achieved - together[0].achieved[: len(together[1].achieved)]).max() > 0.1
    )
    assert not together[0].fell and np.ptp(together[2].achieved[:, 2]) > 0.01
