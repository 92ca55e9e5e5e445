"""A sweep's folder: its jobs (jobs.json), their progress (sweep.json), their logs and folders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError, check_available
from mocap_data.files import locked, write_json
from mocap_data.input_files import read_json_object
from npmp.core import ranges
from npmp.core.settings import from_mapping
from npmp.core.tables import read_table, to_float
from npmp.experiments.terminal import USER_ERROR

STATES = ("waiting", "running", "finished", "failed", "stopped")
KINDS = ("local", "ray")
WAITING, RUNNING, FINISHED, FAILED, STOPPED = STATES

PLAN = "jobs.json"
STATE = "sweep.json"
LOGS = "logs"
# verbs whose settings cannot name code to run or files to write but out=
SWEPT_VERBS = ("retarget", "imitate", "reuse", "evaluate")


@dataclass(frozen=True)
class Launcher:
    """Settings of a sweep's workers."""

    # local (processes of this machine) or ray (tasks on the cluster of RAY_ADDRESS, or on one here)
    kind: str = "local"
    # CPU cores of each job; also its threads and torch_threads, where they are null
    cores: int = 1
    # GPUs of each job, with kind=ray
    gpus: float = 0.0
    # other resources of each job by Ray's names, with kind=ray: {"a100": 1}
    resources: dict[str, float] = field(default_factory=dict)
    # largest number of jobs at once; null: as many as fit on the cores
    jobs: int | None = None
    # restarts of a killed job, from its checkpoint
    retries: int = 3
    # the column of metrics.csv that jobs are compared by; null: the verb's
    score: str | None = None
    # whether lower scores are better; null: the verb's
    lower: bool | None = None

    def __post_init__(self) -> None:
        check_available("launcher", [self.kind], KINDS)
        ranges.at_least_one(self, "cores", "jobs")
        ranges.not_negative(self, "retries", "gpus")
        if self.kind == "local" and (self.gpus or self.resources):
            raise ValueError("gpus and resources need hydra/launcher=ray")


@dataclass
class SweptJob:
    """One job and its progress."""

    # also of its folder and its log
    name: str
    # the settings that differ between jobs
    overrides: list[str]
    state: str = WAITING
    # wall-clock of all attempts [s]
    seconds: float = 0.0
    score: float | None = None
    attempts: int = 0
    # host of the last attempt
    host: str = ""
    # error of a failed job
    message: str = ""

    def __post_init__(self) -> None:
        hidden = self.name[:1] in ("", ".") or self.name in (LOGS, PLAN, STATE)
        if hidden or Path(self.name).name != self.name:
            raise ValueError(f"name={self.name!r}: expected a plain folder name")
        check_available("state", [self.state], STATES)


@dataclass(frozen=True)
class Planned:
    """An entry of jobs.json."""

    name: str
    overrides: list[str]
    config: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """The content of jobs.json."""

    verb: str
    jobs: list[Planned]


@dataclass(frozen=True)
class SweepState:
    """The content of sweep.json."""

    launcher: Launcher
    jobs: list[SweptJob]
    verb: str = ""


class Failed(Exception):
    """A job of a multirun failed, and its error was reported."""

    def __init__(self, code: int = USER_ERROR):
        super().__init__(code)
        self.code = code


