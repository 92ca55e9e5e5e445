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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import ranges
from npmp.cluster import connect
from npmp.envs import TaskEnv
from npmp.training.trainer import Distributable, Gathered
from npmp.tree import map_tree

KINDS = ("ray", "inline")
COUNTS = ("actor_deaths", "thrown_away")  # figures that are counts of the run so far
WAIT_S = 1.0  # between looks while nothing comes
SILENT_S = 60.0  # of waiting, after which it is said
MOST_BARREN = 20  # deaths in a row, after which something is wrong with what they are made of


@dataclass(frozen=True)
class CollectorsConfig:
    """Who collects. Raises ValueError for values out of range, InputError for a kind that does not
    exist."""

    kind: str = "ray"
    number: int = 2
    # every batch by the newest weights, in turn: nothing is collected while the learner learns
    sync: bool = False
    learners: int = 1  # each with so many collectors
    # updates; older batches are thrown away. None: twice what goes round in step
    most_behind: int | None = None

    def __post_init__(self) -> None:
        ranges.at_least_one(
            self, "number", "learners", *(() if self.most_behind is None else ("most_behind",))
        )
        if self.kind not in KINDS:
            raise InputError(f"no actors '{self.kind}'; there are: {', '.join(KINDS)}")
        if self.learners > 1 and self.kind != "ray":
            raise InputError(
                f"learners={self.learners} are processes of Ray, as their collectors are; use actors=ray"
            )


Make = Callable[[int], Distributable]  # a trainer to collect with, by its seed


def batches_per_update(trainer: object, config: CollectorsConfig | None) -> int:
    """How many collectors' batches an update of all learners takes, each as large as one of the
    process that learns would be."""
    return batches_at_once(trainer, config) * (1 if config is None else config.learners)


