"""Shared keys of training runs, and the library's objects for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npmp.core import plugins, ranges
from npmp.core.settings import from_value
from npmp.experiments.backend import Simulating
from npmp.experiments.command import Run, refuse_idle
from npmp.learning.collectors import CollectorsConfig
from npmp.learning.live import LiveLine
from npmp.learning.run import Caller


@dataclass(frozen=True, kw_only=True)
class Training(Simulating):
    """Keys of training runs."""

    # robots simulated at once; null: the algorithm's default
    num_envs: int | None = None
    # iterations between checkpoints
    checkpoint_every: int = 50
    # a copy of metrics.csv: tensorboard, wandb (an extra; offline unless WANDB_MODE is set)
    # or none
    logger: str = "tensorboard"
    # a run folder to continue; overrides change its config.yaml
    resume: Path | None = None
    # a named set of settings: a file of conf/experiment, or of experiment/ in --config-dir
    experiment: str | None = None
    # a sweep of several runs: a file of conf/sweep, or of sweep/ in --config-dir
    sweep: str | None = None
    # collectors: null, the learner's process; ray, other processes; inline, for tests
    actors: str | None = None
    # number of collectors
    num_actors: int = 2
    # true: collect only while the learner waits, so that runs repeat bit for bit
    actors_sync: bool = False
    # largest age of a batch's weights [updates], beyond which it is discarded; null: 4, or more
    # with more actors
    most_behind: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(
            self, "steps", "checkpoint_every", "num_actors", "num_envs", "most_behind"
        )


@dataclass(frozen=True)
class TermKeys:
    """Keys of a reward term."""

    # factor of its value
    weight: float


def weights_of(run: Run) -> dict[str, float]:
    """The weights that task.rewards.NAME.weight sets, by name. Raises InputError for another key or
    value."""
    rewards = (run.values.get("task") or {}).get("rewards", {})
    terms = from_value(Mapping[str, TermKeys], rewards, "task.rewards")
    return {name: term.weight for name, term in terms.items()}


def collectors_of(config: Training, run: Run) -> CollectorsConfig | None:
    """Settings of the collectors; None if the learner's process collects.

    Raises:
      InputError: for an unknown kind, or settings of collectors without actors=.
    """
    if config.actors is None:
        if "actors" not in run.overridden:
            why = "needs actors=ray, or actors=inline"
            refuse_idle(run, why, "num_actors", "actors_sync", "most_behind")
        return None
    return CollectorsConfig(
        config.actors, config.num_actors, sync=config.actors_sync, most_behind=config.most_behind
    )


def shared_settings(config: Any, run: Run) -> dict[str, Any]:
    """The keys of `RunSettings` that imitate and reuse share."""
    return {
        "algo": config.algo,
        "num_envs": config.num_envs,
        "weights": weights_of(run),
        "steps": config.steps,
        "evaluate_every": config.evaluation.every,
        "checkpoint_every": config.checkpoint_every,
        "collectors": collectors_of(config, run),
        "logger": config.logger,
        **run.place,
    }


def caller_of(run: Run) -> Caller:
    """The `Caller` of a command: its name, settings and progress line."""
    task = run.chosen.get("task")
    named = f" task={task}" if task in plugins.loaded_tasks() else ""
    return Caller(
        command=f"npmp {run.verb}{named}",
        settings=dict(run.values),
        on_start=run.begin,
        progress=LiveLine(),
    )
