"""Several learners of one policy, each with collectors of its own: they average their gradients
after every batch.

What torch's DistributedDataParallel does, for trainers that call more of their networks than
`forward`. The first learner is the run's process: it alone judges, logs and writes; the others do
as it does, as Ray's actors, each on a GPU of its own where the run has them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Protocol, cast

import torch

from mocap_data.errors import InputError
from npmp import parallel
from npmp.cluster import connect
from npmp.rl import NonFiniteGradient
from npmp.training.collectors import COUNTS, CollectorsConfig, Distributed, as_arrays, as_tensors
from npmp.training.trainer import Distributable, Trainer


class Make(Protocol):
    """A trainer like the run's own; it goes to other processes."""

    def __call__(self, robots: int, seed: int, device: str | None) -> Trainer:
        """With so many robots and this seed. device: of one that learns; None: one that collects,
        on one core."""


@contextmanager
def distributed(
    trainer: Trainer,
    make: Make,
    config: CollectorsConfig | None,
    device: str,
    *,
    robots: int,
    seed: int,
) -> Iterator[Trainer]:
    """The trainer as it is, or, with a configuration, with collectors and other learners for as
    long as this lasts.

    Args:
      device: of the run, and of the first learner.
      robots: of an iteration of one learner. Each collector has as many, or its share where all of
        a learner's are one batch.

    Raises:
      InputError: for a trainer that collects for itself alone, robots that cannot be shared out
        evenly, or fewer GPUs than learners.
    """
    if config is None:
        yield trainer
        return
    if not hasattr(trainer, "gather"):
        raise InputError(
            f"actors={config.kind}: {type(trainer).__name__} collects in its own process only"
        )
    each = robots
    if cast(Distributable, trainer).of_all_collectors:
        each, rest = divmod(robots, config.number)
        if rest:
            raise InputError(
                f"{robots} robots (num_envs) do not divide evenly by num_actors={config.number}"
            )
    devices = [device_of(device, rank) for rank in range(config.learners)]
    if config.kind == "ray":
        ray, wanted = connect("actors=ray"), config.number * config.learners
        if (cores := int(ray.cluster_resources().get("CPU", 0))) < wanted:
            each_of = f" of learners={config.learners}" if config.learners > 1 else ""
            raise InputError(
                f"num_actors={config.number}{each_of}: a core each is needed, Ray has {cores}"
            )

    def collector(own: int) -> Distributable:
        return cast(Distributable, make(each, own, None))

    def follower(rank: int) -> Distributed:
        learner = cast(Distributable, make(robots, seed, devices[rank]))
        return Distributed(learner, collector, config, seed=seed + 15485863 * rank)

    first = Distributed(cast(Distributable, trainer), collector, config, seed=seed)
    at_work: Distributed | Learners = first
    try:
        if config.learners > 1:
            at_work = Learners(first, follower, devices)
        yield cast(Trainer, at_work)
    finally:
        at_work.close()


class Follower:
    """A learner that does as the first does."""

    def begin(self, make: Callable[[int], Distributed], rank: int, threads: int) -> None:
        """make: a trainer with its collectors, of a rank. threads: of torch."""
        torch.set_num_threads(threads)
        self.trainer, self.rank = make(rank), rank

    def join(self, host: str, port: int, learners: int, device: str) -> None:
        """Meet the others."""
        store = torch.distributed.TCPStore(host, port, learners, is_master=False)
        parallel.join(store, self.rank, learners, device)

    def iteration(
        self, progress: float, state: dict[str, Any] | None
    ) -> tuple[dict[str, float], list[dict[str, Any]], int]:
        """As `Trainer.iteration`. state: of the first learner, to go on from, with other draws than
        its.

        Returns: metrics, breakdowns of simulations that are remembered, and how many there were.
        """
        if state is not None:
            self.trainer.load_state_dict(as_tensors(state))
            generator = self.trainer.generator
            generator.manual_seed(
                generator.initial_seed() + 104729 * self.rank + self.trainer.iteration_count
            )
        figures, robots = self.trainer.iteration(progress), self.trainer.env.robots
        broken = list(robots.breakdowns), robots.lost
        robots.forget_breakdowns()
        return figures, *broken

    def leave(self) -> None:
        """Be alone again."""
        parallel.leave()


