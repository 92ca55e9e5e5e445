"""`npmp sweeps show | resume SWEEP`: show the progress of a sweep, and resume it."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mocap_data.errors import InputError
from npmp.experiments.cli import command_of
from npmp.experiments.command import Keys, Run, Verb
from npmp.experiments.compose import typed
from npmp.experiments.store import run_named_task
from npmp.experiments.sweeping.display import jobs_table
from npmp.experiments.sweeping.launch import run_sweep, workers_of
from npmp.experiments.sweeping.sweep import PLAN, RUNNING, STOPPED, Sweep
from npmp.experiments.terminal import console, say


@dataclass(frozen=True, kw_only=True)
class ShowSweep(Keys):
    """Show the progress of a sweep's jobs.

    npmp sweeps show runs/seeds
    """

    # the sweep's folder
    target: Path


@dataclass(frozen=True, kw_only=True)
class ResumeSweep(ShowSweep):
    """Resume a sweep: unfinished jobs continue from their checkpoints.

    npmp sweeps resume runs/seeds
    """

    # your own task, whose file is run; null: a task of this package
    task: str | None = None
    # settings of the workers; null: unchanged
    launcher: Literal["local", "ray"] | None = None


def run_show(config: ShowSweep, run: Run) -> None:
    """Print all jobs and the errors of failed ones; sweep.json is updated."""
    sweep = Sweep.load(config.target)
    # jobs that were running when the sweep was killed
    with suppress(InputError), sweep.locked():
        for i, job in enumerate(sweep.jobs):
            if job.state == RUNNING:
                job.state = STOPPED
                job.score = sweep.progress(i).score
        sweep.save()
    console().print(jobs_table(sweep, {i: sweep.progress(i) for i in range(len(sweep.jobs))}))
    say(*(f"failed: {line}" for line in sweep.failures()))


def run_resume(config: ResumeSweep, run: Run) -> int:
    """Go on. Returns the exit code."""
    sweep = Sweep.load(config.target)
    if config.launcher is not None:
        of_ray: dict[str, Any] = {} if config.launcher == "ray" else {"gpus": 0.0, "resources": {}}
        sweep.launcher = replace(sweep.launcher, kind=config.launcher, **of_ray)
    sweep.check()
    if config.task is not None:
        run_named_task(config.task)
    keys = command_of(sweep.verb).keys
    for job, values in zip(sweep.jobs, sweep.configs, strict=True):
        try:
            typed(sweep.verb, keys, values)
        except InputError as error:
            raise InputError(f"{sweep.folder / PLAN}: job {job.name}: {error}") from error
    with closing(workers_of(sweep)) as workers:
        return run_sweep(sweep, workers)


_common: Any = {"out": "optional_folder", "torch": False, "devices": ("cpu",)}
show = Verb("sweeps show", ShowSweep, run_show, positional=("target",), **_common)
resume = Verb("sweeps resume", ResumeSweep, run_resume, positional=("target",), **_common)
