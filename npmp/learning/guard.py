"""Checks the metrics of a run: tolerates single failures, stops a run that diverges."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mocap_data.errors import InputError
from mocap_data.files import write_json
from npmp.core import checkpoint
from npmp.core.settings import flat
from npmp.learning.trainer import Trainer

# consecutive bad iterations, with finite networks, before the run is stopped
PATIENCE = 10
# an iteration is bad if the simulations of a larger share of its robots broke down
MAX_LOST_SHARE = 0.1
HISTORY = 20  # iterations and breakdowns that diverged.json lists


class Diverged(InputError):
    """A training run has diverged; the message says what to change."""


class Guard:
    """Checks a trainer's metrics after each iteration.

    Counts simulations that break down (`lost_simulations`) and batches without a finite gradient
    (`skipped_updates`). After more than PATIENCE bad iterations in a row, or at once if a network
    is not finite, it writes diverged.json and raises `Diverged`.
    """

    def __init__(
        self, trainer: Trainer, total: int, folder: Path, *, seed: int, settings: Mapping[str, Any]
    ):
        """Args:
        total: iterations of the run. folder: for diverged.json.
        seed, settings: of the run, recorded in diverged.json.
        """
        self.trainer = trainer
        self.total = total
        self.folder = folder
        self.seed = seed
        self.settings = settings
        self._bad_in_a_row = 0
        self._discarded = 0  # collections since the last iteration
        self._recent: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self._breakdowns: deque[dict[str, Any]] = deque(maxlen=HISTORY)

    def count_discarded(self) -> None:
        """Count a collection without a finite gradient as a skipped update of the next iteration.

        Raises:
          Diverged: after more than PATIENCE in a row.
        """
        self._discarded += 1
        if self._discarded > PATIENCE:
            reason = f"a gradient is not finite in {self._discarded} collections in a row"
            self._stop([reason], [], {})

    def check(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Check an iteration's metrics. Returns them with the counts.

        Raises:
          Diverged: if the run has diverged.
        """
        skipped = metrics.get("skipped_updates", 0.0) + self._discarded
        metrics = {**metrics, "skipped_updates": skipped}
        self._discarded = 0
        count = self.trainer.iteration_count
        robots = self.trainer.env.robots
        self._breakdowns += [{"iteration": count, **breakdown} for breakdown in robots.breakdowns]
        metrics["lost_simulations"] = float(robots.lost)
        robots.clear_breakdowns()
        reasons = [
            f"{name} is {value}" for name, value in metrics.items() if not math.isfinite(value)
        ]
        if reasons and (names := checkpoint.not_finite(self.trainer.state_dict())):
            self._stop(reasons, names, metrics)
        if metrics["skipped_updates"]:
            reasons.append(f"{metrics['skipped_updates']:.0f} updates were skipped")
        if metrics["lost_simulations"] > MAX_LOST_SHARE * self.trainer.env.num_envs:
            reasons.append(f"{metrics['lost_simulations']:.0f} simulations broke down")
        self._bad_in_a_row = self._bad_in_a_row + 1 if reasons else 0
        if self._bad_in_a_row > PATIENCE:
            reasons.append(f"{self._bad_in_a_row} bad iterations in a row")
            self._stop(reasons, [], metrics)
        self._recent.append({"iteration": count, **_as_text(metrics)})
        return metrics

    def check_state(self) -> None:
        """Check all tensors of a checkpoint.

        Raises:
          Diverged: if one is not finite.
        """
        if names := checkpoint.not_finite(self.trainer.state_dict()):
            self._stop([f"{', '.join(names[:3])} not finite"], names, {})

    def _stop(
        self, reasons: Sequence[str], not_finite: Sequence[str], metrics: dict[str, float]
    ) -> NoReturn:
        """Write diverged.json and raise `Diverged`.

        Args:
          not_finite: names of the trainer's tensors. metrics: of this iteration.
        """
        trainer = self.trainer
        path = self.folder / "diverged.json"
        part = _part(reasons, not_finite, metrics)
        settings = flat(dict(self.settings))
        rate_keys = [key.strip().removesuffix("=") for key in trainer.learning_rate_keys.split(",")]
        details = {
            "iteration": trainer.iteration_count,
            "env_steps": trainer.env_steps,
            "part": part,
            "lost": list(reasons),
            "not_finite": list(not_finite),
            "seed": self.seed,
            "progress": trainer.iteration_count / self.total,
            "learning_rates": {
                key: settings[key] for key in rate_keys if settings.get(key) is not None
            },
            "metrics": _as_text(metrics),
            "iterations_before": list(self._recent),
            "lost_simulations": [*self._breakdowns, *trainer.env.robots.breakdowns][-HISTORY:],
        }
        write_json(path, details)
        hint = f"lower the learning rate ({trainer.learning_rate_keys})"
        if part == "simulation":
            hint = "try gentler physics or less action noise"
        # runs repeat bit for bit: with the same settings this one diverges at the same iteration
        raise Diverged(
            f"training diverged at iteration {trainer.iteration_count} ({part}: "
            f"{', '.join(reasons)}; details: {path}); {hint}, and continue from the last "
            f"checkpoint, which is finite: resume={self.folder}"
        )


def _part(reasons: Sequence[str], not_finite: Sequence[str], metrics: dict[str, float]) -> str:
    """The first part that failed, in the order of the data flow: simulation, model, loss."""
    roots = {name.split(".")[0] for name in not_finite}
    if roots & {"env", "replay"} or any("simulations" in reason for reason in reasons):
        return "simulation"
    if "model" in roots or not math.isfinite(metrics.get("model_loss", 0.0)):
        return "model"
    return "loss"


def _as_text(metrics: dict[str, float]) -> dict[str, str]:
    """Metrics as text, as JSON has no NaN."""
    return {name: repr(value) for name, value in metrics.items()}