class Learners:
    """The first learner as the run sees it; with every iteration of it the others make one.

    It learns on a thread of its own: where another learner is gone, averaging waits in vain, and
    does not listen.
    """

    def __init__(self, first: Distributed, make: Callable[[int], Distributed], devices: list[str]):
        """make: a trainer with its collectors, of a rank. devices: of all, the first one's first.

        Raises:
          InputError: where another learner cannot be made.
        """
        self.first, self.devices = first, devices
        self._ray = connect(f"learners={len(devices)}")
        threads = torch.get_num_threads()
        self._thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,))
        seen = {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ}
        here = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            self._ray.get_runtime_context().get_node_id(), soft=False
        )
        kind = self._ray.remote(
            num_cpus=0,  # whoever shares a core with a learner is slow, but not stuck
            scheduling_strategy=here,  # where the devices were counted
            # Ray hides GPUs that it did not give
            runtime_env={"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"} | seen},
        )(Follower)
        self._others = [kind.remote() for _ in devices[1:]]
        # the others have the first one's state; one of them is gone
        self._told = self._lost = False
        made = self._ray.put(make)
        begun = [other.begin.remote(made, i + 1, threads) for i, other in enumerate(self._others)]
        try:
            self._together(lambda: None, begun)
        except BaseException:
            self._stop()
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.first, name)

    def iteration(self, progress: float) -> dict[str, float]:
        """As `Trainer.iteration`; metrics are means over learners, counts their sums.

        Raises:
          InputError: when another learner is gone; and whatever one of them raises.
        """
        if parallel.count() == 1:  # what a run does before its first iteration it does alone
            self._meet()
        state = None if self._told else self._ray.put(as_arrays(self.first.state_dict()))
        self._told = True
        begun = self.first.env_steps
        under_way = [other.iteration.remote(progress, state) for other in self._others]
        try:
            own, others = self._together(lambda: self.first.iteration(progress), under_way)
        finally:
            self.first.trainer.env_steps += (self.first.env_steps - begun) * len(self._others)
        robots = self.first.env.robots
        for _, breakdowns, lost in others:
            robots.breakdowns.extend(breakdowns)
            robots.lost += lost
        summed = {name: sum((figures[name] for figures, _, _ in others), own[name]) for name in own}
        return {
            name: value if name in COUNTS else value / len(self.devices)
            for name, value in summed.items()
        }

    def _meet(self) -> None:
        """Have all learners join."""
        host, number = self._ray.util.get_node_ip_address(), len(self.devices)
        store = parallel.meeting_place(host, number)
        joining = [
            other.join.remote(host, store.port, number, self.devices[i + 1])
            for i, other in enumerate(self._others)
        ]
        self._together(lambda: parallel.join(store, 0, number, self.devices[0]), joining)

    def _together(self, own: Callable[[], Any], under_way: list[Any]) -> tuple[Any, list[Any]]:
        """What the first learner makes of its task, and the others of theirs, which is under way;
        raises what one of them raises, without waiting for those that then wait in vain."""
        mine, waiting = self._thread.submit(own), list(under_way)
        try:
            while waiting and not _failed(mine):
                done, waiting = self._ray.wait(waiting, timeout=1.0)
                self._take(done)
            # whoever is gone is known in a moment, and says more than the first, whose averaging
            # failed
            if waiting:
                self._take(self._ray.wait(waiting, num_returns=len(waiting), timeout=5.0)[0])
            return mine.result(), self._ray.get(under_way)
        except NonFiniteGradient:
            raise
        except BaseException as error:
            self._lost = True
            if isinstance(error, self._ray.exceptions.RayTaskError):
                raise error.cause from error
            if isinstance(error, self._ray.exceptions.RayError):
                gone = f"one of {len(self.devices)} learners is gone; resume= goes on from the checkpoint"
                raise InputError(gone) from error
            raise

    def _take(self, done: list[Any]) -> None:
        """Raise what others have raised. A gradient that is no number is one of the mean: the first
        raises it, too."""
        for reference in done:
            with suppress(NonFiniteGradient):
                self._ray.get(reference)

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """As `Trainer.load_state_dict`."""
        self._told = False
        self.first.load_state_dict(state)

    def close(self) -> None:
        """End the others, and the collectors."""
        self._stop()
        self.first.close()

    def _stop(self) -> None:
        if not self._lost:  # leaving is something that all do together
            for other in self._others:
                other.leave.remote()
            parallel.leave()
        for other in self._others:
            self._ray.kill(other)
        self._thread.shutdown(wait=False)
        parallel.leave()


def _failed(task: Future[Any]) -> bool:
    return task.done() and not isinstance(task.exception(), NonFiniteGradient | None)


def device_of(device: str, rank: int) -> str:
    """The device of a learner: a GPU for each, the run's for the first.

    Raises:
      InputError: where there is none.
    """
    kind = torch.device(device)
    if kind.type != "cuda":
        return device
    place = (kind.index or 0) + rank
    if place >= torch.cuda.device_count():
        raise InputError(f"learners: a GPU each is needed, and there is no cuda:{place}")
    return f"cuda:{place}"
