"""Laikago motions of motion_imitation (Peng et al. 2020): JSON with FrameDuration and Frames.

A frame has 19 numbers: root position x, y, z [m], root quaternion x, y, z, w, then 12 joints [rad]
of the legs FR, FL, RR, RL, each hip abduction, upper leg, lower leg; Z up. The root frame of the
URDF has Y up and Z forward; the reader turns it into the usual one, X forward and Z up.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.errors import InputError
from mocap_data.outside import read_json
from mocap_data.readers.common import BOM, json_frames, rate_said, whole_rate
from mocap_data.readers.robot_motions.common import (
    LAYOUTS,
    RobotMotion,
    names_of_joints,
    to_upright,
)

COLUMNS = 19
_ROBOT = "laikago"


def read_laikago(
    path: str | os.PathLike[str],
    *,
    joint_names: Sequence[str] | None = None,
    robot: str | None = None,
    name: str | None = None,
    source: str | None = None,
    licence: str = "unknown",
) -> RobotMotion:
    """A motion in that project's JSON.

    joint_names: to call the 12 joints otherwise. robot: "laikago" (the default) has this layout.

    Raises:
      InputError: naming the file: no JSON, FrameDuration or Frames missing, frames of another
        length, a value that is no finite number.
    """
    path = Path(path)
    document = read_json(path)
    if not isinstance(document, dict) or "Frames" not in document:
        expected = f"expected JSON with FrameDuration and Frames of {COLUMNS} numbers"
        raise InputError(f"{path}: no Frames; {expected}")
    duration: Any = document.get("FrameDuration")
    if type(duration) not in (int, float) or not 1e-6 < duration < 1e6:
        found = repr(duration)[:40]
        raise InputError(f"{path}: FrameDuration is {found}, expected seconds per frame")
    values = json_frames(path, document["Frames"], COLUMNS)
    names, _ = names_of_joints(
        path, COLUMNS - 7, in_file=None, joint_names=joint_names, robot=robot, documented=(_ROBOT,)
    )
    layout = LAYOUTS[_ROBOT]
    try:
        motion = RobotMotion(
            name=path.stem if name is None else name,
            qpos=np.concatenate([values[:, :3], values[:, [6, 3, 4, 5]], values[:, 7:]], axis=1),
            rate_hz=rate_said(path, whole_rate(float(duration), digits=0)),
            joint_names=names,
            robot=_ROBOT,
            source=path.name if source is None else source,
            licence=licence,
            conventions={
                "quaternions": "x, y, z, w in the file",
                "root frame": "Y up, Z forward in the file, turned to X forward, Z up",
                "joint order": layout.source,
                "loop": str(document.get("LoopMode", "not said")),
            },
        )
        qpos = np.array(motion.qpos)
        qpos[:, 3:7] = to_upright(qpos[:, 3:7], layout)
        return dataclasses.replace(motion, qpos=qpos)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def looks_like(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one of these: JSON whose first frame has 19 numbers."""
    path = Path(path)
    with path.open("rb") as file:
        if not file.read(64).removeprefix(BOM).lstrip().startswith(b"{"):
            return False
    try:
        first = read_json(path)["Frames"][0]
    except (InputError, LookupError, TypeError):
        return False
    return isinstance(first, list) and len(first) == COLUMNS
