"""Several learners of one policy, each with collectors of its own: they average their gradients after every batch.

What torch's DistributedDataParallel does, for trainers that call more of their networks than `forward`. The first
learner is the run's process: it alone judges, logs and writes; the others do as it does, as Ray's actors, each on a GPU
of its own where the run has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch

from mocap_data.errors import InputError
from npmp import parallel
from npmp.cluster import connect
from npmp.rl import NonFiniteGradient
from npmp.training.collectors import CollectorsConfig, Distributed, as_arrays, as_tensors
from npmp.training.trainer import Distributable, Trainer


class Make(Protocol):
    """A trainer like the run's own; it goes to other processes."""

    def __call__(self, robots: int, seed: int, device: str | None) -> Trainer:
        """With so many robots and this seed. device: of one that learns; None: one that collects, on one core."""


@contextmanager
def distributed(
    trainer: Trainer, make: Make, config: CollectorsConfig | None, device: str, *, robots: int, seed: int
) -> Iterator[Trainer]:
    """The trainer as it is, or, with a configuration, with collectors and other learners for as long as this lasts.

    Args:
      device: of the run, and of the first learner.
      robots: of an iteration of one learner. Each collector has as many, or its share where all of a learner's are one
        batch.

    Raises:
      InputError: for a trainer that collects for itself alone, robots that cannot be shared out evenly, or fewer GPUs
        than learners.
    """
    if config is None:
        yield trainer
        return
    if not hasattr(trainer, "gather"):
        raise InputError(f"actors={config.kind}: {type(trainer).__name__} collects in its own process only")
    each = robots
    if cast(Distributable, trainer).of_all_collectors:
        each, rest = divmod(robots, config.number)
        if rest:
            raise InputError(f"{robots} robots (algo.num_envs) do not divide evenly by num_actors={config.number}")
    devices = [device_of(device, rank) for rank in range(config.learners)]

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

    def __init__(
        self, make: Callable[[int], Distributed], rank: int, learners: int, place: tuple[str, int], device: str
    ):
        """make: a trainer with its collectors, of a rank. place: host and port where the learners meet."""
        torch.set_num_threads(1)
        parallel.join(torch.distributed.TCPStore(*place, learners, is_master=False), rank, learners, device)
        self.trainer, self.rank = make(rank), rank

    def iteration(self, progress: float, state: dict[str, Any] | None) -> dict[str, float]:
        """As `Trainer.iteration`. state: of the first learner, to go on from, with other draws than its."""
        if state is not None:
            self.trainer.load_state_dict(as_tensors(state))
            generator = self.trainer.generator
            generator.manual_seed(generator.initial_seed() + 104729 * self.rank + self.trainer.iteration_count)
        return self.trainer.iteration(progress)


class Learners:
    """The first learner as the run sees it; with every iteration of it the others make one."""

    def __init__(self, first: Distributed, make: Callable[[int], Distributed], devices: list[str]):
        """make: a trainer with its collectors, of a rank. devices: of all, the first one's first."""
        self.first, self.learners = first, (learners := len(devices))
        self._ray = connect(f"learners={learners}")
        host = self._ray.util.get_node_ip_address()
        self._meet = parallel.meeting_place(host, learners), 0, learners, devices[0]
        kind = self._ray.remote(
            num_cpus=0,  # whoever shares a core with a learner is slow, but not stuck
            max_restarts=0,
            runtime_env={
                "env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
            },  # Ray hides GPUs that it did not give
        )(Follower)
        made = self._ray.put(make)
        self._others = [
            kind.remote(made, rank, learners, (host, self._meet[0].port), devices[rank]) for rank in range(1, learners)
        ]
        self._told = False  # the others have the first one's state

    def __getattr__(self, name: str) -> Any:
        return getattr(self.first, name)

    def iteration(self, progress: float) -> dict[str, float]:
        """As `Trainer.iteration`; metrics are means over learners.

        Raises:
          RuntimeError: when another learner is gone.
        """
        if parallel.count() == 1:  # what a run does before its first iteration it does alone
            parallel.join(*self._meet)
        state = None if self._told else self._ray.put(as_arrays(self.first.state_dict()))
        self._told = True
        begun = self.first.env_steps
        under_way = [other.iteration.remote(progress, state) for other in self._others]
        try:
            own = self.first.iteration(progress)
            figures = [own, *self._ray.get(under_way)]
        except NonFiniteGradient:  # a mean over all of them, so all of them have thrown it away
            self._ray.wait(under_way, num_returns=len(under_way))
            raise
        except (RuntimeError, self._ray.exceptions.RayError) as error:
            raise RuntimeError(f"one of {self.learners} learners is gone; resume= goes on: {error}") from error
        self.first.trainer.env_steps += (self.first.env_steps - begun) * (self.learners - 1)
        return {name: sum(one[name] for one in figures) / len(figures) for name in own}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """As `Trainer.load_state_dict`."""
        self._told = False
        self.first.load_state_dict(state)

    def close(self) -> None:
        """End the others, and the collectors."""
        for other in self._others:
            self._ray.kill(other)
        parallel.leave()
        self.first.close()


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
