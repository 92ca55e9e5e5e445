"""The page of two logs of a robot: how their channels are distributed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npmp.deploy.comparison import QUANTILES, ChannelDifference, Channels, in_words
from npmp.view.report import figures
from npmp.view.report.parts import Cell, Charts, Lines, Row, Section, Table, assemble, number

SHOWN = 6  # channels that are drawn


def compared_logs(
    path: Path, robot: str, first: Channels, second: Channels, found: Sequence[ChannelDifference]
) -> None:
    """The table of all channels and the distributions of the most different ones."""
    charts = []
    for one in found[:SHOWN]:
        lines = []
        for name, channels, css in (("first", first, "robot"), ("second", second, "other")):
            values = np.sort(channels[one.channel])
            share = np.arange(1, len(values) + 1) / len(values)
            lines.append(figures.Line(name, values, share, css))
        look: Any = {"unit": "share below", "x_label": one.unit, "y_range": (0.0, 1.0)}
        charts.append(figures.line_chart(lines, title=one.channel, **look))
    quantiles = [f"{side} {100 * q:g} %" for side in ("1st", "2nd") for q in QUANTILES]
    columns = ("channel", "unit", "of spread", "Wasserstein", "KS", *quantiles)
    rows: list[Row] = []
    for one in found:
        apart = (Cell.of(one.relative, 2), Cell.of(one.wasserstein, 4), Cell.of(one.ks, 2))
        sides = (Cell.of(value, 3) for value in (*one.first, *one.second))
        rows.append([one.channel, one.unit, *apart, *sides])
    cards = [
        (f"{place} most different", one.channel, f"{number(one.relative)} of its spread apart")
        for place, one in zip(("The", "2nd", "3rd"), found)
    ]
    sections = [
        Section("worst", "The most different channels", [Lines(in_words(found)), Charts(charts)]),
        Section("all", "All channels", [Table(columns, rows, sortable=True)]),
    ]
    title = f"{robot}: two logs compared"
    subtitle = "distributions while the policy acts"
    assemble(path, title=title, subtitle=subtitle, cards=cards, sections=sections)
