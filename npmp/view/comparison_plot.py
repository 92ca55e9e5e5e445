"""The plot of `npmp evaluate compare`: score over wall-clock time and over environment steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from mocap_data.files import atomic_path
from npmp.evaluation.comparison import AXES, Group

NAMES = {"minutes": "wall-clock (min)", "env_steps": "environment steps"}
# Okabe and Ito's colours without yellow, solid, then dashed, then dotted
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
STYLES = ("-", "--", ":")
# characters of a label in a legend of two columns
LONG_LABEL = 34


def plot(
    path: Path, groups: Sequence[Group], *, title: str, score: str, threshold: float | None
) -> None:
    """Write a PNG: the mean of each group's runs as a line, their range as a band, a dot at the end
    of each run."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    longest = max(len(group.label) for group in groups)
    columns = 1 if len(groups) < 4 or longest > 2 * LONG_LABEL else 2
    rows = math.ceil(len(groups) / columns)
    figure = Figure(figsize=(9.6, 3.9 + 0.21 * rows), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, axis in zip(panels, AXES, strict=True):
        for group, (style, colour) in zip(
            groups, itertools.cycle(itertools.product(STYLES, COLOURS))
        ):
            x, mean, low, high = group.curve(axis)
            count = f" ({len(group.runs)} runs)" if len(group.runs) > 1 else ""
            panel.plot(x, mean, style, color=colour, linewidth=1.8, label=group.label + count)
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
    figure.suptitle(title, fontsize=11)
    lines, names = panels[0].get_legend_handles_labels()
    figure.legend(
        lines, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
