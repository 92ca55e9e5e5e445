"""Progress of long work: loops report it to a listener.

with phase("fitting the world model"):
    for update in counted(600):
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# (phase, steps so far, all steps or 0 if they are not counted)
Listener = Callable[[str, int, int], None]

# per thread
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_phase: ContextVar[str] = ContextVar("phase", default="")


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Inside, this thread reports to the listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def announce(name: str) -> None:
    """Report the start of work without counted steps."""
    if (listener := _listener.get()) is not None:
        listener(name, 0, 0)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Inside, `counted` loops of this thread are steps of the phase."""
    token = _phase.set(name)
    announce(name)
    try:
        yield
    finally:
        _phase.reset(token)


def counted(total: int) -> Iterator[int]:
    """`range(total)`, reported inside a `phase`."""
    listener = _listener.get()
    name = _phase.get()
    for step in range(total):
        if listener is not None and name:
            listener(name, step, total)
        yield step
