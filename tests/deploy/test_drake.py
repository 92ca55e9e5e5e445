"""The robot in Drake against the one in MuJoCo; without Drake, what is said."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from npmp import robots
from npmp.deploy.drake import DrakeRobot
from npmp.deploy.simulated import SimulatedRobot
from tests.refusals import refusal


def test_without_drake_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydrake", None)
    refusal(r"pip install 'npmp\[drake\]'", DrakeRobot, robots.load("anymal_b"))


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_it_stands_as_in_mujoco(name: str) -> None:
    """Mass, torques that hold it, and the frames of velocities; another contact model moves none of
    them much."""
    pytest.importorskip("pydrake")
    robot = robots.load(name)
    mine, other = (made(robot, crouch=1.0) for made in (DrakeRobot, SimulatedRobot))
    mass = float(other.model.body_mass.sum())
    assert mine._plant.CalcTotalMass(mine._context) == pytest.approx(mass, rel=1e-6)
    for simulated in (mine, other):
        simulated.reset()
        simulated.command(robot.home_joints, robot.kp, robot.kd, 0.0)
        for _ in range(round(0.5 / simulated.dt)):
            simulated.step()
    first, second = (simulated.sense(0.0) for simulated in (mine, other))
    assert first.joint_pos == pytest.approx(second.joint_pos, abs=0.02)
    expected = pytest.approx(second.joint_torque, abs=0.05 * float(robot.torque_limit.max()))
    assert first.joint_torque == expected
    assert first.accelerometer == pytest.approx(9.81 * first.up, abs=0.5)
    assert mine.data.qpos[2] == pytest.approx(other.data.qpos[2], abs=0.01)


def test_its_velocities_are_those_of_its_positions() -> None:
    """Turned on its feet: MuJoCo's convention is linear in the world, angular in the root frame."""
    pytest.importorskip("pydrake")
    import mujoco

    robot = robots.load("anymal_b")
    mine = DrakeRobot(robot)
    mine.reset()
    mine.command(robot.home_joints + 0.3 * np.sin(np.arange(12)), robot.kp, robot.kd, 0.1)
    for _ in range(80):
        before = mine.data.qpos.copy()
        mine.step()
        turned = np.zeros(3)
        mujoco.mju_subQuat(turned, mine.data.qpos[3:7], before[3:7])
        # Drake's steps are semi-implicit: positions follow from the velocities after it
        assert mine.data.qvel[3:6] == pytest.approx(turned / mine.dt, abs=5e-3)
        expected = pytest.approx((mine.data.qpos[:3] - before[:3]) / mine.dt, abs=1e-6)
        assert mine.data.qvel[:3] == expected
        expected = pytest.approx((mine.data.qpos[7:] - before[7:]) / mine.dt, abs=1e-6)
        assert mine.data.qvel[6:] == expected
        assert np.linalg.norm(mine.sense(0.0).up) == pytest.approx(1.0, abs=1e-12)
    assert np.abs(mine.data.actuator_force).max() > 5.0
    assert np.abs(mine.data.qvel[3:6]).max() > 0.0
