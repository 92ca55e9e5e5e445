"""Training runs side by side: figures and curves as JSON, a plot, and a page of all."""

from __future__ import annotations

import base64
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mocap_data.files import atomic_path, write_json
from npmp.evaluation.comparison import AXES, Difference, Figure, Figures, Group, notes, short
from npmp.view.report.parts import Picture, Section, Table, assemble

NAMES = {"minutes": "wall-clock (min)", "env_steps": "environment steps"}
# Okabe and Ito's colours, told apart by the colour-blind, too, without their yellow; then the same
# with dashes and with dots.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
STYLES = ("-", "--", ":")
LONG_LABEL = 34  # characters of a group's name that stand in one line of a legend beside another's


def cell(figure: Figure) -> str:
    """The mean, and in a second line the range and how many of the runs have the figure where not
    all have."""
    if not figure.count:
        return "-" if figure.of == 1 else f"-\n0/{figure.of}"
    low, high = short(figure.low, 2), short(figure.high, 2)
    second = "" if figure.count == 1 else f"{low}–{high}"
    if figure.count < figure.of:
        second = f"{second} {figure.count}/{figure.of}".strip()
    return f"{short(figure.mean)}\n{second}".strip()


def apart_rows(
    groups: Sequence[Group], apart: Sequence[Difference]
) -> tuple[tuple[str, ...], list[list[str]]]:
    """Columns and rows of what tells groups apart; no rows for a single group."""
    columns = ("runs", "n", "IQM", "95 %", f"better than {groups[0].label} by", "95 %", "P(better)")
    rows = []
    for group, one in zip(groups, apart, strict=True):
        versus = [short(one.by), _interval(one.by_interval), short(one.better, 2)]
        own = [group.label, str(len(group.runs)), short(one.iqm), _interval(one.interval)]
        rows.append(own + (["", "", ""] if group is groups[0] else versus))
    return columns, rows if len(groups) > 1 else []


def _interval(interval: tuple[float, float]) -> str:
    return "-" if math.isnan(interval[0]) else f"{short(interval[0])} to {short(interval[1])}"


def write_curves(
    path: Path,
    groups: Sequence[Group],
    table: Sequence[Figures],
    apart: Sequence[Difference],
    asked: Mapping[str, Any],
) -> None:
    """Everything: what was asked for, the figures and every run's curve. Paths are relative to the
    folder that holds all of the runs."""
    folders = [run.path.resolve() for group in groups for run in group.runs]
    top = Path(os.path.commonpath([folder.parent for folder in folders]))
    rows = []
    for group, row, one in zip(groups, table, apart, strict=True):
        numbers = {name: _numbers(figure) for name, figure in row.items()}
        about = {"label": group.label, "settings": group.settings}
        runs = [
            {
                "run": run.path.resolve().relative_to(top).as_posix(),
                "seed": run.seed,
                "problem": run.problem or None,
                **{axis: [round(float(x), 4) for x in run.x[axis]] for axis in AXES},
                "score": [float(y) for y in run.score],
            }
            for run in group.runs
        ]
        rows.append({**about, "figures": numbers, "end": _numbers(one), "runs": runs})
    write_json(path, {**asked, "notes": notes(groups), "groups": rows}, indent=1)


def _numbers(one: Figure | Difference) -> dict[str, Any]:
    """As JSON has them: null for NaN."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(entry) for entry in value]
        return value if math.isfinite(value) else None

    return {key: plain(value) for key, value in asdict(one).items()}


def marks(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Colour and line style of each group."""
    styles = itertools.product(STYLES, COLOURS)
    return [(colour, style) for _, (style, colour) in zip(groups, itertools.cycle(styles))]


def plot(
    path: Path, groups: Sequence[Group], *, title: str, score: str, threshold: float | None
) -> None:
    """Score over minutes and over environment steps: a line for the mean of a group's runs, a band
    from the lowest to the highest, a dot where each run ends."""
    from matplotlib.figure import Figure as Sheet
    from matplotlib.ticker import EngFormatter

    longest = max(len(group.label) for group in groups)
    columns = 1 if len(groups) < 4 or longest > 2 * LONG_LABEL else 2
    rows = math.ceil(len(groups) / columns)
    sheet = Sheet(figsize=(9.6, 3.9 + 0.21 * rows), layout="constrained")
    panels = sheet.subplots(1, 2, sharey=True)
    for panel, axis in zip(panels, AXES, strict=True):
        for group, (colour, style) in zip(groups, marks(groups), strict=True):
            x, mean, low, high = group.curve(axis)
            several = f" ({len(group.runs)} runs)" if len(group.runs) > 1 else ""
            panel.plot(x, mean, style, color=colour, linewidth=1.8, label=group.label + several)
            panel.fill_between(x, low, high, color=colour, alpha=0.14, linewidth=0)
            ends = [(run.x[axis][-1], run.score[-1]) for run in group.runs]
            panel.plot(*zip(*ends, strict=True), ".", color=colour, markersize=5)
        if threshold is not None:
            panel.axhline(threshold, color="0.55", linewidth=0.8, linestyle=(0, (4, 3)))
        panel.set_xlabel(NAMES[axis])
        panel.set_xlim(left=0)
        panel.grid(color="0.9", linewidth=0.7)
        panel.spines[["top", "right"]].set_visible(False)
        if "fraction" in score:
            panel.set_ylim(0, 1.02)
    panels[0].set_ylabel(score.replace("_", " "))
    panels[1].xaxis.set_major_formatter(EngFormatter(sep=""))
    sheet.suptitle(title, fontsize=11)
    lines, names = panels[0].get_legend_handles_labels()
    sheet.legend(lines, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    with atomic_path(path) as temporary:
        sheet.savefig(temporary, dpi=150, format="png")


def page(
    path: Path,
    groups: Sequence[Group],
    table: Sequence[Figures],
    apart: Sequence[Difference],
    *,
    title: str,
) -> None:
    """The plot and the tables as one self-contained page."""
    image = base64.b64encode(path.with_suffix(".png").read_bytes()).decode()
    rows = [
        [group.label, str(len(group.runs)), *map(cell, row.values())]
        for group, row in zip(groups, table, strict=True)
    ]
    ends = apart_rows(groups, apart)
    sections = [
        Section("curves", "Curves", [Picture(f"data:image/png;base64,{image}", title, "plot")]),
        Section("table", "Table", [Table(("runs", "n", *table[0]), rows)]),
        *([Section("ends", "Differences at the end", [Table(*ends)])] if ends[1] else []),
    ]
    subtitle = "mean, and range over seeds"
    assemble(path, title=title, subtitle=subtitle, notes=notes(groups), sections=sections)
