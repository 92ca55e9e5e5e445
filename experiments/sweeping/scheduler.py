"""Run a sweep's jobs until all have ended, and restart those that were killed."""

from __future__ import annotations

import signal
import time
from collections import Counter

from npmp.core.signals import signals_noted
from npmp.experiments.sweeping.display import Display
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
from npmp.experiments.terminal import OK, USER_ERROR, warn

# time between checks of the jobs' processes [s]
POLL_S = 0.1
# time between checks of the jobs' metrics [s]
LOOK_S = 2.0
# exit codes of a job that would fail again: internal error, invalid input
FAILURES = (1, 2)


def run_jobs(sweep: Sweep, workers: Workers, first: int = 0) -> int:
    """Run all jobs from `first` on that are not finished. The caller holds the sweep's lock.

    Returns: the exit code: 0 if all finished, 2 if some failed, 130 or 143 after a signal.
    """
    display = Display(sweep)
    with display.live_table():
        stopped = SweepRun(sweep, workers, display).run(first)
    if stopped is not None:
        warn(f"{stopped.name}: to resume: npmp sweeps resume {sweep.folder}")
        return 128 + stopped
    return OK if all(job.state == FINISHED for job in sweep.jobs) else USER_ERROR


class SweepRun:
    """Starts jobs, restarts those that were killed, and records their states."""

    def __init__(self, sweep: Sweep, workers: Workers, display: Display):
        self.sweep = sweep
        self.workers = workers
        self.display = display
        # jobs of this process, and when they were started
        self.running: dict[int, float] = {}
        # attempts of this process
        self.tries: Counter[int] = Counter()
        self.progress: dict[int, SweepProgress] = {}
        self.disk_full = False

    def run(self, first: int = 0) -> signal.Signals | None:
        """As `run_jobs`. Returns the signal that stopped the jobs, if one did."""
        jobs = self.sweep.jobs
        workers = self.workers
        waiting = [i for i in range(first, len(jobs)) if jobs[i].state != FINISHED]
        for i in waiting:
            jobs[i].state = WAITING
            jobs[i].message = ""
        self.keep()
        stopping = False
        next_look = 0.0
        with signals_noted() as noted:
            # without a slot the sweep waits, as a node may return
            while self.running or (waiting and not stopping):
                while waiting and not stopping and len(self.running) < workers.slots:
                    i = waiting.pop(0)
                    jobs[i].state = RUNNING
                    jobs[i].attempts += 1
                    self.tries[i] += 1
                    self.running[i] = time.monotonic()
                    workers.start(i, self.sweep.log(i))
                    self.keep()
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
                    self.progress.update({i: self.sweep.progress(i) for i in self.running})
                    self._refresh()
                time.sleep(POLL_S)
            for job in jobs:
                job.state = STOPPED if job.state in (WAITING, RUNNING) else job.state
            self.keep()
            self._refresh()
        return noted[0] if noted else None

    def _refresh(self) -> None:
        now = time.monotonic()
        self.display.refresh({i: now - begun for i, begun in self.running.items()}, self.progress)

    def _end(self, i: int, ended: Ended, *, stopping: bool) -> bool:
        """Record the end of an attempt. Returns whether to try again."""
        job = self.sweep.jobs[i]
        job.seconds = round(job.seconds + time.monotonic() - self.running.pop(i), 1)
        job.host = ended.host or job.host
        progress = self.progress[i] = self.sweep.progress(i)
        job.score = progress.score
        again = False
        if ended.code == 0:
            job.state = FINISHED
        elif ended.code in FAILURES:
            job.state = FAILED
            job.message = ended.reason or failure(self.sweep.log(i))
        elif stopping:
            job.state = STOPPED
        # the job or its worker was killed
        elif again := self.tries[i] <= self.sweep.launcher.retries:
            job.state = WAITING
            job.message = ""
        else:
            lost = "its worker was lost" if ended.code is None else f"exit code {ended.code}"
            job.state = FAILED
            job.message = f"died {self.tries[i]} times ({ended.reason or lost})"
        self.display.ended(i, "was killed, is started again" if again else job.state)
        self.keep()
        return again

    def keep(self) -> None:
        """Write sweep.json; a full disk does not end the sweep."""
        try:
            self.sweep.save()
            self.disk_full = False
        except OSError as error:
            if not self.disk_full:
                self.display.unsaved(error)
            self.disk_full = True
