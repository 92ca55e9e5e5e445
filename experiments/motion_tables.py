"""The tables of `npmp retarget`: motions with their figures, and what was dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.table import Table

from mocap_data import MotionSet
from npmp.experiments.terminal import table
from retarget import Cleaned
from retarget.overview import (
    PER_RECORDING,
    figure_of,
    groups_of,
    is_marked,
    median_of,
    originals_of,
    summed_up,
    worst,
)
from retarget.quality import BAD

# with more motions the worst are shown
ROWS = 25


class Column(NamedTuple):
    """A figure as the table shows it."""

    heading: str
    key: str
    factor: float
    decimals: int
    # how motions are summed up in the last row
    summed: str

    def text(self, value: float) -> str:
        """A value in the column's unit."""
        return f"{self.factor * value:.{self.decimals}f}" if np.isfinite(value) else "-"


COLUMNS = (
    Column("RMS\ncm", "rms_marker_m", 100.0, 2, "rms"),
    Column("max\ncm", "max_marker_m", 100.0, 1, "max"),
    Column("slide\ncm/s", "foot_slide_mps", 100.0, 2, "mean"),
    Column("slid\n%", "foot_slide_share", 100.0, 1, "mean"),
    Column("sunk\nmm", "penetration_p99_m", 1000.0, 1, "max"),
    Column("float\nmm", "float_m", 1000.0, 1, "max"),
    Column("over\nlimit", "violations", 1.0, 0, "sum"),
    Column("self\n%", "self_collision_share", 100.0, 1, "mean"),
    Column("jerk\nrad/s3", "jerk_rms", 1.0, 0, "mean"),
    Column("legs\ndeg", "leg_orientation_deg", 1.0, 1, "mean"),
)
LOOK: dict[str, Any] = {
    "title_justify": "left",
    "box": box.SIMPLE_HEAD,
    "padding": 0,
    "pad_edge": False,
}
LEGEND = (
    "Marker error, root mean square and largest; foot slide in stance and its share of steps "
    "above 5 cm/s; foot below the floor and above it in stance, 99th percentiles; joints beyond "
    "position or velocity limits; self-collision; joint jerk."
)
_BAD_FIGURES = ", ".join(
    f"{column.heading.split()[0]} {column.factor * BAD[column.key]:g} {column.heading.split()[1]}"
    for column in COLUMNS
    if column.key in BAD
)
LEGEND_OF_MARKS = (
    f"! marks a recording that looks misread, or figures that are bad: {_BAD_FIGURES} or more; "
    f"anything over a limit; {100 * BAD['stance_lost_share']:g} % of stances lost; "
    f"{1000 * BAD['body_penetration_m']:g} mm of the body in the ground."
)


def table_of(motion_set: MotionSet, warnings: Mapping[str, str]) -> Table:
    """Motions and their figures, the worst of them where there are many; then medians, by kind of
    movement too, and all together.

    Mirrors have the figures of what they mirror and are left out. warnings: by name or recording.
    """
    shown = motions = originals_of(motion_set.motions)
    title = f"motions of {motion_set.robot}"
    if len(motions) > ROWS:
        shown = worst(motions)
        most = f"at most {PER_RECORDING} of a recording"
        title += f": the worst {len(shown)} of {len(motions)}, {most}"
    columns = [
        column
        for column in COLUMNS
        if any(np.isfinite(figure_of(motion, column.key)) for motion in motions)
    ]
    made = Table(title=title, **LOOK)
    made.add_column("clip", overflow="fold", ratio=1, min_width=14)
    for heading in ("s", *(column.heading for column in columns)):
        made.add_column(heading, justify="right", no_wrap=True)
    for motion in shown:
        mark = " !" if is_marked(motion, warnings) else ""
        figures = (column.text(figure_of(motion, column.key)) for column in columns)
        made.add_row(motion.name + mark, f"{motion.duration_s:.1f}", *figures)
    if len(motions) > 1:
        made.add_section()
        for name, group in groups_of(motions).items():
            medians = (column.text(median_of(group, column.key)) for column in columns)
            seconds = np.median([motion.duration_s for motion in group])
            made.add_row(name, f"{seconds:.1f}", *medians)
        sums = (column.text(summed_up(motions, column.key, column.summed)) for column in columns)
        seconds = sum(motion.duration_s for motion in motions)
        made.add_row("all", f"{seconds:.1f}", *sums, style="bold")
    return made


def dropped_table(cleaned: Cleaned) -> Table:
    """Seconds by reason."""
    columns = ("reason", "s", "%", "stretches", "recordings")
    rows = []
    for row in cleaned.losses:
        share, counts = f"{100 * row.share:.1f}", (str(row.stretches), str(row.recordings))
        rows.append((row.reason, f"{row.seconds:.1f}", share, *counts))
    return table(columns, rows, right=columns[1:], title="dropped", **LOOK)
