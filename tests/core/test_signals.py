"""Signals that ask a run to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest

from npmp.core.signals import OTHERS, Stopped, signals_noted


def test_a_second_signal_does_not_wait() -> None:
    before = signal.getsignal(signal.SIGTERM)  # ray has its own
    with pytest.raises(Stopped, match="SIGTERM again") as stop, signals_noted() as noted:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # handlers run between instructions
        assert noted == [signal.SIGINT]
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)
    assert stop.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_terminal_that_is_held_does_not_hold_the_run() -> None:
    """Ctrl-S; here a pipe that is full."""
    left, right = os.pipe()
    os.set_blocking(right, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(right, bytes(1 << 16))
    os.set_blocking(right, True)
    error = os.dup(2)
    release = threading.Timer(2.0, lambda: os.read(left, 1 << 20))
    release.start()
    try:
        os.dup2(right, 2)
        began = time.monotonic()
        with signals_noted("damping", OTHERS) as noted:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0)
            assert noted == [signal.SIGTERM] and time.monotonic() - began < 1.0
            assert signal.getsignal(signal.SIGTTOU) == signal.SIG_IGN
    finally:
        os.dup2(error, 2)
        release.join()
        for one in (left, right, error):
            os.close(one)
    assert signal.getsignal(signal.SIGTTOU) == signal.SIG_DFL
