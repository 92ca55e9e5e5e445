"""Unitree's CSV, the layout of the LAFAN1 retargeting dataset: a row per frame, no header.

    root position x, y, z [m], root quaternion x, y, z, w, then the joints [rad]; 30 frames per
    second, Z up.

What the format cannot say is in a JSON file beside it that `write_unitree_csv` writes (walk.csv,
walk.json): joint names, rate, source, licence. A header line is read where it names every column.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError
from mocap_data.outside import read_json
from mocap_data.readers.common import content, rate_said, shown
from mocap_data.readers.keypoints import cells_of, number_table
from mocap_data.readers.robot_motions.common import RobotMotion, names_of_joints

SCHEMA = "npmp-unitree-csv"
# of the LAFAN1 retargeting dataset
RATE_HZ = 30.0
ROOT_COLUMNS = ("root_x", "root_y", "root_z", "root_qx", "root_qy", "root_qz", "root_qw")
_QUATERNION = ("x", "y", "z", "w")
_LONGEST_ROW = 100_000


def _documented(leg: str, waist: str, arm: str) -> tuple[str, ...]:
    """Joints of a robot of the LAFAN1 set, given without their sides and their ending "_joint"."""
    sides = ("left_", "right_")
    legs, arms = ([f"{s}{n}" for s in sides for n in part.split()] for part in (leg, arm))
    return tuple(f"{name}_joint" for name in (*legs, *waist.split(), *arms))


_SHOULDER = "shoulder_pitch shoulder_roll shoulder_yaw elbow"
_ARM = f"{_SHOULDER} wrist_roll wrist_pitch wrist_yaw"
_ANKLE = "knee ankle_pitch ankle_roll"
# robots of the LAFAN1 set; their 29, 27 and 19 joints tell which one a file is of
DOCUMENTED = {
    "unitree_g1": _documented(
        f"hip_pitch hip_roll hip_yaw {_ANKLE}", "waist_yaw waist_roll waist_pitch", _ARM
    ),
    "unitree_h1_2": _documented(f"hip_yaw hip_pitch hip_roll {_ANKLE}", "torso", _ARM),
    "unitree_h1": _documented("hip_yaw hip_roll hip_pitch knee ankle", "torso", _SHOULDER),
}


def read_unitree_csv(
    path: str | os.PathLike[str],
    *,
    rate_hz: float | None = None,
    joint_names: Sequence[str] | None = None,
    licence: str | None = None,
) -> RobotMotion:
    """A motion in Unitree's CSV.

    rate_hz: where no file beside it says; else 30, the dataset's.
    joint_names: where neither header nor file beside it names the joints; 29, 27 or 19 unnamed
      joints are the dataset's G1, H1-2 or H1.

    Raises:
      InputError: naming file and line: no rows, rows of differing length, a text or a value that is
        not finite, quaternions that are none, names that contradict each other; MissingOptions
        where nothing names the joints.
    """
    path = Path(path)
    header, values = table_of(path, content(path))
    columns = values.shape[1]
    if columns < 8:
        expected = "expected root position 3, quaternion 4 and the joints"
        raise InputError(f"{path}: {columns} numbers in a row, {expected}")
    about = sidecar(path)
    in_header, order = columns_of(path, header, columns)
    in_file = _names_beside(path, about, in_header)
    robot = ""
    if in_file is None and joint_names is None:
        robot = next((r for r, names in DOCUMENTED.items() if len(names) == columns - 7), "")
    names = names_of_joints(path, columns - 7, in_file, joint_names, DOCUMENTED.get(robot))
    quaternion = values[:, 3:7][:, [order.index(letter) for letter in "wxyz"]]
    try:
        return RobotMotion(
            name=path.stem,
            qpos=np.concatenate([values[:, :3], quaternion, values[:, 7:]], axis=1),
            rate_hz=_rate_beside(path, about) if rate_hz is None else float(rate_hz),
            joint_names=names,
            robot=robot or str(about.get("robot", "")),
            source=str(about.get("source", path.name)),
            licence=licence if licence is not None else str(about.get("licence", "unknown")),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _names_beside(
    path: Path, about: dict[str, Any], in_header: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    """The joint names of the file beside a CSV, or the header's where it has none."""
    listed, beside = about.get("joint_names"), path.with_suffix(".json")
    if listed is None:
        return in_header
    if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):
        raise InputError(f"{beside}: joint_names must be a list of texts")
    if in_header not in (None, tuple(listed)):
        raise InputError(f"{path}: its header names other joints than {beside.name}")
    return tuple(listed)


