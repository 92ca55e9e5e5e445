"""The tables of `npmp retarget`: motions with their figures, and what was dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from mocap_data import MotionSet
from npmp.experiments.terminal import table
from retarget import Cleaned
from retarget.overview import glance

LOOK: dict[str, Any] = {
    "title_justify": "left",
    "box": box.SIMPLE_HEAD,
    "padding": 0,
    "pad_edge": False,
}


def table_of(motion_set: MotionSet, warnings: Mapping[str, str]) -> Table:
    """As `glance`."""
    shown = glance(motion_set, warnings)
    made = Table(title=shown.title, **LOOK)
    made.add_column("clip", overflow="fold", ratio=1, min_width=14)
    for heading in shown.headings:
        made.add_column(heading, justify="right", no_wrap=True)
    for row in shown.rows:
        made.add_row(*row)
    made.add_section()
    for row in shown.medians:
        made.add_row(*row, style="bold" if row is shown.medians[-1] else None)
    return made


def dropped_table(cleaned: Cleaned) -> Table:
    """Seconds by reason."""
    columns = ("reason", "s", "%", "stretches", "recordings")
    rows = []
    for row in cleaned.losses:
        share, counts = f"{100 * row.share:.1f}", (str(row.stretches), str(row.recordings))
        rows.append((row.reason, f"{row.seconds:.1f}", share, *counts))
    return table(columns, rows, right=columns[1:], title="dropped", **LOOK)
