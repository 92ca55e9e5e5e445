"""Profiling of training: seconds per part of a trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from npmp.envs.physics_time import finished

# methods of trainers -> names of the sections that they count for
SECTIONS = {
    "_collect": "sampler",
    "collect": "sampler",
    "fit": "model_fit",
    "improve_policy": "imagination",
}


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
        start = finished(self._device)
        result = self._method(*arguments)
        self._spent[self._name] += finished(self._device) - start
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)
