"""The table of motions and their retargeting metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mocap_data.motion import ReferenceMotion
from npmp.view.report.parts import Cell, Row, Table
from retarget.motion_summary import aggregate, by_kind, figure_of
from retarget.quality import BAD, SLIDING

# heading, factor and decimals by key of `ReferenceMotion.quality`
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
    "leg_orientation_deg": ("legs off (deg)", 1.0, 1),
}
# aggregation of motions, by key; by default the mean weighted by time
SUMMED = {
    "rms_marker_m": "rms",
    "max_marker_m": "max",
    "penetration_p99_m": "max",
    "penetration_m": "max",
    "float_m": "max",
    "body_penetration_m": "max",
    "limit_violations": "sum",
    "velocity_violations": "sum",
}
# tooltips of headings, by key
MEANINGS = {
    "rms_marker_m": "distance of the robot's markers from the recording's, root mean square",
    "max_marker_m": "the largest distance of a marker from the recording's",
    "foot_slide_mps": "mean horizontal speed of standing feet",
    "foot_slide_share": f"share of standing feet's steps above {100 * SLIDING:g} cm/s",
    "near_floor_mps": "mean horizontal speed of contact points below 5 mm",
    "stance_lost_share": "share of the recording's stances in which the robot's foot is in the air",
    "penetration_p99_m": "depth of the deepest contact point, 99th percentile of frames",
    "penetration_m": "depth of the deepest contact point, the greatest",
    "float_m": "height of standing feet, 99th percentile",
    "body_penetration_m": "greatest depth of any other body",
    "limit_violations": "(frame, joint) pairs beyond the position limits",
    "velocity_violations": "(frame, joint) pairs beyond the velocity limits",
    "self_collision_share": "share of frames in which parts of the robot penetrate each other",
    "jerk_rms": "root mean square of the joints' third derivatives",
    "leg_orientation_deg": "angle between the robot's leg segments and the person's",
}


def motion_table(motions: Sequence[ReferenceMotion], *, most: int | None = None) -> Table:
    """A row for each of the first `most` motions; last all motions, and each kind of movement."""
    # an empty foot_slide_mps shows that no foot stands
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
            # without stances all movement near the floor is sliding
            place = keys.index("near_floor_mps")
            near = figure_of(motion, "near_floor_mps")
            cells[place] = replace(cells[place], bad=near >= BAD["foot_slide_mps"])
        split = [motion.split] if splits else []
        length = Cell.of(motion.duration_s, 1)
        rows.append([motion.name, length, *cells, Cell.of(motion.weight, 2), *split])
    last: list[Row] = []
    kinds = {f"{kind} ({len(group)})": group for kind, group in by_kind(motions).items()}
    for name, group in ({f"all ({len(motions)})": motions} | kinds).items():
        length = Cell.of(sum(motion.duration_s for motion in group), 1)
        cells = [_cell(key, overall(group, key)) for key in keys]
        last.append([name, length, *cells, *[""] * (2 if splits else 1)])
    headings = ["motion", "s", *(COLUMNS[key][0] for key in keys), "weight"]
    if splits:
        headings.append("split")
    meanings = {COLUMNS[key][0]: MEANINGS[key] for key in keys if key in MEANINGS}
    meanings["weight"] = "frequency with which training samples this motion, relative to the others"
    return Table(headings, rows, last, sortable=True, meanings=meanings)


def overall(motions: Sequence[ReferenceMotion], key: str) -> float:
    """A metric of all motions, aggregated as `SUMMED`."""
    return aggregate(motions, key, SUMMED.get(key, "mean"))


def _cell(key: str, value: float, *, marked: bool = False) -> Cell:
    """A value in its column's unit. marked: highlighted if it is bad."""
    _, factor, decimals = COLUMNS[key]
    return Cell.of(value * factor, decimals, bad=marked and value >= BAD.get(key, math.inf))
