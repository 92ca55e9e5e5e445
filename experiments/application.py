"""A command as a Hydra application: options, single runs, multiruns.

Hydra composes, shows and sweeps; `HydraTask` is the function that it runs. The files in .hydra/ are
written once the command has accepted its inputs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import run_job, setup_globals
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf

from mocap_data.errors import InputError
from mocap_data.files import make_writable, remove_bare
from npmp.experiments import store
from npmp.experiments.compose import Job, Loader, parsed, quoted, sentences, with_keys
from npmp.experiments.sweeping import launcher
from npmp.experiments.sweeping.sweep import Failed, SweepProgress, score_of
from npmp.experiments.terminal import OK, USER_ERRORS, report_error

# Hydra's options that are unsupported, as several commands share a program
UNUSED = ("--shell-completion", "--experimental-rerun", "--version", "--config-path", "-cp")


@dataclass
class HydraTask:
    """The function that Hydra runs: a command with composed settings."""

    command: Any  # npmp.experiments.command.Verb
    # exit code or error of a single run
    code: int = OK
    error: Exception | None = field(default=None, repr=False)

    def __call__(self, config: DictConfig) -> Any:
        """Returns the exit code, in a multirun the score. Raises `Failed` in a multirun."""
        hydra = HydraConfig.get()
        several = hydra.mode == RunMode.MULTIRUN
        try:
            job = self.job(config, in_sweep=several)
            if several:
                print(f"[{hydra.job.num}] {hydra.sweep.subdir}", file=sys.stderr, flush=True)
            self.code = self.command.run(job)
            return self.score(job) if several else self.code
        except USER_ERRORS as error:
            if several:
                raise Failed(report_error(error)) from None
            self.error = error
        except Exception as error:
            if several:
                raise
            self.error = error
        return self.code

    def score(self, job: Job) -> float | None:
        """The latest score of a training run, for sweepers."""
        score = score_of(job.verb, job.chosen.get("task"))
        if score is None:
            return None
        return SweepProgress.of(Path(job.values["out"]) / "metrics.csv", score[0], None).score

    def job(self, config: DictConfig, *, in_sweep: bool) -> Job:
        """The job of a composed config, in a sweep with its folder. Raises InputError."""
        command = self.command
        whole: Any = OmegaConf.merge(HydraConfig.instance().cfg, config)
        job = Job.of(command.name, command.keys, whole)
        out = job.values.get("out")
        if in_sweep and out is not None:
            place = Path(whole.hydra.runtime.output_dir)
            job.values["out"] = str(place if command.in_folder else place / Path(out).name)
        return job


def main(command: Any, arguments: Sequence[str]) -> int:
    """Run a command with arguments. Returns the exit code. Raises InputError."""
    args = options(arguments, command.positional)
    task = HydraTask(command)
    name = args.config_name or store.config_name(command.name)
    with application(command, args) as app:
        if args.hydra_help:
            app.hydra_help(name, get_args_parser(), args)
        elif args.cfg:
            try:
                with sentences(command.name), contextlib.redirect_stderr(io.StringIO()):
                    app.show_cfg(name, args.overrides, args.cfg, args.package, args.resolve)
            except SystemExit as error:
                raise InputError(f"--package {args.package}: no part of the config") from error
        elif args.info:
            # Hydra would exit on composition errors
            app.compose_config(name, args.overrides, RunMode.RUN)
            app.show_info(args.info, name, args.overrides)
        elif args.multirun:
            return multirun(app, name, task, args.overrides)
        else:
            config = app.compose_config(name, args.overrides, RunMode.RUN)
            if config.hydra.mode == RunMode.MULTIRUN:  # sweep= can also request a multirun
                return multirun(app, name, task, args.overrides)
            single_run(app, name, task, config)
    if task.error is not None:
        raise task.error
    return task.code


def single_run(app: Hydra, name: str, task: HydraTask, config: DictConfig) -> None:
    """As `Hydra.run`, with a composed config."""
    config.hydra.mode = RunMode.RUN
    callbacks = Callbacks(config)
    callbacks.on_run_start(config=config, config_name=name)
    result = run_job(
        hydra_context=HydraContext(app.config_loader, callbacks),
        task_function=task,
        config=config,
        job_dir_key="hydra.run.dir",
        job_subdir_key=None,
    )
    callbacks.on_run_end(config=config, config_name=name, job_return=result)


def composed(command: Any, arguments: Sequence[str]) -> Job:
    """Compose the job of arguments without running it; required keys may be missing. Raises
    InputError."""
    args = options(arguments, command.positional)
    with application(command, args) as app:
        name = args.config_name or store.config_name(command.name)
        return Job.of(
            command.name, command.keys, app.compose_config(name, args.overrides, RunMode.RUN)
        )


def multirun(app: Hydra, name: str, task: HydraTask, overrides: list[str]) -> int:
    """Run all jobs of a command line; the swept overrides name their folders. Returns the exit
    code. Raises InputError."""
    single = [
        override.key_or_group
        for override in map(parsed, overrides)
        if not override.is_sweep_override()
    ]
    if "out" not in single and any(
        parsed(override).key_or_group == "out" for override in overrides
    ):
        raise InputError("out= is the folder of all jobs and cannot be swept")
    single = [store.plain_key(task.command.name, task.command.keys, key) for key in single]
    excluded = f"hydra.job.config.override_dirname.exclude_keys=[{','.join(single)}]"
    overrides = [excluded, *overrides, "hydra.mode=MULTIRUN"]
    config = app.compose_config(name, overrides, RunMode.MULTIRUN)
    if not task.command.in_folder and config.get("out") is not None:
        overrides.insert(0, f"hydra.sweep.dir={quoted(str(Path(config.out).parent))}")
        config = app.compose_config(name, overrides, RunMode.MULTIRUN)
    # the sweeper creates the folder before it checks the jobs
    new = make_writable(Path(config.hydra.sweep.dir))
    try:
        with sentences(task.command.name):
            app.multirun(name, task, overrides)
        return OK
    except Failed as error:
        return error.code
    finally:
        remove_bare(new, "multirun.yaml")


def options(arguments: Sequence[str], positional: Sequence[str]) -> argparse.Namespace:
    """Hydra's options and overrides. Raises InputError for unknown options."""
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    for argument in arguments:
        if argument.partition("=")[0] in UNUSED:
            _refuse(f"unrecognized arguments: {argument}")
    args = parser.parse_intermixed_args(list(arguments))
    several = [f"--{name}" for name in ("run", "multirun", "cfg", "info") if getattr(args, name)]
    if len(several) > 1:
        raise InputError(f"{' and '.join(several)} exclude each other")
    args.overrides = with_keys(args.overrides, positional)
    return args


