"""The parameters of a simulated stand's log, truth.json, and how far an estimate is off them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mocap_data.errors import InputError
from mocap_data.files import write_json
from mocap_data.input_files import read_json
from npmp.actuators.identification.estimation import Identified
from npmp.actuators.identification.stand import DAMPING, KD, KINDS, Floats, Stand
from npmp.robots import Robot

SCHEMA = "npmp.stand_truth"


def write_truth(path: Path, robot: Robot, stand: Stand, parameters: Floats) -> None:
    """parameters: (n, 7), in the order of `KINDS`."""
    joints = {
        name: dict(zip(KINDS, row, strict=True))
        for name, row in zip(stand.joints, parameters.tolist(), strict=True)
    }
    write_json(path, {"schema": SCHEMA, "robot": robot.name, "joints": joints})


def read_truth(path: Path, robot: Robot) -> Floats:
    """(n, 7) of a truth.json. Raises InputError for any other file, or another robot's."""
    content = read_json(path)
    entries = content if isinstance(content, dict) else {}
    if (entries.get("schema"), entries.get("robot")) != (SCHEMA, robot.name):
        raise InputError(f"{path}: no truth.json of npmp sysid excite robot={robot.name}")
    try:
        return np.array(
            [[float(entries["joints"][name][kind]) for kind in KINDS] for name in robot.joint_names]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error})") from error


def compared(found: Identified, truth: Floats) -> tuple[list[dict[str, float]], dict[str, float]]:
    """How far off each joint's estimates are, in their standard errors; and which shares of them
    lie within one and two."""
    miss = found.estimate - truth
    if not found.error[:, KD].any():  # only their sum was looked for
        miss[:, DAMPING] += miss[:, KD]
    looked = found.error > 0.0
    z = miss / np.where(looked, found.error, np.inf)
    rows = zip(z.tolist(), looked, strict=True)
    off = [{kind: v for kind, v, there in zip(KINDS, *row) if there} for row in rows]
    within = {f"within_{n}": float((np.abs(z[looked]) < n).mean()) for n in (1, 2)}
    return off, within | {"parameters": int(looked.sum())}
