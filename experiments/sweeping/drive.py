"""Running a sweep's jobs until all have ended, whatever dies meanwhile."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack

from rich import box
from rich.live import Live
from rich.table import Table
from rich.text import Text

from npmp.experiments.live import clock
from npmp.experiments.sweeping.sweep import (
    FAILED,
    FINISHED,
    RUNNING,
    STOPPED,
    WAITING,
    Sweep,
    SweepProgress,
    failure,
)
from npmp.experiments.sweeping.workers import Ended, Workers
from npmp.experiments.terminal import INTERNAL_ERROR, OK, USER_ERROR, console, one_line, table
from npmp.training.signals import signals_noted

POLL_S, LOOK_S = 0.1, 2.0  # seconds between looks at the jobs' processes, and at their tables
COLOURS = {
    WAITING: "dim",
    RUNNING: "cyan",
    FINISHED: "green",
    FAILED: "bold red",
    STOPPED: "yellow",
}


def drive(sweep: Sweep, workers: Workers) -> int:
    """Run the jobs that are not finished. The caller holds the sweep's lock.

    Returns: the exit code: 0 where all are done, 2 where some failed, 130 or 143 where a signal
    stopped them.
    """
    return _Drive(sweep).run(workers)


class _Drive:
    """One process that looks after a sweep's jobs."""

    def __init__(self, sweep: Sweep):
        self.sweep = sweep
        # jobs of this process, and when they were started
        self.running: dict[int, float] = {}
        # attempts of this process
        self.tries: Counter[int] = Counter()
        self.shown: dict[int, SweepProgress] = {}
        self.disk_full = False
        # asked now: while a table is shown, what stands for stderr says no
        self.on_terminal = sys.stderr.isatty()

    def run(self, workers: Workers) -> int:
        """Returns the exit code."""
        sweep = self.sweep
        for job in sweep.jobs:
            if job.state != FINISHED:
                job.state, job.message = WAITING, ""
        waiting = [i for i, job in enumerate(sweep.jobs) if job.state == WAITING]
        self.keep()
        with ExitStack() as stack:
            noted = stack.enter_context(signals_noted())
            live = Live(self.table(), console=console(stderr=True), auto_refresh=False)
            if self.on_terminal:
                stack.enter_context(live)
            stopping, next_look = False, 0.0
            # without a place for a waiting job the sweep goes on: a node may come back
            while self.running or (waiting and not stopping):
                while waiting and not stopping and len(self.running) < workers.slots:
                    self._start(waiting.pop(0), workers)
                if noted and not stopping:
                    stopping = True
                    for i in self.running:
                        workers.stop(i)
                for i in list(self.running):
                    ended = workers.ended(i)
                    if ended is not None and self._end(i, ended, stopping=stopping):
                        waiting.insert(0, i)
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + LOOK_S
                    self.shown.update({i: sweep.progress(i) for i in self.running})
                    self._refresh(live)
                time.sleep(POLL_S)
            for job in sweep.jobs:
                job.state = STOPPED if job.state in (WAITING, RUNNING) else job.state
            self.keep()
            self._refresh(live)
        if noted:
            print(
                f"npmp: {noted[0].name}: npmp sweeps resume {sweep.folder} goes on", file=sys.stderr
            )
            return 128 + noted[0]
        return OK if all(job.state == FINISHED for job in sweep.jobs) else USER_ERROR

    def _start(self, i: int, workers: Workers) -> None:
        job = self.sweep.jobs[i]
        job.state, job.attempts = RUNNING, job.attempts + 1
        self.tries[i] += 1
        self.running[i] = time.monotonic()
        workers.start(i, self.sweep.log(i))
        self.keep()

    def _end(self, i: int, ended: Ended, *, stopping: bool) -> bool:
        """Note how an attempt ended. Returns whether to try again."""
        job = self.sweep.jobs[i]
        job.seconds = round(job.seconds + time.monotonic() - self.running.pop(i), 1)
        job.host = ended.host or job.host
        progress = self.shown[i] = self.sweep.progress(i)
        job.score, again = progress.score, False
        if ended.code == OK:
            job.state = FINISHED
        elif ended.code in (INTERNAL_ERROR, USER_ERROR):
            job.state, job.message = FAILED, ended.reason or failure(self.sweep.log(i))
        elif stopping:
            job.state = STOPPED
        # it was killed, or its worker was
        elif again := self.tries[i] <= self.sweep.launcher.retries:
            job.state, job.message = WAITING, ""
        else:
            lost = "its worker is gone" if ended.code is None else f"exit code {ended.code}"
            job.state = FAILED
            job.message = f"died {self.tries[i]} times ({ended.reason or lost})"
        self._print(i, "died, is tried again" if again else job.state)
        self.keep()
        return again

    def keep(self) -> None:
        """Write sweep.json; a full disk does not end the sweep."""
        try:
            self.sweep.save()
            self.disk_full = False
        except OSError as error:
            if not self.disk_full:
                print(f"npmp: sweep.json is not up to date: {one_line(error)}", file=sys.stderr)
            self.disk_full = True

    def _refresh(self, live: Live) -> None:
        if self.on_terminal:
            live.update(self.table(), refresh=True)

    def table(self) -> Table:
        """All jobs, or those that matter now where they are more than the terminal has lines."""
        running = {i: time.monotonic() - begun for i, begun in self.running.items()}
        most = max(5, console(stderr=True).height - 6)
        return jobs_table(self.sweep, self.shown, running, most=most)

    def _print(self, i: int, what: str) -> None:
        """A line, where there is no table."""
        if not self.on_terminal:
            job, sweep = self.sweep.jobs[i], self.sweep
            score = "" if job.score is None else f", {sweep.launcher.score} {job.score:.3g}"
            left = sum(job.state in (WAITING, RUNNING) for job in sweep.jobs)
            line = f"{job.name}: {what} ({job.seconds:.0f} s{score}); {left} to go"
            print(line, file=sys.stderr, flush=True)


