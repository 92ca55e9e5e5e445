"""The motion of a deployment's log: the pose that its readings determine, and its curves."""

from __future__ import annotations

import mujoco
import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp.deploy.run_log import DeployLog
from npmp.robots import Robot
from npmp.robots.model import feet_in_world
from npmp.view.render import ReplayClip, Shot

# lines of a joint's plots, by the arrays of a log
JOINT_LINES = {
    "angle": {"joint_pos": "position", "target": "target"},
    "speed": {"joint_vel": "velocity"},
    "torque": {"joint_torque": "torque"},
}
AXES = {"gyro": "xyz", "accelerometer": "xyz", "up": "xyz"}
TIMES = ("mode", "late_s", "work_s", "state_age_s")


def shot_of_log(robot: Robot, log: DeployLog) -> Shot:
    """The shot of a log. Raises InputError as `poses_of_log`."""
    clip = ReplayClip(f"{log.robot}: {log.source}", poses_of_log(robot, log), log.rate_hz)
    return Shot(robot, clip, curves=curves_of_log(log))


def poses_of_log(robot: Robot, log: DeployLog) -> Array:
    """Poses (T, nq) of the joints and the tilt as measured. The heading is the gyro's integral; the
    position is not measured: the lowest foot stands on the floor below the root's origin.

    Steps without readings repeat the ones before.

    Raises:
      InputError: for a log of other joints, or without readings.
    """
    if log.joint_names != robot.joint_names:
        raise InputError(
            f"the log's joints are {', '.join(log.joint_names)}; expected {robot.name}'s"
        )
    names = ("joint_pos", "gyro", "up")
    table = np.concatenate([log.columns[name] for name in names], axis=1)
    measured = np.isfinite(table).all(axis=1)
    if not measured.any():
        raise InputError(f"the log has no step with {', '.join(names)}")
    source = np.maximum.accumulate(np.where(measured, np.arange(len(table)), np.argmax(measured)))
    joints, gyro, up = (log.columns[name][source] for name in names)

    model = robot.model(visuals=False)
    data = mujoco.MjData(model)
    qpos = np.zeros((len(table), model.nq))
    qpos[:, 7:] = joints
    turn = np.array([1.0, 0.0, 0.0, 0.0])
    for t in range(len(qpos)):
        turn = rotations.multiply(turn, rotations.exp(gyro[t] / log.rate_hz))
        turn = rotations.multiply(_upright(rotations.rotate(turn, up[t])), turn)
        qpos[t, 3:7] = turn
        data.qpos[:] = qpos[t]
        mujoco.mj_kinematics(model, data)
        feet = feet_in_world(data, robot.foot_bodies, robot.foot_points)
        qpos[t, 2] = robot.foot_radius - feet[..., 2].min()
    return qpos


def _upright(up: Array) -> Array:
    """The shortest rotation of the direction `up` (3,) to the world's vertical."""
    axis = np.cross(up, [0.0, 0.0, 1.0])
    sine = float(np.linalg.norm(axis))
    if sine < 1e-9:
        # upside down: half a turn about any horizontal axis
        return np.array([1.0, 0.0, 0.0, 0.0] if up[2] > 0.0 else [0.0, 1.0, 0.0, 0.0])
    return rotations.exp(axis / sine * np.arctan2(sine, up[2]))


def curves_of_log(log: DeployLog) -> dict[str, Array]:
    """The curves (T,) of a log by GROUP/PLOT/LINE."""
    columns = log.columns
    lines: dict[str, Array] = {}
    for group, arrays in JOINT_LINES.items():
        for j, joint in enumerate(log.joint_names):
            lines |= {f"{group}/{joint}/{line}": columns[key][:, j] for key, line in arrays.items()}
    for key, axes in AXES.items():
        lines |= {f"imu/{key}/{axis}": columns[key][:, i] for i, axis in enumerate(axes)}
    for i, name in enumerate(log.command_names):
        lines[f"command/{name}/command"] = columns["command"][:, i]
    return lines | {f"loop/{key}/{key}": columns[key][:, 0] for key in TIMES}
