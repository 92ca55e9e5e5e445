"""What the training verbs share: the loop around an algorithm, its logs and checkpoints, where a run goes on, what
stops it."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

import mujoco
from omegaconf import OmegaConf
from torch import Tensor

from experiments import boards
from experiments.common import Run, console, stored_config
from experiments.failures import Stopped
from experiments.runlog import RunLog
from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp import checkpoint
from npmp.envs.plant import PlantEnv

Figures = dict[str, Any]

PATIENCE = (
    10  # iterations in a row that may go wrong, in a way that leaves the networks sound, before the run is given up
)
LOST_SHARE = 0.1  # an iteration went wrong when the simulations of more than this share of its robots broke down
REMEMBERED = 20  # iterations and breakdowns before the end that diverged.json tells of


class Diverged(InputError):
    """A training run's figures are no numbers any more; the message says what to do."""


class Trainer(Protocol):
    """What a training verb needs of an algorithm."""

    env_steps: int
    iteration_count: int

    @property
    def env(self) -> PlantEnv:
        """The robots that it collects with."""

    def iteration(self, progress: float) -> dict[str, float]:
        """Collect and learn once; progress in [0, 1] is the share of the run done."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the rest of the run depends on."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was taken."""


@dataclass(frozen=True)
class Plan:
    """A training run, as far as the loop has to know it."""

    trainer: Trainer
    total: int  # iterations
    evaluate_every: int  # iterations
    checkpoint_every: int  # iterations
    begin: Callable[[], tuple[Figures, Figures]]  # what a new run does first; figures to compare with, and of the start
    judge: Callable[[], Figures]  # figures of what is trained, as it is now
    judged: tuple[str, ...]  # those of them that go into metrics.csv
    summarize: Callable[
        [Figures, Figures], dict[str, Any]
    ]  # (figures to compare with, the latest) -> what is said of it
    save: Callable[[dict[str, Any]], None]  # writes the artefact with its summary
    finite: tuple[str, ...]  # metrics that must be finite
    rates: str  # keys of the learning rates, for the hint when they are not
    belongs_to: str = ""  # what the run rests on; a run to resume must rest on the same
    logger: str = "tensorboard"  # a name of `boards.LOGGERS`


def train(plan: Plan, run: Run) -> dict[str, Any]:
    """The whole run, into run.place: logs, checkpoints, the artefact, summary.json. Returns the summary.

    SIGINT and SIGTERM end it after the iteration they come in, or after what comes before the first, with a checkpoint;
    a second one at once.

    Raises: InputError for a run to resume that is damaged or of another kind; Diverged; Stopped.
    """
    trainer, folder = plan.trainer, run.place / "checkpoints"
    found = starting_point(run)
    if found is not None:
        _, tensors, values = found
        if values.get("belongs_to", "") != plan.belongs_to:
            raise InputError(f"the run in '{run.resume}' was trained with another module than this one")
        trainer.load_state_dict(tensors)
        before, latest = values["before"], values["latest"]
    guard = Guard(trainer, plan.total, run, finite=plan.finite, rates=plan.rates)

    def described() -> dict[str, Any]:
        counts = {"seed": run.seed, "env_steps": trainer.env_steps, "iterations": trainer.iteration_count}
        return {**plan.summarize(before, latest), **counts, "before": before, "after": latest}

    def keep() -> None:
        log.flush()
        values = {"before": before, "latest": latest, "belongs_to": plan.belongs_to}
        checkpoint.save(folder, trainer.iteration_count, trainer.state_dict(), values)

    def save() -> dict[str, Any]:
        guard.check_state()
        # the artefact first: making it may leave figures in what the checkpoint then holds
        summary = described()
        plan.save(summary)
        keep()
        return summary

    with signals_noted() as noted:
        run.begin()
        _quiet_simulator()
        _clear_leftovers(run.place)
        log = RunLog(
            run.place,
            plan.total,
            judged=plan.judged,
            resume_after=None if found is None else trainer.iteration_count,
            resume_from=run.resume,
            board=_board(plan, run, done=None if found is None else trainer.env_steps),
            console=console(stderr=True),
        )
        if found is None:
            before, latest = plan.begin()
            trainer.env.plant.forget_breakdowns()  # each iteration counts its own
            keep()
        began, steps_before = time.perf_counter(), trainer.env_steps
        if noted and trainer.iteration_count < plan.total:
            log.close()
            raise _stopped(plan, run, noted[0])
        while trainer.iteration_count < plan.total:
            metrics = guard.iteration()
            # a figure of the robots that collect is not the judge's of the same name
            metrics = {f"collect_{k}" if k in plan.judged else k: v for k, v in metrics.items()}
            count = trainer.iteration_count
            if count == 1 or count % plan.evaluate_every == 0 or count == plan.total:
                latest = plan.judge()
                metrics |= {k: latest[k] for k in plan.judged}
            log.write(count, trainer.env_steps, metrics, env_steps_done_here=trainer.env_steps - steps_before)
            stopping = bool(noted)  # read once: a signal may come at any moment, and who stops has a checkpoint
            if count < plan.total and (stopping or count % plan.checkpoint_every == 0):
                save()
            if count < plan.total and stopping:
                log.close()
                raise _stopped(plan, run, noted[0])
        summary = save()
    log.close()
    summary["steps_per_s"] = round(trainer.env_steps / log.wall_s, 1)
    summary["minutes_here"] = round((time.perf_counter() - began) / 60, 2)
    with atomic_path(run.place / "summary.json") as path:
        path.write_text(json.dumps(summary, indent=2) + "\n")
    return summary