def jobs_table(
    sweep: Sweep,
    progress: Mapping[int, SweepProgress],
    running: Mapping[int, float] | None = None,
    *,
    most: int | None = None,
) -> Table:
    """State, steps, score and time left of a sweep's jobs. running: seconds of the attempts that
    are being made."""
    running, rows = running or {}, []
    order = sorted(range(len(sweep.jobs)), key=lambda i: sweep.jobs[i].state != RUNNING)
    for i in sorted(order[:most]):
        job, done = sweep.jobs[i], progress.get(i, SweepProgress())
        seconds = job.seconds + running.get(i, 0.0)
        share = 1.0 if job.state == FINISHED else done.share
        left = clock(seconds * (1.0 - share) / share) if share and i in running else ""
        steps = f"{share:.0%}" if share is not None else ""
        score = done.score if done.score is not None else job.score
        state = Text(job.state, style=COLOURS[job.state])
        named = job.name if "=" in job.name else f"{job.name} {' '.join(job.overrides)}"
        reached, taken = "" if score is None else f"{score:.4g}", clock(seconds) if seconds else ""
        rows.append((Text(named), state, steps, reached, taken, left, Text(job.host)))
    states = Counter(job.state for job in sweep.jobs)
    counts = ", ".join(f"{states[state]} {state}" for state in COLOURS if states[state])
    columns = ("job", "state", "done", sweep.launcher.score or "score", "time", "left", "host")
    title = Text(f"{sweep.folder}: {counts}")
    look = {"box": box.SIMPLE_HEAD, "pad_edge": False, "title": title, "title_justify": "left"}
    return table(columns, rows, right=columns[2:6], **look)


def failures(sweep: Sweep) -> list[str]:
    """A line for every job that failed."""
    return [
        f"{job.name}: {job.message or 'no reason given'} ({sweep.log(i)})"
        for i, job in enumerate(sweep.jobs)
        if job.state == FAILED
    ]
