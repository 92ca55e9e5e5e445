"""The base class of all trainers: collect experience, learn from it, an iteration at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from npmp.core.state import Resumable
from npmp.envs.task import EnvStep, Task
from npmp.envs.task_env import TaskEnv


class Experience(NamedTuple):
    """The data that one iteration learns from."""

    data: Any  # the trainer's own type
    metrics: dict[str, float]  # of the collection
    env_steps: int


class Trainer(Resumable, ABC):
    """An algorithm with its environment: collects and learns, an iteration at a time."""

    env: TaskEnv[Any]  # used for collection
    acting_net: nn.Module  # the network that collects
    config: Any
    # totals so far
    env_steps: int
    iteration_count: int
    # whether an update needs a part of every collector, each with its share of the robots
    needs_all_collectors: bool
    # config keys of the learning rates, "a=, b=", for the message of a diverged run
    learning_rate_keys: str
    # environment steps before the first iteration
    env_steps_before = 0
    # an imitation task whose motions the trainer uses besides its environment
    recordings: Task | None = None

    @property
    def env_steps_per_iteration(self) -> int:
        """Environment steps of one collection."""
        return self.env.num_envs * int(self.config.unroll)

    @abstractmethod
    def iteration(self, progress: float, experience: Experience | None = None) -> dict[str, float]:
        """Learn from an experience, by default from one collected here; return metrics.

        progress: share of the run that is done, in [0, 1]. The metric `skipped_updates` counts
        updates that were skipped because of a bad batch.

        Raises:
          NonFiniteGradient: the experience gives no finite gradient; the iteration does not count.
        """

    @abstractmethod
    def collect_experience(self, progress: float) -> Experience:
        """One iteration's collection; changes no learned weights."""

    def merge(self, parts: Sequence[Experience]) -> Experience:
        """Experiences of several collectors as one, their robots side by side."""
        data = self.merge_data([part.data for part in parts])
        return Experience(data, mean_metrics(parts), sum(part.env_steps for part in parts))

    @abstractmethod
    def merge_data(self, data: list[Any]) -> Any:
        """The `data` of several experiences as one, their robots side by side."""

    def acting_weights(self) -> dict[str, Tensor]:
        """The weights that the next collection acts on."""
        return self.acting_net.state_dict()

    def load_acting_weights(self, weights: dict[str, Tensor]) -> None:
        """Collect with another trainer's `acting_weights`."""
        self.acting_net.load_state_dict(weights)


class StepMeans:
    """Means over a collection's steps: `reward`, the task's error by its name, `failures_per_s`."""

    def __init__(self, env: TaskEnv[Any]):
        self.env = env
        self._rows: list[Tensor] = []

    def add(self, step: EnvStep, mask: Tensor | None = None) -> None:
        """Add a step of all robots, or of those in `mask`, (n,) bool."""
        error = step.error.nan_to_num(1.0, posinf=1.0)
        values = torch.stack((step.rewards.nan_to_num().sum(-1), error, step.terminated.float()))
        weight = torch.ones_like(error) if mask is None else mask.float()
        self._rows.append(torch.cat((values @ weight, weight.sum()[None])))

    def metrics(self) -> dict[str, float]:
        """The means, and the metrics of the ground."""
        reward, error, failures, count = torch.stack(self._rows).sum(0).tolist()
        sums = {"reward": reward, self.env.task.error_name: error}
        sums["failures_per_s"] = failures / self.env.dt
        means = {name: value / max(count, 1.0) for name, value in sums.items()}
        return means | self.env.ground.figures()


def mean_metrics(parts: Sequence[Experience]) -> dict[str, float]:
    """Means over parts of equal size."""
    return {
        name: sum(part.metrics[name] for part in parts) / len(parts) for name in parts[0].metrics
    }
