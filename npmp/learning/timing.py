"""Where the time of training goes: in a trainer's parts, and in the bare physics on the same
states."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from npmp.sim import Simulator

# the trainers' methods whose time is shown, and as what
SECTIONS = {
    "_collect": "sampler",
    "collect": "sampler",
    "fit": "model_fit",
    "improve_policy": "imagination",
}


def finished(device: torch.device) -> float:
    """The time [s] once everything that the device was asked to do is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Asked(NamedTuple):
    """A control step that a simulator was asked for."""

    state: Tensor  # (n, size) the simulator's, before
    ctrl: Tensor  # (n, nu) [rad]
    previous: Tensor | None  # (n, nu) [rad] where the hold is of first order


@contextmanager
def noted(sim: Simulator) -> Iterator[list[Asked]]:
    """The steps of the simulator while the context lasts."""
    calls: list[Asked] = []
    step = sim.step

    def noting(ctrl: Tensor, previous: Tensor | None = None) -> None:
        before = None if previous is None else previous.clone()
        calls.append(Asked(sim.snapshot(), ctrl.clone(), before))
        step(ctrl, previous)

    with mock.patch.object(sim, "step", noting):
        yield calls


def bare(sim: Simulator, asked: list[Asked]) -> float:
    """Seconds that the bare physics takes for what was `noted`, which is forgotten; the simulator
    is left as it was.

    The same steps from the same states, on the same threads and by the simulator's own call: a busy
    machine slows both alike. With states on a GPU the transfers are part of it.
    """
    now = sim.snapshot()
    seconds = 0.0
    # not the watched one
    step: Any = type(sim).step
    for state, ctrl, previous in asked:
        sim.restore(state)
        begin = finished(sim.device)
        step(sim, ctrl, previous)
        seconds += finished(sim.device) - begin
    sim.restore(now)
    asked.clear()
    return seconds


@contextmanager
def timed(trainer: Any, device: torch.device) -> Iterator[dict[str, float]]:
    """Seconds spent in each of `SECTIONS` that the trainer has, counted while the context lasts.

    A GPU finishes each section before the next begins, so they are a little longer there than
    unwatched.
    """
    sections = {method: name for method, name in SECTIONS.items() if hasattr(trainer, method)}
    spent = dict.fromkeys(sections.values(), 0.0)
    with ExitStack() as stack:
        for method, name in sections.items():
            watched = _Watched(getattr(trainer, method), spent, name, device)
            stack.enter_context(mock.patch.object(trainer, method, watched))
        yield spent


class _Watched:
    """A method, or an object that is called as one, whose calls add their seconds to
    spent[name]."""

    def __init__(
        self, method: Callable[..., Any], spent: dict[str, float], name: str, device: torch.device
    ):
        self._method = method
        self._spent = spent
        self._name = name
        self._device = device

    def __call__(self, *arguments: Any) -> Any:
        begin = finished(self._device)
        result = self._method(*arguments)
        self._spent[self._name] += finished(self._device) - begin
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)
