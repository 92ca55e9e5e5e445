"""Timing of an environment's physics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from npmp.envs.task_env import TaskEnv


def finished(device: torch.device) -> float:
    """Synchronize the device and return the time [s]."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class PhysicsCall(NamedTuple):
    """The arguments of a simulator's control step, and the state before it."""

    state: Tensor  # (n, size) as `Simulator.snapshot`
    ctrl: Tensor  # (n, nu) [rad]
    previous: Tensor | None  # (n, nu) [rad] with a first-order hold


@contextmanager
def recorded_physics(env: TaskEnv[Any]) -> Iterator[list[PhysicsCall]]:
    """Record the environment's physics calls while the context lasts."""
    sim = env.robots.sim
    calls: list[PhysicsCall] = []
    step = sim.step

    def recorded(ctrl: Tensor, previous: Tensor | None = None) -> None:
        before = None if previous is None else previous.clone()
        calls.append(PhysicsCall(sim.snapshot(), ctrl.clone(), before))
        step(ctrl, previous)

    with mock.patch.object(sim, "step", recorded):
        yield calls


def repeat_physics(env: TaskEnv[Any], calls: list[PhysicsCall]) -> float:
    """Repeat the calls of `recorded_physics` and clear the list; the simulator's state is restored.

    Returns: their time [s], with a GPU including transfers.
    """
    sim = env.robots.sim
    now = sim.snapshot()
    seconds = 0.0
    # the original method, not the recording one
    step: Any = type(sim).step
    for state, ctrl, previous in calls:
        sim.restore(state)
        begin = finished(sim.device)
        step(sim, ctrl, previous)
        seconds += finished(sim.device) - begin
    sim.restore(now)
    calls.clear()
    return seconds
