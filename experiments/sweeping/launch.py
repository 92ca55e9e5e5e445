"""From a command line with -m to a sweep: what Hydra composed is checked, written down and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from experiments.common import Job, Main, Run, at_least, checked, cpus, load_config, say
from experiments.help import CONF, choices
from experiments.sweeping.drive import drive, failures
from experiments.sweeping.sweep import Sweep, SweptJob
from mocap_data.errors import InputError


def chosen(given: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Who runs a sweep's jobs by its command line: the settings of conf/launcher, {} for hydra/launcher=basic (one
    after the other in this process); and the arguments that are left for Hydra, whose own launchers ours stand for.

    Raises:
      InputError: for a launcher or a setting that does not exist, or a value of another kind.
    """
    rest, name, values = [], "local", []
    for argument in given:
        if argument.startswith("hydra/launcher="):
            name = argument.partition("=")[2]
        elif argument.startswith("hydra.launcher."):
            values.append(argument)
        else:
            rest.append(argument)
    names = choices("launcher")
    if name not in (*names, "basic"):
        raise InputError(f"no hydra/launcher {name!r}; there are: {', '.join((*names, 'basic'))}")
    if name == "basic":
        return {}, rest
    settings = load_config(CONF / "launcher" / f"{name}.yaml")
    for entry in OverridesParser.create().parse_overrides(values):
        key = entry.key_or_group.removeprefix("hydra.launcher.")
        if key not in settings or key == "kind":
            known = ", ".join(str(each) for each in settings if each != "kind")
            raise InputError(f"launcher {name} has no {key!r}; there are: {known}")
        value = OmegaConf.create([entry.value()])[0]
        OmegaConf.update(settings, key, checked(entry.key_or_group, value, settings[key]))
    plain = OmegaConf.to_container(settings)
    assert isinstance(plain, dict)  # of a DictConfig; for the type checker
    return {str(key): value for key, value in plain.items()}, rest


def launch(main: Main, jobs: Sequence[Job], launcher: Mapping[str, Any]) -> int:
    """Run a sweep. launcher: as `chosen`. Returns the exit code.

    Raises:
      InputError: before anything is run or written, where a job's settings are wrong.
    """
    sweep = planned(main, jobs, dict(launcher))
    sweep.create()
    return go_on(sweep)


def planned(main: Main, jobs: Sequence[Job], launcher: dict[str, Any]) -> Sweep:
    """The sweep that the jobs of a command line make, not written yet. Raises InputError for wrong settings."""
    outs = {str(job.config.out) for job in jobs}
    if len(outs) > 1:
        raise InputError("out= names the folder of all jobs; it cannot be swept")
    at_least(OmegaConf.create({"hydra": {"launcher": launcher}}), hydra__launcher__cores=1, hydra__launcher__retries=0)
    for job in jobs:
        try:
            if job.wrong is not None:
                raise job.wrong
            for key in ("threads", "torch_threads"):
                if key in job.config and job.config[key] is None:
                    job.config[key] = launcher["cores"]
            if main.check is not None:
                place, device = Path(str(job.config.out)), str(job.config.device)
                main.check(job.config, Run(main.name, place, int(job.config.seed), device, cpus()))
        except InputError as error:
            raise InputError(f"{error} (job {job.name}; none was started)") from error
    out = Path(outs.pop())
    folder = out if main.out in ("folder", "optional_folder") else out.parent
    return Sweep(
        folder=folder,
        verb=main.name,
        launcher=launcher,
        score=launcher.pop("score", None) or _score(main.name, jobs[0].config),
        configs=[_plain(job.config) for job in jobs],
        jobs=[SweptJob(job.name, list(job.overrides)) for job in jobs],
    )


def go_on(sweep: Sweep) -> int:
    """Run what is not finished of a sweep, and say how it ended."""
    code = drive(sweep)
    say(*(f"failed: {line}" for line in failures(sweep)))
    say(f"npmp sweeps show {sweep.folder}; npmp compare {sweep.folder}; tensorboard --logdir {sweep.folder}")
    return code


def _plain(config: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)  # of a DictConfig; for the type checker
    return {str(key): value for key, value in plain.items()}


def _score(verb: str, config: DictConfig) -> str | None:
    """What runs of a verb are judged by."""
    if verb == "imitate":
        return "tracked_fraction"
    if verb == "reuse":
        from npmp import tasks

        return str(tasks.find(config.task.name).main_figure)
    return None
