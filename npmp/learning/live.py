"""The live line of long work in the terminal."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from npmp.core.progress import listening
from npmp.core.signals import outliving, silence, terminals

# What the live line shows, in this order, of those available: of imitation, of reuse, of both.
SHOWN = (
    *("tracked_s", "velocity_error", "terrain_level", "reward", "imagined_task"),
    *("loss_policy", "loss_value", "model_loss", "model_position_m", "kl", "beta"),
)
# seconds between lines on a terminal, which one replaces the other
TICK_S = 0.5
# where stderr is no terminal: a log file wants no line per iteration; of a new phase sooner
PLAIN_S = 10.0
PHASE_S = 2.0


class LiveLine:
    """How far work is as one line on stderr, written over again and again, or as a line now and
    then where stderr is no terminal.

    A context: inside, `npmp.core.progress` reports to it, and another thread shows the age of the
    latest report. A run outlives its terminal: SIGHUP may be ignored, or come a moment after
    the first write that fails.
    """

    def __init__(self, *, after_s: float = 0.0) -> None:
        """after_s: work that takes no longer shows nothing."""
        self._after_s = after_s
        self._begin = -math.inf
        self._terminals = terminals()
        self._width = 80
        if 2 in self._terminals:
            self._width = os.get_terminal_size(2).columns or self._width
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._held = ExitStack()
        self._what = self._text = ""
        self._timed = self._new = False
        self._since = self._written = -math.inf

    def __enter__(self) -> Self:
        self._held.enter_context(listening(self.phase))
        self._over.clear()
        self._begin = time.perf_counter() + self._after_s
        thread = threading.Thread(target=self._tick, daemon=True)
        thread.start()
        self._held.callback(thread.join)
        self._held.callback(self._over.set)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType
    ) -> None:
        self._held.close()
        self._silence_gone()
        with outliving(self._terminals):
            if self._written > -math.inf and sys.stderr.isatty():
                sys.stderr.write("\n")

    def phase(self, what: str, done: int, total: int) -> None:
        """As `npmp.core.progress.Listener`."""
        text = f"{what}  {done}/{total}" if total else what
        self._report(what, text, timed=True)

    def show(
        self,
        iteration: int,
        total: int,
        steps_per_s: float | None,
        left_s: float | None,
        figures: Mapping[str, float],
    ) -> None:
        """After every iteration: environment steps per second and seconds left, None where they are
        not known yet; the latest of all figures."""
        text = live_line(iteration, total, steps_per_s, figures, left_s)
        self._report("", text, timed=False, last=iteration == total)

    def _report(self, what: str, text: str, *, timed: bool, last: bool = False) -> None:
        """timed: whether the line shows the seconds since the phase began."""
        now = time.perf_counter()
        with self._lock:
            if what != self._what or not timed:
                self._since = now
                self._new = what != self._what
            self._what = what
            self._text = text
            self._timed = timed
        self._write(now, last=last)

    def _silence_gone(self) -> None:
        """Once the terminal is gone, nothing that is said later may fail."""
        if 2 in self._terminals and not os.isatty(2):
            silence(self._terminals)
            self._terminals = []

    def _tick(self) -> None:
        while not self._over.wait(TICK_S):
            self._write(time.perf_counter())

    def _write(self, now: float, *, last: bool = False) -> None:
        """Write the line where it is its time. last: whatever time it is."""
        with self._lock, outliving(self._terminals):
            self._silence_gone()
            on_terminal = sys.stderr.isatty()
            usual = TICK_S if on_terminal else PLAIN_S
            wait = min(usual, PHASE_S) if self._new else usual
            early = now < self._begin or (now - self._written < wait and not last)
            if early or not self._text:
                return
            self._written = now
            self._new = False
            line = self._text
            passed = now - self._since
            if self._timed or passed >= PLAIN_S:
                line += f"  {clock(passed)}" + ("" if self._timed else " ago")
            if on_terminal:
                sys.stderr.write("\r\x1b[2K" + line[: max(20, self._width - 1)])
                sys.stderr.flush()
            else:
                print(line, file=sys.stderr, flush=True)


def live_line(
    iteration: int,
    total: int,
    speed: float | None,
    metrics: Mapping[str, float],
    left_s: float | None,
) -> str:
    """The line in the terminal: progress, environment steps/s, time left, then the figures of SHOWN
    that there are."""
    figures = [
        f"{key} {metrics[key]:.3g}"
        for key in SHOWN
        if key in metrics and math.isfinite(metrics[key])
    ]
    pace = [] if speed is None else [f"{speed:,.0f} steps/s"]
    pace += ["time left known soon" if left_s is None else f"{clock(left_s)} left"]
    return "  ".join([f"iteration {iteration}/{total}", *pace, *figures])


def clock(seconds: float) -> str:
    """Minutes and seconds, hours where there are some."""
    minutes, s = divmod(int(max(seconds, 0)), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"
