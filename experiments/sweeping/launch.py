"""From jobs to a sweep: what launches them, what proposes them, and running them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from mocap_data.errors import InputError
from npmp.experiments.common import FOLDERS, SHOWING, Job, Main, main_of, progress_bar, say
from npmp.experiments.sweeping.drive import drive, failures, workers_of
from npmp.experiments.sweeping.plan import MULTIRUN, complete, jobs_of, parsed
from npmp.experiments.sweeping.report import report
from npmp.experiments.sweeping.search import Search, Sweeper, as_json, corners, distribution_of
from npmp.experiments.sweeping.sweep import SWEPT_VERBS, Launcher, Sweep, SweptJob
from npmp.settings import from_mapping

# characters of a job's folder; file systems allow 255, and logs and temporary files add some
LONGEST_NAME = 180


@dataclass(frozen=True)
class Choice:
    """What a command line says of launcher and sweeper, and the rest, which is for Hydra."""

    # None: hydra/launcher=basic, one job after the other in this process
    launcher: Launcher | None
    # None: all combinations
    sweeper: Sweeper | None
    rest: list[str]


def chosen(given: Sequence[str]) -> Choice:
    """Read hydra/launcher=, hydra/sweeper= and their settings, which stand for Hydra's own.

    Raises:
      InputError: for one that does not exist, an unknown setting, or an ill-typed value.
    """
    names: dict[str, str] = {"launcher": "local", "sweeper": "basic"}
    settings: dict[str, dict[str, Any]] = {kind: {} for kind in names}
    rest = []
    for argument in given:
        key, _, value = argument.partition("=")
        group, name = key[:6], key[6:]
        kind, _, leaf = name.partition(".")
        if group == "hydra/" and name in names:
            names[name] = value
        elif group == "hydra." and kind in names:
            override = parsed(f"{leaf}={value}")
            settings[kind][leaf] = value if override is None else override.value()
        else:
            rest.append(argument)
    known = {"launcher": ("local", "ray", "basic"), "sweeper": ("optuna", "basic")}
    for kind, name in names.items():
        if name not in known[kind]:
            raise InputError(f"no hydra/{kind} {name!r}; there are: {', '.join(known[kind])}")
    launcher = from_mapping(
        Launcher,
        settings["launcher"] | ({"kind": "ray"} if names["launcher"] == "ray" else {}),
        at="hydra.launcher",
    )
    sweeper = from_mapping(Sweeper, settings["sweeper"], at="hydra.sweeper")
    return Choice(
        None if names["launcher"] == "basic" else launcher,
        None if names["sweeper"] == "basic" else sweeper,
        rest,
    )


def launch(main: Main, given: Sequence[str]) -> int | list[Job] | None:
    """Run the sweep of a command line.

    Returns: the exit code, or the jobs where they are to be done in this process; None where Hydra
    could not read it.

    Raises:
      InputError: before anything is run or written, where a job's settings are wrong.
    """
    choice = chosen(given)
    if choice.sweeper is not None:
        return go_on(_search(main, choice, choice.sweeper), new=True)
    jobs = jobs_of(main, choice.rest)
    if any(argument.partition("=")[0] in SHOWING for argument in given):
        return 0 if jobs is not None else None
    if not jobs or choice.launcher is None or jobs[0].config.get("out") is None:
        return jobs
    if any(entry.startswith("out=") for job in jobs for entry in job.overrides):
        raise InputError("out= names the folder of all jobs; it cannot be swept")
    sweep = _empty(main, jobs[0], choice.launcher)
    with progress_bar() as bar:
        each = bar.track(jobs, description="checking jobs")
        sweep.configs = [complete(main, job, sweep.launcher.cores) for job in each]
    names = [job.name for job in jobs]
    if len(set(names)) < len(names) or max(map(len, names)) > LONGEST_NAME:
        names = [f"{i:03d}" for i in range(len(jobs))]
    sweep.jobs = [
        SweptJob(name, list(job.overrides)) for name, job in zip(names, jobs, strict=True)
    ]
    return go_on(sweep, new=True)


def _empty(main: Main, job: Job, launcher: Launcher) -> Sweep:
    """A sweep without jobs, by one of them."""
    if main.name not in SWEPT_VERBS:
        raise InputError(
            f"npmp {main.name} has no sweeps of its own processes; hydra/launcher=basic runs one "
            f"job after the other (those that have: {', '.join(SWEPT_VERBS)})"
        )
    out = Path(str(job.config.out))
    score, lower = _score(main.name, job.config)
    if score is not None and launcher.score in (None, score):
        lower = lower if launcher.lower is None else launcher.lower
        launcher = replace(launcher, score=score, lower=lower)
    return Sweep(out if main.out in FOLDERS else out.parent, main.name, launcher, [], [])


def _score(verb: str, config: DictConfig) -> tuple[str | None, bool]:
    """The column that a verb's runs are compared by, and whether less of it is better."""
    if verb == "reuse":
        from npmp import tasks

        return str(tasks.find(config.task.name).main_figure), True
    return ("tracked_fraction" if verb == "imitate" else None), False


