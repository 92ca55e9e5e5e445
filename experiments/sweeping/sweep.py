"""A sweep's folder: what its jobs are (jobs.json), how far they are (sweep.json), their logs and
their own folders."""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError
from mocap_data.files import write_json
from mocap_data.outside import read_json_object
from npmp.training.tables import as_number, read_table

STATES = ("waiting", "running", "finished", "failed", "stopped", "pruned")
WAITING, RUNNING, FINISHED, FAILED, STOPPED, PRUNED = STATES
DONE = (FINISHED, PRUNED)  # not to be done again

PLAN, STATE = "jobs.json", "sweep.json"


@dataclass
class SweptJob:
    """One job, as far as it is."""

    name: str  # of its folder, too
    overrides: list[str]  # what it has for its own
    state: str = WAITING
    seconds: float = 0.0  # of all of its attempts, from start to end of their processes
    score: float | None = None
    attempts: int = 0
    host: str = ""  # where the last one ran
    message: str = ""  # what it failed with


@dataclass
class Sweep:
    """All jobs of a sweep."""

    folder: Path
    verb: str
    launcher: dict[str, Any]  # who runs them: the settings of hydra/launcher
    score: str | None  # the column of metrics.csv that jobs are judged by
    lower: bool | None  # whether less of it is better; None: nobody said
    configs: list[dict[str, Any]] = field(repr=False)  # each job's settings, complete
    jobs: list[SweptJob]
    where: str = field(default_factory=os.getcwd)  # what relative paths of jobs are relative to
    # how jobs are chosen as the sweep goes: `npmp.experiments.sweeping.search`
    search: dict[str, Any] | None = None

    def create(self) -> None:
        """Write a new sweep's files.

        Raises:
          InputError: where the folder holds one already.
        """
        if any((self.folder / name).exists() for name in (PLAN, STATE)):
            raise InputError(
                f"{self.folder} holds a sweep already; npmp sweeps resume {self.folder} goes on with it, "
                "or choose another out="
            )
        for job in self.jobs:
            self._refuse_used(job)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.save()
        self._write_plan()

    def _refuse_used(self, job: SweptJob) -> None:
        """Raise InputError where a job would go on from whatever another left in its place."""
        place = self.folder / job.name
        if place.is_dir() and any(place.iterdir()):
            raise InputError(f"{place} holds something already; choose another out=, or remove it")

    def add(self, job: SweptJob, config: dict[str, Any]) -> None:
        """Another job. Raises InputError where its folder holds something."""
        self._refuse_used(job)
        self.jobs.append(job)
        self.configs.append(config)
        self._write_plan()

    def _write_plan(self) -> None:
        each = zip(self.jobs, self.configs, strict=True)
        plan = [
            {"name": job.name, "overrides": job.overrides, "config": config} for job, config in each
        ]
        told = {
            "verb": self.verb,
            "score": self.score,
            "lower": self.lower,
            "where": self.where,
            "search": self.search,
        }
        write_json(self.folder / PLAN, told | {"jobs": plan})

    @classmethod
    def load(cls, folder: Path) -> Sweep:
        """The sweep in a folder. Raises InputError where there is none, or a damaged one."""
        if not (folder / PLAN).is_file():
            raise InputError(f"{folder}: no sweep (it has no {PLAN})")
        plan, state = read_json_object(folder / PLAN), read_json_object(folder / STATE)
        try:
            jobs = [SweptJob(**entry) for entry in state["jobs"]]
            configs = [dict(entry["config"]) for entry in plan["jobs"]]
            names = [str(entry["name"]) for entry in plan["jobs"]]
            # added just before the driver died
            jobs += [
                SweptJob(str(entry["name"]), list(entry["overrides"]))
                for entry in plan["jobs"][len(jobs) :]
            ]
            if names != [job.name for job in jobs] or {job.state for job in jobs} - set(STATES):
                raise ValueError(f"the jobs of {PLAN} and {STATE} differ")
            search = None if plan["search"] is None else dict(plan["search"])
            judged = plan["score"], plan["lower"]
            verb, launcher, where = str(plan["verb"]), dict(state["launcher"]), str(plan["where"])
            return cls(folder, verb, launcher, *judged, configs, jobs, where, search)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{folder}: damaged {PLAN} or {STATE} ({error})") from error

    def save(self) -> None:
        """Write sweep.json. Raises OSError."""
        content = {"verb": self.verb, "launcher": self.launcher, "score": self.score}
        write_json(self.folder / STATE, content | {"jobs": [asdict(job) for job in self.jobs]})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else works on the sweep meanwhile. Raises InputError where somebody does."""
        with lock(self.folder / ".lock", wait=False):
            yield

    def place(self, i: int) -> Path:
        """The folder of job i."""
        return self.folder / self.jobs[i].name

    def log(self, i: int) -> Path:
        """What job i printed."""
        return self.folder / "logs" / f"{self.jobs[i].name}.log"

    def progress(self, i: int) -> Progress:
        """How far job i is, by its metrics.csv."""
        return Progress.of(self.place(i) / "metrics.csv", self.score, self.configs[i].get("steps"))


@dataclass(frozen=True)
class Progress:
    """How far a training run is."""

    env_steps: float | None = None
    steps: float | None = None  # in all
    score: float | None = None  # the latest

    @classmethod
    def of(cls, path: Path, score: str | None, steps: Any) -> Progress:
        """Of a run's metrics.csv; of whatever is not there, or not readable yet, nothing."""
        done, found = columns(path, "env_steps", score or "env_steps")
        planned = float(steps) if isinstance(steps, int | float) else None
        return cls(done[-1] if done else None, planned, found[-1] if found and score else None)

    @property
    def share(self) -> float | None:
        """What part of it is done."""
        return (
            min(1.0, self.env_steps / self.steps)
            if self.env_steps is not None and self.steps
            else None
        )


def columns(path: Path, *names: str) -> list[list[float]]:
    """The numbers in columns of a table, less empty cells; of a table that is not there yet, none."""
    try:
        rows = read_table(path)
    except (OSError, InputError):
        rows = []
    return [
        [value for row in rows if math.isfinite(value := as_number(row.get(name)))]
        for name in names
    ]


@contextmanager
def lock(path: Path, *, wait: bool) -> Iterator[None]:
    """The lock of a file, which the system takes back from processes that die.

    Raises:
      InputError: where another process has it and this one is not to wait.
    """
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise InputError(f"another npmp works on the sweep in {path.parent}") from error
        yield


def failure(log: Path) -> str:
    """What a job's log ends on: its error, or its last line."""
    try:
        lines = [
            line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
    except OSError:
        return ""
    errors = [
        line.removeprefix("npmp: error: ") for line in lines if line.startswith("npmp: error: ")
    ]
    return (errors or [line for line in lines if line] or [""])[-1]
