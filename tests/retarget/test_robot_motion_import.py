"""Imported robot motions: by joint names, compared with the robot's kinematics."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from mocap_data import InputError, ReferenceMotion, rotations
from mocap_data.export import write_mjlab_npz, write_unitree_csv
from mocap_data.readers.robot_motions import RobotMotion, kind_of, read_robot_motion
from npmp.robots import Robot
from retarget.kinematics import body_states, tree_of
from retarget.robot_motion_import import to_reference_motion
from tests.refusals import refusal


@pytest.fixture(scope="module")
def walk(robot: Robot) -> ReferenceMotion:
    """Two seconds at 50 Hz: standing for the first, then swaying and lifting the left fore foot."""
    times = np.arange(100) / 50.0
    lift = np.where(times > 1.0, 0.5 * (1.0 - np.cos(2.0 * np.pi * (times - 1.0))), 0.0)
    qpos = np.tile(robot.home_qpos, (100, 1))
    qpos[:, 0] += 0.05 * lift
    qpos[:, 3:7] = rotations.from_axis_angle([0.0, 0.0, 1.0], 0.2 * lift)
    thigh, shank = (robot.joint_names.index(name) for name in ("LF_HFE", "LF_KFE"))
    qpos[:, 7 + thigh] += 0.4 * lift
    qpos[:, 7 + shank] -= 0.8 * lift
    return ReferenceMotion(name="walk", qpos=qpos, rate_hz=50.0)


def write_npz(path: Path, motion: ReferenceMotion, robot: Robot) -> None:
    bodies = body_states(tree_of(robot.model(visuals=False)), motion)
    write_mjlab_npz(path, motion, robot.joint_names, robot.body_names, bodies)


def shuffled(motion: RobotMotion, seed: int = 0) -> RobotMotion:
    order = np.random.default_rng(seed).permutation(len(motion.joint_names))
    qpos = np.array(motion.qpos)
    qpos[:, 7:] = qpos[:, 7:][:, order]
    names = tuple(motion.joint_names[i] for i in order)
    return dataclasses.replace(motion, qpos=qpos, joint_names=names)


def test_export_and_import_give_the_same_motion(
    robot: Robot, walk: ReferenceMotion, tmp_path: Path
) -> None:
    motion = walk
    write_npz(tmp_path / "a.npz", motion, robot)
    write_unitree_csv(tmp_path / "a.csv", motion, robot.joint_names)
    for name in ("a.npz", "a.csv"):
        assert kind_of(tmp_path / name) is not None
        back = to_reference_motion(read_robot_motion(tmp_path / name), robot)
        sign = np.sign(np.sum(back.qpos[:, 3:7] * motion.qpos[:, 3:7], axis=1))[:, None]
        np.testing.assert_allclose(back.qpos[:, 3:7] * sign, motion.qpos[:, 3:7], atol=1e-6)
        expected = motion.qpos[:, [0, 1, 2, *range(7, 19)]]
        np.testing.assert_allclose(back.qpos[:, [0, 1, 2, *range(7, 19)]], expected, atol=2e-6)
        tree = tree_of(robot.model(visuals=False))
        np.testing.assert_allclose(
            body_states(tree, back).position, body_states(tree, motion).position, atol=5e-6
        )
        # velocities are differences of the written poses: what float32 leaves of 1 rad, 1e-7, times
        # 50 Hz
        np.testing.assert_allclose(back.qvel, motion.qvel, atol=2e-5)
        assert back.contacts is not None and back.contacts.shape == (100, 4)
        assert back.rate_hz == motion.rate_hz
        assert back.contacts[:45].all()
        lifted = robot.foot_bodies.index(
            next(body for body in robot.foot_bodies if body.startswith("LF"))
        )
        assert not back.contacts[75, lifted] and back.contacts[75].sum() == 3


def test_joints_are_matched_by_name(robot: Robot, walk: ReferenceMotion, tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", walk, robot)
    straight = read_robot_motion(tmp_path / "a.npz")
    mixed = shuffled(straight)
    assert mixed.joint_names != straight.joint_names
    result, expected = (to_reference_motion(motion, robot).qpos for motion in (mixed, straight))
    np.testing.assert_allclose(result, expected, atol=1e-15)


def test_a_wrong_order_is_caught_by_the_body_poses(
    robot: Robot, walk: ReferenceMotion, tmp_path: Path
) -> None:
    write_npz(tmp_path / "a.npz", walk, robot)
    wrong = dataclasses.replace(
        shuffled(read_robot_motion(tmp_path / "a.npz")), joint_names=robot.joint_names
    )
    refusal("body '.*'anymal_b'", to_reference_motion, wrong, robot)


def test_names_that_do_not_fit_are_listed(
    robot: Robot, walk: ReferenceMotion, tmp_path: Path
) -> None:
    write_unitree_csv(tmp_path / "a.csv", walk, robot.joint_names)
    motion = read_robot_motion(tmp_path / "a.csv")
    other = dataclasses.replace(motion, joint_names=("left_knee", *motion.joint_names[1:]))
    first = robot.joint_names[0]
    with pytest.raises(InputError, match=f"it lacks {first}; robot 'anymal_b' has no left_knee"):
        to_reference_motion(other, robot)
