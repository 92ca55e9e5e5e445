"""The progress line of a run in the terminal."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from npmp.core.progress import listening
from npmp.core.signals import outliving, silence, terminals

# metrics of the line, in this order, if present: of imitation, of reuse, of both
METRICS = (
    *("tracked_s", "velocity_error", "terrain_level", "reward", "imagined_task"),
    *("loss_policy", "loss_value", "model_loss", "model_position_m", "kl", "beta"),
)
# evaluations of a metric in the line, the first and the latest
CURVE = 4
# seconds between updates on a terminal
TICK_S = 0.5
# time between lines if stderr is not a terminal [s]
PLAIN_S = 10.0
# time before the line of a new phase [s]
PHASE_S = 2.0


class LiveLine:
    """Progress as one line on stderr that is overwritten, or as occasional lines if stderr is not a
    terminal.

    A context manager: inside, `npmp.core.progress` reports to it, and another thread updates the
    elapsed time. Writes survive a closed terminal, as SIGHUP may be ignored or arrive after the
    first failed write.
    """

    def __init__(self, *, after_s: float = 0.0) -> None:
        """after_s: seconds before the first line."""
        self._after_s = after_s
        self._start = -math.inf
        self._terminals = terminals()
        self._width = 80
        if 2 in self._terminals:
            self._width = os.get_terminal_size(2).columns or self._width
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._stack = ExitStack()
        self._phase = ""
        self._text = ""
        self._timed = False
        self._new = False
        self._since = -math.inf
        self._written = -math.inf

    def __enter__(self) -> Self:
        self._stack.enter_context(listening(self.phase))
        self._closed.clear()
        self._start = time.perf_counter() + self._after_s
        thread = threading.Thread(target=self._tick, daemon=True)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(self._closed.set)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType
    ) -> None:
        self._stack.close()
        self._check_terminal()
        with outliving(self._terminals):
            if self._written > -math.inf and sys.stderr.isatty():
                sys.stderr.write("\n")

    def phase(self, name: str, done: int, total: int) -> None:
        """As `npmp.core.progress.Listener`."""
        text = f"{name}  {done}/{total}" if total else name
        self._report(name, text, timed=True)

    def show(
        self,
        iteration: int,
        total: int,
        steps_per_s: float | None,
        left_s: float | None,
        metrics: Mapping[str, float],
        curves: Mapping[str, Sequence[float]],
    ) -> None:
        """Show an iteration: environment steps per second and seconds left, None if not measured
        yet; its metrics; all evaluations so far."""
        text = live_line(iteration, total, steps_per_s, left_s, metrics, curves)
        self._report("", text, timed=False, last=iteration == total)

    def _report(self, phase: str, text: str, *, timed: bool, last: bool = False) -> None:
        """timed: show the seconds since the start of the phase."""
        now = time.perf_counter()
        with self._lock:
            if phase != self._phase or not timed:
                self._since = now
                self._new = phase != self._phase
            self._phase = phase
            self._text = text
            self._timed = timed
        self._write(now, last=last)

    def _check_terminal(self) -> None:
        """Discard further output once the terminal is closed."""
        if 2 in self._terminals and not os.isatty(2):
            silence(self._terminals)
            self._terminals = []

    def _tick(self) -> None:
        while not self._closed.wait(TICK_S):
            self._write(time.perf_counter())

    def _write(self, now: float, *, last: bool = False) -> None:
        """Write the line if it is due. last: in any case."""
        with self._lock, outliving(self._terminals):
            self._check_terminal()
            on_terminal = sys.stderr.isatty()
            interval = TICK_S if on_terminal else PLAIN_S
            wait = min(interval, PHASE_S) if self._new else interval
            early = now < self._start or (now - self._written < wait and not last)
            if early or not self._text:
                return
            self._written = now
            self._new = False
            line = self._text
            elapsed = now - self._since
            if self._timed or elapsed >= PLAIN_S:
                line += f"  {clock(elapsed)}" + ("" if self._timed else " ago")
            if on_terminal:
                sys.stderr.write("\r\x1b[2K" + line[: max(20, self._width - 1)])
                sys.stderr.flush()
            else:
                print(line, file=sys.stderr, flush=True)


def live_line(
    iteration: int,
    total: int,
    speed: float | None,
    left_s: float | None,
    metrics: Mapping[str, float],
    curves: Mapping[str, Sequence[float]],
) -> str:
    """The text of the line: progress, environment steps/s, time left, then `METRICS`, those of an
    evaluation as first > ... > latest."""
    history = {key: [value] for key, value in metrics.items()} | {
        key: [*values[:1], *values[1:][1 - CURVE :]] for key, values in curves.items() if values
    }
    values = [
        f"{key} {' > '.join(f'{value:.3g}' for value in history[key])}"
        for key in METRICS
        if key in history and math.isfinite(history[key][-1])
    ]
    pace = [] if speed is None else [f"{speed:,.0f} steps/s"]
    pace += ["estimating time left" if left_s is None else f"{clock(left_s)} left"]
    return "  ".join([f"iteration {iteration}/{total}", *pace, *values])


def clock(seconds: float) -> str:
    """m:ss, or h:mm:ss from an hour on."""
    minutes, s = divmod(int(max(seconds, 0)), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"
