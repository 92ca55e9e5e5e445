"""Distributed collection: one learner, several collectors, each with an environment of its own.

Asynchronous as in IMPALA (Espeholt et al. 2018): each collector has at most one batch in progress,
which bounds the queue and the staleness of its batches. Staleness is logged; batches that are too
stale are discarded. A collector whose process dies is replaced. `inline` runs the collectors in the
learner's process; with `sync`, Ray's collectors give the same bits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from mocap_data.errors import InputError, check_available
from npmp.core import ranges
from npmp.core.cluster import connect
from npmp.core.tree import map_tree
from npmp.learning.trainer import Experience, Trainer

KINDS = ("ray", "inline")
POLL_S = 1.0
WARN_AFTER_S = 60.0  # without a batch
MAX_FAILURES = 20  # consecutive deaths of collectors without a batch


@dataclass(frozen=True)
class CollectorsConfig:
    """Settings of the collectors.

    Raises:
      ValueError: for values out of range.
      InputError: for an unknown kind.
    """

    # "ray": processes; "inline": the learner's process, one after the other
    kind: str = "ray"
    number: int = 2
    # each batch on the newest weights: collection waits for the learner
    sync: bool = False
    # updates; older batches are discarded. None: twice the updates of one round
    most_behind: int | None = None

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "number", "most_behind")
        check_available("actors", [self.kind], KINDS)

    @property
    def synchronous(self) -> bool:
        """Whether collection waits for the learner."""
        return self.sync or self.kind == "inline"

    def batches_per_update(self, trainer: Trainer) -> int:
        """Half as many as collectors, which keeps staleness that of two collectors; else 1."""
        if self.synchronous or trainer.needs_all_collectors:
            return 1
        return max(1, self.number // 2)


MakeTrainer = Callable[[int, int], Trainer]  # (num_envs, seed) -> a trainer that collects


@dataclass(frozen=True)
class Batch:
    """The result of one collection."""

    version: int  # version of the weights: the learner's updates before them
    experience: Experience
    seconds: float
    breakdowns: list[dict[str, Any]]  # the latest breakdowns of simulations
    lost_simulations: int


class Collector:
    """A trainer that only collects."""

    def __init__(self, make: MakeTrainer, num_envs: int, seed: int, threads: int | None = None):
        """threads: torch threads of this process; None: unchanged."""
        if threads is not None:
            torch.set_num_threads(threads)
        self.trainer = make(num_envs, seed)

    def collect(self, version: int, weights: dict[str, Any], progress: float) -> Batch:
        start = time.perf_counter()
        robots = self.trainer.env.robots
        self.trainer.load_acting_weights(
            {name: torch.tensor(value) for name, value in weights.items()}
        )
        experience = self.trainer.collect_experience(progress)
        seconds = time.perf_counter() - start
        batch = Batch(version, experience, seconds, list(robots.breakdowns), robots.lost)
        robots.clear_breakdowns()
        return batch


def to_numpy(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Copies of tensors as arrays, for other processes."""
    return {name: value.detach().cpu().numpy().copy() for name, value in tensors.items()}


class InlineCollectors:
    """Collectors in this process."""

    deaths = 0
    publish = staticmethod(to_numpy)

    def __init__(self, make: MakeTrainer, num_envs: int, seeds: Sequence[int]):
        self._collectors = [Collector(make, num_envs, seed) for seed in seeds]
        self._requests: dict[int, tuple[int, Any, float]] = {}

    def submit(self, i: int, version: int, weights: Any, progress: float) -> None:
        """Start a batch of collector i; weights: from `publish`."""
        self._requests[i] = (version, weights, progress)

    def poll(self, ids: Sequence[int]) -> tuple[int, Batch] | None:
        """The next batch of one of these collectors, and its collector; None: not ready."""
        i = ids[0]
        return i, self._collectors[i].collect(*self._requests.pop(i))

    def close(self) -> None:
        """Stop the collectors."""


