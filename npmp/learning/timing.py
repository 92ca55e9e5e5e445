"""Where the time of training goes: seconds per part and thread."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from npmp.envs.physics_time import finished
from npmp.evaluation.module import TrackingTrial
from npmp.learning import cloning
from npmp.learning.model_based import ModelBasedTrainer
from npmp.learning.on_policy import OnPolicyTrainer
from npmp.learning.reuse import RepeatedTrial
from npmp.learning.rl.muon import Muon
from npmp.learning.student import StudentTrainer
from npmp.learning.world_model.imagination import Imagination
from npmp.learning.world_model.model_fit import ModelFit
from npmp.sim import BatchSim, StagedBatchSim, WarpSim

WAITING = "waiting"


class Part(NamedTuple):
    """A method whose time is measured."""

    owner: Any
    method: str
    name: str
    # the parts that it calls count for it
    whole: bool = False


PARTS = (
    Part(BatchSim, "step", "physics"),
    Part(StagedBatchSim, "step", "physics"),
    Part(WarpSim, "step", "physics"),
    Part(ModelBasedTrainer, "_collect", "policy, sensing, rewards"),
    Part(OnPolicyTrainer, "collect", "policy, sensing, rewards"),
    Part(OnPolicyTrainer, "iteration", "updates"),
    Part(StudentTrainer, "collect_experience", "policy, sensing, rewards"),
    Part(StudentTrainer, "iteration", "updates"),
    Part(ModelFit, "__call__", "model fit", whole=True),
    Part(Imagination, "__call__", "imagination, forward"),
    Part(Tensor, "backward", "backward"),
    Part(Muon, "step", "optimizer"),
    Part(ModelBasedTrainer, "improve_policy", "rest of the updates"),
    Part(cloning, "collect_demonstration", "demonstration", whole=True),
    Part(cloning, "fit_behavior", "behaviour prior", whole=True),
    Part(cloning, "fit_policy", "cloning", whole=True),
    Part(TrackingTrial, "__call__", "evaluation", whole=True),
    Part(RepeatedTrial, "__call__", "evaluation", whole=True),
    Part(Future, "result", WAITING),
)


class Timer:
    """Seconds of each part by thread, without the parts that it calls."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # name of the thread -> name of the part -> [s]
        self.seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._local = threading.local()

    def of(self, *names: str) -> float:
        """Seconds of these parts in all threads."""
        return sum(parts.get(name, 0.0) for parts in self.seconds.values() for name in names)

    def measured(self, part: Part) -> Callable[..., Any]:
        """The part's method, measured."""
        method = getattr(part.owner, part.method)

        @wraps(method)
        def call(*arguments: Any, **keywords: Any) -> Any:
            stack = self._local.__dict__.setdefault("stack", [])
            if any(open_part.whole for open_part in stack):
                return method(*arguments, **keywords)
            thread = _role(threading.current_thread())
            stack.append(part)
            start = finished(self.device)
            try:
                return method(*arguments, **keywords)
            finally:
                spent = finished(self.device) - start
                stack.pop()
                self.seconds[thread][part.name] += spent
                if stack:
                    self.seconds[thread][stack[-1].name] -= spent

        return call


@contextmanager
def timed(device: torch.device) -> Iterator[Timer]:
    """Measure all `PARTS` while the context lasts.

    A GPU is synchronized after each part, which makes training slower.
    """
    timer = Timer(device)
    with ExitStack() as patches:
        for part in PARTS:
            patches.enter_context(mock.patch.object(part.owner, part.method, timer.measured(part)))
        yield timer


def _role(thread: threading.Thread) -> str:
    return "learner" if thread is threading.main_thread() else "collector"
