"""The jobs of command lines, which are not run."""

from __future__ import annotations

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode

from npmp.experiments import application, store
from npmp.experiments.cli import command_of
from npmp.experiments.compose import Job


def job_of(name: str, *given: str) -> Job:
    """The one job of a command line."""
    return application.composed(command_of(name), given)


def jobs_of(name: str, *given: str) -> list[Job]:
    """The jobs of a command line, also of a multirun: of several swept keys as many as have each
    value once."""
    command = command_of(name)
    args = application.options(given, command.positional)
    primary = store.config_name(name)
    with application.application(command, args) as app:
        mode = RunMode.MULTIRUN if args.multirun else RunMode.RUN
        whole = app.compose_config(primary, args.overrides, mode)
        if mode != RunMode.MULTIRUN and whole.hydra.mode != RunMode.MULTIRUN:
            return [Job.of(name, command.keys, whole)]
        params = [f"{key}={text}" for key, text in (whole.hydra.sweeper.params or {}).items()]
        parser = OverridesParser.create(config_loader=app.config_loader)
        overrides = parser.parse_overrides([*params, *whole.hydra.overrides.task])
        [batch] = BasicSweeper.split_arguments(overrides, None)
        jobs = []
        seen: set[str] = set()
        for one in batch:
            if not seen.issuperset(one):
                seen |= set(one)
                config = app.config_loader.load_sweep_config(whole, one)
                jobs.append(Job.of(name, command.keys, config))
        return jobs
