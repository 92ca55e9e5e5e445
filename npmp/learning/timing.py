"""Where the time of training goes, by the trainer's parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from npmp.envs.physics_time import finished

# the trainers' methods whose time is shown, and as what
SECTIONS = {
    "_collect": "sampler",
    "collect": "sampler",
    "fit": "model_fit",
    "improve_policy": "imagination",
}


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
