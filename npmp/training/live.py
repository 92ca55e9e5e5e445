"""The live line of a training run in the terminal."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping

from npmp.training.signals import outliving, terminals

# What the live line shows, in this order, of those there are: of imitation, of reuse, of both.
SHOWN = (
    *("tracked_s", "velocity_error", "terrain_level", "reward", "imagined_task"),
    *("loss_policy", "loss_value", "model_loss", "model_position_m", "kl", "beta"),
)
# seconds between lines where stderr is no terminal: a log file wants no line per iteration
PLAIN_S = 30.0


class LiveLine:
    """A run's progress as one line on stderr, written over again and again. A run outlives its
    terminal: SIGHUP may be ignored, or come a moment after the first write that fails."""

    def __init__(self) -> None:
        self._next_plain = -math.inf
        self._terminals = terminals()
        self._width = 80
        if 2 in self._terminals:
            self._width = os.get_terminal_size(2).columns or self._width

    def show(
        self,
        iteration: int,
        total: int,
        steps_per_s: float,
        left_s: float,
        figures: Mapping[str, float],
    ) -> None:
        """After every iteration: environment steps per second, seconds left, the latest of all
        figures."""
        line = live_line(iteration, total, steps_per_s, figures, left_s)
        with outliving(self._terminals):
            if sys.stderr.isatty():
                sys.stderr.write("\r\x1b[2K" + line[: max(20, self._width - 1)])
                sys.stderr.flush()
            elif time.perf_counter() >= self._next_plain or iteration == total:
                self._next_plain = time.perf_counter() + PLAIN_S
                print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        with outliving(self._terminals):
            if sys.stderr.isatty():
                sys.stderr.write("\n")


def live_line(
    iteration: int, total: int, speed: float, metrics: Mapping[str, float], left_s: float
) -> str:
    """The line in the terminal: progress, environment steps/s, time left, then the figures of SHOWN
    that there are."""
    figures = [
        f"{key} {metrics[key]:.3g}"
        for key in SHOWN
        if key in metrics and math.isfinite(metrics[key])
    ]
    return "  ".join(
        [f"{iteration}/{total}", f"{speed:,.0f} steps/s", f"{clock(left_s)} left", *figures]
    )


def clock(seconds: float) -> str:
    """Minutes and seconds, hours where there are some."""
    minutes, s = divmod(int(max(seconds, 0)), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"