def _stopped(plan: Plan, run: Run, number: signal.Signals) -> Stopped:
    """What ends a run for a signal, once the checkpoint of where it is has been written."""
    return Stopped(
        f"{number.name} after iteration {plan.trainer.iteration_count} of {plan.total}: its checkpoint is kept, "
        f"npmp {run.verb} resume={run.place} goes on",
        128 + number,
    )


def _board(plan: Plan, run: Run, *, done: int | None) -> boards.Board | None:
    """The run's board; done: environment steps at the checkpoint that it goes on from."""
    settings = OmegaConf.to_container(stored_config(run.place)[1]) if (run.place / "config.yaml").is_file() else {}
    assert isinstance(settings, dict)  # of a DictConfig; for the type checker
    return boards.open_board(plan.logger, run.place, settings={str(k): v for k, v in settings.items()}, done=done)


def starting_point(run: Run) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
    """The newest checkpoint of the run to resume: iteration, tensors, values.

    None for a new run, and with a note for one that was killed before its first checkpoint: it starts afresh.

    Raises: InputError when all of its checkpoints are damaged.
    """
    if run.resume is None:
        return None
    folder = run.resume / "checkpoints"
    if not any(folder.glob("checkpoint_*.json")):
        print(f"npmp: {run.resume} holds no checkpoint yet: starting afresh", file=sys.stderr)
        return None
    return checkpoint.load_latest(folder)


# --- what goes wrong
# ----------------------------------------------------------------------------------------------------------


class Guard:
    """Runs a trainer's iterations and watches its figures.

    A simulation that breaks down and a batch without a finite gradient are counted, in `lost_simulations` and
    `skipped_updates`, and passed over. When that goes on for PATIENCE iterations, or a network holds numbers that are
    none, the run is stopped and diverged.json says what led to it.
    """

    def __init__(self, trainer: Trainer, total: int, run: Run, *, finite: Sequence[str], rates: str):
        """finite: the metrics that must be finite. rates: the keys of the learning rates, for the hint."""
        self.trainer, self.total, self.run, self.finite, self.rates = trainer, total, run, tuple(finite), rates
        self._wrong = 0  # iterations in a row
        self._recent: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self._breakdowns: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)

    def iteration(self) -> dict[str, float]:
        """One iteration's metrics.

        Raises: Diverged.
        """
        metrics = self._learned()
        count = self.trainer.iteration_count
        plant = self.trainer.env.plant
        self._breakdowns += [{"iteration": count, **breakdown} for breakdown in plant.breakdowns]
        metrics["lost_simulations"] = float(plant.lost)
        plant.forget_breakdowns()
        wrong = [f"{name} is {metrics[name]}" for name in self.finite if not math.isfinite(metrics[name])]
        if wrong and (names := checkpoint.not_finite(self.trainer.state_dict())):
            self.stop(wrong, names, metrics)
        if metrics["skipped_updates"]:
            wrong.append(f"{metrics['skipped_updates']:.0f} updates were skipped")
        if metrics["lost_simulations"] > LOST_SHARE * self.trainer.env.num_envs:
            wrong.append(f"{metrics['lost_simulations']:.0f} simulations broke down")
        self._count(wrong, metrics)
        self._recent.append({"iteration": count, **_readable(metrics)})
        return metrics

    def _learned(self) -> dict[str, float]:
        """The metrics of an iteration that could learn: what gave no finite gradient is thrown away and collected anew.

        Within an iteration that may happen PATIENCE times; what is thrown away counts as skipped updates of this one
        iteration.
        """
        thrown_away = 0
        while True:
            try:
                metrics = self.trainer.iteration(self.trainer.iteration_count / self.total)
            except RuntimeError as error:
                if "non-finite" not in str(error):  # torch's word for a gradient that is no number
                    raise
                thrown_away += 1
                if thrown_away > PATIENCE:
                    self.stop([f"a gradient is not finite in {thrown_away} collections in a row"], [], {})
            else:
                return {**metrics, "skipped_updates": metrics.get("skipped_updates", 0.0) + thrown_away}

    def _count(self, wrong: list[str], metrics: dict[str, float]) -> None:
        self._wrong = self._wrong + 1 if wrong else 0
        if self._wrong > PATIENCE:
            row = [f"the last of {self._wrong} such iterations in a row"] if self._wrong > 1 else []
            self.stop([*wrong, *row], [], metrics)

    def check_state(self) -> None:
        """Raises Diverged when anything that a checkpoint would keep is not finite."""
        if broken := checkpoint.not_finite(self.trainer.state_dict()):
            self.stop([f"{', '.join(broken[:3])} not finite"], broken, {})

    def stop(self, wrong: Sequence[str], not_finite: Sequence[str], metrics: dict[str, float]) -> NoReturn:
        """Write diverged.json and raise Diverged.

        Args:
          wrong: what is, in words. not_finite: names of the trainer's tensors that are not.
          metrics: of this iteration, as far as there are any.
        """
        trainer, run = self.trainer, self.run
        part = _part(wrong, not_finite, metrics)
        details = {
            "iteration": trainer.iteration_count,
            "env_steps": trainer.env_steps,
            "part": part,
            "lost": list(wrong),
            "not_finite": list(not_finite),
            "seed": run.seed,
            "progress": trainer.iteration_count / self.total,
            "learning_rates": _settings(run.place, self.rates),
            "metrics": _readable(metrics),
            "iterations_before": list(self._recent),
            "lost_simulations": [*self._breakdowns, *trainer.env.plant.breakdowns][-REMEMBERED:],
        }
        with atomic_path(run.place / "diverged.json") as path:
            path.write_text(json.dumps(details, indent=2) + "\n")
        hint = f"lower the learning rate ({self.rates})"
        if part == "simulation":
            hint = "see there which robots, and at what; gentler physics or less action noise may help"
        # runs repeat bit for bit: resumed as it is, this one would diverge at the same iteration
        raise Diverged(
            f"training diverged at iteration {trainer.iteration_count} ({part}: {', '.join(wrong)}; what led to it: "
            f"{run.place / 'diverged.json'}); {hint}; the last checkpoint is sound: "
            f"resume={run.place} with such a setting changed goes on from it (with none changed, to the same end)"
        )


