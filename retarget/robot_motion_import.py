"""Import of robot motions of other projects, matched by joint names.

Shapes: T frames, J joints, B bodies (without the world). World frame, Z up, SI units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from mocap_data.readers.robot_motions import RobotMotion
from npmp.robots import Robot
from retarget.kinematics import forward, tree_of
from retarget.quality import QualityMeter

# [m] body positions in a file may come from another simulator
POSE_TOLERANCE = 0.02
# in a message
_MOST_NAMES = 3


def to_reference_motion(motion: RobotMotion, robot: Robot) -> ReferenceMotion:
    """The motion as one of `robot`: joints in its order by name, contacts of its feet.

    Joint angles and the root's pose are not changed: the motion must be of this robot, or of one
    with the same joints. Velocities are differences of the poses.

    Raises:
      InputError: with the joints that only one of the two has; body poses in the file that differ
        from this robot's kinematics.
    """
    names = motion.joint_names
    missing = [name for name in robot.joint_names if name not in names]
    extra = [name for name in names if name not in robot.joint_names]
    if missing or extra:
        parts = [f"it lacks {listed(missing)}"] if missing else []
        parts += [f"robot {robot.name!r} has no {listed(extra)}"] if extra else []
        raise InputError(f"motion {motion.name!r} is of another robot: {'; '.join(parts)}")
    order = [names.index(name) for name in robot.joint_names]
    qpos = np.array(motion.qpos)
    qpos[:, 7:] = motion.qpos[:, 7:][:, order]
    qpos[:, 3:7] = rotations.make_continuous(qpos[:, 3:7])
    check_bodies(motion, robot, qpos)
    imported = ReferenceMotion(
        name=motion.name,
        qpos=qpos,
        rate_hz=motion.rate_hz,
        source=motion.source,
        licence=motion.licence,
        recording=motion.name,
    )
    meter = QualityMeter(robot)
    return meter.measured(replace(imported, contacts=meter.contacts(imported)))


def listed(names: Sequence[str]) -> str:
    """The first names of a list, and the number of the others."""
    text = ", ".join(names[:_MOST_NAMES])
    return text if len(names) <= _MOST_NAMES else f"{text} and {len(names) - _MOST_NAMES} more"


def check_bodies(motion: RobotMotion, robot: Robot, qpos: Array) -> None:
    """Compare the file's named body positions with the robot's kinematics.

    Raises:
      InputError: a distance beyond POSE_TOLERANCE.
    """
    if motion.body_pos is None or motion.body_names is None:
        return
    shared = [name for name in motion.body_names if name in robot.body_names]
    if not shared:
        return
    in_file = motion.body_pos[:, [motion.body_names.index(name) for name in shared]]
    body_pos, _ = forward(tree_of(robot.model(visuals=False)), qpos)
    of_robot = body_pos[:, [robot.body_names.index(name) for name in shared]]
    distance = np.linalg.norm(in_file - of_robot, axis=-1)
    frame, body = np.unravel_index(int(distance.argmax()), distance.shape)
    if (far := distance[frame, body]) > POSE_TOLERANCE:
        raise InputError(
            f"motion {motion.name!r}: body {shared[body]!r} is {far:.3g} m away from where robot "
            f"{robot.name!r} has it at frame {frame} (another joint order, other signs, or another "
            "model?)"
        )
