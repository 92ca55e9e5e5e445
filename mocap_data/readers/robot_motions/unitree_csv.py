"""Unitree's CSV, the layout of the LAFAN1 retargeting dataset: a row per frame, no header.

    root position x, y, z [m], root quaternion x, y, z, w, then the joints [rad]; 30 frames per
    second, Z up.

Joint names, rate, source and licence are in a JSON file beside it that `write_unitree_csv` writes
(walk.csv, walk.json). A header must name every column. A first column "time" [s] determines the
rate; a column "Frame" is ignored.

BONES-SEED's CSV has a header, the root's place in cm (root_translateX, ...), its Euler angles
(root_rotateX, ...: about the world's x, then y, then z) and joints (NAME_dof) in degrees, and 120
frames per second.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import InputError, counted
from mocap_data.input_files import read_json
from mocap_data.readers.common import BOM, check_text, content, file_rate, quoted
from mocap_data.readers.keypoints import cells_of, first_column, number_table, rate_of
from mocap_data.readers.robot_motions.common import RobotMotion, joint_names_of

SCHEMA = "npmp-unitree-csv"
# frame rate of the LAFAN1 retargeting dataset [Hz]
RATE_HZ = 30.0
# of BONES-SEED
SEED_RATE_HZ = 120.0
ROOT_COLUMNS = ("root_x", "root_y", "root_z", "root_qx", "root_qy", "root_qz", "root_qw")
_QUATERNION = ("x", "y", "z", "w")
# about the world's x, then y, then z
_EULER = ("rx", "ry", "rz")
# BONES-SEED's header; another one with Euler angles has other units, or another order
_SEED = tuple(f"root_{kind}{axis}" for kind in ("translate", "rotate") for axis in "XYZ")
_LONGEST_ROW = 100_000


def _documented(leg: str, waist: str, arm: str) -> tuple[str, ...]:
    """Joints of a robot of the LAFAN1 set, of names without sides and without "_joint"."""
    sides = ("left_", "right_")
    legs, arms = ([f"{s}{n}" for s in sides for n in part.split()] for part in (leg, arm))
    return tuple(f"{name}_joint" for name in (*legs, *waist.split(), *arms))


_SHOULDER = "shoulder_pitch shoulder_roll shoulder_yaw elbow"
_ARM = f"{_SHOULDER} wrist_roll wrist_pitch wrist_yaw"
_ANKLE = "knee ankle_pitch ankle_roll"
# robots of the LAFAN1 set, distinguished by their 29, 27 and 19 joints
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

    rate_hz: in place of the file's; None: also 30, or 120 of BONES-SEED.
    joint_names: of a file whose header and JSON file name no joints; 29, 27 or 19 unnamed joints
      are the dataset's G1, H1-2 or H1.

    Raises:
      InputError: with file and line: no rows, rows of differing length, a text or a value that is
        not finite, no unit quaternions, names that contradict each other; MissingOptions without
        names.
    """
    path = Path(path)
    header, values = table_of(path, content(path))
    layout = layout_of(path, header, values.shape[1])
    first = int(layout.first != "")
    joints = first + 3 + len(layout.turn)
    if values.shape[1] <= joints:
        expected = f"expected root position 3, {len(layout.turn)} of its rotation and the joints"
        raise InputError(f"{path}: {counted(values.shape[1], 'number')} in a row, {expected}")
    position, turn, angles = np.split(values[:, first:], [3, joints - first], axis=1)
    if layout.turn == _EULER:
        # intrinsic about the turned axes in the other order
        position = 0.01 * position
        angles = np.radians(angles)
        turn = rotations.from_euler("ZYX", np.radians(turn[:, ::-1]))
    else:
        turn = turn[:, [layout.turn.index(letter) for letter in "wxyz"]]
    about = sidecar(path)
    file_names = _file_names(path, about, layout.joints)
    robot = ""
    if file_names is None and joint_names is None:
        robot = next((r for r, names in DOCUMENTED.items() if len(names) == angles.shape[1]), "")
    names = joint_names_of(path, angles.shape[1], file_names, joint_names, DOCUMENTED.get(robot))
    if rate_hz is None and layout.first == "time" and "rate_hz" not in about:
        rate_hz = rate_of(path, values[:, 0])
    usual = SEED_RATE_HZ if layout.turn == _EULER else RATE_HZ
    missing = {
        "rate_hz": rate_hz is None and "rate_hz" not in about,
        "joint_names": robot != "",
        "quaternion": header is None and not about,
    }
    try:
        return RobotMotion(
            name=path.stem,
            qpos=np.concatenate([position, turn, angles], axis=1),
            rate_hz=_sidecar_rate(path, about, usual) if rate_hz is None else float(rate_hz),
            joint_names=names,
            robot=robot or str(about.get("robot", "")),
            source=str(about.get("source", path.name)),
            licence=licence if licence is not None else str(about.get("licence", "unknown")),
            assumed=tuple(key for key, is_missing in missing.items() if is_missing),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _file_names(
    path: Path, about: dict[str, Any], header: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    """The joint names of the JSON file of a CSV, or the header's where it has none."""
    listed = about.get("joint_names")
    if listed is None:
        return header
    json_path = path.with_suffix(".json")
    if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):
        raise InputError(f"{json_path}: joint_names must be a list of texts")
    if header not in (None, tuple(listed)):
        raise InputError(f"{path}: its header names other joints than {json_path.name}")
    return tuple(listed)


def _sidecar_rate(path: Path, about: dict[str, Any], usual: float) -> float:
    """The rate in the JSON file of a CSV, or the usual one [Hz]."""
    rate = about.get("rate_hz", usual)
    json_path = path.with_suffix(".json")
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise InputError(f"{json_path}: rate_hz is {rate!r}, expected a number")
    return file_rate(json_path, float(rate))


def table_of(path: Path, data: bytes) -> tuple[list[str] | None, Array]:
    """The header (None for none) and the numbers (T, columns).

    Raises:
      InputError: with file and line: no rows, rows of differing length, no finite number.
    """
    body = data.removeprefix(BOM).lstrip()
    check_text(path, body, "a row of numbers per frame")
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


class Layout(NamedTuple):
    """The columns of a CSV."""

    # kind of a column before the root's: time, frame; "": none
    first: str = ""
    # the components of the root's quaternion in their order, or `_EULER`
    turn: tuple[str, ...] = _QUATERNION
    # None: not named
    joints: tuple[str, ...] | None = None


def layout_of(path: Path, header: Sequence[str] | None, columns: int) -> Layout:
    """The layout that a header names; without a header the dataset's.

    Raises:
      InputError: a header that does not name each column, or no root in the first columns.
    """
    if header is None:
        return Layout()
    if len(header) != columns:
        raise InputError(f"{path}: {len(header)} names in the header, {columns} numbers in a row")
    first = first_column(header[0])
    names = header[1:] if first else header
    ends = [entry[-1:].lower() for entry in names]
    if tuple(names[:6]) == _SEED and all(entry.endswith("_dof") for entry in names[6:]):
        return Layout(first, _EULER, tuple(entry.removesuffix("_dof") for entry in names[6:]))
    for valid, part, expected in (
        (sorted(ends[3:7]) == sorted(_QUATERNION), names[3:7], "the root's quaternion"),
        (ends[:3] == ["x", "y", "z"], names[:3], "the root's position x, y, z"),
    ):
        if not valid:
            listed = ", ".join(quoted(entry) for entry in part)
            raise InputError(f"{path}: the header has {listed}, expected {expected}")
    return Layout(first, tuple(ends[3:7]), tuple(names[7:]))


def sidecar(path: Path) -> dict[str, Any]:
    """The contents of the JSON file that `write_unitree_csv` wrote beside the CSV; {} for none."""
    json_path = path.with_suffix(".json")
    try:
        about = read_json(json_path) if json_path.is_file() else None
    except InputError:
        return {}
    return about if isinstance(about, dict) and about.get("schema") == SCHEMA else {}


def first_rows(path: Path) -> list[list[bytes]]:
    """The cells of the first rows of a CSV that are not blank."""
    with path.open("rb") as file:
        lines = [file.readline(_LONGEST_ROW).removeprefix(BOM) for _ in range(50)]
    return [cells_of(line) for line in lines if line.strip()]


def looks_like(path: str | os.PathLike[str]) -> str:
    """Whether a CSV file is of this layout, by its first rows: "yes", "no" or "perhaps".

    "yes": it has our JSON file, or a header names the root's columns. "perhaps": columns 4 to 7 are
    unit quaternions, or coordinates of a body.
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
            layout_of(path, header, len(header))
            return "yes"
        rows = np.array([row for row in words if len(row) == len(words[0])], dtype=np.float64)
    except ValueError:
        return "no"
    length = np.linalg.norm(rows[:, 3:7], axis=1)
    return "perhaps" if np.all(np.abs(length - 1.0) < 1e-3) else "no"