class RayCollectors:
    """Collectors as Ray actors, one core each."""

    def __init__(self, make: MakeTrainer, num_envs: int, seeds: Sequence[int]):
        """Raises InputError if Ray is missing, does not answer or has too few cores."""
        self._ray = connect("actors=ray")
        cores = int(self._ray.cluster_resources().get("CPU", 0))
        if cores < len(seeds):
            raise InputError(f"num_actors={len(seeds)}: needs one core each, Ray has {cores}")
        actor_class = self._ray.remote(num_cpus=1, max_restarts=0)(Collector)
        make_ref = self._ray.put(make)
        self._start = lambda seed: actor_class.remote(make_ref, num_envs, seed, threads=1)
        self._seeds = list(seeds)
        self._actors = [self._start(seed) for seed in seeds]
        self._pending: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self.deaths = 0
        self._failures = 0  # since the last batch

    def publish(self, weights: dict[str, Tensor]) -> Any:
        """Put weights into Ray's object store, once for all collectors."""
        return self._ray.put(to_numpy(weights))

    def submit(self, i: int, *request: Any) -> None:
        self._pending[i] = (self._actors[i].collect.remote(*request), request)

    def poll(self, ids: Sequence[int]) -> tuple[int, Batch] | None:
        """As `InlineCollectors.poll`, within `POLL_S`. A dead collector is replaced by one with
        another seed."""
        owners = {self._pending[i][0]: i for i in ids}
        ready, _ = self._ray.wait(list(owners), timeout=POLL_S)
        if not ready:
            return None
        i = owners[ready[0]]
        _, request = self._pending.pop(i)
        try:
            batch = self._ray.get(ready[0])
        except self._ray.exceptions.RayTaskError:
            raise  # raised by `collect`
        except self._ray.exceptions.RayError as error:  # the process or node is gone
            if "creation task" in str(error):  # raised by the constructor
                raise RuntimeError(f"a collector could not be created: {error}") from error
            self._replace(i, error)
            self.submit(i, *request)
            return None
        self._failures = 0
        return i, batch

    def _replace(self, i: int, error: Exception) -> None:
        self.deaths += 1
        self._failures += 1
        if self._failures > MAX_FAILURES:
            raise RuntimeError(f"{self._failures} collectors died without a batch") from error
        self._actors[i] = self._start(self._seeds[i] + 7919 * self.deaths)

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)


