"""What the loop around an algorithm asks of it: one protocol for all trainers, whose iterations
collectors in other processes may gather for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from npmp.envs.task import EnvStep
from npmp.envs.task_env import TaskEnv


class Gathered(NamedTuple):
    """What an iteration learns from."""

    data: Any  # the trainer's own
    figures: dict[str, float]  # of the collection, for the log
    env_steps: int


class Trainer(Protocol):
    """An algorithm with its robots: collects and learns, an iteration at a time."""

    # environment steps and iterations so far
    env_steps: int
    iteration_count: int
    # whether an update takes a part of every collector, each with its share of the robots
    of_all_collectors: bool
    # whether `merge` takes more than one part
    joins: bool
    # keys of the learning rates, for the hint when figures are not finite
    rates: str

    @property
    def env(self) -> TaskEnv[Any]:
        """The robots that it collects with."""

    @property
    def steps_before(self) -> int:
        """Environment steps before the first iteration."""

    @property
    def steps_each(self) -> int:
        """Environment steps per iteration, of one batch."""

    def iteration(self, progress: float, gathered: Gathered | None = None) -> dict[str, float]:
        """Learn once, from what others have gathered or it gathers itself; metrics for the log.

        progress: in [0, 1], the share of the run that is done. Updates that it left out because of
        one bad batch are counted in `skipped_updates`.

        Raises:
          NonFiniteGradient: what was collected gives no gradient; the iteration does not count.
        """

    def gather(self, progress: float) -> Gathered:
        """One iteration's collection; it changes nothing that is learned."""

    def merge(self, parts: Sequence[Gathered]) -> Gathered:
        """Several collectors' as one."""

    def acting_weights(self) -> dict[str, Tensor]:
        """The weights that the next collection acts on."""

    def act_as(self, weights: dict[str, Tensor]) -> None:
        """Collect by another trainer's `acting_weights`."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the rest of the run depends on."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was taken."""


class StepMeans:
    """Means over a collection's steps: `reward`, the task's error by its name, `failures_per_s`."""

    def __init__(self, env: TaskEnv[Any]):
        self.env = env
        self._rows: list[Tensor] = []

    def add(self, step: EnvStep, counts: Tensor | None = None) -> None:
        """A step of all robots; counts: (n,) bool, the robots that count; None: all."""
        error = step.error.nan_to_num(1.0, posinf=1.0)
        parts = torch.stack((step.rewards.nan_to_num().sum(-1), error, step.terminated.float()))
        weight = torch.ones_like(error) if counts is None else counts.float()
        self._rows.append(torch.cat((parts @ weight, weight.sum()[None])))

    def figures(self) -> dict[str, float]:
        """The means, and what else the task logs."""
        reward, error, failures, count = torch.stack(self._rows).sum(0).tolist()
        means = {"reward": reward, self.env.task.error_name: error}
        means["failures_per_s"] = failures / self.env.dt
        return {k: v / max(count, 1.0) for k, v in means.items()} | self.env.ground.figures()


def mean_figures(parts: Sequence[Gathered]) -> dict[str, float]:
    """Means over parts of equal size."""
    return {
        name: sum(part.figures[name] for part in parts) / len(parts) for name in parts[0].figures
    }
