"""Tables of motions and their figures on the terminal, for `npmp retarget` and `npmp inspect`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mocap_data import MotionSet
from npmp.experiments.terminal import clean, table
from retarget import Cleaned
from retarget.findings import FIGURES, Findings
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

# of a dataset: with more motions the worst, of an inspected one the longest
ROWS = 25

# Of each column of the table: heading, key, factor, decimals, how motions are summed up in the last
# row.
COLUMNS: tuple[tuple[str, str, float, int, str], ...] = (
    ("RMS\ncm", "rms_marker_m", 100.0, 2, "rms"),
    ("max\ncm", "max_marker_m", 100.0, 1, "max"),
    ("slide\ncm/s", "foot_slide_mps", 100.0, 2, "mean"),
    ("slid\n%", "foot_slide_share", 100.0, 1, "mean"),
    ("sunk\nmm", "penetration_p99_m", 1000.0, 1, "max"),
    ("float\nmm", "float_m", 1000.0, 1, "max"),
    ("over\nlimit", "violations", 1.0, 0, "sum"),
    ("self\n%", "self_collision_share", 100.0, 1, "mean"),
    ("jerk\nrad/s3", "jerk_rms", 1.0, 0, "mean"),
    ("legs\ndeg", "leg_orientation_deg", 1.0, 1, "mean"),
)
LOOK: dict[str, Any] = {
    "title_justify": "left",
    "box": box.SIMPLE_HEAD,
    "padding": 0,
    "pad_edge": False,
}
LEGEND = (
    "Marker error, root mean square and largest; foot slide in stance and its share of steps "
    "above 5 cm/s; foot below "
    "the floor and above it in stance, 99th percentiles; joints beyond position or velocity "
    "limits; self-collision; "
    "joint jerk."
)
_BAD_FIGURES = ", ".join(
    f"{heading.split()[0]} {factor * BAD[key]:g} {heading.split()[1]}"
    for heading, key, factor, *_ in COLUMNS
    if key in BAD
)
LEGEND_OF_MARKS = (
    f"! marks a recording that looks misread, or figures that are bad: {_BAD_FIGURES} or more; "
    "anything over a "
    f"limit; {100 * BAD['stance_lost_share']:g} % of stances lost; "
    f"{1000 * BAD['body_penetration_m']:g} mm of the body in the ground."
)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def table_of(motion_set: MotionSet, warnings: Mapping[str, str] | None = None) -> Table:
    """Motions and their figures, the worst of them where there are many; then medians, by kind of
    movement too, and all together.

    Mirrors have the figures of what they mirror and are left out. warnings: by name or recording.
    """
    shown = motions = originals_of(motion_set.motions)
    title = f"motions of {motion_set.robot}"
    if len(motions) > ROWS:
        shown = worst(motions)
        title += (
            f": the worst {len(shown)} of {len(motions)}, at most {PER_RECORDING} of a recording"
        )
    made = Table(title=title, **LOOK)
    made.add_column("clip", overflow="fold", ratio=1, min_width=14)
    columns = [
        column
        for column in COLUMNS
        if any(np.isfinite(figure_of(motion, column[1])) for motion in motions)
    ]
    for heading in ("s", *(heading for heading, *_ in columns)):
        made.add_column(heading, justify="right", no_wrap=True)

    def text(value: float, factor: float, decimals: int) -> str:
        return f"{factor * value:.{decimals}f}" if np.isfinite(value) else "-"

    for motion in shown:
        mark = " !" if is_marked(motion, warnings or {}) else ""
        figures = (
            text(figure_of(motion, key), factor, decimals)
            for _, key, factor, decimals, _ in columns
        )
        made.add_row(motion.name + mark, f"{motion.duration_s:.1f}", *figures)
    if len(motions) > 1:
        made.add_section()
        for name, group in groups_of(motions).items():
            medians = (
                text(median_of(group, key), factor, decimals)
                for _, key, factor, decimals, _ in columns
            )
            made.add_row(
                name, f"{np.median([motion.duration_s for motion in group]):.1f}", *medians
            )
        sums = (
            text(summed_up(motions, key, how), factor, decimals)
            for _, key, factor, decimals, how in columns
        )
        made.add_row(
            "all", f"{sum(motion.duration_s for motion in motions):.1f}", *sums, style="bold"
        )
    return made


def dropped_table(cleaned: Cleaned) -> Table:
    """Seconds by reason."""
    rows = [
        (
            row.reason,
            f"{row.seconds:.1f}",
            f"{100 * row.share:.1f}",
            str(row.stretches),
            str(row.recordings),
        )
        for row in cleaned.losses
    ]
    columns = ("reason", "s", "%", "stretches", "recordings")
    return table(columns, rows, right=columns[1:], title="dropped", **LOOK)


def motion_table(clips: Sequence[Findings], medians: Sequence[Findings] = ()) -> Group:
    """Reference motions without mirror images, in the units of `npmp retarget`'s table: the
    `ROWS` longest where there are more, then the medians, and a line that says what is
    left out."""
    originals = [clip for clip in clips if not clip.get("mirror")] or list(clips)
    shown, title = originals, f"clips: {len(originals)}"
    if len(originals) > ROWS:
        shown = sorted(
            originals, key=lambda clip: -clip["seconds"] if is_number(clip["seconds"]) else 0.0
        )[:ROWS]
        title = f"clips: the {ROWS} longest of {len(originals)}"
    units = {key: (heading, factor, decimals) for heading, key, factor, decimals, _ in COLUMNS}
    numbers = {
        "seconds": ("s", 1.0, 1),
        **{key: units[key] for key in FIGURES},
        "weight": ("weight", 1.0, 3),
    }
    numbers = {
        key: how
        for key, how in numbers.items()
        if any(is_number(clip.get(key)) for clip in originals)
    }
    splits = any(clip.get("split") for clip in originals)
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.add_column("clip", overflow="fold", min_width=14)
    for heading, _, _ in numbers.values():
        table.add_column(heading, justify="right", no_wrap=True)
    if splits:
        table.add_column("split", no_wrap=True)

    def add(row: Findings) -> None:
        cells = [
            f"{factor * row[key]:.{decimals}f}" if is_number(row.get(key)) else "-"
            for key, (_, factor, decimals) in numbers.items()
        ]
        table.add_row(
            Text(clean(str(row["name"]))), *cells, *([str(row.get("split", ""))] if splits else [])
        )

    for clip in shown:
        add(clip)
    table.add_section()
    for row in medians:
        add(row)
    mirrors = len(clips) - len(originals)
    said = (
        [f"{mirrors} mirror image{'s' * (mirrors != 1)} besides, with the same figures"]
        if mirrors
        else []
    )
    said += ["out= writes all"] if mirrors or len(shown) < len(originals) else []
    return Group(table, *([Text("; ".join(said))] if said else []))