def _part(wrong: Sequence[str], not_finite: Sequence[str], metrics: dict[str, float]) -> str:
    """Which part went wrong first, along the way that numbers take: simulation, model, loss."""
    roots = {name.split(".")[0] for name in not_finite}
    if roots & {"env", "replay"} or any("simulations" in words for words in wrong):
        return "simulation"
    if "model" in roots or not math.isfinite(metrics.get("model_loss", 0.0)):
        return "model"
    return "loss"


def _readable(metrics: dict[str, float]) -> dict[str, str]:
    """Figures as text: JSON has no word for nan."""
    return {name: repr(value) for name, value in metrics.items()}


def _settings(folder: Path, keys: str) -> dict[str, Any]:
    """The run's settings of "key=, key=": those of its config.yaml that there are."""
    if not (folder / "config.yaml").is_file():
        return {}
    config = stored_config(folder)[1]
    names = [key.strip().removesuffix("=") for key in keys.split(",")]
    found = {name: OmegaConf.select(config, name) for name in names}
    return {
        name: OmegaConf.to_container(v) if OmegaConf.is_config(v) else v for name, v in found.items() if v is not None
    }


def _quiet_simulator() -> None:
    """No MUJOCO_LOG.TXT in the working directory and no warnings between our lines: broken simulations are counted
    instead."""
    log = mujoco.MjLogConfig.get()
    log.logto_file = log.logto_console = False
    log.set()


def _clear_leftovers(folder: Path) -> None:
    """Remove the temporary files of `atomic_path` that a killed process left in a run folder."""
    for place in (folder, *(entry for entry in folder.iterdir() if entry.is_dir())):
        for suffix in ("safetensors", "json", "csv", "yaml"):
            for left in place.glob(f".*-????????.{suffix}"):
                left.unlink(missing_ok=True)


@contextmanager
def signals_noted() -> Iterator[list[signal.Signals]]:
    """Inside, SIGINT and SIGTERM do not interrupt but are noted in the list; a second one raises Stopped at once."""
    noted: list[signal.Signals] = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        name = signal.Signals(number)
        if noted:
            raise Stopped(f"{name.name} again: stopped at once", 128 + number)
        noted.append(name)
        # unbuffered and reentrant: a signal may come while something else prints
        with suppress(OSError):
            os.write(2, f"\nnpmp: {name.name}: stopping at a checkpoint, soon; once more to stop at once\n".encode())

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield noted
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
