"""The motion of a deployment's log: the pose that its readings determine, and its curves."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp.deploy.run_log import DeployLog
from npmp.robots import Robot
from npmp.robots.model import feet_in_world
from npmp.view.render import ReplayClip, Shot

# arrays in the plots of others
GROUPS = {"joint_pos": "angle", "proposed": "angle", "target": "angle", "asked": "command"}
READINGS = ("joint_pos", "gyro", "up")


def shot_of_log(robot: Robot, log: DeployLog) -> Shot:
    """The shot of a log. Raises InputError as `poses_of_log`."""
    clip = ReplayClip(f"{log.robot}: {log.source}", poses_of_log(robot, log), log.rate_hz)
    return Shot(robot, clip, curves=curves_of_log(log))


def poses_of_log(robot: Robot, log: DeployLog) -> Array:
    """Poses (T, nq) of the joints and the tilt as measured. The heading is the gyro's integral; the
    position is not measured: the lowest foot stands on the floor below the root's origin.

    Steps without readings repeat the ones before. Raises InputError for a log of other joints, or
    without readings."""
    if log.joint_names != robot.joint_names:
        raise InputError(f"the log has joints {', '.join(log.joint_names)}, not {robot.name}'s")
    table = np.concatenate([log.columns[name] for name in READINGS], axis=1)
    measured = np.isfinite(table).all(axis=1)
    if not measured.any():
        raise InputError(f"the log has no step with {', '.join(READINGS)}")
    source = np.maximum.accumulate(np.where(measured, np.arange(len(table)), np.argmax(measured)))
    joints, gyro, up = (log.columns[name][source] for name in READINGS)

    data = mujoco.MjData(robot.model(visuals=False))
    qpos = np.concatenate((np.zeros((len(table), 7)), joints), axis=1)
    turn = np.array([1.0, 0.0, 0.0, 0.0])
    for t in range(len(qpos)):
        turn = rotations.multiply(turn, rotations.exp(gyro[t] / log.rate_hz))
        turn = rotations.multiply(_upright(rotations.rotate(turn, up[t])), turn)
        qpos[t, 3:7] = turn
        data.qpos[:] = qpos[t]
        mujoco.mj_kinematics(data.model, data)
        feet = feet_in_world(data, robot.foot_bodies, robot.foot_points)
        qpos[t, 2] = robot.foot_radius - feet[..., 2].min()
    return qpos


def _upright(up: Array) -> Array:
    """The shortest rotation of the unit vector `up` (3,) to the world's vertical."""
    # half of the angle: w = 1 + cos, upside down half a turn about X
    turn = np.array([1.0 + up[2], up[1], -up[0], 0.0])
    return rotations.normalize(turn if up[2] > -1.0 + 1e-9 else np.array([0.0, 1.0, 0.0, 0.0]))


def curves_of_log(log: DeployLog) -> dict[str, Array]:
    """The curves (T,) of a log by GROUP/PLOT/LINE: a plot per joint, axis or command."""
    labels: dict[str, Sequence[str]] = dict.fromkeys(("asked", "command"), log.command_names)
    labels |= dict.fromkeys(("gyro", "accelerometer", "up"), "xyz")
    lines: dict[str, Array] = {}
    for name, values in log.columns.items():
        of_step = values.shape[1] == 1
        for label, curve in zip(labels.get(name, [name] if of_step else log.joint_names), values.T):
            lines[f"{GROUPS.get(name, 'step' if of_step else name)}/{label}/{name}"] = curve
    return lines
