"""ANYmal C, a robot of YAML only: the figures of Menagerie's model, faced forward, and fit for the
environments."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp import robots, tasks
from npmp.robots.check import check
from npmp.tasks import rewards
from tests.robots.models import same_bodies

LEGS = ("LF", "RF", "LH", "RH")


@pytest.fixture
def menagerie(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = shared / "robots" / "menagerie"
    if not (folder / "anybotics_anymal_c").is_dir():
        pytest.skip(f"needs {folder}/anybotics_anymal_c")
    monkeypatch.setenv("MENAGERIE_ROOT", str(folder))
    return folder


@pytest.fixture
def robot(menagerie: Path) -> robots.Robot:
    return robots.load("anymal_c")


def standing(robot: robots.Robot, frames: int = 20) -> MotionSet:
    """The home pose, held."""
    motion = ReferenceMotion(
        name="still", qpos=np.tile(robot.home_qpos, (frames, 1)), rate_hz=robot.control_rate_hz
    )
    return MotionSet(robot.name, robot.model_sha256, robot.joint_names, robot.body_names, (motion,))


def test_it_keeps_the_contract(robot: robots.Robot) -> None:
    assert [clause for clause in check(robot) if not clause.passed] == []
    assert set(robot.symmetries) == {"left_right", "front_back"}
    assert np.any(robot.symmetries["front_back"].body_turns[:, 0] != 1)


def test_figures_are_menageries(robot: robots.Robot, menagerie: Path) -> None:
    theirs = mujoco.MjModel.from_xml_path(str(menagerie / "anybotics_anymal_c" / "anymal_c.xml"))
    ours = robot.model(visuals=False)
    assert ours.body_mass.sum() == pytest.approx(44.965, abs=1e-3)
    assert ours.body_mass.sum() == pytest.approx(theirs.body_mass.sum(), rel=1e-12)
    assert robot.joint_names == tuple(theirs.joint(i).name for i in range(1, theirs.njnt))
    assert {*robot.torque_limit} == {80}
    same_bodies(ours, theirs)


def test_forward_is_forward(robot: robots.Robot) -> None:
    """Menagerie's ANYmals are yawed by 180 degrees as they stand; in the base's frame LF is ahead
    and left."""
    model = robot.model(visuals=False)
    data = mujoco.MjData(model)
    np.testing.assert_array_equal(data.qpos[3:7], [1, 0, 0, 0])
    data.qpos[:] = robot.home_qpos
    mujoco.mj_kinematics(model, data)
    for leg, x, y in zip(LEGS, (1, 1, -1, -1), (1, -1, 1, -1), strict=True):
        foot = data.body(f"{leg}_FOOT").xpos
        assert np.sign(foot[0]) == x and np.sign(foot[1]) == y
        assert foot[2] == pytest.approx(robot.foot_radius, abs=1e-9)
        shoulder = robot.markers[f"{leg}_{'shoulder' if x > 0 else 'hip'}"]
        for joint in ("HAA", "HFE"):  # axes meet in the marker
            point = robot.home_qpos[:3] + shoulder.position
            axis, anchor = data.joint(f"{leg}_{joint}").xaxis, data.joint(f"{leg}_{joint}").xanchor
            np.testing.assert_allclose(np.cross(point - anchor, axis), 0, atol=1e-6)


def test_environments_take_it(robot: robots.Robot) -> None:
    env = tasks.make("imitation", robot=robot, data=standing(robot), num_envs=4, num_threads=1)
    poses = env.task.tracking.kinematics(
        env.state.root_pos, env.state.root_rot, env.state.joint_pos
    )
    error = rewards.tracking_error(
        poses, env.state.joint_pos, env.task.tracking.reference.at(env.task.tracking.frame)
    )
    assert error.max() < 1e-3
    step = env.step(torch.zeros(4, 12))
    assert not step.terminated.any() and step.error.max() < 0.1

    walk = tasks.make("walk", robot=robot, num_envs=4, num_threads=1)
    for _ in range(25):
        step = walk.step(torch.zeros(4, 12))
    assert not step.terminated.any()  # on its feet only
    limp = torch.tensor(np.tile([0.0, 1.2, -1.7], 4), dtype=torch.float32).repeat(4, 1)
    fallen = False
    for _ in range(100):
        fallen = fallen or bool(walk.step(limp).terminated.all())
    assert fallen  # something else touches the floor, or it tips