def _search(main: Main, choice: Choice, sweeper: Sweeper) -> Sweep:
    """The sweep of a command line that leaves the jobs to a sweeper."""
    space, fixed = {}, []
    for argument in choice.rest:
        override = parsed(argument) if "=" in argument else None
        if override is not None and override.is_sweep_override():
            space[override.key_or_group] = distribution_of(override)
        elif argument not in MULTIRUN:
            fixed.append(argument)
    if not space:
        raise InputError(
            "hydra/sweeper=optuna needs keys to search, e.g. 'algo.discount=interval(0.9,0.99)'"
        )
    first = corners(space)
    sweep = _empty(main, _composed(main, [*fixed, *first[0]]), choice.launcher or Launcher())
    if sweep.launcher.score is None or sweep.launcher.lower is None:
        raise InputError(
            f"npmp {main.name} has no score known here: hydra.launcher.score=COLUMN of metrics.csv "
            "and hydra.launcher.lower=true, if less is better, or false"
        )
    for own in first:
        complete(main, _composed(main, [*fixed, *own]), sweep.launcher.cores)
    space = {key: as_json(distribution) for key, distribution in space.items()}
    sweep.search = {"sweeper": asdict(sweeper), "arguments": fixed, "space": space}
    return sweep


def _composed(main: Main, arguments: Sequence[str]) -> Job:
    jobs = main.jobs(arguments)
    if not jobs:
        raise InputError("hydra/sweeper=optuna has no job to show, and none was started")
    return jobs[0]


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
            search = None if sweep.search is None else Search(sweep, _composer(sweep))
            code = drive(sweep, workers, search)
            lines = report(sweep, search)
    finally:
        workers.close()
    say(*(f"failed: {line}" for line in failures(sweep)), *lines)
    say(what_next(sweep))
    return code


def what_next(sweep: Sweep) -> str:
    """The commands that show what came out of a sweep."""
    folder, launcher = sweep.folder, sweep.launcher
    # the others have no runs whose scores could be compared over time
    if sweep.verb not in ("imitate", "reuse"):
        return f"npmp sweeps show {folder}"
    # npmp compare's own default is imitation's score
    by = f" score={launcher.score}" if launcher.score else ""
    by += " lower=true" if by and launcher.lower else ""
    return f"npmp sweeps show {folder}; npmp compare {folder}{by}; tensorboard --logdir {folder}"


def _composer(sweep: Sweep) -> Callable[[Sequence[str]], dict[str, Any]]:
    """A search's jobs from what they have for their own."""
    main, fixed = main_of(sweep.verb), list((sweep.search or {})["arguments"])

    def compose(own: Sequence[str]) -> dict[str, Any]:
        return complete(main, _composed(main, [*fixed, *own]), sweep.launcher.cores)

    return compose
