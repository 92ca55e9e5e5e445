"""A run folder's logs: metrics.csv, timing.csv, TensorBoard, and the live line in the terminal."""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from mocap_data.errors import InputError


class RunLog:
    """Appends one row per call of `write`.

    metrics.csv holds only what the seed determines, so equal runs give equal bytes; wall-clock goes to timing.csv. The columns
    are those of the first row; a later row may leave some empty but bring no new ones.
    """

    def __init__(self, folder: Path, total: int, *, resume_after: int | None = None, console: Console | None = None):
        """Args:
        folder: the run folder.
        total: iterations of the whole run, for the time left.
        resume_after: keep rows of earlier iterations up to this one; None starts afresh.
        """
        self.folder, self.total = folder, total
        self.console = console or Console(stderr=True)
        self._start, self._first_iteration = time.perf_counter(), resume_after or 0
        self._columns: dict[str, list[str]] = {}
        self._last_plain = -math.inf
        for name in ("metrics.csv", "timing.csv"):
            path = folder / name
            if resume_after is not None and path.is_file():
                self._columns[name] = _truncate(path, resume_after)
            else:
                path.unlink(missing_ok=True)
        self._board = _tensorboard(folder / "tensorboard", purge_step=resume_after)

    def write(self, iteration: int, env_steps: int, metrics: Mapping[str, float], *, env_steps_done_here: int) -> None:
        """Log one iteration and refresh the live line.

        Args:
          env_steps_done_here: environment steps since this process started, for the speed.
        """
        elapsed = time.perf_counter() - self._start
        speed = env_steps_done_here / max(elapsed, 1e-9)
        self._append("metrics.csv", {"iteration": iteration, "env_steps": env_steps, **metrics})
        self._append("timing.csv", {"iteration": iteration, "wall_s": round(elapsed, 3), "steps_per_s": round(speed, 1)})
        if self._board is not None:
            for key, value in {**metrics, "steps_per_s": speed}.items():
                if math.isfinite(value):
                    self._board.add_scalar(key, value, env_steps)
        self._show(iteration, metrics, elapsed, speed)

    def _append(self, name: str, row: dict[str, Any]) -> None:
        new = name not in self._columns
        if new:
            self._columns[name] = list(row)
        elif unknown := set(row) - set(self._columns[name]):
            raise ValueError(f"{name}: columns {sorted(unknown)} were not in the first row")
        with open(self.folder / name, "a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow(self._columns[name])
            writer.writerow([_cell(row.get(column)) for column in self._columns[name]])

    def _show(self, iteration: int, metrics: Mapping[str, float], elapsed: float, speed: float) -> None:
        done = iteration - self._first_iteration
        left = elapsed / max(done, 1) * (self.total - iteration)
        shown = "  ".join(f"{k} {v:.3g}" for k, v in metrics.items() if k in SHOWN and math.isfinite(v))
        line = f"{iteration}/{self.total}  {speed:,.0f} steps/s  {shown}  {_clock(left)} left"
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[2K" + line[: max(20, self.console.width - 1)])
            sys.stderr.flush()
        elif elapsed - self._last_plain >= 30.0 or iteration == self.total:  # a log file wants no line per iteration
            self._last_plain = elapsed
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Flush, and leave the live line."""
        if sys.stderr.isatty():
            sys.stderr.write("\n")
        if self._board is not None:
            self._board.close()


SHOWN = frozenset(
    {
        "tracked_s", "tracked_fraction", "tracking_loss", "model_loss", "model_position_m", "kl", "beta", "error",
        "reward", "velocity_error", "policy_loss", "value_loss", "episode_return",
    }
)  # fmt: skip


def _cell(value: Any) -> str:
    """repr of floats: enough digits to be exact, the same everywhere."""
    if value is None:
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


def _clock(seconds: float) -> str:
    minutes, s = divmod(int(max(seconds, 0)), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


def _truncate(path: Path, last: int) -> list[str]:
    """Drop the rows after iteration `last`, written between the checkpoint and the kill. Returns the columns."""
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    if not rows:
        raise InputError(f"'{path}' is empty; it cannot be continued")
    kept = [r for r in rows[1:] if len(r) == len(rows[0]) and r[0].isdigit() and int(r[0]) <= last]
    with open(path, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([rows[0], *kept])
    return rows[0]


def _tensorboard(folder: Path, purge_step: int | None) -> Any:
    """A writer, or None where TensorBoard cannot be imported."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=purge_step)  # type: ignore[no-untyped-call]
