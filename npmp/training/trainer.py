"""What the loop around an algorithm asks of it, and what collectors in other processes do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from npmp.envs import TaskEnv


class Trainer(Protocol):
    """An algorithm with its robots: collects and learns, an iteration at a time."""

    env_steps: int  # that it has collected so far
    iteration_count: int

    @property
    def env(self) -> TaskEnv[Any]:
        """The robots that it collects with."""

    def iteration(self, progress: float) -> dict[str, float]:
        """Collect and learn once; progress in [0, 1] is the share of the run done. Returns metrics
        for the log.

        Updates that it left out because of one bad batch are counted in `skipped_updates`.

        Raises:
          NonFiniteGradient: what was collected gives no gradient; the iteration does not count.
        """

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the rest of the run depends on."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was taken."""


class Gathered(NamedTuple):
    """What an iteration learns from."""

    data: Any  # the trainer's own
    figures: dict[str, float]  # of the collection, for the log
    env_steps: int


class Distributable(Trainer, Protocol):
    """A trainer whose iterations others may gather for."""

    # whether an update takes a part of every collector, each with its share of the robots
    of_all_collectors: bool
    joins: bool  # whether `merge` takes more than one part

    def gather(self, progress: float) -> Gathered:
        """One iteration's collection; it changes nothing that is learned."""

    def merge(self, parts: Sequence[Gathered]) -> Gathered:
        """Several collectors' as one."""

    def iteration(self, progress: float, gathered: Gathered | None = None) -> dict[str, float]:
        """As `Trainer.iteration`, with what others have gathered."""

    def acting_weights(self) -> dict[str, Tensor]:
        """The weights that the next collection acts on."""

    def act_as(self, weights: dict[str, Tensor]) -> None:
        """Collect by another trainer's weights, those of its `acting_weights`."""


def mean_figures(parts: Sequence[Gathered]) -> dict[str, float]:
    """Means over parts of equal size."""
    return {
        name: sum(part.figures[name] for part in parts) / len(parts) for name in parts[0].figures
    }
