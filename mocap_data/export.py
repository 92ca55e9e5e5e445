"""Writers of reference motions in other projects' formats: mjlab's npz and Unitree's CSV."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.files import atomic_path, write_json
from mocap_data.motion import BodyStates, ReferenceMotion
from mocap_data.readers.robot_motions.unitree_csv import ROOT_COLUMNS, SCHEMA


def write_mjlab_npz(
    path: str | os.PathLike[str],
    motion: ReferenceMotion,
    joint_names: Sequence[str],
    body_names: Sequence[str],
    bodies: BodyStates,
) -> None:
    """Write a motion for mjlab's tracking task, in float32 and in one step.

    The arrays are those of `readers.robot_motions.mjlab`, of every body but the world in MuJoCo's
    order; joint_names and body_names are texts, which mjlab does not read.
    bodies: of the motion, by `retarget.kinematics.body_states`.

    Raises:
      OSError: an unwritable folder.
    """
    arrays: dict[str, Any] = {
        "joint_pos": motion.qpos[:, 7:],
        "joint_vel": motion.qvel[:, 6:],
        "body_pos_w": bodies.position,
        "body_quat_w": bodies.quaternion,
        "body_lin_vel_w": bodies.linear,
        "body_ang_vel_w": bodies.angular,
    }
    arrays = {key: np.asarray(values, dtype=np.float32) for key, values in arrays.items()}
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            fps=np.array([motion.rate_hz]),
            joint_names=np.array(list(joint_names), dtype=np.str_),
            body_names=np.array(list(body_names), dtype=np.str_),
            **arrays,
        )


def write_unitree_csv(
    path: str | os.PathLike[str],
    motion: ReferenceMotion,
    joint_names: Sequence[str],
    *,
    robot: str = "",
) -> None:
    """Write a motion as Unitree's CSV, and a PATH.json with joint names, rate, source, licence."""
    rows = np.concatenate(
        [motion.qpos[:, :3], motion.qpos[:, [4, 5, 6, 3]], motion.qpos[:, 7:]], axis=1
    )
    about = {
        "schema": SCHEMA,
        "version": 1,
        "name": motion.name,
        "robot": robot,
        "rate_hz": motion.rate_hz,
        "joint_names": list(joint_names),
        "columns": [*ROOT_COLUMNS, *joint_names],
        "units": "metres, radians; world Z up; root quaternion x, y, z, w, root to world",
        "source": motion.source,
        "licence": motion.licence,
    }
    # the JSON first: a CSV without it would be read by its number of columns
    write_json(Path(path).with_suffix(".json"), about)
    with atomic_path(path) as temporary:
        np.savetxt(temporary, rows, delimiter=",", fmt="%.9g")
