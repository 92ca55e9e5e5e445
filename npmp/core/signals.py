"""Signals that stop a run at a checkpoint."""

from __future__ import annotations

import _thread
import errno
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

# other catchable signals that end or stop a process by default; without SIGPIPE, for which Python
# raises BrokenPipeError, and SIGTTOU (`signals_noted`)
OTHERS = tuple(
    getattr(signal, f"SIG{name}")
    for name in (
        *("QUIT", "TSTP", "TTIN", "USR1", "USR2", "ALRM", "VTALRM", "PROF"),
        *("XCPU", "IO", "PWR", "STKFLT"),
    )
    if hasattr(signal, f"SIG{name}")
)


class Stopped(KeyboardInterrupt):
    """A signal stopped a run; the message names the command that continues it."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


def terminals() -> list[int]:
    """The standard streams that are terminals."""
    return [stream for stream in (0, 1, 2) if os.isatty(stream)]


def silence(streams: Sequence[int]) -> None:
    """Redirect streams to the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(null, stream)
    os.close(null)


def write_aside(message: str) -> None:
    """Write to stderr in a thread: a stopped terminal (Ctrl-S) blocks writes."""
    # threading.Thread takes a lock that the signal may have interrupted
    with suppress(RuntimeError):
        _thread.start_new_thread(_write, (message,))


def _write(message: str) -> None:
    with suppress(OSError):
        os.write(2, message.encode())


@contextmanager
def outliving(streams: Sequence[int]) -> Iterator[None]:
    """Inside, a failed write to one of these terminals redirects them to the null device."""
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
    """Inside, SIGINT, SIGTERM and SIGHUP (unless ignored, as by nohup) are appended to the list
    instead of interrupting; a second one raises Stopped. SIGHUP, which both shell and system send,
    never counts as a second one; it also discards further output to the terminal.

    Args:
      doing: the reaction to the first signal, for its message. others: further signals to append,
        which never count as a second one; SIGTTOU is then ignored, so that writes to the terminal
        do not stop the process (stty tostop).
    """
    noted: list[signal.Signals] = []
    # absent on Windows
    hangup = getattr(signal, "SIGHUP", None)
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

    # only the main thread can handle signals
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    handled = [signal.SIGINT, signal.SIGTERM, *others]
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        handled.append(hangup)
    before = {number: signal.signal(number, note) for number in handled}
    if others and hasattr(signal, "SIGTTOU"):
        before[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
