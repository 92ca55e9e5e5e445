"""The training loop of every algorithm: logs, checkpoints, evaluation, resuming, stopping."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import mujoco
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.files import write_json
from npmp.core import checkpoint, ranges
from npmp.core.progress import announce, phase
from npmp.core.settings import changes, format_value, read_run_settings
from npmp.core.signals import Stopped, signals_noted
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.learning import loggers
from npmp.learning.collectors import CollectorsConfig, distributed
from npmp.learning.guard import Guard
from npmp.learning.live import LiveLine
from npmp.learning.rl import NonFiniteGradient
from npmp.learning.run_files import RunLog
from npmp.learning.trainer import Trainer

Metrics = dict[str, Any]

MAX_STEPS = 10**7  # environment steps of one iteration, and of a replay buffer
# settings that may differ when a finished run is resumed: `debug` only changes other settings
IGNORED_IF_FINISHED = ("debug", "steps")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of every training run.

    Raises:
      ValueError: for values out of range.
    """

    algorithms: ClassVar[Mapping[str, type]]  # name -> class of its settings
    default_num_envs: ClassVar[Mapping[str, int]]  # by algorithm [D]

    algo: Any  # an instance of one of the `algorithms`
    num_envs: int | None = None  # robots simulated at once; None: the algorithm's default
    robots: RobotBatchConfig = field(default_factory=RobotBatchConfig)
    # of the task's reward terms by name, where they differ
    weights: Mapping[str, float] = field(default_factory=dict)
    steps: int  # environment steps in all
    evaluate_every: int = 50  # iterations
    checkpoint_every: int = 50  # iterations
    logger: str = "tensorboard"  # a name of `loggers.LOGGERS`
    device: str = "cpu"  # of everything but the physics
    num_threads: int = 0  # of the physics; 0: all cores
    engine: str = ""  # of the physics; "": the device's default
    collectors: CollectorsConfig | None = None  # None: the learner's process collects

    def __post_init__(self) -> None:
        if not isinstance(self.algo, tuple(self.algorithms.values())):
            names = ", ".join(kind.__name__ for kind in self.algorithms.values())
            raise ValueError(f"algo must be one of {names}; got {type(self.algo).__name__}")
        ranges.at_least_one(self, "num_envs", "steps", "evaluate_every", "checkpoint_every")
        loggers.check(self.logger)

    @property
    def algorithm(self) -> str:
        return next(name for name, kind in self.algorithms.items() if isinstance(self.algo, kind))

    @property
    def robots_at_once(self) -> int:
        return self.default_num_envs[self.algorithm] if self.num_envs is None else self.num_envs

    def check_sizes(self) -> None:
        """Raise InputError if one iteration exceeds the run, or `MAX_STEPS`."""
        most = max(self.steps, MAX_STEPS) // self.robots_at_once
        for name in ("collect_steps", "unroll", "warmup_steps", "replay_steps"):
            if (steps := getattr(self.algo, name, 0)) > most:
                raise InputError(
                    f"algo.{name}={steps}: at most {most:,} control steps of "
                    f"{self.robots_at_once} robots"
                )

    def for_collector(self) -> Self:
        """The same settings for a process that only collects, on one core; in place of a GPU and
        its engine the default of the CPU."""
        engine = self.engine if self.device == "cpu" else ""
        return replace(self, device="cpu", num_threads=1, engine=engine)

    @property
    def place(self) -> dict[str, Any]:
        """Device, threads and engine, as `TaskEnv` takes them."""
        return {"device": self.device, "num_threads": self.num_threads, "engine": self.engine}


@dataclass(frozen=True)
class TrainingPlan:
    """The inputs of the training loop for a run."""

    settings: RunSettings
    # (settings, num_envs, seed) -> a trainer; for collectors with `RunSettings.for_collector`
    make: Callable[[Any, int, int], Any]
    # first step of a new run: (trainer) -> metrics to compare with, metrics of the start
    start: Callable[[Any], tuple[Metrics, Metrics]]
    # (trainer) -> metrics of its module or policy
    evaluate: Callable[[Any], Metrics]
    # keys of `evaluate` that are columns of metrics.csv
    evaluation_keys: tuple[str, ...]
    # (metrics to compare with, latest metrics) -> summary
    summarize: Callable[[Metrics, Metrics], dict[str, Any]]
    # (trainer, summary): writes the artefact
    save: Callable[[Any, dict[str, Any]], None]
    # checksum of the run's inputs; a resumed run must have the same
    inputs_sha256: str = ""


def iterations(trainer: Trainer, steps: int, batches: int = 1) -> int:
    """Iterations, at least one, until a run has made `steps` environment steps.

    batches: per iteration.
    """
    per_iteration = trainer.env_steps_per_iteration * batches
    return max(1, math.ceil((steps - trainer.env_steps_before) / per_iteration))


