"""Profiling of training: seconds per part of a trainer, and of the physics alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from npmp.sim import Simulator

# methods of trainers -> names of the sections that they count for
SECTIONS = {
    "_collect": "sampler",
    "collect": "sampler",
    "fit": "model_fit",
    "improve_policy": "imagination",
}


def synchronized_time(device: torch.device) -> float:
    """The time [s] after the device has finished its queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class StepCall(NamedTuple):
    """The arguments of a simulator's step, and the state before it."""

    state: Tensor  # (n, size)
    ctrl: Tensor  # (n, nu) [rad]
    previous: Tensor | None  # (n, nu) [rad] with a first-order hold


@contextmanager
def recorded_steps(sim: Simulator) -> Iterator[list[StepCall]]:
    """Record the steps of the simulator while the context lasts."""
    calls: list[StepCall] = []
    step = sim.step

    def recording(ctrl: Tensor, previous: Tensor | None = None) -> None:
        before = None if previous is None else previous.clone()
        calls.append(StepCall(sim.snapshot(), ctrl.clone(), before))
        step(ctrl, previous)

    with mock.patch.object(sim, "step", recording):
        yield calls


def physics_seconds(sim: Simulator, calls: list[StepCall]) -> float:
    """Seconds of the physics alone for `recorded_steps`, which are cleared; restores the simulator.

    Repeats the steps from the same states on the same threads. With states on a GPU the transfers
    count.
    """
    state_now = sim.snapshot()
    seconds = 0.0
    step: Any = type(sim).step  # not the patched one
    for state, ctrl, previous in calls:
        sim.restore(state)
        start = synchronized_time(sim.device)
        step(sim, ctrl, previous)
        seconds += synchronized_time(sim.device) - start
    sim.restore(state_now)
    calls.clear()
    return seconds


@contextmanager
def timed(trainer: Any, device: torch.device) -> Iterator[dict[str, float]]:
    """Seconds spent in each of the trainer's `SECTIONS` while the context lasts.

    A GPU is synchronized after each section, which makes them a little longer.
    """
    sections = {method: name for method, name in SECTIONS.items() if hasattr(trainer, method)}
    spent = dict.fromkeys(sections.values(), 0.0)
    with ExitStack() as stack:
        for method, name in sections.items():
            timed_method = _Timed(getattr(trainer, method), spent, name, device)
            stack.enter_context(mock.patch.object(trainer, method, timed_method))
        yield spent


class _Timed:
    """A method, or a callable object, whose calls add their seconds to spent[name]."""

    def __init__(
        self, method: Callable[..., Any], spent: dict[str, float], name: str, device: torch.device
    ):
        self._method = method
        self._spent = spent
        self._name = name
        self._device = device

    def __call__(self, *arguments: Any) -> Any:
        start = synchronized_time(self._device)
        result = self._method(*arguments)
        self._spent[self._name] += synchronized_time(self._device) - start
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)
