"""Watches the figures of a run: passes over accidents, and stops what goes wrong for good."""

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

# iterations in a row that may go wrong and leave the networks sound, before the run is given up
PATIENCE = 10
# an iteration went wrong when the simulations of more than this share of its robots broke down
LOST_SHARE = 0.1
REMEMBERED = 20  # iterations and breakdowns before the end that diverged.json tells of


class Diverged(InputError):
    """A training run's figures are no numbers any more; the message says what to do."""


class Guard:
    """Watches a trainer's figures, iteration by iteration.

    A simulation that breaks down and a batch without a finite gradient are counted, in
    `lost_simulations` and `skipped_updates`, and passed over. When that goes on for PATIENCE
    iterations, or a network holds numbers that are none, the run is stopped and diverged.json says
    what led to it.
    """

    def __init__(
        self, trainer: Trainer, total: int, folder: Path, *, seed: int, settings: Mapping[str, Any]
    ):
        """Args:
        total: iterations of the run. folder: gets diverged.json.
        seed, settings: of the run, for diverged.json.
        """
        self.trainer = trainer
        self.total = total
        self.folder = folder
        self.seed = seed
        self.settings = settings
        self._wrong = 0  # iterations in a row
        self._thrown_away = 0  # collections since the last iteration
        self._recent: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self._breakdowns: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)

    def throw_away(self) -> None:
        """Count a collection that gave no finite gradient, as a skipped update of the iteration
        that comes of it.

        Raises:
          Diverged: when there are more than PATIENCE of them in a row.
        """
        self._thrown_away += 1
        if self._thrown_away > PATIENCE:
            self.stop(
                [f"a gradient is not finite in {self._thrown_away} collections in a row"], [], {}
            )

    def watch(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Look at an iteration's metrics. Returns them with what was counted.

        Raises:
          Diverged: for the first iteration that is past bearing.
        """
        skipped = metrics.get("skipped_updates", 0.0) + self._thrown_away
        metrics = {**metrics, "skipped_updates": skipped}
        self._thrown_away = 0
        count = self.trainer.iteration_count
        robots = self.trainer.env.robots
        self._breakdowns += [{"iteration": count, **breakdown} for breakdown in robots.breakdowns]
        metrics["lost_simulations"] = float(robots.lost)
        robots.forget_breakdowns()
        wrong = [
            f"{name} is {value}" for name, value in metrics.items() if not math.isfinite(value)
        ]
        if wrong and (names := checkpoint.not_finite(self.trainer.state_dict())):
            self.stop(wrong, names, metrics)
        if metrics["skipped_updates"]:
            wrong.append(f"{metrics['skipped_updates']:.0f} updates were skipped")
        if metrics["lost_simulations"] > LOST_SHARE * self.trainer.env.num_envs:
            wrong.append(f"{metrics['lost_simulations']:.0f} simulations broke down")
        self._wrong = self._wrong + 1 if wrong else 0
        if self._wrong > PATIENCE:
            wrong.append(f"the last of {self._wrong} such iterations in a row")
            self.stop(wrong, [], metrics)
        self._recent.append({"iteration": count, **_readable(metrics)})
        return metrics

    def check_state(self) -> None:
        """Look at everything that a checkpoint would keep.

        Raises:
          Diverged: when a tensor is not finite.
        """
        if broken := checkpoint.not_finite(self.trainer.state_dict()):
            self.stop([f"{', '.join(broken[:3])} not finite"], broken, {})

    def stop(
        self, wrong: Sequence[str], not_finite: Sequence[str], metrics: dict[str, float]
    ) -> NoReturn:
        """Write diverged.json and end the run.

        Args:
          wrong: what is, in words. not_finite: names of the trainer's tensors that are not.
          metrics: of this iteration, as far as there are any.

        Raises:
          Diverged: always.
        """
        trainer = self.trainer
        folder = self.folder
        part = _part(wrong, not_finite, metrics)
        settings = flat(dict(self.settings))
        rates = [key.strip().removesuffix("=") for key in trainer.rates.split(",")]
        details = {
            "iteration": trainer.iteration_count,
            "env_steps": trainer.env_steps,
            "part": part,
            "lost": list(wrong),
            "not_finite": list(not_finite),
            "seed": self.seed,
            "progress": trainer.iteration_count / self.total,
            "learning_rates": {
                key: settings[key] for key in rates if settings.get(key) is not None
            },
            "metrics": _readable(metrics),
            "iterations_before": list(self._recent),
            "lost_simulations": [*self._breakdowns, *trainer.env.robots.breakdowns][-REMEMBERED:],
        }
        write_json(folder / "diverged.json", details)
        hint = f"lower the learning rate ({trainer.rates})"
        if part == "simulation":
            hint = (
                "see there which robots, and at what; gentler physics or less action noise may help"
            )
        # runs repeat bit for bit: resumed as it is, this one would diverge at the same iteration
        raise Diverged(
            f"training diverged at iteration {trainer.iteration_count} ({part}: "
            f"{', '.join(wrong)}; what led to it: "
            f"{folder / 'diverged.json'}); {hint}; the last checkpoint is sound: "
            f"resume={folder} with such a setting changed goes on from it (with none changed, to "
            "the same end)"
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
