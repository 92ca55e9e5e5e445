"""What the loop around an algorithm asks of it."""

from __future__ import annotations

from typing import Any, Protocol

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
        """Collect and learn once; progress in [0, 1] is the share of the run done. Returns metrics for the log.

        Updates that it left out because of one bad batch are counted in `skipped_updates`.

        Raises:
          NonFiniteGradient: what was collected gives no gradient; the iteration does not count.
        """

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the rest of the run depends on."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was taken."""
