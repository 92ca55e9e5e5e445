"""Paths over the ground as CSV: a row of x, y [m] per waypoint, maybe a row of names first."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError
from mocap_data.input_files import regular_file
from mocap_data.readers.common import BOM, at_line, quoted
from mocap_data.readers.keypoints import number_table

# half a million waypoints
MAX_BYTES = 16 << 20


def read_waypoints(path: str | os.PathLike[str], *, longest_m: float) -> Array:
    """The waypoints of a file, (N, 2) [m].

    Raises:
      InputError: with file and line: no file, one too large, no numbers, not two in a row, a value
        that is not finite, or a path shorter than 0.1 m or longer than `longest_m`.
    """
    path = Path(path)
    data = regular_file(path, at_most=MAX_BYTES).read_bytes().removeprefix(BOM).lstrip()
    # a row of names: "x,y", "x [m], y [m]", "x_m,y_m"
    has_names = data[:1].lower() == b"x"
    first = data.partition(b"\n")[0]
    if b";" in first or (not has_names and re.match(rb"[a-zA-Z#\"]", first)):
        expected = "expected x, y in metres, separated by a comma"
        raise at_line(path, 1, f"{quoted(first)}, {expected}")
    if has_names:
        data = data.partition(b"\n")[2]
    points = number_table(path, data, first_line=1 + has_names)
    if (columns := points.shape[1]) != 2:
        raise InputError(f"{path}: {columns} numbers in a row, expected 2 (x, y in metres)")
    with np.errstate(over="ignore"):
        length = float(np.linalg.norm(np.diff(points, axis=0), axis=-1).sum())
    if not 0.1 <= length <= longest_m:
        expected = f"expected 0.1 to {longest_m:,.0f} m"
        raise InputError(f"{path}: a path of {length:.4g} m, {expected}")
    return points
