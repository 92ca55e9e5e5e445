"""Unitree's CSV, the layout of the LAFAN1 retargeting dataset: a row per frame, no header.

    root position x, y, z [m], root quaternion x, y, z, w, then the joints [rad]; 30 frames per
    second, Z up.

What the format cannot say stands in a JSON file beside it that `write_unitree_csv` writes
(walk.csv, walk.json): joint names, rate, source, licence. A header line is understood where it
names every column.
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
from mocap_data.readers.keypoints import number_table
from mocap_data.readers.robot_motions.common import LAYOUTS, RobotMotion, names_of_joints

SCHEMA = "npmp-unitree-csv"
RATE_HZ = 30.0  # of the LAFAN1 retargeting dataset
DOCUMENTED = ("unitree_g1", "unitree_h1_2", "unitree_h1")  # whose files need no names
ROOT_COLUMNS = ("root_x", "root_y", "root_z", "root_qx", "root_qy", "root_qz", "root_qw")
_QUATERNION = ("x", "y", "z", "w")


def read_unitree_csv(
    path: str | os.PathLike[str],
    *,
    rate_hz: float | None = None,
    joint_names: Sequence[str] | None = None,
    robot: str | None = None,
    name: str | None = None,
    source: str | None = None,
    licence: str | None = None,
) -> RobotMotion:
    """A motion in Unitree's CSV.

    rate_hz: where no file beside it says; without either 30, the dataset's rate.
    joint_names, robot: where neither a header nor a file beside it names the joints; without any a
    row of 29, 27 or 19
        joints is the dataset's G1, H1-2 or H1.

    Raises:
      InputError: naming file and line: no rows, rows of differing length, a text or a value that is
        not finite, quaternions that are none, names that contradict each other; MissingOptions
        where nothing names the joints.
    """
    path = Path(path)
    header, values = table_of(path, content(path))
    columns = values.shape[1]
    if columns < 8:
        raise InputError(
            f"{path}: {columns} numbers in a row, expected root position 3, quaternion 4 and the joints"
        )
    beside = sidecar(path)
    in_file, order = columns_of(path, header, columns)
    if beside.get("joint_names") is not None:
        listed = beside["joint_names"]
        if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):
            raise InputError(f"{path.with_suffix('.json')}: joint_names must be a list of texts")
        if in_file is not None and tuple(listed) != tuple(in_file):
            raise InputError(
                f"{path}: its header names other joints than {path.with_suffix('.json').name}"
            )
        in_file = tuple(listed)
    names, of_robot = names_of_joints(
        path,
        columns - 7,
        in_file=in_file,
        joint_names=joint_names,
        robot=robot,
        documented=DOCUMENTED,
    )
    quaternion = values[:, 3:7][:, [order.index(letter) for letter in "wxyz"]]
    rate = rate_hz if rate_hz is not None else beside.get("rate_hz", RATE_HZ)
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise InputError(f"{path.with_suffix('.json')}: rate_hz must be a number")
    if rate_hz is None:
        rate_said(path.with_suffix(".json"), rate)
    said = (
        "given"
        if rate_hz is not None
        else "in the file beside it"
        if "rate_hz" in beside
        else "the dataset's"
    )
    try:
        return RobotMotion(
            name=path.stem if name is None else name,
            qpos=np.concatenate([values[:, :3], quaternion, values[:, 7:]], axis=1),
            rate_hz=float(rate),
            joint_names=names,
            robot=of_robot or str(beside.get("robot", "")),
            source=source if source is not None else str(beside.get("source", path.name)),
            licence=licence if licence is not None else str(beside.get("licence", "unknown")),
            conventions={
                "quaternions": f"{', '.join(order)} in the file",
                "rate": said,
                "joint order": "named in the file"
                if in_file is not None
                else _order_said(joint_names, of_robot),
            },
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _order_said(joint_names: Sequence[str] | None, robot: str) -> str:
    return (
        "by the options given" if joint_names is not None else f"{LAYOUTS[robot].source} ({robot})"
    )


def table_of(path: Path, data: bytes) -> tuple[list[str] | None, Array]:
    """The header, if there is one, and the numbers (T, columns).

    Raises:
      InputError: naming file and line: no rows, rows of differing length, a text or a value that is
        not finite.
    """
    body = data.lstrip()
    if not body:
        raise InputError(f"{path} is empty, expected a row of numbers per frame")
    first, _, rest = body.partition(b"\n")
    header = header_of(first.strip().removesuffix(b",").split(b","))
    before = data[: len(data) - len(body)].count(b"\n")
    if header is None:
        return None, number_table(path, body, first_line=1 + before)
    if not rest.strip():
        raise InputError(f"{path} has a header and no frames")
    return header, number_table(path, rest, first_line=2 + before)


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
    """The joint names that a header gives, and the order of the quaternion's components in columns
    3 to 6.

    Raises:
      InputError: for a header that does not name each column, or no quaternion where it belongs.
    """
    if header is None:
        return None, _QUATERNION
    if len(header) != columns:
        raise InputError(f"{path}: {len(header)} names in the header, {columns} numbers in a row")
    order = tuple(entry[-1:].lower() for entry in header[3:7])
    if sorted(order) != sorted(_QUATERNION):
        listed = ", ".join(shown(entry) for entry in header[3:7])
        raise InputError(
            f"{path}: the header names {listed} where the root quaternion belongs (columns 4 to 7)"
        )
    place = tuple(entry[-1:].lower() for entry in header[:3])
    if place != ("x", "y", "z"):
        listed = ", ".join(shown(entry) for entry in header[:3])
        raise InputError(
            f"{path}: the header names {listed} where the root position x, y, z belongs (columns 1 to 3)"
        )
    return tuple(header[7:]), order


def sidecar(path: Path) -> dict[str, Any]:
    """What the JSON file beside the CSV says, {} where there is none of ours."""
    beside = path.with_suffix(".json")
    if not beside.is_file():
        return {}
    try:
        about = read_json(beside)
    except InputError:
        return {}
    return about if isinstance(about, dict) and about.get("schema") == SCHEMA else {}


def looks_like(path: str | os.PathLike[str]) -> str:
    """Whether a CSV file is of this layout, by its first rows: "yes", "no" or "perhaps".

    "yes": a file of ours stands beside it, or a header names a root quaternion. "no": columns 4 to
    7 are no unit quaternions, or there are too few. "perhaps": they are, which points of a body
    could be by chance, too.
    """
    path = Path(path)
    if sidecar(path):
        return "yes"
    with path.open("rb") as file:
        lines = [line for line in (file.readline(100_000) for _ in range(50)) if line.strip()]
    words = [line.strip().removesuffix(b",").split(b",") for line in lines]
    if not words or len(words[0]) < 8:
        return "no"
    header = header_of(words[0])
    if header is not None:
        try:
            columns_of(path, header, len(header))
        except InputError:
            return "no"
        return "yes"
    try:
        rows = np.array([row for row in words if len(row) == len(words[0])], dtype=np.float64)
    except ValueError:
        return "no"
    length = np.linalg.norm(rows[:, 3:7], axis=1)
    return "perhaps" if np.all(np.abs(length - 1.0) < 1e-3) else "no"
