"""What the training verbs share: where a run goes on, and what is said when one diverges."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from experiments.common import Run
from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp import checkpoint


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
