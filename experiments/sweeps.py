"""`npmp sweeps list | show SWEEP | resume SWEEP`: sweeps and how far they are."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from mocap_data.errors import InputError
from npmp.experiments.common import Run, console, one_of, say, table, verb
from npmp.experiments.sweeping.drive import failures, jobs_table
from npmp.experiments.sweeping.launch import go_on
from npmp.experiments.sweeping.sweep import PLAN, RUNNING, STATES, STOPPED, Sweep


def run(config: DictConfig, run: Run) -> int:
    """Do what `action` says."""
    one_of(config, "action", "list", "show", "resume")
    if config.action == "list":
        show_all(Path(str(config.target or "runs")))
        return 0
    if config.target is None:
        raise InputError(
            f"npmp sweeps {config.action} needs a sweep: its folder (npmp sweeps list)"
        )
    sweep = Sweep.load(Path(str(config.target)))
    if config.action == "resume":
        if config.launcher is not None:
            one_of(config, "launcher", "local", "ray")
            kind, gpus, resources = str(config.launcher), 0.0, dict[str, float]()
            if kind == "ray":
                gpus, resources = sweep.launcher.gpus, sweep.launcher.resources
            sweep.launcher = replace(sweep.launcher, kind=kind, gpus=gpus, resources=resources)
        sweep.check_foreign()
        return go_on(sweep)
    show(sweep)
    return 0


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


def show(sweep: Sweep) -> None:
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


main = verb(
    "sweeps",
    run,
    out="optional_folder",
    torch=False,
    positional=("action", "target"),
    devices=("cpu",),
)