class DistributedTrainer:
    """Wraps a trainer: its iterations learn from the batches of collectors.

    Adds metrics: `staleness`, the updates between the weights that collected a batch and those that
    it changes; `actor_deaths` and `thrown_away` (discarded batches), totals so far.
    """

    def __init__(
        self,
        trainer: Trainer,
        make: MakeTrainer,
        config: CollectorsConfig,
        *,
        num_envs: int,
        seed: int,
    ):
        """make: creates the collectors' trainers. num_envs: of each collector."""
        self.trainer = trainer
        self.config = config
        seeds = [seed + 1009 * (i + 1) for i in range(config.number)]
        kind = InlineCollectors if config.kind == "inline" else RayCollectors
        self._collectors: InlineCollectors | RayCollectors = kind(make, num_envs, seeds)
        self._batches_per_update = config.batches_per_update(trainer)
        round_updates = -(-config.number // self._batches_per_update)
        self._max_staleness = config.most_behind or 2 * round_updates
        self._busy: list[int] = []  # collectors with a batch in progress
        self._next = 0  # the next collector, if synchronous
        self._published: tuple[int, Any] | None = None  # version and weights
        self.num_discarded = 0
        self._start = time.perf_counter()
        self._waited_s = 0.0
        self._collect_s: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trainer, name)

    def _submit(self, ids: Sequence[int], progress: float) -> None:
        """Start a batch of each of these collectors that is idle."""
        version = self.trainer.iteration_count
        for i in ids:
            if i not in self._busy:
                if self._published is None or self._published[0] != version:
                    weights = self._collectors.publish(self.trainer.acting_weights())
                    self._published = (version, weights)
                self._collectors.submit(i, *self._published, progress)
                self._busy.append(i)

    def _wait(self, ids: Sequence[int]) -> tuple[int, Batch]:
        """Wait for the first batch of these collectors."""
        start = time.perf_counter()
        warned = False
        while (result := self._collectors.poll(ids)) is None:
            if not warned and time.perf_counter() - start > WARN_AFTER_S:
                print(
                    f"npmp: no batch of actors {ids} for {WARN_AFTER_S:.0f} s; "
                    "are their cores busy?",
                    file=sys.stderr,
                )
                warned = True
        self._busy.remove(result[0])
        return result

    def _next_batches(self, progress: float) -> list[Batch]:
        """The batches of the next update."""
        everyone = range(self.config.number)
        if self.trainer.needs_all_collectors:
            self._submit(everyone, progress)
            return [self._wait([i])[1] for i in everyone]
        if self.config.synchronous:
            i = self._next
            self._next = (i + 1) % self.config.number
            self._submit([i], progress)
            return [self._wait([i])[1]]
        batches: list[Batch] = []
        self._submit(everyone, progress)
        while len(batches) < self._batches_per_update:
            i, batch = self._wait(self._busy)
            if self.trainer.iteration_count - batch.version <= self._max_staleness:
                batches.append(batch)
            else:
                self.num_discarded += 1
                self._submit([i], progress)
        return batches

    def iteration(self, progress: float) -> dict[str, float]:
        start = time.perf_counter()
        trainer = self.trainer
        batches = self._next_batches(progress)
        self._waited_s += time.perf_counter() - start
        self._collect_s += [batch.seconds for batch in batches]
        if not self.config.synchronous:
            self._submit(range(self.config.number), progress)
        ages = [trainer.iteration_count - batch.version for batch in batches]
        # the learner's own robots stand still; the run's guard reads its counts there
        for batch in batches:
            trainer.env.robots.breakdowns.extend(batch.breakdowns)
            trainer.env.robots.lost += batch.lost_simulations
        parts = [batch.experience for batch in batches]
        experience = parts[0] if len(parts) == 1 else trainer.merge(parts)
        device = trainer.env.device
        data = map_tree(lambda leaf: leaf.to(device), experience.data)
        return trainer.iteration(progress, experience._replace(data=data)) | {
            "staleness": sum(ages) / len(ages),
            "actor_deaths": float(self._collectors.deaths),
            "thrown_away": float(self.num_discarded),
        }

    def timings(self) -> dict[str, float]:
        """`waited_share`, of the learner's time, and `collect_s`, the mean duration of a batch."""
        share = self._waited_s / (time.perf_counter() - self._start)
        mean = sum(self._collect_s) / max(len(self._collect_s), 1)
        return {"waited_share": round(share, 3), "collect_s": round(mean, 4)}

    def close(self) -> None:
        self._collectors.close()


@contextmanager
def distributed(
    trainer: Trainer,
    make: MakeTrainer,
    config: CollectorsConfig | None,
    *,
    num_envs: int,
    seed: int,
) -> Iterator[Trainer]:
    """The trainer with collectors while the context lasts; unchanged without a config.

    num_envs: of the run. Each collector simulates as many, or its share if an update needs a part
    of every collector.

    Raises:
      InputError: if `num_envs` cannot be divided evenly.
    """
    if config is None:
        yield trainer
        return
    if trainer.needs_all_collectors:
        num_envs, rest = divmod(num_envs, config.number)
        if rest:
            raise InputError(
                f"num_envs={num_envs * config.number + rest}: must be a multiple of "
                f"num_actors={config.number}"
            )
    wrapped = DistributedTrainer(trainer, make, config, num_envs=num_envs, seed=seed)
    try:
        yield cast(Trainer, wrapped)
    finally:
        wrapped.close()