def _rate_beside(path: Path, about: dict[str, Any]) -> float:
    """The rate that the file beside a CSV says, or the dataset's."""
    rate, beside = about.get("rate_hz", RATE_HZ), path.with_suffix(".json")
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise InputError(f"{beside}: rate_hz must be a number")
    return rate_said(beside, float(rate))


def table_of(path: Path, data: bytes) -> tuple[list[str] | None, Array]:
    """The header, if there is one, and the numbers (T, columns).

    Raises:
      InputError: naming file and line: no rows, rows of differing length, no finite number.
    """
    body = data.lstrip()
    if not body:
        raise InputError(f"{path} is empty, expected a row of numbers per frame")
    first, _, rest = body.partition(b"\n")
    header = header_of(cells_of(first))
    line = 1 + data[: len(data) - len(body)].count(b"\n")
    if header is None:
        return None, number_table(path, body, first_line=line)
    if not rest.strip():
        raise InputError(f"{path} has a header and no frames")
    return header, number_table(path, rest, first_line=line + 1)


def header_of(words: Sequence[bytes]) -> list[str] | None:
    """The first row's words where it is a header: none of them is a number."""
    for word in words:
        try:
            float(word)
        except ValueError:
            continue
        return None
    return [word.decode("utf-8", "replace").strip().strip("\"'# ") for word in words]


def columns_of(
    path: Path, header: Sequence[str] | None, columns: int
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The joint names of a header, and the order of the quaternion's components.

    Raises:
      InputError: for a header that does not name each column, or no quaternion where it belongs.
    """
    if header is None:
        return None, _QUATERNION
    if len(header) != columns:
        raise InputError(f"{path}: {len(header)} names in the header, {columns} numbers in a row")
    place, order = ([entry[-1:].lower() for entry in part] for part in (header[:3], header[3:7]))
    for found, part, what in (
        (sorted(order) == sorted(_QUATERNION), header[3:7], "quaternion belongs (columns 4 to 7)"),
        (place == ["x", "y", "z"], header[:3], "position x, y, z belongs (columns 1 to 3)"),
    ):
        if not found:
            listed = ", ".join(shown(entry) for entry in part)
            raise InputError(f"{path}: the header names {listed} where the root {what}")
    return tuple(header[7:]), tuple(order)


def sidecar(path: Path) -> dict[str, Any]:
    """The contents of the JSON file of ours beside the CSV, {} where there is none."""
    beside = path.with_suffix(".json")
    try:
        about = read_json(beside) if beside.is_file() else None
    except InputError:
        return {}
    return about if isinstance(about, dict) and about.get("schema") == SCHEMA else {}


def first_rows(path: Path) -> list[list[bytes]]:
    """The cells of the first rows of a CSV that are not blank."""
    with path.open("rb") as file:
        lines = [file.readline(_LONGEST_ROW) for _ in range(50)]
    return [cells_of(line) for line in lines if line.strip()]


def looks_like(path: str | os.PathLike[str]) -> str:
    """Whether a CSV file is of this layout, by its first rows: "yes", "no" or "perhaps".

    "yes": a file of ours is beside it, or a header names a root quaternion. "perhaps": columns 4 to
    7 are unit quaternions, which points of a body could be by chance, too.
    """
    path = Path(path)
    if sidecar(path):
        return "yes"
    words = first_rows(path)
    if not words or len(words[0]) < 8:
        return "no"
    header = header_of(words[0])
    try:
        if header is not None:
            columns_of(path, header, len(header))
            return "yes"
        rows = np.array([row for row in words if len(row) == len(words[0])], dtype=np.float64)
    except ValueError:
        return "no"
    length = np.linalg.norm(rows[:, 3:7], axis=1)
    return "perhaps" if np.all(np.abs(length - 1.0) < 1e-3) else "no"
