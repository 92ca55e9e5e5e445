"""Samples per second of one collector and more with a learner
that only counts, what they send, and what a learner takes for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from torch import Tensor

from mocap_data import MotionSet
from npmp import robots
from npmp.devices import cpus
from npmp.envs import TaskEnv
from npmp.experiments import imitate
from npmp.experiments.benchmarks import motions_of, parser, settings, show
from npmp.experiments.command import Run
from npmp.experiments.terminal import say
from npmp.robots import Robot
from npmp.tasks.imitation import Imitation
from npmp.training.collectors import CollectorsConfig, Distributed
from npmp.training.imitation import ImitationSettings, make_trainer
from npmp.training.trainer import Distributable, Gathered


def main(arguments: list[str] | None = None) -> None:
    """Measure and show the figures."""
    options = parser(__doc__)
    options.add_argument(
        "--actors", type=int, nargs="+", default=[1, 2], help="how many collectors, as Ray's actors"
    )
    options.add_argument("--rounds", type=int, default=3, help="of all counts, which take turns")
    options.add_argument("--seconds", type=float, default=10.0, help="of each count in each round")
    given = options.parse_args(arguments)
    config, run = settings(imitate.main, given.keys, [("data", "none"), ("threads", "1")])
    show("actors", config.robot, measure(config, run, given))


def measure(config: imitate.Imitate, run: Run, given: Any) -> dict[str, Any]:
    """The figures. Counts of collectors take turns, so that a busy machine slows all alike; medians
    over the rounds."""
    robot, counts = robots.load(config.robot), list(given.actors)
    whole, motions = imitate.settings_of(config, run), motions_of(given.data, robot)
    rates: dict[int, list[float]] = {count: [] for count in counts}
    staleness: dict[int, float] = {}
    for _ in range(given.rounds):
        for count in counts:
            rate, staleness[count] = _rate(robot, motions, whole, count, given.seconds, run.seed)
            rates[count].append(rate)
            say(f"{count} collectors: {rate:,.0f} steps/s, staleness {staleness[count]:.2f}")
    median = {count: statistics.median(found) for count, found in rates.items()}
    return {
        "algo": whole.algorithm,
        "cpus": cpus(),
        "samples_per_s": {str(count): round(rate, 1) for count, rate in median.items()},
        "ratio": {str(count): round(rate / median[counts[0]], 3) for count, rate in median.items()},
        "staleness": {str(count): round(value, 2) for count, value in staleness.items()},
        **_costs(robot, motions, whole, run.seed),
    }


class Counting:
    """A trainer that learns nothing and takes no time for it."""

    def __init__(self, trainer: Distributable):
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    @property
    def iteration_count(self) -> int:
        """As `Trainer.iteration_count`."""
        return self._trainer.iteration_count

    def iteration(self, progress: float, gathered: Gathered) -> dict[str, float]:
        """As `Distributable.iteration`."""
        self._trainer.iteration_count += 1
        self._trainer.env_steps += gathered.env_steps
        return {}


def _trainer(
    robot: Robot, motions: MotionSet, settings: ImitationSettings, n: int, seed: int
) -> Distributable:
    task = Imitation(robot, settings.task, motions)
    env = TaskEnv(task, n, robots=settings.robots, seed=seed, **settings.place)
    return make_trainer(settings, env, seed)[0]


def _rate(
    robot: Robot,
    motions: MotionSet,
    settings: ImitationSettings,
    count: int,
    seconds: float,
    seed: int,
) -> tuple[float, float]:
    """Environment steps per second, and the mean staleness of batches."""
    n = settings.robots_at_once
    learner: Any = Counting(_trainer(robot, motions, settings, n, seed))
    each = n // count if learner.of_all_collectors else n

    def make(own: int) -> Distributable:
        return _trainer(robot, motions, settings, each, own)

    trainer = Distributed(learner, make, CollectorsConfig("ray", count), seed=seed)
    try:
        for _ in range(2 * count):  # until all of them are at work
            trainer.iteration(0.0)
        begun, before, seen = time.perf_counter(), learner.env_steps, []
        while time.perf_counter() - begun < seconds:
            seen.append(trainer.iteration(0.0)["staleness"])
        return (learner.env_steps - before) / (time.perf_counter() - begun), statistics.mean(seen)
    finally:
        trainer.close()


def _costs(
    robot: Robot, motions: MotionSet, settings: ImitationSettings, seed: int
) -> dict[str, float]:
    """What a collector sends for each step and is sent, and what a learner makes of its batches."""
    trainer = _trainer(robot, motions, settings, settings.robots_at_once, seed)
    if hasattr(trainer, "warm_up"):
        trainer.warm_up()
    spent = []
    for _ in range(4):
        gathered = trainer.gather(0.0)
        size = _bytes(gathered.data)
        begun = time.perf_counter()
        trainer.iteration(0.0, gathered)
        spent.append(time.perf_counter() - begun)
    weights = sum(
        value.numel() * value.element_size() for value in trainer.acting_weights().values()
    )
    return {
        "bytes_per_step": round(size / gathered.env_steps, 1),
        "weights_bytes": weights,
        "learner_steps_per_s": round(gathered.env_steps / statistics.median(spent[1:]), 1),
    }


def _bytes(tree: Any) -> int:
    """Of a tree's tensors."""
    if isinstance(tree, Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, Mapping):
        return sum(map(_bytes, tree.values()))
    if isinstance(tree, tuple | list):
        return sum(map(_bytes, tree))
    return _bytes(vars(tree)) if is_dataclass(tree) else 0


if __name__ == "__main__":
    main()
