"""From jobs to a sweep: what launches them, running them, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from mocap_data.errors import InputError, check_available
from mocap_data.files import atomic_path
from npmp.core.settings import from_mapping
from npmp.experiments.compose import Job, Values, merge, parse, parsed, split
from npmp.experiments.groups import GROUPS, task_of
from npmp.experiments.sweeping.drive import drive
from npmp.experiments.sweeping.sweep import (
    SWEPT_VERBS,
    Launcher,
    Sweep,
    SweptJob,
    refuse_shared_files,
)
from npmp.experiments.sweeping.workers import Local, Ray, Workers
from npmp.experiments.terminal import progress_bar, say

BEST = "best.yaml"
# characters of a job's folder; file systems allow 255, and logs and temporary files add some
LONGEST_NAME = 180


def chosen(given: Sequence[str]) -> tuple[Launcher | None, list[str]]:
    """What hydra/launcher= and hydra.launcher.KEY= say, and the other arguments; None for
    hydra/launcher=basic, one job after the other in this process.

    Raises:
      InputError: for one that does not exist, an unknown setting, or an ill-typed value.
    """
    name = "local"
    settings = dict[str, Any]()
    rest = []
    for argument in given:
        key, _, value = argument.partition("=")
        if key == "hydra/launcher":
            name = value
        elif key.startswith("hydra.launcher."):
            leaf = key.removeprefix("hydra.launcher.")
            override = parsed(f"{leaf}={value}")
            settings[leaf] = value if override is None else override.value()
        elif key == "hydra/sweeper" or key.startswith("hydra.sweeper."):
            raise InputError(
                f"{argument}: there are no sweepers; KEY=a,b makes a job of each value"
            )
        else:
            rest.append(argument)
    check_available("hydra/launcher", [name], ("local", "ray", "basic"))
    kind = {"kind": "ray"} if name == "ray" else {}
    launcher = from_mapping(Launcher, settings | kind, at="hydra.launcher")
    return None if name == "basic" else launcher, rest


def launch(command: Any, given: Sequence[str]) -> int | list[Job]:
    """Run the sweep of a command line; command: its `npmp.experiments.command.Verb`.

    Returns: the exit code, or the jobs where they are to be done in this process.

    Raises:
      InputError: before anything is run or written, where a job's settings are wrong.
    """
    launcher, rest = chosen(given)
    jobs = command.jobs(rest)
    if not jobs or launcher is None or jobs[0].values.get("out") is None:
        return jobs
    if any(entry.startswith("out=") for job in jobs for entry in job.overrides):
        raise InputError("out= names the folder of all jobs; it cannot be swept")
    if command.name not in SWEPT_VERBS:
        raise InputError(
            f"npmp {command.name} has no sweeps of its own processes; hydra/launcher=basic "
            f"runs one job after the other (those that have: {', '.join(SWEPT_VERBS)})"
        )
    with progress_bar() as bar:
        each = bar.track(jobs, description="checking jobs")
        configs = [complete(command, job, launcher.cores) for job in each]
    names = [job.name for job in jobs]
    if len(set(names)) < len(names) or max(map(len, names)) > LONGEST_NAME:
        names = [f"{i:03d}" for i in range(len(jobs))]
    swept = [SweptJob(name, list(job.overrides)) for name, job in zip(names, jobs, strict=True)]
    out = Path(jobs[0].values["out"])
    folder = out if command.in_folder else out.parent
    launcher = _with_score(launcher, command.name, jobs[0])
    return go_on(Sweep(folder, command.name, launcher, configs, swept), new=True)


def complete(command: Any, job: Job, cores: int) -> Values:
    """A job's settings, complete. Raises InputError for those that the command refuses."""
    try:
        values = dict(job.values)
        for key in ("threads", "torch_threads"):
            if key in values and values[key] is None:
                values[key] = cores
        refuse_shared_files(values)
        command.refuse(job, values)
    except InputError as error:
        at = f" (job {job.name}; none was started)" if job.name else ""
        raise InputError(f"{error}{at}") from error
    return values


def _with_score(launcher: Launcher, verb: str, job: Job) -> Launcher:
    """The launcher with the column that a verb's runs are compared by, where it has no other."""
    score = "tracked_fraction" if verb == "imitate" else None
    lower = False
    if verb == "reuse":
        from npmp import tasks

        score = str(tasks.find(task_of(str(job.chosen["task"]))).main_figure)
        lower = True
    if score is None or launcher.score not in (None, score):
        return launcher
    return replace(launcher, score=score, lower=lower if launcher.lower is None else launcher.lower)


def workers_of(sweep: Sweep) -> Workers:
    """Those that the sweep's launcher asks for. Raises InputError where there are none."""
    return (Ray if sweep.launcher.kind == "ray" else Local)(sweep.folder, sweep.launcher)


def go_on(sweep: Sweep, *, new: bool = False) -> int:
    """Run what is not finished of a sweep, and print how it ended. Returns the exit code.

    new: write it first.

    Raises:
      InputError: where that cannot be, no worker can run it, or another process does already.
    """
    workers = workers_of(sweep)
    try:
        if new:
            sweep.create()
        with sweep.locked():
            code = drive(sweep, workers)
            lines = report_best(sweep)
    finally:
        workers.close()
    say(*(f"failed: {line}" for line in sweep.failures()), *lines)
    say(what_next(sweep))
    return code


def what_next(sweep: Sweep) -> str:
    """The commands that show what came out of a sweep."""
    folder = sweep.folder
    launcher = sweep.launcher
    # the others have no runs whose scores could be compared over time
    if sweep.verb not in ("imitate", "reuse"):
        return f"npmp sweeps show {folder}"
    # npmp evaluate compare's own default is imitation's score
    by = f" score={launcher.score}" if launcher.score else ""
    by += " lower=true" if by and launcher.lower else ""
    return (
        f"npmp sweeps show {folder}; npmp evaluate compare {folder}{by}; tensorboard "
        f"--logdir {folder}"
    )


def report_best(sweep: Sweep) -> list[str]:
    """Write best.yaml. Returns a line on it; none where `Sweep.best` has none."""
    if (best := sweep.best()) is None:
        return []
    settings, score, count = best
    write_best(sweep, settings, score)
    runs = f", mean of {count}" if count > 1 else ""
    named = " ".join(settings) or "as without the sweep"
    file = f"experiment={sweep.folder / BEST}"
    return [f"best: {named} ({sweep.launcher.score} {score:.4g}{runs}); {file}"]


def write_best(sweep: Sweep, settings: Sequence[str], score: float) -> None:
    """SWEEP/best.yaml, in the form of conf/experiment/*.yaml."""
    choices: list[dict[str, Any]] = []
    values: dict[str, Any] = {}
    for key, text in split(settings):
        value = parse(key, text)
        if key in GROUPS:
            choices.append({key: value})
            continue
        for part in reversed(key.split(".")):
            value = {part: value}
        merge(values, value)
    content = {"verb": sweep.verb} | ({"defaults": choices} if choices else {}) | values
    with atomic_path(sweep.folder / BEST) as path:
        why = f"{sweep.launcher.score} {score:.6g}, the best of {len(sweep.jobs)} jobs"
        path.write_text(f"# {why}\n" + yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
