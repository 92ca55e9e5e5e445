"""From a command line with -m to a sweep: what Hydra composed is checked, written down and run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf

from mocap_data.errors import InputError
from npmp.devices import cpus
from npmp.experiments.common import (
    FOLDERS,
    Job,
    Main,
    Run,
    at_least,
    checked,
    load_config,
    main_of,
    plain,
    say,
)
from npmp.experiments.help import CONF, choices
from npmp.experiments.sweeping.drive import drive, failures, workers_of
from npmp.experiments.sweeping.report import report
from npmp.experiments.sweeping.search import (
    Search,
    as_json,
    check_settings,
    corners,
    distribution_of,
)
from npmp.experiments.sweeping.sweep import Sweep, SweptJob
from npmp.settings import flat

# characters of a job's folder; file systems allow 255, and logs and temporary files add some
LONGEST_NAME = 180


@dataclass(frozen=True)
class Choice:
    """A sweep's command line: who runs its jobs, who chooses them, and what is left for Hydra."""

    # settings of conf/sweeping/launcher; None: hydra/launcher=basic, this process
    launcher: dict[str, Any] | None
    # settings of conf/sweeping/sweeper; None: all combinations, which Hydra makes
    sweeper: dict[str, Any] | None
    rest: list[str]


def chosen(given: Sequence[str]) -> Choice:
    """What a command line says of launcher and sweeper, which are ours and stand for Hydra's own.

    Raises:
      InputError: for one that does not exist, or a setting that it has not, or a value of another
        kind.
    """
    kinds = {"launcher": "local", "sweeper": "basic"}
    values: dict[str, list[str]] = {kind: [] for kind in kinds}
    rest = []
    for argument in given:
        key, _, value = argument.partition("=")
        kind = key[6:].partition(".")[0] if key.startswith(("hydra/", "hydra.")) else ""
        if kind not in kinds or key.startswith("hydra.sweeper.params"):
            rest.append(argument)
        elif key == f"hydra/{kind}":
            kinds[kind] = value
        else:
            values[kind].append(argument)
    launcher, sweeper = (_settings(kind, name, values[kind]) for kind, name in kinds.items())
    return Choice(launcher, sweeper, rest)


def _settings(kind: str, name: str, values: Sequence[str]) -> dict[str, Any] | None:
    """Those of conf/KIND/NAME.yaml, with values of the command line; None for Hydra's basic one."""
    names = [*choices(f"sweeping/{kind}"), "basic"]
    if name not in names:
        raise InputError(f"no hydra/{kind} {name!r}; there are: {', '.join(names)}")
    settings = (
        OmegaConf.create({"kind": name})
        if name == "basic"
        else load_config(CONF / "sweeping" / kind / f"{name}.yaml")
    )
    for entry in OverridesParser.create().parse_overrides(list(values)):
        key = entry.key_or_group.removeprefix(f"hydra.{kind}.")
        if key not in settings or key == "kind":
            known = ", ".join(str(each) for each in settings if each != "kind")
            raise InputError(f"{kind} {name} has no {key!r}; there are: {known or 'none'}")
        value = OmegaConf.create([entry.value()])[0]
        value = checked(entry.key_or_group, value, settings[key])
        OmegaConf.update(settings, key, value, merge=False, force_add=True)
    return None if name == "basic" else plain(settings)


def launcher_of(name: str) -> dict[str, Any]:
    """A launcher's settings, as a sweep keeps them. Raises InputError where there is none."""
    settings = _settings("launcher", name, ())
    if settings is None:
        raise InputError(
            f"a sweep goes on with launcher {' or '.join(choices('sweeping/launcher'))}, not {name}"
        )
    return {key: value for key, value in settings.items() if key not in ("score", "lower")}


def launch(main: Main, given: Sequence[str]) -> int | list[Job] | None:
    """Run the sweep of a command line.

    Returns: the exit code, or the jobs where they are to be done in this process; None where Hydra
    could not read it.

    Raises:
      InputError: before anything is run or written, where a job's settings are wrong.
    """
    choice = chosen(given)
    if choice.sweeper is not None:
        return go_on(_search(main, choice), new=True)
    jobs = with_variants(main, choice.rest)
    if not jobs or choice.launcher is None or jobs[0].config.get("out") is None:
        return jobs
    if any(entry.startswith("out=") for job in jobs for entry in job.overrides):
        raise InputError("out= names the folder of all jobs; it cannot be swept")
    sweep = _empty(main, jobs[0], choice)
    sweep.configs = [settled(main, job, sweep.launcher["cores"]) for job in jobs]
    names = [job.name for job in jobs]
    if len(set(names)) < len(names) or max(map(len, names)) > LONGEST_NAME:
        names = [f"{i:03d}" for i in range(len(jobs))]
    sweep.jobs = [
        SweptJob(name, list(job.overrides)) for name, job in zip(names, jobs, strict=True)
    ]
    return go_on(sweep, new=True)