@dataclass(frozen=True)
class Caller:
    """The program that starts a run: for messages, records and progress."""

    command: str = ""  # continues the run, if "resume=FOLDER" is appended
    resume_command: str = ""  # the whole command, if it is another
    # settings of the whole run, for loggers and diverged.json
    settings: Mapping[str, Any] = field(default_factory=dict)
    # called after the inputs are checked, before the first file is written
    on_start: Callable[[], None] = lambda: None
    progress: LiveLine | None = None


def train(
    plan: TrainingPlan,
    folder: Path,
    *,
    resume: Path | None = None,
    seed: int = 0,
    caller: Caller | None = None,
) -> dict[str, Any]:
    """Run a training into `folder`: logs, checkpoints, the artefact, summary.json. Returns the
    summary.

    SIGINT, SIGTERM and SIGHUP stop it with a checkpoint after the current iteration, or after the
    warm-up; a second signal stops it at once.

    Args:
      resume: folder of the run to continue. seed: of the run, for its summary.

    Raises:
      InputError: if the run to resume is damaged or of another kind.
      Diverged: if the run diverges.
      Stopped: for a signal.
    """
    caller = caller or Caller()
    settings = plan.settings
    collectors = settings.collectors
    num_envs = settings.robots_at_once
    # pickled for other processes, so it refers to nothing else of the plan
    make = plan.make
    collector_settings = settings.for_collector()

    def make_collector(num_envs: int, seed: int) -> Trainer:
        return make(collector_settings, num_envs, seed)

    with caller.progress or nullcontext():
        trainer = make(settings, num_envs, seed)
        batches = 1 if collectors is None else collectors.batches_per_update(trainer)
        total = iterations(trainer, settings.steps, batches)
        run = _Run(plan, trainer, total, folder, seed, resume)
        with distributed(
            trainer, make_collector, collectors, num_envs=num_envs, seed=seed
        ) as learner:
            return run.loop(learner, caller)


