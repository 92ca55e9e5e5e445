"""The loop around an algorithm: its logs and checkpoints, where a run goes on, what ends it."""

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

Figures = dict[str, Any]

MOST_STEPS = 10**7  # environment steps that an iteration may take, and a replay may keep
# settings that a finished run may also be resumed with: steps that it has made, and debug, which
# changes other settings only
NOT_OF_A_FINISHED_RUN = ("debug", "steps")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What every training run is told, of whatever is trained.

    Raises:
      ValueError: for values out of range.
    """

    algorithms: ClassVar[Mapping[str, type]]  # the settings of each algorithm, by its name
    # how many robots suit each algorithm [D]
    robots_of: ClassVar[Mapping[str, int]]

    algo: Any  # of one of the `algorithms`: its type says which
    num_envs: int | None = None  # robots simulated at once; None: as many as suit the algorithm
    robots: RobotBatchConfig = field(default_factory=RobotBatchConfig)
    steps: int  # environment steps in all
    evaluate_every: int = 50  # iterations
    checkpoint_every: int = 50  # iterations
    logger: str = "tensorboard"  # a name of `loggers.LOGGERS`
    device: str = "cpu"  # of everything but the physics
    num_threads: int = 0  # of the physics; 0: all cores
    collectors: CollectorsConfig | None = None  # None: the process that learns collects

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
        return self.robots_of[self.algorithm] if self.num_envs is None else self.num_envs

    def check_sizes(self) -> None:
        """Raise InputError where one iteration would take more than the run, or than a machine
        holds."""
        most = max(self.steps, MOST_STEPS) // self.robots_at_once
        for name in ("collect_steps", "unroll", "warmup_steps", "replay_steps"):
            if (steps := getattr(self.algo, name, 0)) > most:
                raise InputError(
                    f"algo.{name}={steps}: at most {most:,} control steps of "
                    f"{self.robots_at_once} robots"
                )

    def of_collector(self) -> Self:
        """The same, for a process that only collects, on one core."""
        return replace(self, device="cpu", num_threads=1)

    @property
    def place(self) -> dict[str, Any]:
        """Device and threads, as `TaskEnv` takes them."""
        return {"device": self.device, "num_threads": self.num_threads}


@dataclass(frozen=True)
class TrainingPlan:
    """What a training run is about, as far as the loop has to know it."""

    settings: RunSettings
    # a trainer with so many robots and a seed; of collectors by `RunSettings.of_collector`
    make: Callable[[Any, int, int], Any]
    # what a new run does first: figures to compare with, and of the start
    begin: Callable[[Any], tuple[Figures, Figures]]
    # figures of what is trained, as it is now
    judge: Callable[[Any], Figures]
    # those of them that go into metrics.csv
    judged: tuple[str, ...]
    # (figures to compare with, the latest) -> what is said of it
    summarize: Callable[[Figures, Figures], dict[str, Any]]
    # writes the artefact with its summary
    save: Callable[[Any, dict[str, Any]], None]
    # what the run rests on; a run to resume must rest on the same
    belongs_to: str = ""


def iterations(trainer: Trainer, steps: int, batches: int = 1) -> int:
    """Iterations of so many batches that bring a run to so many environment steps, at least one."""
    each = trainer.steps_each * batches
    return max(1, math.ceil((steps - trainer.steps_before) / each))


@dataclass(frozen=True)
class Caller:
    """The program that a run is made from, as far as the run has to know it."""

    command: str = ""  # that would continue the run, less resume=FOLDER; for messages
    again: str = ""  # the whole command that continues it, where it is another
    # of the whole run, for loggers and diverged.json
    settings: Mapping[str, Any] = field(default_factory=dict)
    # called once the inputs are known to be sound, before anything is written
    begin: Callable[[], None] = lambda: None
    progress: LiveLine | None = None  # shows how far it is


def train(
    plan: TrainingPlan,
    folder: Path,
    *,
    resume: Path | None = None,
    seed: int = 0,
    caller: Caller | None = None,
) -> dict[str, Any]:
    """The whole run, into `folder`: logs, checkpoints, the artefact, summary.json. Returns the
    summary.

    SIGINT, SIGTERM and SIGHUP end it after the iteration they come in, or after what comes before
    the first, with a checkpoint; a second one at once.

    Args:
      resume: the folder of the run to continue. seed: of the run, for its summary.

    Raises:
      InputError: for a run to resume that is damaged or of another kind.
      Diverged: when its figures are no numbers any more.
      Stopped: for a signal.
    """
    caller = caller or Caller()
    chosen = plan.settings
    collectors = plan.settings.collectors
    robots = chosen.robots_at_once
    # it goes to other processes, so it holds nothing else of the plan, as what judges
    make = plan.make
    of_collector = chosen.of_collector()

    def collector(robots: int, seed: int) -> Trainer:
        return make(of_collector, robots, seed)

    with caller.progress or nullcontext():
        trainer = make(chosen, robots, seed)
        batches = 1 if collectors is None else collectors.batches(trainer)
        run = _Run(plan, trainer, iterations(trainer, chosen.steps, batches), folder, seed, resume)
        with distributed(trainer, collector, collectors, robots=robots, seed=seed) as at_work:
            return run.loop(at_work, caller)


class _Run:
    """A run, with what it knows of itself besides its trainer's state, and its checkpoints."""

    def __init__(
        self,
        plan: TrainingPlan,
        trainer: Trainer,
        total: int,
        folder: Path,
        seed: int,
        resume: Path | None,
    ):
        """Load the checkpoint to go on from, where there is one.

        Raises:
          InputError: for one that is damaged, of another kind of run, or already past this one's
            end.
        """
        self.plan = plan
        self.trainer = trainer
        self.total = total
        self.folder = folder
        self.seed = seed
        self.resume = resume
        self.before: Figures = {}  # figures to compare with
        self.latest: Figures = {}
        start = starting_point(resume)
        self.goes_on = start is not None
        if start is not None:
            _, tensors, values = start
            if values.get("belongs_to", "") != plan.belongs_to:
                raise InputError(
                    f"the run in '{resume}' was trained with another module, teacher, walker= or "
                    "joint_space= than this one"
                )
            trainer.load_state_dict(tensors)
            if (done := trainer.iteration_count) > total:
                raise InputError(
                    f"the run in '{resume}' has made {trainer.env_steps:,} environment steps, "
                    f"{done} iterations; "
                    f"{total} are asked for: give more steps="
                )
            self.before = _figures(values, "before", resume)
            self.latest = _figures(values, "latest", resume)

    @property
    def finished(self) -> bool:
        return self.trainer.iteration_count == self.total

    def loop(self, trainer: Trainer, caller: Caller) -> dict[str, Any]:
        """Make the iterations that are left; trainer: the run's, perhaps with collectors."""
        plan = self.plan
        total = self.total
        folder = self.folder
        guard = Guard(trainer, total, folder, seed=self.seed, settings=caller.settings)
        with signals_noted() as noted:
            log = self._opened(caller)
            if not self.goes_on:
                self.before, self.latest = plan.begin(self.trainer)
                trainer.env.robots.forget_breakdowns()  # each iteration counts its own
                self.keep(log)
            began = time.perf_counter()
            steps_before = trainer.env_steps
            stopping = bool(noted)
            compiles = getattr(plan.settings.algo, "compile", False)
            if not self.finished:
                announce(f"iteration {trainer.iteration_count + 1}{', compiling' * compiles}")
            while trainer.iteration_count < total and not stopping:
                try:
                    metrics = trainer.iteration(trainer.iteration_count / total)
                except NonFiniteGradient:
                    guard.throw_away()
                    continue
                metrics = self.judged(guard.watch(metrics))
                here = trainer.env_steps - steps_before
                count = trainer.iteration_count
                log.write(count, trainer.env_steps, metrics, env_steps_done_here=here)
                # read once: a signal may come at any moment, and a run that stops has a checkpoint
                stopping = bool(noted)
                due = stopping or count % plan.settings.checkpoint_every == 0
                if count < total and due:
                    self.save(log, guard)
            if trainer.iteration_count < total:
                log.close()
                again = caller.again or f"{caller.command} resume={folder}".strip()
                raise Stopped(
                    f"{noted[0].name} after iteration {trainer.iteration_count} of {total}: its "
                    f"checkpoint is kept, {again} goes on",
                    128 + noted[0],
                )
            summary = self.save(log, guard)
        log.close()
        summary["steps_per_s"] = round(trainer.env_steps / log.wall_s, 1)
        summary["minutes_here"] = round((time.perf_counter() - began) / 60, 2)
        summary |= getattr(trainer, "timings", dict)()  # of one with collectors
        write_json(folder / "summary.json", summary)
        return summary

    def judged(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """An iteration's metrics with the judge's figures, when it is their turn."""
        plan = self.plan
        count = self.trainer.iteration_count
        # a figure of the robots that collect is not the judge's of the same name
        named = {f"collect_{k}" if k in plan.judged else k: v for k, v in metrics.items()}
        if count == 1 or count % plan.settings.evaluate_every == 0 or count == self.total:
            with phase(f"judging after iteration {count}"):
                self.latest = plan.judge(self.trainer)
            named |= {k: self.latest[k] for k in plan.judged}
        return named

    def keep(self, log: RunLog) -> None:
        """Write a checkpoint, of which the logs are not behind."""
        log.flush()
        trainer = self.trainer
        values = {"before": self.before, "latest": self.latest, "belongs_to": self.plan.belongs_to}
        checkpoint.save(
            self.folder / "checkpoints", trainer.iteration_count, trainer.state_dict(), values
        )

    def save(self, log: RunLog, guard: Guard) -> dict[str, Any]:
        """Write the artefact and a checkpoint. Returns the summary.

        Raises:
          Diverged: when something in them is not finite.
        """
        guard.check_state()
        trainer = self.trainer
        steps = trainer.env_steps
        iterations = trainer.iteration_count
        counts = {"seed": self.seed, "env_steps": steps, "iterations": iterations}
        summary = self.plan.summarize(self.before, self.latest) | counts
        summary |= {"before": self.before, "after": self.latest}
        if drives := trainer.env.robots.config.drives_noted():
            summary["actuator"] = drives
        # the artefact first: making it may leave figures in what the checkpoint then holds
        self.plan.save(trainer, summary)
        self.keep(log)
        return summary

    def refuse_changes(self, settings: Mapping[str, Any]) -> None:
        """Raise InputError where a finished run has other settings than these, which would be
        recorded though nothing is trained by them."""
        assert self.resume is not None  # of a run that goes on
        if not settings or not (self.resume / "config.yaml").is_file():
            return
        stored = read_run_settings(self.resume)[1]
        for key, (_, value) in changes(stored, settings, ignore=NOT_OF_A_FINISHED_RUN).items():
            raise InputError(
                f"{key}={format_value(value)} changes nothing: the run in '{self.resume}' is "
                f"finished ({self.total} iterations); give more steps=, or another out="
            )

    def _opened(self, caller: Caller) -> RunLog:
        """The log of a run that begins to write into its folder."""
        folder = self.folder
        trainer = self.trainer
        plan = self.plan
        if self.finished:
            self.refuse_changes(caller.settings)
        folder.mkdir(parents=True, exist_ok=True)
        # a finished run keeps the settings that trained it
        if not (self.finished and self.resume is not None and self.resume.samefile(folder)):
            caller.begin()
        _quiet_simulator()
        _clear_leftovers(folder)
        done = trainer.env_steps if self.goes_on else None
        board = loggers.open_logger(
            plan.settings.logger, folder, settings=caller.settings, done=done
        )
        return RunLog(
            folder,
            self.total,
            judged=plan.judged,
            resume_after=trainer.iteration_count if self.goes_on else None,
            resume_from=self.resume,
            board=board,
            progress=caller.progress,
        )


def _figures(values: Mapping[str, Any], name: str, resume: Path | None) -> Figures:
    """Figures of a checkpoint: numbers by name, or mappings of them; null is NaN."""

    def numbers(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {key: numbers(inner) for key, inner in entry.items()}
        if entry is not None and not isinstance(entry, int | float):
            raise InputError(
                f"the checkpoint in '{resume}' has no figures {name!r}: it is of another kind of "
                "run, or damaged"
            )
        return math.nan if entry is None else entry

    figures: Figures = numbers(values[name] if isinstance(values.get(name), dict) else "")
    return figures


def starting_point(resume: Path | None) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
    """The newest checkpoint of the run to resume: iteration, tensors, values.

    None for a new run, and with a note for one that was killed before its first checkpoint: it
    starts afresh.

    Raises:
      InputError: when all of its checkpoints are damaged, or `checkpoints` is no folder.
    """
    if resume is None:
        return None
    folder = resume / "checkpoints"
    if not checkpoint.present(folder):
        print(f"npmp: {resume} holds no checkpoint yet: starting afresh", file=sys.stderr)
        return None
    return checkpoint.load_latest(folder)


def _quiet_simulator() -> None:
    """No MUJOCO_LOG.TXT in the working directory and no warnings between our lines: broken
    simulations are counted instead."""
    log = mujoco.MjLogConfig.get()
    log.logto_file = log.logto_console = False
    log.set()


def _clear_leftovers(folder: Path) -> None:
    """Remove the temporary files of `atomic_path` that a killed process left in a run folder."""
    for place in (folder, *(entry for entry in folder.iterdir() if entry.is_dir())):
        for suffix in ("safetensors", "json", "csv", "yaml"):
            for left in place.glob(f".*-????????.{suffix}"):
                left.unlink(missing_ok=True)
