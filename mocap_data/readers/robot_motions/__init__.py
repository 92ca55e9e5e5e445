"""Robot motions in other projects' formats: one module per format, one `read_robot_motion`.

They are not `Clip`s (keypoints): `retarget.robot_motion_import` maps them to a robot by the names
of joints.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError, check_available
from mocap_data.input_files import regular_file
from mocap_data.npz import has_arrays
from mocap_data.readers.keypoints import cells_of
from mocap_data.readers.robot_motions import unitree_csv
from mocap_data.readers.robot_motions.common import RobotMotion
from mocap_data.readers.robot_motions.mjlab import read_mjlab
from mocap_data.readers.robot_motions.unitree_csv import read_unitree_csv

# by their names for `kind=`
KINDS: dict[str, Callable[..., RobotMotion]] = {
    "mjlab": read_mjlab,
    "unitree_csv": read_unitree_csv,
}


def kind_of(path: str | os.PathLike[str], names: Sequence[str] = ()) -> str | None:
    """The kind of a file, of `KINDS`; None for none.

    mjlab by the names of the archive's arrays, Unitree CSV by its JSON file, a header, or rows of a
    documented robot's length with unit quaternions in columns 4 to 7. names: of its columns, as
    many as a robot's joints or as keypoints, which decides an ambiguous file.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if not path.is_file():
        return None
    if suffix == ".npz":
        kinds = ("joint_pos", "body_pos_w"), ("dof_positions", "body_positions")
        return "mjlab" if any(has_arrays(path, *names) for names in kinds) else None
    if suffix == ".csv":
        certain = unitree_csv.looks_like(path)
        matches = bool(names) and numbers_in_a_row(path) == 7 + len(names)
        fits = certain == "yes" or (certain == "perhaps" and (matches or not ambiguous(path)))
        return "unitree_csv" if fits else None
    return None


def ambiguous(path: str | os.PathLike[str]) -> bool:
    """Whether a CSV may be keypoints or a robot's motion: unit quaternions in columns 4 to 7, but a
    number of columns that is three per keypoint and no documented robot's."""
    if unitree_csv.looks_like(path) != "perhaps":
        return False
    columns = numbers_in_a_row(Path(path))
    documented = {7 + len(names) for names in unitree_csv.DOCUMENTED.values()}
    return columns % 3 == 0 and columns not in documented


def numbers_in_a_row(path: Path) -> int:
    """The number of numbers in the first row of a CSV."""
    with path.open("rb") as file:
        return len(cells_of(next((line for line in file if line.strip()), b"")))


def read_robot_motion(
    path: str | os.PathLike[str], *, kind: str | None = None, **options: Any
) -> RobotMotion:
    """The robot motion at `path`: metres, radians, Z up, quaternions (w, x, y, z).

    kind: one of `KINDS`; None: by `kind_of`.
    options, all optional: joint_names, licence; rate_hz for unitree_csv.

    Raises:
      InputError: with the file: no file, none of the formats, an unknown option, or contents that
        are damaged or contradict the options.
    """
    file = regular_file(path)
    kind = kind_of(file) if kind is None else kind
    if kind is None:
        raise InputError(f"{path} is not a robot motion; set kind= to one of: {', '.join(KINDS)}")
    check_available("kind of robot motion", [kind], KINDS)
    reader = KINDS[kind]
    valid = [name for name in inspect.signature(reader).parameters if name != "path"]
    check_available(f"option for {kind}", options, valid)
    return reader(file, **options)
