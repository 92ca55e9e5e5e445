"""`npmp evaluate compare RUN ...`: training runs grouped over their seeds, as a table, JSON and a
plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from mocap_data.errors import InputError, printable
from mocap_data.files import write_json
from npmp.evaluation.comparison import (
    AXES,
    UNITS,
    Difference,
    Group,
    Statistic,
    as_json,
    difference_rows,
    differences,
    find_runs,
    group_runs,
    notes,
    read_run,
    short,
    shortest_end,
    summarize,
)
from npmp.experiments.command import NOW, Keys, Run, Verb
from npmp.experiments.terminal import console, say, show_table
from npmp.view.comparison_plot import plot

WIDEST_WORD = 26  # largest length of a setting on one line of the table [characters]


@dataclass(frozen=True, kw_only=True)
class Compare(Keys):
    """Compare training runs over minutes and environment steps, as a table and a plot. Runs that
    differ only in their seed form a group.

    npmp evaluate compare runs/fast runs/published out=runs/comparison
    npmp evaluate compare runs/sweep score=kl lower=true minutes=[1,5]
    """

    # run folders, sweep folders, patterns such as 'runs/beta*'
    runs: str | list[str]
    # the column of metrics.csv to compare
    score: str = "tracked_fraction"
    # true: lower scores are better
    lower: bool = False
    # score whose time to reach is shown, in minutes and steps; null: none
    threshold: float | None = None
    # budgets at which scores are compared, a number or a list; null: where the shortest group ends
    minutes: float | list[float] | None = None
    # budgets in environment steps
    env_steps: float | list[float] | None = None
    # title of the plot; null: the score's name
    title: str | None = None
    # the folder for comparison.json and comparison.png
    out: Path | None = Path(f"runs/compare/{NOW}")

    def __post_init__(self) -> None:
        for axis in AXES:
            if any(number <= 0 for number in numbers(self, axis)):
                raise InputError(f"{axis} must be above 0, got {getattr(self, axis)}")


def run(config: Compare, run: Run) -> None:
    """Compare the runs of runs=."""
    places = [config.runs] if isinstance(config.runs, str) else config.runs
    if not places:
        raise InputError("npmp evaluate compare needs run folders, or folders of them")
    requested = {axis: numbers(config, axis) for axis in AXES}
    groups = group_runs([read_run(path, config.score) for path in find_runs(places)])
    budgets = {axis: requested[axis] or shortest_end(groups, axis) for axis in AXES}
    table = [summarize(group, budgets, config.threshold, lower=config.lower) for group in groups]
    results = differences(groups, lower=config.lower)
    show(groups, table, results, config.score)
    run.begin()
    title = (config.title or config.score).replace("_", " ")
    score = config.score
    settings: dict[str, Any] = {"score": score, "lower": config.lower}
    settings |= {"threshold": config.threshold, "budgets": budgets}
    content = {**settings, "notes": notes(groups), "groups": as_json(groups, table, results)}
    write_json(run.folder / "comparison.json", content, indent=1)
    plot(
        run.folder / "comparison.png", groups, title=title, score=score, threshold=config.threshold
    )
    say(f"plot and table: {run.folder}")


def numbers(config: Compare, axis: str) -> list[float]:
    """A key's number or list of numbers; [] for null."""
    value = getattr(config, axis)
    return [] if value is None else list(value) if isinstance(value, list) else [value]


def show(
    groups: Sequence[Group],
    table: Sequence[Mapping[str, Statistic]],
    results: Sequence[Difference],
    score: str,
) -> None:
    """Print the table and its notes."""
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
        others = [str(value) for name, value in row.items() if name not in AXES]
        rich_table.add_row(
            Text(printable(group.label)), str(len(group.runs)), *map(Text, [*lengths, *others])
        )
    console().print(rich_table)
    columns, rows = difference_rows(groups, results)
    if rows:
        look = {"box": box.SIMPLE_HEAD, "pad_edge": False, "title_justify": "left"}
        show_table(columns, rows, right=columns[1:], title=f"{score} at the end", **look)
    say(*notes(groups), wrap=True)


main = Verb("evaluate compare", Compare, run, torch=False, positional=("runs*",), devices=("cpu",))
