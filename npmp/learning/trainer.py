"""What the loop around an algorithm asks of it: one base of all trainers, whose iterations
collectors in other processes may gather for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from npmp.core.state import Resumable
from npmp.envs.task import EnvStep, Task
from npmp.envs.task_env import TaskEnv


class Gathered(NamedTuple):
    """What an iteration learns from."""

    data: Any  # the trainer's own
    figures: dict[str, float]  # of the collection, for the log
    env_steps: int


class Trainer(Resumable, ABC):
    """An algorithm with its robots: collects and learns, an iteration at a time."""

    env: TaskEnv[Any]  # the robots that it collects with
    acting_net: nn.Module  # what it collects by
    config: Any
    # environment steps and iterations so far
    env_steps: int
    iteration_count: int
    # whether an update takes a part of every collector, each with its share of the robots
    of_all_collectors: bool
    # whether `merge` takes more than one part
    joins = True
    # keys of the learning rates, for the hint when figures are not finite
    rates: str
    # environment steps before the first iteration, and an imitation task to make them with
    steps_before = 0
    recordings: Task | None = None

    @property
    def steps_each(self) -> int:
        """Environment steps per iteration, of one batch."""
        return self.env.num_envs * int(self.config.unroll)

    @abstractmethod
    def iteration(self, progress: float, gathered: Gathered | None = None) -> dict[str, float]:
        """Learn once, from what others have gathered or it gathers itself; metrics for the log.

        progress: in [0, 1], the share of the run that is done. Updates that it left out because of
        one bad batch are counted in `skipped_updates`.

        Raises:
          NonFiniteGradient: what was collected gives no gradient; the iteration does not count.
        """

    @abstractmethod
    def gather(self, progress: float) -> Gathered:
        """One iteration's collection; it changes nothing that is learned."""

    def merge(self, parts: Sequence[Gathered]) -> Gathered:
        """Several collectors' as one: their robots side by side."""
        data = self.joined([part.data for part in parts])
        return Gathered(data, mean_figures(parts), sum(part.env_steps for part in parts))

    @abstractmethod
    def joined(self, data: list[Any]) -> Any:
        """The data of collections, as of one with all their robots."""

    def acting_weights(self) -> dict[str, Tensor]:
        """The weights that the next collection acts on."""
        return self.acting_net.state_dict()

    def act_as(self, weights: dict[str, Tensor]) -> None:
        """Collect by another trainer's `acting_weights`."""
        self.acting_net.load_state_dict(weights)


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
