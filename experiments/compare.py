"""`npmp evaluate compare RUN ...`: training runs grouped over their seeds, as a table, JSON, a plot
and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from mocap_data.errors import InputError, printable
from npmp.evaluation.comparison import (
    AXES,
    UNITS,
    Difference,
    Figures,
    Group,
    differences,
    figures,
    find_runs,
    group_runs,
    notes,
    read_run,
    shared_end,
    short,
)
from npmp.experiments.command import NOW, Keys, Run, Verb
from npmp.experiments.terminal import console, say, show_table
from npmp.view.report import compare_page
from npmp.view.report.compare_page import apart_rows, cell

WIDEST_WORD = 26  # characters of a setting that a terminal's table keeps in one line


@dataclass(frozen=True, kw_only=True)
class Compare(Keys):
    """Training runs side by side: those that differ in their seed alone make a group; scores over
    minutes and over environment steps, as table, plot and page.

    npmp evaluate compare runs/fast runs/published out=runs/comparison
    npmp evaluate compare runs/sweep score=kl lower=true minutes=[1,5]
    """

    # run folders, sweep folders, patterns such as 'runs/beta*'
    runs: str | list[str]
    # the column of metrics.csv to compare
    score: str = "tracked_fraction"
    # true where less of it is better
    lower: bool = False
    # a score: minutes and steps until it is met are told; null: not asked
    threshold: float | None = None
    # budgets at which scores are told, a number or a list; null: where the shortest group ends
    minutes: float | list[float] | None = None
    # the same in environment steps
    env_steps: float | list[float] | None = None
    # of the plot and the page; null: the score's name
    title: str | None = None
    # the folder for comparison.json, .png and .html
    out: Path | None = Path(f"runs/compare/{NOW}")

    def __post_init__(self) -> None:
        for axis in AXES:
            if any(number <= 0 for number in numbers(self, axis)):
                raise InputError(f"{axis} must be above 0, got {getattr(self, axis)}")


def run(config: Compare, run: Run) -> None:
    """Compare what runs= names."""
    places = [config.runs] if isinstance(config.runs, str) else config.runs
    if not places:
        raise InputError("npmp evaluate compare needs run folders, or folders of them")
    requested = {axis: numbers(config, axis) for axis in AXES}
    groups = group_runs([read_run(path, config.score) for path in find_runs(places)])
    budgets = {axis: requested[axis] or shared_end(groups, axis) for axis in AXES}
    table = [figures(group, budgets, config.threshold, lower=config.lower) for group in groups]
    apart = differences(groups, lower=config.lower)
    show(groups, table, apart, config.score)
    run.begin()
    title = (config.title or config.score).replace("_", " ")
    score = config.score
    settings: dict[str, Any] = {"score": score, "lower": config.lower}
    settings |= {"threshold": config.threshold, "budgets": budgets}
    compare_page.write_curves(run.folder / "comparison.json", groups, table, apart, settings)
    compare_page.plot(
        run.folder / "comparison.png", groups, title=title, score=score, threshold=config.threshold
    )
    compare_page.page(run.folder / "comparison.html", groups, table, apart, title=title)
    say(f"plot, page and tables: {run.folder}")


def numbers(config: Compare, axis: str) -> list[float]:
    """A key's number or list of numbers; [] for null."""
    value = getattr(config, axis)
    return [] if value is None else list(value) if isinstance(value, list) else [value]


def show(
    groups: Sequence[Group], table: Sequence[Figures], apart: Sequence[Difference], score: str
) -> None:
    """The table and its notes on the terminal."""
    title = f"{score}: mean, and range over seeds"
    rich_table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False
    )
    longest = max(len(word) for group in groups for word in group.label.split())
    rich_table.add_column("runs", overflow="fold", min_width=min(longest, WIDEST_WORD))
    rich_table.add_column("n", justify="right")
    for name in table[0]:
        rich_table.add_column(UNITS.get(name, name), justify="right", overflow="fold")
    for group, row in zip(groups, table, strict=True):
        lengths = [short(row[axis].mean) for axis in AXES]
        others = [cell(figure) for name, figure in row.items() if name not in AXES]
        rich_table.add_row(
            Text(printable(group.label)), str(len(group.runs)), *map(Text, [*lengths, *others])
        )
    console().print(rich_table)
    columns, rows = apart_rows(groups, apart)
    if rows:
        look = {"box": box.SIMPLE_HEAD, "pad_edge": False, "title_justify": "left"}
        show_table(columns, rows, right=columns[1:], title=f"{score} at the end", **look)
    say(*notes(groups), wrap=True)


main = Verb("evaluate compare", Compare, run, torch=False, positional=("runs*",), devices=("cpu",))
