"""Motions of robots made by others, carried over to a robot of this project by the names of its joints.

Shapes: T frames, J joints, B bodies (without the world). World frame, Z up, SI units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from mocap_data.readers.robot_motions import RobotMotion, kind_of, read_robot_motion
from npmp.robots import Robot
from retarget.kinematics import Tree, forward, tree_of
from retarget.quality import QualityMeter
from retarget.resampling import velocities

# Body poses in a file may come from other simulators and meshes' origins, but not from another pose.
POSE_TOLERANCE = 0.02  # [m]
_MOST_NAMES = 3  # in a message


def is_robot_motion(path: str | Path) -> bool:
    """Whether a file is a robot's motion (mjlab npz, Unitree CSV, Laikago JSON) and no recording of keypoints."""
    return kind_of(path) is not None


def import_motion(
    path: str | Path, robot: Robot, *, rename: Mapping[str, str] = MappingProxyType({}), **options: Any
) -> ReferenceMotion:
    """`read_robot_motion` and `to_reference_motion` in one."""
    return to_reference_motion(read_robot_motion(path, **options), robot, rename=rename)


def to_reference_motion(
    motion: RobotMotion, robot: Robot, *, rename: Mapping[str, str] = MappingProxyType({})
) -> ReferenceMotion:
    """The motion as one of `robot`: joints put in its order by name, velocities, body poses and contacts its own.

    Joint angles and the root's pose are taken as they are: the motion must have been made for this robot, or one with
    the same joints. Velocities are differences of the poses (`retarget.resampling.velocities`), as all motions here
    have them, whatever the file has; contacts are found on the robot's own feet, and the figures of `retarget.quality`
    are its own.

    rename: of a joint in the motion its name in the robot, e.g. {"LF_hip_x": "LF_HAA"}.

    Raises InputError listing the joints that only one of the two has, or when the file's own body poses are not where
    this robot's kinematics puts them (another joint order, another robot).
    """
    order = columns_of(motion, robot, rename)
    qpos = np.array(motion.qpos)
    qpos[:, 7:] = motion.qpos[:, 7:][:, order]
    qpos[:, 3:7] = rotations.make_continuous(qpos[:, 3:7])
    tree = tree_of(robot.model(visuals=False))
    body_pos, matrices = forward(tree, qpos)
    check_bodies(motion, robot, body_pos)
    imported = ReferenceMotion(
        name=motion.name,
        qpos=qpos,
        qvel=velocities(qpos, motion.rate_hz) if len(qpos) > 1 else np.zeros((1, qpos.shape[1] - 1)),
        body_pos=body_pos,
        body_quat=rotations.make_continuous(rotations.from_matrix(matrices)),
        rate_hz=motion.rate_hz,
        source=motion.source,
        licence=motion.licence,
        recording=motion.name,
    )
    meter = QualityMeter(robot)
    return meter.measured(replace(imported, contacts=meter.contacts(imported)))


def columns_of(motion: RobotMotion, robot: Robot, rename: Mapping[str, str] = MappingProxyType({})) -> list[int]:
    """Of each joint of `robot` its column in the motion. Raises InputError listing what only one of the two has."""
    for name in rename:
        if name not in motion.joint_names:
            raise InputError(
                f"motion {motion.name!r} has no joint {name!r} to rename; there are: {listed(motion.joint_names)}"
            )
    named = [rename.get(name, name) for name in motion.joint_names]
    lacking = [name for name in robot.joint_names if name not in named]
    extra = [name for name in named if name not in robot.joint_names]
    repeated = sorted({name for name in named if named.count(name) > 1})
    if repeated:
        raise InputError(f"motion {motion.name!r}: two joints are called {repeated[0]!r} after renaming")
    if lacking or extra:
        parts = [f"it lacks {listed(lacking)}"] if lacking else []
        parts += [f"robot {robot.name!r} has no {listed(extra)}"] if extra else []
        hint = "from Python, import_motion(..., rename=) maps names"
        raise InputError(f"motion {motion.name!r} is of another robot: {'; '.join(parts)} ({hint})")
    return [named.index(name) for name in robot.joint_names]


def listed(names: Any) -> str:
    """The first few of a list of names, and how many more."""
    shown = ", ".join(list(names)[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


def check_bodies(motion: RobotMotion, robot: Robot, body_pos: Array) -> None:
    """Hold the file's body positions, where it names them, against the robot's kinematics. Raises InputError."""
    if motion.body_pos is None or motion.body_names is None:
        return
    shared = [name for name in motion.body_names if name in robot.body_names]
    if not shared:
        return
    theirs = motion.body_pos[:, [motion.body_names.index(name) for name in shared]]
    ours = body_pos[:, [robot.body_names.index(name) for name in shared]]
    distance = np.linalg.norm(theirs - ours, axis=-1)
    worst = distance.max(axis=0)
    if worst.max() > POSE_TOLERANCE:
        body = int(worst.argmax())
        frame = int(distance[:, body].argmax())
        raise InputError(
            f"motion {motion.name!r}: body {shared[body]!r} is {worst[body]:.3g} m away from where robot {robot.name!r} has it "
            f"at frame {frame} (another joint order, other signs, or another model?)"
        )


def body_velocities(tree: Tree, qpos: Array, qvel: Array) -> tuple[Array, Array]:
    """Velocities of body origins [m/s] and angular velocities [rad/s], (T, B, 3) each, in world axes.

    The kinematics of `qvel` (T, 6 + J; MuJoCo's: root linear in the world, root angular in its own frame): what
    mj_objectVelocity gives for each body's frame. From the root outwards, the child's hinge turns it about its anchor.
    """
    position, rotation = forward(tree, qpos)
    linear, angular = np.zeros_like(position), np.zeros_like(position)
    linear[:, 0] = qvel[:, :3]
    angular[:, 0] = np.einsum("tij,tj->ti", rotation[:, 0], qvel[:, 3:6])
    for level in tree.levels:
        for body in level:
            parent, hinge = int(tree.parent[body]), int(tree.hinge[body])
            angular[:, body] = angular[:, parent]
            linear[:, body] = linear[:, parent] + np.cross(angular[:, parent], position[:, body] - position[:, parent])
            if hinge >= 0:
                spin = (rotation[:, body] @ tree.axis[body]) * qvel[:, 6 + hinge, None]
                anchor = rotation[:, body] @ tree.anchor[body]  # from the body's origin to the hinge
                angular[:, body] += spin
                linear[:, body] -= np.cross(spin, anchor)
    return linear, angular
