"""Motions and their figures of quality as a table of a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mocap_data.motion import ReferenceMotion
from npmp.report.parts import Cell, Row, Table
from retarget.overview import by_kind, figure_of, median_of
from retarget.quality import BAD

# Key of quality -> heading, factor, decimals.
COLUMNS: dict[str, tuple[str, float, int]] = {
    "rms_marker_m": ("marker RMS (cm)", 100.0, 2),
    "max_marker_m": ("marker max (cm)", 100.0, 1),
    "foot_slide_mps": ("foot slide (cm/s)", 100.0, 2),
    "foot_slide_share": ("sliding steps (%)", 100.0, 1),
    "near_floor_mps": ("speed near floor (cm/s)", 100.0, 1),
    "stance_lost_share": ("stances lost (%)", 100.0, 1),
    "penetration_p99_m": ("feet sunk, p99 (mm)", 1000.0, 1),
    "penetration_m": ("feet sunk, max (mm)", 1000.0, 1),
    "float_m": ("feet floating, p99 (mm)", 1000.0, 1),
    "body_penetration_m": ("body sunk (mm)", 1000.0, 1),
    "limit_violations": ("beyond position limits", 1.0, 0),
    "velocity_violations": ("beyond velocity limits", 1.0, 0),
    "self_collision_share": ("self-collision (%)", 100.0, 1),
    "jerk_rms": ("jerk (rad/s³)", 1.0, 0),
    "leg_orientation_deg": ("leg orientation (deg)", 1.0, 1),
}


def motion_table(motions: Sequence[ReferenceMotion], *, most: int | None = None) -> Table:
    """A row per motion, of the first `most` of them; at the end medians, of all and by kind of
    movement."""
    # without a figure of slide it shows that no foot stands
    keys = [
        key
        for key in COLUMNS
        if key == "foot_slide_mps" or any(key in motion.quality for motion in motions)
    ]
    splits = any(motion.split for motion in motions)
    rows: list[Row] = []
    for motion in motions[:most]:
        cells = [_cell(key, figure_of(motion, key), marked=True) for key in keys]
        if "near_floor_mps" in keys and "foot_slide_mps" not in motion.quality:
            # all of it is sliding
            place = keys.index("near_floor_mps")
            near = figure_of(motion, "near_floor_mps")
            cells[place] = replace(cells[place], bad=near >= BAD["foot_slide_mps"])
        split = [motion.split] if splits else []
        length = Cell.of(motion.duration_s, 1)
        rows.append([motion.name, length, *cells, Cell.of(motion.weight, 2), *split])
    last: list[Row] = []
    kinds = {f"median of {len(group)}: {kind}": group for kind, group in by_kind(motions).items()}
    for name, group in ({"median": motions} | kinds).items():
        length = Cell.of(float(np.median([motion.duration_s for motion in group])), 1)
        cells = [_cell(key, median_of(group, key)) for key in keys]
        last.append([name, length, *cells, *[""] * (2 if splits else 1)])
    headings = ["motion", "s", *(COLUMNS[key][0] for key in keys), "weight"]
    if splits:
        headings.append("split")
    return Table(headings, rows, last, sortable=True)


def _cell(key: str, value: float, *, marked: bool = False) -> Cell:
    """A figure in its column's unit. marked: so that it is seen where it is bad."""
    _, factor, decimals = COLUMNS[key]
    return Cell.of(value * factor, decimals, bad=marked and value >= BAD.get(key, math.inf))