class _Run:
    """A run: its trainer, its metrics and its checkpoints."""

    def __init__(
        self,
        plan: TrainingPlan,
        trainer: Trainer,
        total: int,
        folder: Path,
        seed: int,
        resume: Path | None,
    ):
        """Load the checkpoint to resume from, if any.

        Raises:
          InputError: if it is damaged, of another kind of run, or past the end of this one.
        """
        self.plan = plan
        self.trainer = trainer
        self.total = total
        self.folder = folder
        self.seed = seed
        self.resume = resume
        self.before: Metrics = {}  # to compare with
        self.latest: Metrics = {}
        start = starting_point(resume)
        self.resumed = start is not None
        if start is not None:
            _, tensors, values = start
            if values.get("belongs_to", "") != plan.inputs_sha256:
                raise InputError(
                    f"resume='{resume}': the run has another module, teacher, walker= or "
                    "joint_space="
                )
            trainer.load_state_dict(tensors)
            if (count := trainer.iteration_count) > total:
                raise InputError(
                    f"the run in '{resume}' has made {trainer.env_steps:,} environment steps "
                    f"({count} iterations), more than steps={plan.settings.steps} ({total} "
                    "iterations); increase steps="
                )
            self.before = _null_to_nan(values["before"])
            self.latest = _null_to_nan(values["latest"])

    @property
    def finished(self) -> bool:
        return self.trainer.iteration_count == self.total

    def loop(self, trainer: Trainer, caller: Caller) -> dict[str, Any]:
        """Run the remaining iterations; trainer: the run's, or one that wraps it."""
        plan = self.plan
        total = self.total
        folder = self.folder
        guard = Guard(trainer, total, folder, seed=self.seed, settings=caller.settings)
        with signals_noted() as signals:
            log = self._open_log(caller)
            if not self.resumed:
                self.before, self.latest = plan.start(self.trainer)
                trainer.env.robots.clear_breakdowns()  # counted per iteration
                self.save_checkpoint(log)
            start = time.perf_counter()
            steps_before = trainer.env_steps
            stopping = bool(signals)
            compiles = getattr(plan.settings.algo, "compile", False)
            if not self.finished:
                announce(f"iteration {trainer.iteration_count + 1}{', compiling' * compiles}")
            while trainer.iteration_count < total and not stopping:
                try:
                    metrics = trainer.iteration(trainer.iteration_count / total)
                except NonFiniteGradient:
                    guard.count_discarded()
                    continue
                metrics = self.with_evaluation(guard.check(metrics))
                steps_here = trainer.env_steps - steps_before
                count = trainer.iteration_count
                log.write(count, trainer.env_steps, metrics, env_steps_here=steps_here)
                # read once: a signal may arrive at any time, and a stopped run needs a checkpoint
                stopping = bool(signals)
                due = stopping or count % plan.settings.checkpoint_every == 0
                if count < total and due:
                    self.save(log, guard)
            if trainer.iteration_count < total:
                log.close()
                command = caller.resume_command or f"{caller.command} resume={folder}".strip()
                raise Stopped(
                    f"{signals[0].name} after iteration {trainer.iteration_count} of {total}: "
                    f"checkpoint saved; to continue: {command}",
                    128 + signals[0],
                )
            summary = self.save(log, guard)
        log.close()
        summary["steps_per_s"] = round(trainer.env_steps / log.wall_s, 1)
        summary["minutes_here"] = round((time.perf_counter() - start) / 60, 2)
        summary |= getattr(trainer, "timings", dict)()  # with collectors
        write_json(folder / "summary.json", summary)
        return summary

    def with_evaluation(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """An iteration's metrics, every `evaluate_every` iterations with the evaluation's."""
        plan = self.plan
        keys = plan.evaluation_keys
        count = self.trainer.iteration_count
        # metrics of the collection with the name of an evaluation's get a prefix
        row = {f"collect_{k}" if k in keys else k: v for k, v in metrics.items()}
        if count == 1 or count % plan.settings.evaluate_every == 0 or count == self.total:
            with phase(f"evaluating after iteration {count}"):
                self.latest = plan.evaluate(self.trainer)
            row |= {key: self.latest[key] for key in keys}
        return row

    def save_checkpoint(self, log: RunLog) -> None:
        """Write a checkpoint, after the logs are on the disk."""
        log.flush()
        trainer = self.trainer
        values = {
            "before": self.before,
            "latest": self.latest,
            "belongs_to": self.plan.inputs_sha256,
        }
        checkpoint.save(
            self.folder / "checkpoints", trainer.iteration_count, trainer.state_dict(), values
        )

    def save(self, log: RunLog, guard: Guard) -> dict[str, Any]:
        """Write the artefact and a checkpoint. Returns the summary.

        Raises:
          Diverged: if a tensor is not finite.
        """
        guard.check_state()
        trainer = self.trainer
        summary = self.plan.summarize(self.before, self.latest) | {
            "seed": self.seed,
            "env_steps": trainer.env_steps,
            "iterations": trainer.iteration_count,
            "before": self.before,
            "after": self.latest,
        }
        if drives := trainer.env.robots.config.drives_record():
            summary["actuator"] = drives
        # the artefact first: it may update buffers that the checkpoint then holds
        self.plan.save(trainer, summary)
        self.save_checkpoint(log)
        return summary

    def check_unchanged(self, settings: Mapping[str, Any]) -> None:
        """Raise InputError if a finished run is resumed with other settings, which would have no
        effect."""
        assert self.resume is not None
        if not settings or not (self.resume / "config.yaml").is_file():
            return
        stored = read_run_settings(self.resume)[1]
        for key, (_, value) in changes(stored, settings, ignore=IGNORED_IF_FINISHED).items():
            raise InputError(
                f"{key}={format_value(value)} has no effect: the run in '{self.resume}' is "
                f"finished ({self.total} iterations); increase steps=, or choose another out="
            )

    def _open_log(self, caller: Caller) -> RunLog:
        folder = self.folder
        trainer = self.trainer
        plan = self.plan
        if self.finished:
            self.check_unchanged(caller.settings)
        folder.mkdir(parents=True, exist_ok=True)
        # a finished run keeps the settings that trained it
        if not (self.finished and self.resume is not None and self.resume.samefile(folder)):
            caller.on_start()
        _silence_mujoco()
        _remove_temporary_files(folder)
        env_steps = trainer.env_steps if self.resumed else None
        board = loggers.open_logger(
            plan.settings.logger, folder, settings=caller.settings, resume_env_steps=env_steps
        )
        return RunLog(
            folder,
            self.total,
            evaluation_keys=plan.evaluation_keys,
            resume_after=trainer.iteration_count if self.resumed else None,
            resume_from=self.resume,
            board=board,
            progress=caller.progress,
        )


def _null_to_nan(value: Any) -> Any:
    """Metrics of a checkpoint's JSON, in which NaN is null."""
    if isinstance(value, dict):
        return {key: _null_to_nan(inner) for key, inner in value.items()}
    return math.nan if value is None else value


def starting_point(resume: Path | None) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
    """The latest checkpoint of the run to resume: iteration, tensors, values.

    None for a new run, and for one that was killed before its first checkpoint.

    Raises:
      InputError: if all checkpoints are damaged, or `checkpoints` is not a folder.
    """
    if resume is None:
        return None
    folder = resume / "checkpoints"
    if not checkpoint.present(folder):
        print(f"npmp: {resume} holds no checkpoint yet: starting from scratch", file=sys.stderr)
        return None
    return checkpoint.load_latest(folder)


def _silence_mujoco() -> None:
    """No MUJOCO_LOG.TXT and no warnings in the terminal: lost simulations are counted instead."""
    log = mujoco.MjLogConfig.get()
    log.logto_file = log.logto_console = False
    log.set()


def _remove_temporary_files(folder: Path) -> None:
    """Remove the files that `atomic_path` left in a run folder when its process was killed."""
    for place in (folder, *(entry for entry in folder.iterdir() if entry.is_dir())):
        for suffix in ("safetensors", "json", "csv", "yaml"):
            for path in place.glob(f".*-????????.{suffix}"):
                path.unlink(missing_ok=True)
