"""From jobs to a sweep: what launches them, what proposes them, and running them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError
from npmp.devices import cpus
from npmp.experiments.cli import command_of
from npmp.experiments.command import FOLDERS, Run, Verb
from npmp.experiments.compose import MULTIRUN, Job, Values, parsed
from npmp.experiments.groups import task_of
from npmp.experiments.sweeping.drive import drive, failures, workers_of
from npmp.experiments.sweeping.report import report
from npmp.experiments.sweeping.search import Search, Sweeper, as_json, corners, distribution_of
from npmp.experiments.sweeping.sweep import (
    SWEPT_VERBS,
    Launcher,
    Sweep,
    SweptJob,
    refuse_shared_files,
)
from npmp.experiments.terminal import progress_bar, say
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


def launch(command: Verb, given: Sequence[str]) -> int | list[Job]:
    """Run the sweep of a command line.

    Returns: the exit code, or the jobs where they are to be done in this process.

    Raises:
      InputError: before anything is run or written, where a job's settings are wrong.
    """
    choice = chosen(given)
    if choice.sweeper is not None:
        return go_on(_search(command, choice, choice.sweeper), new=True)
    jobs = command.jobs(choice.rest)
    if not jobs or choice.launcher is None or jobs[0].values.get("out") is None:
        return jobs
    if any(entry.startswith("out=") for job in jobs for entry in job.overrides):
        raise InputError("out= names the folder of all jobs; it cannot be swept")
    sweep = _empty(command, jobs[0], choice.launcher)
    with progress_bar() as bar:
        each = bar.track(jobs, description="checking jobs")
        sweep.configs = [complete(command, job, sweep.launcher.cores) for job in each]
    names = [job.name for job in jobs]
    if len(set(names)) < len(names) or max(map(len, names)) > LONGEST_NAME:
        names = [f"{i:03d}" for i in range(len(jobs))]
    sweep.jobs = [
        SweptJob(name, list(job.overrides)) for name, job in zip(names, jobs, strict=True)
    ]
    return go_on(sweep, new=True)


def complete(command: Verb, job: Job, cores: int) -> Values:
    """A job's settings, complete. Raises InputError for those that the command refuses."""
    try:
        values, config = dict(job.values), job.config
        for key in ("threads", "torch_threads"):
            if key in values and values[key] is None:
                values[key] = cores
        refuse_shared_files(values)
        if command.check is not None:
            run = Run(
                command.name,
                config.out,
                config.seed,
                config.device,
                cpus(),
                given=job.given,
                chosen=job.chosen,
                values=values,
            )
            command.check(config, run)
    except InputError as error:
        at = f" (job {job.name}; none was started)" if job.name else ""
        raise InputError(f"{error}{at}") from error
    return values


def _empty(command: Verb, job: Job, launcher: Launcher) -> Sweep:
    """A sweep without jobs, by one of them."""
    if command.name not in SWEPT_VERBS:
        raise InputError(
            f"npmp {command.name} has no sweeps of its own processes; hydra/launcher=basic "
            "runs one "
            f"job after the other (those that have: {', '.join(SWEPT_VERBS)})"
        )
    out = Path(job.values["out"])
    score, lower = _score(command.name, job)
    if score is not None and launcher.score in (None, score):
        lower = lower if launcher.lower is None else launcher.lower
        launcher = replace(launcher, score=score, lower=lower)
    return Sweep(out if command.out in FOLDERS else out.parent, command.name, launcher, [], [])


def _score(verb: str, job: Job) -> tuple[str | None, bool]:
    """The column that a verb's runs are compared by, and whether less of it is better."""
    if verb == "reuse":
        from npmp import tasks

        return str(tasks.find(task_of(str(job.chosen["task"]))).main_figure), True
    return ("tracked_fraction" if verb == "imitate" else None), False


def _search(command: Verb, choice: Choice, sweeper: Sweeper) -> Sweep:
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
            "hydra/sweeper=optuna needs keys to search, e.g. 'algo.ema=interval(0.9,0.99)'"
        )
    first = corners(space)
    sweep = _empty(command, _composed(command, [*fixed, *first[0]]), choice.launcher or Launcher())
    if sweep.launcher.score is None or sweep.launcher.lower is None:
        raise InputError(
            f"npmp {command.name} has no score known here: hydra.launcher.score=COLUMN of "
            "metrics.csv "
            "and hydra.launcher.lower=true, if less is better, or false"
        )
    for own in first:
        complete(command, _composed(command, [*fixed, *own]), sweep.launcher.cores)
    space = {key: as_json(distribution) for key, distribution in space.items()}
    sweep.search = {"sweeper": asdict(sweeper), "arguments": fixed, "space": space}
    return sweep


def _composed(command: Verb, arguments: Sequence[str]) -> Job:
    return command.jobs([argument for argument in arguments if argument not in MULTIRUN])[0]


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
    # npmp evaluate compare's own default is imitation's score
    by = f" score={launcher.score}" if launcher.score else ""
    by += " lower=true" if by and launcher.lower else ""
    return (
        f"npmp sweeps show {folder}; npmp evaluate compare {folder}{by}; tensorboard "
        f"--logdir {folder}"
    )


def _composer(sweep: Sweep) -> Callable[[Sequence[str]], dict[str, Any]]:
    """A search's jobs from what they have for their own."""
    command, fixed = command_of(sweep.verb), list((sweep.search or {})["arguments"])

    def compose(own: Sequence[str]) -> dict[str, Any]:
        return complete(command, _composed(command, [*fixed, *own]), sweep.launcher.cores)

    return compose
