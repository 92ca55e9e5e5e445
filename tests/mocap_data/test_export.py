"""Writing other projects' formats: exactly their keys, and back to the same motion."""

from __future__ import annotations

import json
from pathlib import Path

import mujoco
import numpy as np

from mocap_data import ReferenceMotion, rotations
from mocap_data.export import write_mjlab_npz, write_unitree_csv
from mocap_data.motion import BodyStates
from mocap_data.readers.robot_motions import kind_of, read_robot_motion
from npmp.robots import Robot
from retarget.kinematics import body_states, tree_of

RATE = 50.0


def smooth_motion(
    robot: Robot, frames: int | None = None, rate_hz: float = RATE
) -> ReferenceMotion:
    """1.6 s of `robot`, or so many frames: sines of every coordinate."""
    frames = round(1.6 * rate_hz) if frames is None else frames
    times = np.arange(frames) / rate_hz
    qpos = np.tile(robot.home_qpos, (frames, 1))
    qpos[:, :3] += np.stack(
        [0.5 * times, 0.1 * np.sin(2 * times), 0.02 * np.cos(3 * times)], axis=1
    )
    axis = np.array([0.2, -0.3, 1.0]) / np.linalg.norm([0.2, -0.3, 1.0])
    qpos[:, 3:7] = rotations.from_axis_angle(axis, 0.8 * np.sin(1.5 * times))
    qpos[:, 7:] += 0.2 * np.sin(2.0 * times[:, None] + np.arange(len(robot.joint_names)))
    return ReferenceMotion(
        name="walk", qpos=qpos, rate_hz=rate_hz, source="made up", licence="none"
    )


def bodies_of(robot: Robot, motion: ReferenceMotion) -> BodyStates:
    return body_states(tree_of(robot.model(visuals=False)), motion)


def test_mjlab_round_trip(robot: Robot, tmp_path: Path) -> None:
    motion = smooth_motion(robot)
    write_mjlab_npz(
        tmp_path / "walk.npz", motion, robot.joint_names, robot.body_names, bodies_of(robot, motion)
    )
    back = read_robot_motion(tmp_path / "walk.npz")
    assert kind_of(tmp_path / "walk.npz") == "mjlab" and back.name == "walk"
    assert back.rate_hz == RATE
    assert back.joint_names == robot.joint_names and back.body_names == robot.body_names
    assert back.body_pos is not None
    np.testing.assert_allclose(back.qpos, motion.qpos, atol=1e-6)
    np.testing.assert_allclose(back.body_pos, bodies_of(robot, motion).position, atol=1e-6)


def object_velocities(robot: Robot, motion: ReferenceMotion) -> tuple[np.ndarray, np.ndarray]:
    """Linear and angular velocities (T, B, 3) of body frames in world axes, by MuJoCo."""
    model = robot.model(visuals=False)
    data = mujoco.MjData(model)
    linear, angular = np.zeros((2, motion.num_frames, model.nbody - 1, 3))
    six = np.zeros(6)
    for t in range(motion.num_frames):
        data.qpos[:] = motion.qpos[t]
        data.qvel[:] = motion.qvel[t]
        mujoco.mj_forward(model, data)
        for body in range(1, model.nbody):
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, six, 0)
            angular[t, body - 1] = six[:3]
            linear[t, body - 1] = six[3:]
    return linear, angular


def test_body_velocities_are_mujocos(robot: Robot) -> None:
    motion = smooth_motion(robot)
    want_linear, want_angular = object_velocities(robot, motion)
    _, _, linear, angular = bodies_of(robot, motion)
    np.testing.assert_allclose(linear, want_linear, atol=1e-9)
    np.testing.assert_allclose(angular, want_angular, atol=1e-9)


def test_csv_round_trip(robot: Robot, tmp_path: Path) -> None:
    motion = smooth_motion(robot)
    write_unitree_csv(tmp_path / "walk.csv", motion, robot.joint_names, robot=robot.name)
    first = [float(word) for word in (tmp_path / "walk.csv").read_text().splitlines()[1].split(",")]
    w, x, y, z = motion.qpos[1, 3:7]
    # no header, w last
    np.testing.assert_allclose(first[:7], [*motion.qpos[1, :3], x, y, z, w], rtol=1e-8, atol=1e-12)
    beside = json.loads((tmp_path / "walk.json").read_text())
    assert beside["columns"][6:8] == ["root_qw", robot.joint_names[0]]
    assert beside["licence"] == "none"
    back = read_robot_motion(tmp_path / "walk.csv")
    assert kind_of(tmp_path / "walk.csv") == "unitree_csv"
    expected = (robot.joint_names, RATE, robot.name, "made up")
    assert (back.joint_names, back.rate_hz, back.robot, back.source) == expected
    np.testing.assert_allclose(back.qpos, motion.qpos, atol=1e-6)
