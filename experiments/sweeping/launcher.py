"""Hydra's launchers `local` and `ray`: a sweep's jobs in processes of their own.

What Hydra's launchers have not: each job has cores of its own, or is a task on a Ray cluster; what
is killed goes on from its checkpoint; `npmp sweeps` shows a sweep and resumes it.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher as HydraLauncher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from mocap_data.errors import InputError
from npmp.core.settings import from_mapping, to_plain
from npmp.experiments.application import Failed, HydraTask
from npmp.experiments.compose import Job
from npmp.experiments.store import structured
from npmp.experiments.sweeping.launch import go_on, with_score
from npmp.experiments.sweeping.sweep import (
    FINISHED,
    KINDS,
    SWEPT_VERBS,
    Launcher,
    Sweep,
    SweptJob,
    refuse_shared_files,
)
from npmp.experiments.terminal import USER_ERROR, progress_bar

# characters of a job's folder; file systems allow 255, and logs and temporary files add some
LONGEST_NAME = 180


class SweepLauncher(HydraLauncher):
    """Runs jobs by `npmp.experiments.sweeping.scheduler`. settings: as `Launcher` takes them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings
        # of all batches of the sweeper
        self.sweep: Sweep | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Raises InputError for settings out of range, and for a command without sweeps."""
        assert isinstance(task_function, HydraTask)
        self.context = hydra_context
        self.config = config
        self.task = task_function
        self.command = task_function.command
        settings: Any = OmegaConf.to_container(OmegaConf.create(self.settings), resolve=True)
        self.launcher: Launcher = from_mapping(Launcher, settings, at="hydra.launcher")
        if self.command.name not in SWEPT_VERBS:
            raise InputError(
                f"npmp {self.command.name} has no sweeps of its own processes, which are of "
                f"{', '.join(SWEPT_VERBS)}; hydra/launcher=basic runs one job after the other"
            )

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run a batch of jobs.

        Raises:
          InputError: before anything is run, where a job's settings are wrong.
          Failed: where a signal stopped the jobs.
        """
        with progress_bar() as bar:
            each = bar.track(job_overrides, description="checking jobs")
            configs = [self._config(i, one) for i, one in enumerate(each, initial_job_idx)]
            jobs = [self._job(config) for config in configs]
        names = [job_name(config) for config in configs]
        if len(set(names)) < len(names) or max(map(len, names)) > LONGEST_NAME:
            names = [f"{config.hydra.job.num:03d}" for config in configs]
        swept = [SweptJob(n, self._own(c)) for n, c in zip(names, configs, strict=True)]
        if self.sweep is None:
            folder = Path(self.config.hydra.sweep.dir)
            launcher = with_score(self.launcher, jobs[0])
            self.sweep = Sweep(folder, self.command.name, launcher, [], [])
        sweep = self.sweep
        code = go_on(sweep, [job.values for job in jobs], swept, configs)
        if code > USER_ERROR:
            raise Failed(code)
        return [
            self._returned(config, job)
            for config, job in zip(configs, sweep.jobs[initial_job_idx:], strict=True)
        ]

    def _config(self, number: int, overrides: Sequence[str]) -> DictConfig:
        """The whole config of a job."""
        config = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config.hydra.job):
            config.hydra.job.id = str(number)
            config.hydra.job.num = number
        config.hydra.runtime.output_dir = str(Path(self.config.hydra.sweep.dir, job_name(config)))
        return config

    def _job(self, config: DictConfig) -> Job:
        """The job of a config, with its share of cores. Raises InputError for what the command
        refuses."""
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
        """What a job does not share with the others."""
        shared = self.config.hydra.job.config.override_dirname.exclude_keys
        task = config.hydra.overrides.task
        return sorted(entry for entry in task if entry.partition("=")[0] not in shared)

    def _returned(self, config: DictConfig, job: SweptJob) -> JobReturn:
        """How a job ended, as sweepers read it."""
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
    """The folder of a job below the sweep's."""
    return str(config.hydra.sweep.subdir)


# Hydra takes launchers from its package of plugins only, which exists where others are installed
PLUGIN = "hydra_plugins.npmp"


def register() -> None:
    """Make the launchers known to Hydra."""
    plugins = Plugins.instance()
    try:
        importlib.import_module("hydra_plugins")
    except ModuleNotFoundError:
        sys.modules["hydra_plugins"] = types.ModuleType("hydra_plugins")
        sys.modules["hydra_plugins"].__path__ = []
    sys.modules[PLUGIN] = sys.modules[__name__]
    SweepLauncher.__module__ = PLUGIN
    plugins.register(SweepLauncher)
    target = f"{PLUGIN}.{SweepLauncher.__name__}"
    for kind in KINDS:
        node = structured(Launcher, ("_target_",))
        values = {"_target_": target, **to_plain(Launcher(kind))}
        node = OmegaConf.merge(node, values)
        ConfigStore.instance().store(name=kind, node=node, group="hydra/launcher", provider="npmp")