@dataclass
class Sweep:
    """All jobs of a sweep. configs: each job's settings, complete."""

    folder: Path
    verb: str
    launcher: Launcher
    configs: list[dict[str, Any]] = field(repr=False)
    jobs: list[SweptJob]

    def add(self, configs: Sequence[dict[str, Any]], jobs: Sequence[SweptJob]) -> None:
        """Add jobs and write the sweep's files.

        Raises:
          InputError: if the folder contains another sweep, or a job's folder is not empty.
        """
        if not self.jobs and (self.folder / PLAN).exists():
            raise InputError(
                f"{self.folder} is a sweep; npmp sweeps resume {self.folder} continues "
                "it, or choose another out="
            )
        for job in jobs:
            place = self.folder / job.name
            if place.is_dir() and any(place.iterdir()):
                raise InputError(f"{place} exists; choose another out=, or remove it")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.configs = [*self.configs, *configs]
        self.jobs = [*self.jobs, *jobs]
        self.save()
        planned = [
            Planned(job.name, job.overrides, config)
            for job, config in zip(self.jobs, self.configs, strict=True)
        ]
        write_json(self.folder / PLAN, asdict(Plan(self.verb, planned)))

    @classmethod
    def load(cls, folder: Path) -> Sweep:
        """The sweep in a folder. Raises InputError for a folder without one, or a damaged one."""
        if not (folder / PLAN).is_file():
            raise InputError(f"{folder}: no sweep (it has no {PLAN})")
        path = folder / PLAN
        try:
            plan = from_mapping(Plan, read_json_object(path), at="plan")
            path = folder / STATE
            state = from_mapping(SweepState, read_json_object(path), at="sweep")
            if [job.name for job in plan.jobs] != [job.name for job in state.jobs]:
                raise ValueError(f"its jobs differ from {PLAN}")
        except ValueError as error:  # InputError too
            text = str(error)
            raise InputError(text if str(path) in text else f"{path}: {text}") from error
        configs = [job.config for job in plan.jobs]
        return cls(folder, plan.verb, state.launcher, configs, state.jobs)

    def check(self) -> None:
        """Raise InputError for a jobs.json that could run code or write outside of the sweep's
        folder."""
        check_available(f"sweep in {self.folder / PLAN} of npmp", [self.verb], SWEPT_VERBS)
        for config in self.configs:
            out = config.get("out")
            if not isinstance(out, str) or Path(out).name in ("", ".."):
                raise InputError(f"{self.folder / PLAN}: out={out}: expected a file name")
            refuse_shared_files(config)
        root = self.folder.resolve()
        for path in self.folder.rglob("*"):
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise InputError(f"{path} links out of the sweep's folder; remove it")

    def save(self) -> None:
        """Write sweep.json. Raises OSError."""
        write_json(self.folder / STATE, asdict(SweepState(self.launcher, self.jobs, self.verb)))

    def locked(self) -> AbstractContextManager[None]:
        """Exclude other processes. Raises InputError if another process runs the sweep."""
        return locked(self.folder, f"another npmp process runs the sweep in {self.folder}")

    def best(self) -> tuple[tuple[str, ...], float, int] | None:
        """The settings (without the seed) of the best mean score over finished jobs, that score,
        and the number of jobs; None if jobs differ in their seed only, or have no score."""
        scores: dict[tuple[str, ...], list[float]] = {}
        for job in self.jobs:
            own = tuple(entry for entry in job.overrides if not entry.startswith("seed="))
            if job.state == FINISHED and job.score is not None:
                scores.setdefault(own, []).append(job.score)
        if not any(scores) or self.launcher.lower is None:
            return None
        means = {own: sum(values) / len(values) for own, values in scores.items()}
        settings = (min if self.launcher.lower else max)(means, key=lambda key: means[key])
        return settings, means[settings], len(scores[settings])

    def failures(self) -> list[str]:
        """A line per failed job."""
        return [
            f"{job.name}: {job.message or 'unknown reason'} ({self.log(i)})"
            for i, job in enumerate(self.jobs)
            if job.state == FAILED
        ]

    def place(self, i: int) -> Path:
        """The folder of job i."""
        return self.folder / self.jobs[i].name

    def log(self, i: int) -> Path:
        """The output of job i."""
        return self.folder / LOGS / f"{self.jobs[i].name}.log"

    def progress(self, i: int) -> SweepProgress:
        """The progress of job i, by its metrics.csv."""
        path = self.place(i) / "metrics.csv"
        return SweepProgress.of(path, self.launcher.score, self.configs[i].get("steps"))


def refuse_shared_files(config: Mapping[str, Any]) -> None:
    """Raise InputError for a setting that names one file for all jobs."""
    report = config.get("report", True)
    if isinstance(report, str) and report != "auto":
        raise InputError(f"report={report}: expected auto or false, as it is one file for all jobs")


def score_of(verb: str, task: str | None) -> tuple[str, bool] | None:
    """The column of metrics.csv that runs are compared by, and whether less is better; None for a
    command without training."""
    if verb == "imitate":
        return "tracked_fraction", False
    if verb == "reuse":
        from npmp import tasks

        return str(tasks.find(str(task)).main_figure), True
    return None


@dataclass(frozen=True)
class SweepProgress:
    """The progress of a training run."""

    env_steps: float | None = None
    # in all
    steps: float | None = None
    # the latest
    score: float | None = None
    # without warm-up and compilation
    steps_per_s: float | None = None

    @classmethod
    def of(cls, path: Path, score: str | None, steps: Any) -> SweepProgress:
        """From a run's metrics.csv and timing.csv, which may be missing or half written."""

        def latest(path: Path, column: str) -> float | None:
            try:
                values = [to_float(row.get(column)) for row in read_table(path)]
            except (OSError, InputError):
                return None
            return next((value for value in reversed(values) if math.isfinite(value)), None)

        return cls(
            latest(path, "env_steps"),
            float(steps) if isinstance(steps, int | float) else None,
            latest(path, score) if score else None,
            latest(path.with_name("timing.csv"), "steps_per_s"),
        )

    @property
    def left_s(self) -> float | None:
        """Seconds left of training."""
        if self.env_steps is None or not self.steps or not self.steps_per_s:
            return None
        return max(0.0, self.steps - self.env_steps) / self.steps_per_s

    @property
    def share(self) -> float | None:
        """The share that is done."""
        if self.env_steps is None or not self.steps:
            return None
        return min(1.0, self.env_steps / self.steps)


def failure(log: Path) -> str:
    """The error in a job's log, or its last line."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    lines = [line.strip() for line in lines if line.strip()]
    mark = "npmp: error: "
    errors = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
    return (errors or lines or [""])[-1]
