"""One learner, many collectors: processes with robots of their own, which act on weights that are a
little old.

Asynchronous, as IMPALA: every collector has at most one batch under way, so the queue is bounded by
their number, and with it the age of what is learned from; it is measured, and what is too old is
thrown away. Of many collectors an update takes several batches. A collector that dies is replaced.
`inline` makes the same collections in the learner's process, one after the other: with `sync` Ray's
collectors give the same bits.
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
from npmp.learning.trainer import Gathered, Trainer

KINDS = ("ray", "inline")
WAIT_S = 1.0  # between looks while nothing comes
SILENT_S = 60.0  # of waiting, after which a line says so
MOST_BARREN = 20  # deaths in a row, after which something is wrong with what they are made of


@dataclass(frozen=True)
class CollectorsConfig:
    """What collects. Raises ValueError for values out of range, InputError for a kind that does not
    exist."""

    # "ray": processes of their own; "inline": in the learner's process, in turn
    kind: str = "ray"
    number: int = 2
    # every batch by the newest weights, in turn: nothing is collected while the learner learns
    sync: bool = False
    # updates; older batches are thrown away. None: twice what goes round in step
    most_behind: int | None = None

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "number", "most_behind")
        check_available("actors", [self.kind], KINDS)

    @property
    def in_turn(self) -> bool:
        """Whether nothing is collected while the learner learns."""
        return self.sync or self.kind == "inline"

    def batches(self, trainer: Trainer) -> int:
        """How many batches an update takes: of many collectors several, so that what it learns from
        is hardly older than of two."""
        whole = self.in_turn or trainer.of_all_collectors or not trainer.joins
        return 1 if whole else max(1, self.number // 2)


Make = Callable[[int, int], Trainer]  # a trainer to collect with, by its robots and its seed


@dataclass(frozen=True)
class Batch:
    """What one collector has collected."""

    version: int  # of the weights that it acted on: updates of the learner before
    gathered: Gathered
    seconds: float  # that it took
    breakdowns: list[dict[str, Any]]  # of simulations meanwhile, those remembered
    lost: int  # how many there were


class Collector:
    """A trainer that only collects."""

    def __init__(self, make: Make, robots: int, seed: int, threads: int | None = None):
        """threads: of torch, in a process of its own."""
        if threads is not None:
            torch.set_num_threads(threads)
        self.trainer = make(robots, seed)

    def gather(self, version: int, weights: dict[str, Any], progress: float) -> Batch:
        begun = time.perf_counter()
        robots = self.trainer.env.robots
        self.trainer.act_as({name: torch.tensor(value) for name, value in weights.items()})
        gathered = self.trainer.gather(progress)
        spent = time.perf_counter() - begun
        batch = Batch(version, gathered, spent, list(robots.breakdowns), robots.lost)
        robots.forget_breakdowns()
        return batch


def as_arrays(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Tensors as other processes take them."""
    return {name: value.detach().cpu().numpy().copy() for name, value in tensors.items()}


class Inline:
    """Collectors in this process, in turn."""

    deaths = 0
    put = staticmethod(as_arrays)

    def __init__(self, make: Make, robots: int, seeds: Sequence[int]):
        self._all = [Collector(make, robots, seed) for seed in seeds]
        self._requests: dict[int, tuple[int, Any, float]] = {}

    def request(self, i: int, version: int, weights: Any, progress: float) -> None:
        """Have collector i begin a batch by weights, as `put` gives them."""
        self._requests[i] = version, weights, progress

    def take(self, wanted: Sequence[int]) -> tuple[int, Batch] | None:
        """The next batch of one of these collectors; None while there is none."""
        i = wanted[0]
        return i, self._all[i].gather(*self._requests.pop(i))

    def close(self) -> None:
        """End them."""


class OnRay:
    """Collectors as Ray's actors, a core each."""

    def __init__(self, make: Make, robots: int, seeds: Sequence[int]):
        """Raises InputError where Ray is absent, does not answer or has too few cores."""
        self._ray = connect("actors=ray")
        if (cores := int(self._ray.cluster_resources().get("CPU", 0))) < len(seeds):
            raise InputError(f"num_actors={len(seeds)}: a core each is needed, Ray has {cores}")
        kind = self._ray.remote(num_cpus=1, max_restarts=0)(Collector)
        make_ref = self._ray.put(make)
        self._new = lambda seed: kind.remote(make_ref, robots, seed, threads=1)
        self._seeds = list(seeds)
        self._all = [self._new(seed) for seed in seeds]
        self._under_way: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self.deaths = self._barren = 0  # in all; since the last batch

    def put(self, weights: dict[str, Tensor]) -> Any:
        """Weights as `request` takes them: in Ray's object store, once for all collectors."""
        return self._ray.put(as_arrays(weights))

    def request(self, i: int, *args: Any) -> None:
        self._under_way[i] = self._all[i].gather.remote(*args), args

    def take(self, wanted: Sequence[int]) -> tuple[int, Batch] | None:
        """As `Inline.take`; waits a moment. A collector whose process is gone is replaced, by one
        with another seed."""
        by_reference = {self._under_way[i][0]: i for i in wanted}
        done, _ = self._ray.wait(list(by_reference), timeout=WAIT_S)
        if not done:
            return None
        i = by_reference[done[0]]
        _, args = self._under_way.pop(i)
        try:
            batch = self._ray.get(done[0])
            self._barren = 0
            return i, batch
        except self._ray.exceptions.RayTaskError:
            raise  # of our own making
        except self._ray.exceptions.RayError as error:  # its process or node is gone
            if "creation task" in str(error):  # an error of our own making
                raise RuntimeError(f"a collector could not be made: {error}") from error
            self.deaths += 1
            self._barren += 1
            if self._barren > MOST_BARREN:
                raise RuntimeError(
                    f"{self._barren} collectors died before they had collected anything"
                ) from error
            self._all[i] = self._new(self._seeds[i] + 7919 * self.deaths)
            self.request(i, *args)
            return None

    def close(self) -> None:
        for actor in self._all:
            self._ray.kill(actor)


