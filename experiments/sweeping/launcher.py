"""Hydra's launchers `local` and `ray`: a sweep's jobs in separate processes.

Each job has its own cores, or is a task on a Ray cluster. A job that was killed resumes from its
checkpoint; `npmp sweeps` shows a sweep and resumes it.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher as HydraLauncher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from mocap_data.errors import InputError
from npmp.core.settings import from_mapping
from npmp.experiments.compose import Job
from npmp.experiments.run_folder import write_hydra
from npmp.experiments.store import PLUGIN
from npmp.experiments.sweeping.launch import run_sweep, workers_of
from npmp.experiments.sweeping.sweep import (
    FINISHED,
    SWEPT_VERBS,
    Failed,
    Launcher,
    Sweep,
    SweptJob,
    refuse_shared_files,
    score_of,
)
from npmp.experiments.terminal import USER_ERROR, progress_bar

# characters of a job's folder; file systems allow 255, and logs and temporary files add some
LONGEST_NAME = 180


class SweepLauncher(HydraLauncher):
    """Runs jobs by `npmp.experiments.sweeping.scheduler`. settings: as `Launcher` takes them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings
        # jobs of all batches of the sweeper
        self.sweep: Sweep | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Raises InputError for settings out of range, and for a command without sweeps."""
        task: Any = task_function  # npmp.experiments.application.HydraTask
        self.context = hydra_context
        self.config = config
        self.command = task.command
        settings: Any = OmegaConf.to_container(OmegaConf.create(self.settings), resolve=True)
        self.launcher: Launcher = from_mapping(Launcher, settings, at="hydra.launcher")
        if self.command.name not in SWEPT_VERBS:
            raise InputError(
                f"hydra/launcher={self.launcher.kind} needs {', '.join(SWEPT_VERBS)}, got "
                f"{self.command.name}; hydra/launcher=basic runs one job after the other"
            )

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run a batch of jobs.

        Raises:
          InputError: before any job starts, for wrong settings of a job.
          Failed: if a signal stopped the jobs.
        """
        with progress_bar() as bar:
            each = bar.track(job_overrides, description="checking jobs")
            configs = [
                self._config(i, overrides) for i, overrides in enumerate(each, initial_job_idx)
            ]
            jobs = [self._job(config) for config in configs]
        names = [job_name(config) for config in configs]
        earlier = [] if self.sweep is None else [job.name for job in self.sweep.jobs]
        unique = len({*names, *earlier}) == len(names) + len(earlier)
        if not unique or max(map(len, names)) > LONGEST_NAME:
            names = [f"{config.hydra.job.num:03d}" for config in configs]
        swept = [SweptJob(n, self._own(c)) for n, c in zip(names, configs, strict=True)]
        sweep = self.sweep or self._new_sweep(jobs[0])
        self.sweep = sweep
        with closing(workers_of(sweep)) as workers:
            sweep.add([job.values for job in jobs], swept)
            for i, config in enumerate(configs, initial_job_idx):
                sweep.place(i).mkdir(exist_ok=True)
                write_hydra(sweep.place(i), sweep.configs[i], config)
            code = run_sweep(sweep, workers, initial_job_idx)
        if code > USER_ERROR:
            raise Failed(code)
        return [
            self._returned(config, job)
            for config, job in zip(configs, sweep.jobs[initial_job_idx:], strict=True)
        ]

    def _new_sweep(self, job: Job) -> Sweep:
        """The sweep of a first job, with the command's score unless another is set."""
        launcher = self.launcher
        score = score_of(job.verb, job.chosen.get("task"))
        if score is not None and launcher.score in (None, score[0]):
            lower = score[1] if launcher.lower is None else launcher.lower
            launcher = replace(launcher, score=score[0], lower=lower)
        return Sweep(Path(self.config.hydra.sweep.dir), self.command.name, launcher, [], [])

    def _config(self, number: int, overrides: Sequence[str]) -> DictConfig:
        """The whole config of a job."""
        config = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config.hydra.job):
            config.hydra.job.id = str(number)
            config.hydra.job.num = number
        config.hydra.runtime.output_dir = str(Path(self.config.hydra.sweep.dir, job_name(config)))
        return config

    def _job(self, config: DictConfig) -> Job:
        """The job of a config, with its share of cores. Raises InputError."""
        try:
            job = Job.of(self.command.name, self.command.keys, config)
            for key in ("threads", "torch_threads"):
                if key in job.values and job.values[key] is None:
                    job.values[key] = self.launcher.cores
            refuse_shared_files(job.values)
            self.command.refuse(job, job.values)
        except InputError as error:
            raise InputError(f"{error} (job {job_name(config)}; none was started)") from error
        return job

    def _own(self, config: DictConfig) -> list[str]:
        """The overrides that differ between jobs."""
        shared = self.config.hydra.job.config.override_dirname.exclude_keys
        task = config.hydra.overrides.task
        return sorted(entry for entry in task if entry.partition("=")[0] not in shared)

    def _returned(self, config: DictConfig, job: SweptJob) -> JobReturn:
        """The result of a job for sweepers."""
        result = JobReturn(
            overrides=list(config.hydra.overrides.task),
            cfg=OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"]),
            hydra_cfg=OmegaConf.masked_copy(config, "hydra"),
            working_dir=str(Path.cwd()),
            task_name=config.hydra.job.name,
        )
        finished = job.state == FINISHED
        result.status = JobStatus.COMPLETED if finished else JobStatus.FAILED
        result.return_value = job.score if finished else Failed()
        return result


def job_name(config: DictConfig) -> str:
    """The folder of a job in the sweep's."""
    return str(config.hydra.sweep.subdir)


def register() -> None:
    """Register the launcher with Hydra, which takes plugins of the package hydra_plugins only."""
    try:
        importlib.import_module("hydra_plugins")
    except ModuleNotFoundError:
        sys.modules["hydra_plugins"] = types.ModuleType("hydra_plugins")
        sys.modules["hydra_plugins"].__path__ = []
    sys.modules[PLUGIN] = sys.modules[__name__]
    SweepLauncher.__module__ = PLUGIN
    Plugins.instance().register(SweepLauncher)
