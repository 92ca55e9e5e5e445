"""Progress of a sweep in the terminal: a table of its jobs, or a line for each finished job."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from rich import box
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mocap_data.errors import one_line, printable
from npmp.experiments.sweeping.sweep import (
    FAILED,
    FINISHED,
    RUNNING,
    STOPPED,
    WAITING,
    Sweep,
    SweepProgress,
)
from npmp.experiments.terminal import console, table, warn
from npmp.learning.live import clock

COLOURS = {
    WAITING: "dim",
    RUNNING: "cyan",
    FINISHED: "green",
    FAILED: "bold red",
    STOPPED: "yellow",
}


class Display:
    """Shows the events of a running sweep."""

    def __init__(self, sweep: Sweep):
        self.sweep = sweep
        # before the table replaces stderr
        self.on_terminal = sys.stderr.isatty()
        self.live = Live(console=console(stderr=True), auto_refresh=False)

    def live_table(self) -> AbstractContextManager[object]:
        """Keeps the table in the terminal up to date."""
        return self.live if self.on_terminal else nullcontext()

    def refresh(self, running: Mapping[int, float], progress: Mapping[int, SweepProgress]) -> None:
        """Show all jobs, or running ones first if the terminal has too few lines. running: seconds
        of running attempts, by job."""
        if self.on_terminal:
            most = max(5, self.live.console.height - 6)
            self.live.update(jobs_table(self.sweep, progress, running, most=most), refresh=True)

    def ended(self, number: int, state: str) -> None:
        """Print a line for an attempt that ended, unless there is a table."""
        if not self.on_terminal:
            job = self.sweep.jobs[number]
            sweep = self.sweep
            score = "" if job.score is None else f", {sweep.launcher.score} {job.score:.3g}"
            left = sum(job.state in (WAITING, RUNNING) for job in sweep.jobs)
            line = f"{job.name}: {state} ({job.seconds:.0f} s{score}); {left} to go"
            print(printable(line), file=sys.stderr, flush=True)

    def unsaved(self, error: OSError) -> None:
        """Warn that sweep.json could not be written."""
        warn(f"sweep.json is not up to date: {one_line(error)}")


def jobs_table(
    sweep: Sweep,
    progress: Mapping[int, SweepProgress],
    running: Mapping[int, float] | None = None,
    *,
    most: int | None = None,
) -> Table:
    """State, steps, score and time left of a sweep's jobs. running: seconds of running attempts, by
    job. most: rows."""
    running = running or {}
    rows = []
    order = sorted(range(len(sweep.jobs)), key=lambda i: sweep.jobs[i].state != RUNNING)
    for i in sorted(order[:most]):
        job = sweep.jobs[i]
        done = progress.get(i, SweepProgress())
        seconds = job.seconds + running.get(i, 0.0)
        share = 1.0 if job.state == FINISHED else done.share
        left = "" if done.left_s is None or i not in running else clock(done.left_s)
        steps = f"{share:.0%}" if share is not None else ""
        score = done.score if done.score is not None else job.score
        state = Text(job.state, style=COLOURS[job.state])
        named = job.name if "=" in job.name else f"{job.name} {' '.join(job.overrides)}"
        reached = "" if score is None else f"{score:.4g}"
        taken = clock(seconds) if seconds else ""
        rows.append((named, state, steps, reached, taken, left, job.host))
    states = Counter(job.state for job in sweep.jobs)
    counts = ", ".join(f"{states[state]} {state}" for state in COLOURS if states[state])
    columns = ("job", "state", "done", sweep.launcher.score or "score", "time", "left", "host")
    title = Text(printable(f"{sweep.folder}: {counts}"))
    look = {"box": box.SIMPLE_HEAD, "pad_edge": False, "title": title, "title_justify": "left"}
    return table(columns, rows, right=columns[2:6], **look)
