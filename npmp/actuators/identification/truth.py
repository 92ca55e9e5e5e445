"""The true parameters of a simulated log, truth.json, and the errors of an estimate."""

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
    """Write truth.json. parameters: (n, 7) in the order of `KINDS`."""
    joints = {
        name: dict(zip(KINDS, row, strict=True))
        for name, row in zip(stand.joints, parameters.tolist(), strict=True)
    }
    write_json(path, {"schema": SCHEMA, "robot": robot.name, "joints": joints})


def read_truth(path: Path, robot: Robot) -> Floats:
    """The true parameters (n, 7) of a truth.json.

    Raises:
      InputError: for other files, or another robot's.
    """
    content = read_json(path)
    entries = content if isinstance(content, dict) else {}
    if (entries.get("schema"), entries.get("robot")) != (SCHEMA, robot.name):
        raise InputError(f"{path}: expected a truth.json of npmp sysid excite robot={robot.name}")
    try:
        return np.array(
            [[float(entries["joints"][name][kind]) for kind in KINDS] for name in robot.joint_names]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error})") from error


def compare(result: Identified, truth: Floats) -> tuple[list[dict[str, float]], dict[str, float]]:
    """The errors of each joint's estimates in their standard errors, and the shares of all within
    one and two."""
    error = result.estimate - truth
    if not result.error[:, KD].any():
        # only their sum was fitted
        error[:, DAMPING] += error[:, KD]
    fitted = result.error > 0.0
    z = error / np.where(fitted, result.error, np.inf)
    joints = [
        {kind: float(z[j, k]) for k, kind in enumerate(KINDS) if fitted[j, k]}
        for j in range(len(result.joints))
    ]
    coverage = {f"within_{n}": float((np.abs(z[fitted]) < n).mean()) for n in (1, 2)}
    return joints, coverage | {"parameters": int(fitted.sum())}