class Distributed:
    """A trainer that learns from what collectors have collected; otherwise it is the trainer.

    Its figures, among a run's metrics: `staleness`, updates between the weights that a batch was
    collected by and those that it changes; so far, `actor_deaths` and batches `thrown_away`.
    """

    def __init__(
        self, trainer: Trainer, make: Make, config: CollectorsConfig, *, robots: int, seed: int
    ):
        """make: a trainer to collect with. robots: of each collector."""
        self.trainer = trainer
        self.config = config
        seeds = [seed + 1009 * (i + 1) for i in range(config.number)]
        kind = Inline if config.kind == "inline" else OnRay
        self._collectors: Inline | OnRay = kind(make, robots, seeds)
        self._at_once = config.batches(trainer)
        self._most_behind = config.most_behind or 2 * -(-config.number // self._at_once)
        self._busy: list[int] = []  # collectors with a batch under way
        self._next = 0  # the next in turn, where batches come in turn
        self._weights: tuple[int, Any] | None = None  # as they were last put, and when
        self.thrown_away = 0
        self._begun = time.perf_counter()
        self._waited = 0.0
        self._collected = list[float]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trainer, name)

    def _request(self, wanted: Sequence[int], progress: float) -> None:
        """Have those of these collectors that are idle begin a batch."""
        version = self.trainer.iteration_count
        for i in wanted:
            if i not in self._busy:
                if self._weights is None or self._weights[0] != version:
                    self._weights = version, self._collectors.put(self.trainer.acting_weights())
                self._collectors.request(i, *self._weights, progress)
                self._busy.append(i)

    def _await(self, wanted: Sequence[int]) -> tuple[int, Batch]:
        """The collector that is ready first of these, and its batch."""
        begun = time.perf_counter()
        warned = False
        while (result := self._collectors.take(wanted)) is None:
            if not warned and time.perf_counter() - begun > SILENT_S:
                print(
                    f"npmp: {SILENT_S:.0f} s without a batch of actors {wanted}; "
                    "are their cores taken?",
                    file=sys.stderr,
                )
                warned = True
        self._busy.remove(result[0])
        return result

    def _batches(self, progress: float) -> list[Batch]:
        """What the next update is made from."""
        each = range(self.config.number)
        if self.trainer.of_all_collectors:
            self._request(each, progress)
            return [self._await([i])[1] for i in each]
        if self.config.in_turn:
            i, self._next = self._next, (self._next + 1) % self.config.number
            self._request([i], progress)
            return [self._await([i])[1]]
        batches: list[Batch] = []
        self._request(each, progress)
        while len(batches) < self._at_once:
            i, batch = self._await(self._busy)
            if self.trainer.iteration_count - batch.version <= self._most_behind:
                batches.append(batch)
            else:
                self.thrown_away += 1
                self._request([i], progress)
        return batches

    def iteration(self, progress: float) -> dict[str, float]:
        begun = time.perf_counter()
        trainer = self.trainer
        batches = self._batches(progress)
        self._waited += time.perf_counter() - begun
        self._collected += [batch.seconds for batch in batches]
        if not self.config.in_turn:  # they go on while the learner learns
            self._request(range(self.config.number), progress)
        behind = sum(trainer.iteration_count - batch.version for batch in batches) / len(batches)
        # these robots stand still; the guard of the run looks at them
        for batch in batches:
            trainer.env.robots.breakdowns.extend(batch.breakdowns)
            trainer.env.robots.lost += batch.lost
        parts = [batch.gathered for batch in batches]
        gathered = parts[0] if len(parts) == 1 else trainer.merge(parts)
        device = trainer.env.device
        gathered = gathered._replace(data=map_tree(lambda leaf: leaf.to(device), gathered.data))
        return trainer.iteration(progress, gathered) | {
            "staleness": behind,
            "actor_deaths": float(self._collectors.deaths),
            "thrown_away": float(self.thrown_away),
        }

    def timings(self) -> dict[str, float]:
        """Of this process, for the summary: the share of its time that the learner waited, and what
        a batch took its collector."""
        share = self._waited / (time.perf_counter() - self._begun)
        mean = sum(self._collected) / len(self._collected) if self._collected else 0.0
        return {"waited_share": round(share, 3), "collect_s": round(mean, 4)}

    def close(self) -> None:
        self._collectors.close()


@contextmanager
def distributed(
    trainer: Trainer, make: Make, config: CollectorsConfig | None, *, robots: int, seed: int
) -> Iterator[Trainer]:
    """The trainer as it is, or, with a configuration, with collectors for as long as this lasts.

    robots: of an iteration. Each collector has as many, or its share where all are one batch.

    Raises:
      InputError: for robots that cannot be shared out evenly.
    """
    if config is None:
        yield trainer
        return
    each = robots
    if trainer.of_all_collectors:
        each, rest = divmod(robots, config.number)
        if rest:
            raise InputError(
                f"{robots} robots (num_envs) do not divide evenly by num_actors={config.number}"
            )
    at_work = Distributed(trainer, make, config, robots=each, seed=seed)
    try:
        yield cast(Trainer, at_work)
    finally:
        at_work.close()
