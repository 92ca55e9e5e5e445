"""How far long work is: loops report it, and what shows it listens.

with phase("fitting the world model"):
    for update in counted(600):
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# (the phase, its steps so far, all of them or 0 where they are not counted)
Listener = Callable[[str, int, int], None]

# of each thread
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


def announce(what: str) -> None:
    """Report that work without counted steps begins."""
    if (listener := _listener.get()) is not None:
        listener(what, 0, 0)


@contextmanager
def phase(what: str) -> Iterator[None]:
    """Inside, `counted` loops of this thread are steps of `what`."""
    token = _phase.set(what)
    announce(what)
    try:
        yield
    finally:
        _phase.reset(token)


def counted(total: int) -> Iterator[int]:
    """`range(total)`, reported inside a `phase`."""
    listener = _listener.get()
    what = _phase.get()
    for done in range(total):
        if listener is not None and what:
            listener(what, done, total)
        yield done
