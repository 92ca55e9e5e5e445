"""mjlab's motion archive: numpy npz of joint angles, body poses and velocities in the world.

    fps (1,), joint_pos (T, J) [rad], joint_vel (T, J) [rad/s], body_pos_w (T, B, 3) [m],
    body_quat_w (T, B, 4; w, x, y, z), body_lin_vel_w (T, B, 3) [m/s, of the body's origin],
    body_ang_vel_w (T, B, 3) [rad/s], all in world axes; joint_names (J), body_names (B) optional:
    mjlab's own files lack them, npmp's have them.

The root is the first body. Isaac Lab's trackers write the same keys with joints and bodies breadth
first: a file without names needs `joint_names`. Its AMP motions have other keys (`AMP_KEYS`).
Velocities are checked, but not used.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.errors import InputError
from mocap_data.npz import load_npz
from mocap_data.readers.common import file_rate
from mocap_data.readers.keypoints import one_number, texts_of
from mocap_data.readers.robot_motions.common import RobotMotion, joint_names_of

# dimensions of each array; None: any
KEYS: dict[str, tuple[int | None, ...]] = {
    "joint_pos": (None, None),
    "joint_vel": (None, None),
    "body_pos_w": (None, None, 3),
    "body_quat_w": (None, None, 4),
    "body_lin_vel_w": (None, None, 3),
    "body_ang_vel_w": (None, None, 3),
}
NAME_KEYS = ("joint_names", "body_names")
# Isaac Lab's AMP motions
AMP_KEYS = {
    "joint_pos": "dof_positions",
    "joint_vel": "dof_velocities",
    "body_pos_w": "body_positions",
    "body_quat_w": "body_rotations",
    "body_lin_vel_w": "body_linear_velocities",
    "body_ang_vel_w": "body_angular_velocities",
    "joint_names": "dof_names",
}


def read_mjlab(
    path: str | os.PathLike[str],
    *,
    joint_names: Sequence[str] | None = None,
    licence: str = "unknown",
) -> RobotMotion:
    """A motion in mjlab's npz. joint_names: of a file without names.

    Raises:
      InputError: with the file: no archive, damaged, an array missing or of a wrong shape or type,
        values that are not finite, names that contradict each other; MissingOptions without names.
    """
    path = Path(path)
    arrays, fps = _checked(path)
    file_names = {
        key: None if arrays[key] is None else texts_of(path, key, arrays[key]) for key in NAME_KEYS
    }
    joints, position, quaternion = (
        arrays[key].astype(np.float64) for key in ("joint_pos", "body_pos_w", "body_quat_w")
    )
    names = joint_names_of(path, joints.shape[1], file_names["joint_names"], joint_names)
    try:
        return RobotMotion(
            name=path.stem,
            qpos=np.concatenate([position[:, 0], quaternion[:, 0], joints], axis=1),
            rate_hz=file_rate(path, fps),
            joint_names=names,
            body_names=file_names["body_names"],
            body_pos=position,
            body_quat=quaternion,
            source=path.name,
            licence=licence,
        )
    except InputError as error:
        raise InputError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


def _checked(path: Path) -> tuple[dict[str, Any], float]:
    """The archive's arrays (names may be None), of the right types and fitting shapes, and fps."""
    arrays = load_npz(path, (*KEYS, "fps", *NAME_KEYS, *AMP_KEYS.values()))
    for key, other in AMP_KEYS.items():
        arrays[key] = arrays[other] if arrays[key] is None else arrays[key]
    missing = [key for key in ("fps", *KEYS) if arrays[key] is None]
    if missing:
        expected = f"expected fps, {', '.join(KEYS)} (mjlab)"
        raise InputError(f"{path}: array {missing[0]!r} is missing, {expected}")
    frames, joints = arrays["joint_pos"].shape[:1] + arrays["joint_pos"].shape[-1:]
    bodies = arrays["body_pos_w"].shape[1] if arrays["body_pos_w"].ndim == 3 else 0
    for key, shape in KEYS.items():
        array = arrays[key]
        expected_shape = (frames, joints if key.startswith("joint") else bodies, *shape[2:])
        if array.shape != expected_shape or array.dtype.kind not in "fiu" or not array.size:
            got = f"{array.dtype} {array.shape}"
            raise InputError(f"{path}: {key} is {got}, expected numbers {expected_shape}")
    return arrays, one_number(path, "fps", arrays["fps"])