def batches_at_once(trainer: object, config: CollectorsConfig | None) -> int:
    """The same, of one learner."""
    if (
        config is None
        or config.sync
        or config.kind == "inline"
        or getattr(trainer, "of_all_collectors", True)
    ):
        return 1
    return max(1, config.number // 2) if cast(Distributable, trainer).joins else 1


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

    def __init__(self, make: Make, seed: int, threads: int | None = None):
        """threads: of torch, in a process of its own."""
        if threads is not None:
            torch.set_num_threads(threads)
        self.trainer = make(seed)

    def gather(self, version: int, weights: dict[str, Any], progress: float) -> Batch:
        """A batch by these weights."""
        begun = time.perf_counter()
        self.trainer.act_as(as_tensors(weights))
        gathered = self.trainer.gather(progress)
        robots = self.trainer.env.robots
        batch = Batch(
            version, gathered, time.perf_counter() - begun, list(robots.breakdowns), robots.lost
        )
        robots.forget_breakdowns()
        return batch


class Inline:
    """Collectors in this process, in turn."""

    def __init__(self, make: Make, seeds: Sequence[int]):
        self._all = [Collector(make, seed) for seed in seeds]
        self._asked: dict[int, tuple[int, Any, float]] = {}
        self.deaths = 0

    def ask(self, i: int, version: int, weights: Any, progress: float) -> None:
        """Have collector i begin a batch."""
        self._asked[i] = version, weights, progress

    def put(self, weights: dict[str, Tensor]) -> Any:
        """Weights, as `ask` takes them."""
        return as_arrays(weights)

    def take(self, wanted: Sequence[int]) -> tuple[int, Batch] | None:
        """The next batch of one of these collectors; None while there is none."""
        i = wanted[0]
        return i, self._all[i].gather(*self._asked.pop(i))

    def close(self) -> None:
        """End them."""


class OnRay:
    """Collectors as Ray's actors, a core each."""

    def __init__(self, make: Make, seeds: Sequence[int]):
        """Raises InputError where Ray is absent or does not answer."""
        self._ray = connect("actors=ray")
        self._make, self._seeds = self._ray.put(make), list(seeds)
        self._kind = self._ray.remote(num_cpus=1, max_restarts=0)(Collector)
        self._all = [self._kind.remote(self._make, seed, threads=1) for seed in self._seeds]
        self._under_way: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self.deaths = self._barren = 0  # in all; since the last batch

    def ask(self, i: int, version: int, weights: Any, progress: float) -> None:
        """As `Inline.ask`."""
        asked = version, weights, progress
        self._under_way[i] = self._all[i].gather.remote(*asked), asked

    def put(self, weights: dict[str, Tensor]) -> Any:
        """As `Inline.put`: into Ray's object store, once for all collectors."""
        return self._ray.put(as_arrays(weights))

    def take(self, wanted: Sequence[int]) -> tuple[int, Batch] | None:
        """As `Inline.take`; waits a moment. One whose process is gone is replaced, by one with
        another seed."""
        by_reference = {self._under_way[i][0]: i for i in wanted}
        done, _ = self._ray.wait(list(by_reference), timeout=WAIT_S)
        if not done:
            return None
        i = by_reference[done[0]]
        _, asked = self._under_way.pop(i)
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
            self._all[i] = self._kind.remote(
                self._make, self._seeds[i] + 7919 * self.deaths, threads=1
            )
            self.ask(i, *asked)
            return None

    def close(self) -> None:
        """As `Inline.close`."""
        for actor in self._all:
            self._ray.kill(actor)


def as_arrays(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Tensors as other processes take them."""
    return {name: value.detach().cpu().numpy().copy() for name, value in tensors.items()}


def as_tensors(arrays: dict[str, Any]) -> dict[str, Tensor]:
    """The inverse."""
    return {name: torch.tensor(value) for name, value in arrays.items()}


class Distributed:
    """A trainer that learns from what collectors have collected; otherwise it is the trainer.

    Its figures, among a run's metrics: `staleness`, updates between the weights that a batch was
    collected by and those that it changes; so far, `actor_deaths` and batches `thrown_away`.
    """

    def __init__(self, trainer: Distributable, make: Make, config: CollectorsConfig, *, seed: int):
        """make: a trainer by its seed, to collect with."""
        self.trainer, self.config = trainer, config
        seeds = [seed + 1009 * (i + 1) for i in range(config.number)]
        self._collectors: Inline | OnRay = (Inline if config.kind == "inline" else OnRay)(
            make, seeds
        )
        self._sync = config.sync or config.kind == "inline"
        # of many collectors an update takes several batches, so that what it learns from is hardly
        # older than of two
        self._at_once = batches_at_once(trainer, config)
        self._most_behind = config.most_behind or 2 * -(-config.number // self._at_once)
        self._busy: list[int] = []  # collectors with a batch under way
        self._next = 0  # whose turn it is, where they are asked in turn
        self._weights: tuple[int, Any] | None = None  # as they were last put, and when
        self.thrown_away = 0
        self._begun, self._waited, self._collected = time.perf_counter(), 0.0, list[float]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trainer, name)

    @property
    def env(self) -> TaskEnv[Any]:
        """The learner's robots, which stand still."""
        return self.trainer.env

    def _ask(self, i: int, progress: float) -> None:
        version = self.trainer.iteration_count
        if self._weights is None or self._weights[0] != version:
            self._weights = version, self._collectors.put(self.trainer.acting_weights())
        self._collectors.ask(i, *self._weights, progress)
        self._busy.append(i)

    def _await(self, wanted: Sequence[int]) -> tuple[int, Batch]:
        begun, told = time.perf_counter(), False
        while (found := self._collectors.take(wanted)) is None:
            if not told and time.perf_counter() - begun > SILENT_S:
                print(
                    f"npmp: {SILENT_S:.0f} s without a batch of actors {wanted}; are their cores taken?",
                    file=sys.stderr,
                )
                told = True
        self._busy.remove(found[0])
        return found

    def _batches(self, progress: float) -> list[Batch]:
        """What the next update is made from."""
        number = self.config.number
        if self.trainer.of_all_collectors:
            for i in range(number):
                if i not in self._busy:
                    self._ask(i, progress)
            return [self._await([i])[1] for i in range(number)]
        if self._sync:
            i, self._next = self._next, (self._next + 1) % number
            self._ask(i, progress)
            return [self._await([i])[1]]
        for i in range(number):
            if i not in self._busy:
                self._ask(i, progress)
        batches: list[Batch] = []
        while len(batches) < self._at_once:
            i, batch = self._await(self._busy)
            if self.trainer.iteration_count - batch.version <= self._most_behind:
                batches.append(batch)
            else:
                self.thrown_away += 1
                self._ask(i, progress)
        return batches

    def iteration(self, progress: float) -> dict[str, float]:
        """As `Trainer.iteration`."""
        begun = time.perf_counter()
        batches = self._batches(progress)
        self._waited += time.perf_counter() - begun
        self._collected += [batch.seconds for batch in batches]
        if not self._sync:  # they go on while the learner learns
            for i in range(self.config.number):
                if i not in self._busy:
                    self._ask(i, progress)
        staleness = sum(self.trainer.iteration_count - batch.version for batch in batches) / len(
            batches
        )
        # which stand still; whoever looks after the run looks at them
        robots = self.trainer.env.robots
        for batch in batches:
            robots.breakdowns.extend(batch.breakdowns)
            robots.lost += batch.lost
        parts = [batch.gathered for batch in batches]
        gathered = parts[0] if len(parts) == 1 else self.trainer.merge(parts)
        device = self.trainer.env.device
        gathered = gathered._replace(data=map_tree(lambda leaf: leaf.to(device), gathered.data))
        return self.trainer.iteration(progress, gathered) | {
            "staleness": staleness,
            "actor_deaths": float(self._collectors.deaths),
            "thrown_away": float(self.thrown_away),
        }

    def timings(self) -> dict[str, float]:
        """Of this process, for the summary: the share of its time that the learner waited, and what
        a batch took its collector."""
        share = self._waited / (time.perf_counter() - self._begun)
        mean = sum(self._collected) / len(self._collected) if self._collected else 0.0
        return {"waited_share": round(share, 3), "collect_s": round(mean, 4)}

    def state_dict(self) -> dict[str, Tensor]:
        """The learner's; collectors begin anew."""
        return self.trainer.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """As `Trainer.load_state_dict`."""
        self.trainer.load_state_dict(state)

    def close(self) -> None:
        """End the collectors."""
        self._collectors.close()
