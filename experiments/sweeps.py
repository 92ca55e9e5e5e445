"""`npmp sweeps list | show SWEEP | resume SWEEP`: sweeps and how far they are."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mocap_data.errors import InputError
from npmp.experiments.command import Keys, Run, Verb
from npmp.experiments.sweeping.drive import failures, jobs_table
from npmp.experiments.sweeping.launch import go_on
from npmp.experiments.sweeping.sweep import PLAN, RUNNING, STATES, STOPPED, Sweep
from npmp.experiments.terminal import console, say, table


@dataclass(frozen=True, kw_only=True)
class ListSweeps(Keys):
    """List the sweeps below a folder, and how far they are."""

    # where to look
    target: Path = Path("runs")


@dataclass(frozen=True, kw_only=True)
class ShowSweep(Keys):
    """Show how far the jobs of a sweep are.

    npmp sweeps show runs/seeds
    """

    # the sweep's folder
    target: Path


@dataclass(frozen=True, kw_only=True)
class ResumeSweep(ShowSweep):
    """Go on with a sweep: finished jobs are not done again, others go on from their checkpoints.

    npmp sweeps resume runs/seeds
    """

    # what runs the jobs from now on; null: as before
    launcher: Literal["local", "ray"] | None = None


def run_list(config: ListSweeps, run: Run) -> None:
    """A line per sweep."""
    show_all(config.target)


def run_show(config: ShowSweep, run: Run) -> None:
    """A line per job."""
    show_jobs(Sweep.load(config.target))


def run_resume(config: ResumeSweep, run: Run) -> int:
    """Go on. Returns the exit code."""
    sweep = Sweep.load(config.target)
    if config.launcher is not None:
        gpus, resources = 0.0, dict[str, float]()
        if config.launcher == "ray":
            gpus, resources = sweep.launcher.gpus, sweep.launcher.resources
        sweep.launcher = replace(
            sweep.launcher, kind=config.launcher, gpus=gpus, resources=resources
        )
    sweep.check_foreign()
    return go_on(sweep)


def show_all(folder: Path) -> None:
    """A line per sweep anywhere below a folder."""
    rows = []
    for plan in sorted(folder.rglob(PLAN)):
        try:
            sweep = Sweep.load(plan.parent)
        except InputError as error:  # damaged, or another's jobs.json
            say(str(error))
            continue
        mark_stopped(sweep)
        counts = [sum(job.state == state for job in sweep.jobs) for state in STATES]
        rows.append((str(sweep.folder), sweep.verb, *(str(count or "") for count in counts)))
    if not rows:
        say(f"no sweeps below {folder}")
        return
    columns = ("sweep", "verb", *STATES)
    console().print(table(columns, rows, right=STATES, show_edge=False, pad_edge=False))


def show_jobs(sweep: Sweep) -> None:
    """All jobs, and what the failed ones failed with; sweep.json is brought up to date."""
    mark_stopped(sweep, keep=True)
    console().print(jobs_table(sweep, {i: sweep.progress(i) for i in range(len(sweep.jobs))}))
    say(*(f"failed: {line}" for line in failures(sweep)))


def mark_stopped(sweep: Sweep, *, keep: bool = False) -> None:
    """Mark jobs as stopped that were running when their sweep's process died; keep: write it."""
    with suppress(InputError), sweep.locked():
        for i, job in enumerate(sweep.jobs):
            if job.state == RUNNING:
                job.state, job.score = STOPPED, sweep.progress(i).score
        if keep:
            sweep.save()


_common: Any = {
    "out": "optional_folder",
    "torch": False,
    "positional": ("target",),
    "devices": ("cpu",),
}
list_all = Verb("sweeps list", ListSweeps, run_list, **_common)
show = Verb("sweeps show", ShowSweep, run_show, **_common)
resume = Verb("sweeps resume", ResumeSweep, run_resume, **_common)
