"""Signals end a run in good order."""

from __future__ import annotations

import _thread
import errno
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

# that can be caught, and end or stop a process that does not; without SIGPIPE, which Python ignores
# so that a write raises BrokenPipeError, and SIGTTOU (`signals_noted`)
OTHERS = tuple(
    getattr(signal, f"SIG{name}")
    for name in (
        *("QUIT", "TSTP", "TTIN", "USR1", "USR2", "ALRM", "VTALRM", "PROF"),
        *("XCPU", "IO", "PWR", "STKFLT"),
    )
    if hasattr(signal, f"SIG{name}")
)


class Stopped(KeyboardInterrupt):
    """A signal ended a run in good order; the message names the command that continues it."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


def terminals() -> list[int]:
    """Which of the process's own three streams are terminals."""
    return [stream for stream in (0, 1, 2) if os.isatty(stream)]


def silence(streams: Sequence[int]) -> None:
    """Discard what is written to these from now on."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(nowhere, stream)
    os.close(nowhere)


def write_aside(message: str) -> None:
    """Write to the standard error without waiting for it: a terminal that is held (Ctrl-S) blocks
    whatever writes to it."""
    # threading.Thread takes a lock, which a signal's handler may have interrupted
    with suppress(RuntimeError):
        _thread.start_new_thread(_write, (message,))


def _write(message: str) -> None:
    with suppress(OSError):
        os.write(2, message.encode())


@contextmanager
def outliving(streams: Sequence[int]) -> Iterator[None]:
    """Inside, a write that fails because these, terminals once, are gone ends nothing; they are
    silenced."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO or not streams:
            raise
        silence(streams)


@contextmanager
def signals_noted(
    doing: str = "stopping at a checkpoint, after this iteration or the warm-up",
    others: Sequence[signal.Signals] = (),
) -> Iterator[list[signal.Signals]]:
    """Inside, SIGINT, SIGTERM and SIGHUP (a terminal that is gone; not where it is ignored, as by
    nohup) do not interrupt but are noted in the list; a second one raises Stopped at once. Shell
    and system both send SIGHUP, so that one never counts as a second; then output to the
    terminal is discarded.

    doing: what follows the first one, for its message. others: signals that are noted likewise,
    and never count as a second; with them SIGTTOU is ignored, so that no write to the terminal
    stops the process (stty tostop).
    """
    noted: list[signal.Signals] = []
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    streams = terminals()

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        name = signal.Signals(number)
        if number == hangup:
            silence(streams)
            if noted:
                return
        elif noted and number in others:
            return
        elif noted:
            raise Stopped(f"{name.name} again: stopped at once", 128 + number)
        noted.append(name)
        write_aside(f"\nnpmp: {name.name}: {doing}; once more to stop at once\n")

    # only the main thread may handle signals
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    taken = [signal.SIGINT, signal.SIGTERM, *others]
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        taken.append(hangup)
    before = {number: signal.signal(number, note) for number in taken}
    if others and hasattr(signal, "SIGTTOU"):
        before[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