def _refuse(message: str) -> NoReturn:
    raise InputError(
        f"{message}; settings are key=value, options are Hydra's: -m, --cfg, --info, --config-dir, "
        "--help"
    )


@contextlib.contextmanager
def application(command: Any, args: argparse.Namespace) -> Iterator[Hydra]:
    """Hydra's application of a command; nested calls suspend the outer one."""
    setup_globals()
    launcher.register()
    words = [parsed(override) for override in args.overrides]
    tasks = [
        str(name)
        for override in words
        if override.key_or_group == "task" and not override.is_delete()
        for name in (
            override.sweep_iterator() if override.is_discrete_sweep() else [override.value()]
        )
    ]
    outer = GlobalHydra.instance().hydra
    loader = Loader(command.name, command.keys, config_dir=args.config_dir, tasks=tasks)
    app = Hydra(task_name=store.config_name(command.name), config_loader=loader)
    GlobalHydra.instance().hydra = app
    try:
        yield app
    finally:
        GlobalHydra.instance().hydra = outer


def _sweep_folder(out: str | None, now: str) -> str:
    return f"multirun/{now}" if out is None else out


def _job_name(overrides: str, number: int) -> str:
    return overrides.replace("/", "_").replace("'", "") or str(number)


# resolvers of the store's hydra.sweep
OmegaConf.register_new_resolver("npmp.sweep_folder", _sweep_folder, replace=True)
OmegaConf.register_new_resolver("npmp.job_name", _job_name, replace=True)
