"""What the training verbs share: the loop around an algorithm, its logs and checkpoints, where a run goes on, divergence."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from experiments.common import Run, console
from experiments.runlog import RunLog
from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp import checkpoint

Figures = dict[str, Any]


class Diverged(InputError):
    """A training run's figures are no numbers any more; the message says what to do."""


class Trainer(Protocol):
    """What a training verb needs of an algorithm."""

    env_steps: int
    iteration_count: int

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
    summarize: Callable[[Figures, Figures], dict[str, Any]]  # (figures to compare with, the latest) -> what is said of it
    save: Callable[[dict[str, Any]], None]  # writes the artefact with its summary
    finite: tuple[str, ...]  # metrics that must be finite
    rates: str  # keys of the learning rates, for the hint when they are not
    belongs_to: str = ""  # what the run rests on; a run to resume must rest on the same


def train(plan: Plan, run: Run) -> dict[str, Any]:
    """The whole run, into run.place: logs, checkpoints, the artefact, summary.json. Returns the summary.

    Raises: InputError for a run to resume that is damaged or of another kind; Diverged.
    """
    trainer, folder = plan.trainer, run.place / "checkpoints"
    found = starting_point(run)
    if found is not None:
        _, tensors, values = found
        if values.get("belongs_to", "") != plan.belongs_to:
            raise InputError(f"the run in '{run.resume}' was trained with another module than this one")
        trainer.load_state_dict(tensors)
        before, latest = values["before"], values["latest"]
    run.begin()
    log = RunLog(
        run.place,
        plan.total,
        judged=plan.judged,
        resume_after=None if found is None else trainer.iteration_count,
        resume_from=run.resume,
        console=console(stderr=True),
    )

    def keep() -> None:
        values = {"before": before, "latest": latest, "belongs_to": plan.belongs_to}
        checkpoint.save(folder, trainer.iteration_count, trainer.state_dict(), values)

    def described() -> dict[str, Any]:
        counts = {"seed": run.seed, "env_steps": trainer.env_steps, "iterations": trainer.iteration_count}
        return {**plan.summarize(before, latest), **counts, "before": before, "after": latest}

    if found is None:
        before, latest = plan.begin()
        keep()
    began, steps_before = time.perf_counter(), trainer.env_steps
    while trainer.iteration_count < plan.total:
        metrics = iterate(trainer, plan.total, run, finite=plan.finite, rates=plan.rates)
        # a figure of the robots that collect is not the judge's of the same name
        metrics = {f"collect_{k}" if k in plan.judged else k: v for k, v in metrics.items()}
        count = trainer.iteration_count
        if count == 1 or count % plan.evaluate_every == 0 or count == plan.total:
            latest = plan.judge()
            metrics |= {k: latest[k] for k in plan.judged}
        log.write(count, trainer.env_steps, metrics, env_steps_done_here=trainer.env_steps - steps_before)
        if count % plan.checkpoint_every == 0 and count < plan.total:
            keep()
            plan.save(described())
    keep()
    summary = described()
    plan.save(summary)
    log.close()
    summary["steps_per_s"] = round(trainer.env_steps / log.wall_s, 1)
    summary["minutes_here"] = round((time.perf_counter() - began) / 60, 2)
    with atomic_path(run.place / "summary.json") as path:
        path.write_text(json.dumps(summary, indent=2) + "\n")
    return summary


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


def iterate(trainer: Trainer, total: int, run: Run, *, finite: Sequence[str], rates: str) -> dict[str, float]:
    """One iteration of `total`; returns its metrics.

    Args:
      finite: the metrics that must be finite.
      rates: the keys of the learning rates, for the hint.

    Raises: Diverged when they are not, with the figures in diverged.json.
    """
    metrics: dict[str, float] = {}
    try:
        metrics = trainer.iteration(trainer.iteration_count / total)
        lost = [f"{name} is {metrics[name]}" for name in finite if not math.isfinite(metrics[name])]
    except RuntimeError as error:
        if "non-finite" not in str(error):  # torch's word for a gradient that is no number
            raise
        lost = ["a gradient is not finite"]
    if not lost:
        return metrics
    details = {"iteration": trainer.iteration_count, "env_steps": trainer.env_steps, "lost": lost}
    with atomic_path(run.place / "diverged.json") as path:
        path.write_text(json.dumps({**details, "metrics": {k: repr(v) for k, v in metrics.items()}}, indent=2) + "\n")
    raise Diverged(
        f"training diverged at iteration {trainer.iteration_count} ({', '.join(lost)}; all figures: "
        f"{run.place / 'diverged.json'}); lower the learning rate ({rates}); the last checkpoint is sound: "
        f"resume={run.place} goes on from it"
    )