def with_variants(main: Main, given: Sequence[str]) -> list[Job] | None:
    """What a command line asks for, once for each of the `variants` of its sweep=NAME: settings
    that are tried one by one, where the keys of hydra.sweeper.params make all combinations."""
    name = next(
        (
            argument.partition("=")[2].strip("'\"")
            for argument in given
            if argument.startswith("sweep=")
        ),
        "",
    )
    place = CONF / "sweep" / f"{name}.yaml"
    variants = load_config(place).get("variants") if name and place.is_file() else None
    if variants is None:
        return main.jobs(given)
    # what the command line gives holds, debug=tiny and all that it sets, too
    small = CONF / "debug" / main.name / "tiny.yaml"
    held = flat(plain(load_config(small))) if "debug=tiny" in given and small.is_file() else {}
    jobs: list[Job] = []
    for variant in variants:
        own = [entry for entry in str(variant).split() if entry.partition("=")[0] not in held]
        found = main.jobs([*own, *given])
        if found is None:
            return None
        for job in found:
            parts = [*own, *([job.name] if job.overrides else [])]
            jobs.append(
                replace(
                    job, name=",".join(parts), number=len(jobs), overrides=(*own, *job.overrides)
                )
            )
    return jobs


def _empty(main: Main, job: Job, choice: Choice) -> Sweep:
    """A sweep without jobs, by one of them."""
    launcher = dict(choice.launcher or _settings("launcher", "local", ()) or {})
    given = OmegaConf.create({"hydra": {"launcher": launcher}})
    at_least(given, hydra__launcher__cores=1, hydra__launcher__retries=0)
    if launcher["jobs"] is not None:
        at_least(given, hydra__launcher__jobs=1)
    out = Path(str(job.config.out))
    folder = out if main.out in FOLDERS else out.parent
    score, lower = launcher.pop("score"), launcher.pop("lower")
    known = _score(main.name, job.config)
    if known is not None and score in (None, known[0]):
        score, lower = known[0], known[1] if lower is None else lower
    return Sweep(folder, main.name, launcher, score, lower, [], [])


def settled(main: Main, job: Job, cores: int) -> dict[str, Any]:
    """A job's settings, complete. Raises InputError for those that the verb refuses."""
    try:
        if job.wrong is not None:
            raise job.wrong
        for key in ("threads", "torch_threads"):
            if key in job.config and job.config[key] is None:
                job.config[key] = cores
        if main.check is not None:
            place, device = Path(str(job.config.out)), str(job.config.device)
            main.check(
                job.config,
                Run(main.name, place, int(job.config.seed), device, cpus(), given=job.given),
            )
    except InputError as error:
        raise InputError(
            f"{error} (job {job.name}; none was started)" if job.name else str(error)
        ) from error
    return plain(job.config)


def _search(main: Main, choice: Choice) -> Sweep:
    """The sweep of a command line that leaves the jobs to a sweeper."""
    settings, space, fixed = dict(choice.sweeper or {}), {}, []
    check_settings(settings)
    for argument in choice.rest:
        if argument in ("-m", "--multirun"):
            continue
        swept = [entry for entry in _parsed(argument) if entry.is_sweep_override()]
        if swept:
            space[swept[0].key_or_group] = distribution_of(swept[0])
        else:
            fixed.append(argument)
    if not space:
        raise InputError(
            "hydra/sweeper=optuna needs keys to search, e.g. 'algo.discount=interval(0.9,0.99)'"
        )
    first = corners(space)
    job = _composed(main, [*fixed, *first[0]])
    sweep = _empty(main, job, choice)
    if sweep.score is None or sweep.lower is None:
        raise InputError(
            f"what is npmp {main.name} judged by? hydra.launcher.score=COLUMN of metrics.csv and hydra.launcher.lower="
            "true, if less is better, or false"
        )
    for own in first:
        settled(main, _composed(main, [*fixed, *own]), sweep.launcher["cores"])
    sweep.search = settings | {
        "arguments": fixed,
        "space": {k: as_json(v) for k, v in space.items()},
    }
    return sweep


def _parsed(argument: str) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides([argument]) if "=" in argument else []
    except OverrideParseException:
        return []  # free text, or what composing says more of


def _composed(main: Main, arguments: Sequence[str]) -> Job:
    jobs = main.jobs(arguments)
    if not jobs:
        raise InputError("hydra/sweeper=optuna has no job to show, and none was started")
    return jobs[0]


def go_on(sweep: Sweep, *, new: bool = False) -> int:
    """Run what is not finished of a sweep, and say how it ended. Returns the exit code.

    new: write it first. Raises InputError where that cannot be, nobody can run it, or somebody does
    already.
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
    # it has no runs whose scores could be compared over time
    if sweep.verb not in ("imitate", "reuse"):
        return f"npmp sweeps show {sweep.folder}"
    # npmp compare's own default is imitation's score
    by = "" if sweep.score is None else f" score={sweep.score}{' lower=true' * bool(sweep.lower)}"
    return f"npmp sweeps show {sweep.folder}; npmp compare {sweep.folder}{by}; tensorboard --logdir {sweep.folder}"


def _composer(sweep: Sweep) -> Callable[[Sequence[str]], dict[str, Any]]:
    """A search's jobs from what they have for their own."""
    main, fixed = main_of(sweep.verb), list((sweep.search or {})["arguments"])

    def compose(own: Sequence[str]) -> dict[str, Any]:
        with chdir(sweep.where):
            return settled(main, _composed(main, [*fixed, *own]), sweep.launcher["cores"])

    return compose


def _score(verb: str, config: DictConfig) -> tuple[str, bool] | None:
    """What runs of a verb are judged by, and whether less of it is better."""
    if verb == "imitate":
        return "tracked_fraction", False
    if verb == "reuse":
        from npmp import tasks

        return str(tasks.find(config.task.name).main_figure), True
    return None
