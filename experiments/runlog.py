"""A run folder's logs: metrics.csv, timing.csv, a board to look at, and the live line in the terminal."""

from __future__ import annotations

import csv
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.boards import Board
from mocap_data.files import atomic_path

# What the live line shows, in this order, of those there are: of imitation, of reuse, of both.
SHOWN = (
    "tracked_s", "velocity_error", "reward", "tracking_loss", "loss_policy", "loss_value", "model_loss", "model_position_m",
    "kl", "beta",
)  # fmt: skip


class RunLog:
    """Appends one row per call of `write`.

    metrics.csv holds only what the seed determines, so equal runs give equal bytes; wall-clock goes to timing.csv, and
    goes on after a resume. The columns are those of the first row and the judged figures, which most rows leave empty;
    should a later row bring others, the file is written anew with them.
    """

    def __init__(
        self,
        folder: Path,
        total: int,
        *,
        judged: Sequence[str] = (),
        resume_after: int | None = None,
        resume_from: Path | None = None,
        board: Board | None = None,
        console: Console | None = None,
    ):
        """Args:
        folder: the run folder.
        total: iterations of the whole run, for the time left.
        judged: metrics that are measured only now and then; the live line shows their last values.
        resume_after: keep rows of earlier iterations up to this one; None starts afresh.
        resume_from: the run folder that holds those rows, `folder` by default. No such files, or empty ones: no rows.
        board: where the metrics go as well.
        """
        self.folder, self.total, self.judged = folder, total, tuple(judged)
        self.console = console or Console(stderr=True)
        self._start, self._first_iteration = time.perf_counter(), resume_after or 0
        self._columns: dict[str, list[str]] = {}
        self._latest: dict[str, float] = {}
        self._last_plain = -math.inf
        kept: dict[str, list[dict[str, str]]] = {}
        for name in ("metrics.csv", "timing.csv"):
            columns, rows = ([], []) if resume_after is None else _rows(resume_from or folder, name, resume_after)
            (folder / name).unlink(missing_ok=True) if not columns else _rewrite(folder / name, columns, rows)
            if columns:
                self._columns[name] = columns
            kept[name] = [dict(zip(columns, row)) for row in rows]
        self._wall_before = _number(kept["timing.csv"][-1].get("wall_s")) if kept["timing.csv"] else 0.0
        for row in kept["metrics.csv"]:
            self._latest |= {key: _number(row[key]) for key in self.judged if row.get(key)}
        self._board = board

    @property
    def wall_s(self) -> float:
        """Seconds that the run has taken, those before a resume included."""
        return self._wall_before + time.perf_counter() - self._start

    def write(self, iteration: int, env_steps: int, metrics: Mapping[str, float], *, env_steps_done_here: int) -> None:
        """Log one iteration and refresh the live line.

        Args:
          env_steps_done_here: environment steps since this process started, for the speed.
        """
        elapsed = time.perf_counter() - self._start
        speed = env_steps_done_here / max(elapsed, 1e-9)
        self._append("metrics.csv", {"iteration": iteration, "env_steps": env_steps, **metrics}, self.judged)
        wall = round(self._wall_before + elapsed, 3)
        self._append("timing.csv", {"iteration": iteration, "wall_s": wall, "steps_per_s": round(speed, 1)})
        if self._board is not None:
            self._board.write({**metrics, "steps_per_s": speed}, env_steps)
        self._latest |= {key: metrics[key] for key in self.judged if key in metrics}
        self._show(iteration, {**self._latest, **metrics}, elapsed, speed)

    def _append(self, name: str, row: dict[str, Any], later: Sequence[str] = ()) -> None:
        path, columns = self.folder / name, self._columns.get(name, [])
        if new := [key for key in dict.fromkeys((*row, *later)) if key not in columns]:
            rows = _rows(self.folder, name, None)[1] if columns else []
            self._columns[name] = columns = [*columns, *new]
            _rewrite(path, columns, rows)
        with open(path, "a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow([_cell(row.get(column)) for column in columns])

    def _show(self, iteration: int, metrics: Mapping[str, float], elapsed: float, speed: float) -> None:
        done = iteration - self._first_iteration
        left = elapsed / max(done, 1) * (self.total - iteration)
        line = live_line(iteration, self.total, speed, metrics, left)
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[2K" + line[: max(20, self.console.width - 1)])
            sys.stderr.flush()
        elif elapsed - self._last_plain >= 30.0 or iteration == self.total:  # a log file wants no line per iteration
            self._last_plain = elapsed
            print(line, file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Everything written so far is on the disk when this returns: a checkpoint must not be ahead of its logs."""
        for name in self._columns:
            with open(self.folder / name, "rb+") as file:
                os.fsync(file.fileno())
        if self._board is not None:
            self._board.flush()

    def close(self) -> None:
        """Flush, and leave the live line."""
        if sys.stderr.isatty():
            sys.stderr.write("\n")
        if self._board is not None:
            self._board.close()


def live_line(iteration: int, total: int, speed: float, metrics: Mapping[str, float], left_s: float) -> str:
    """The line in the terminal: progress, environment steps/s, time left, then the figures of SHOWN that there are."""
    figures = [f"{key} {metrics[key]:.3g}" for key in SHOWN if key in metrics and math.isfinite(metrics[key])]
    return "  ".join([f"{iteration}/{total}", f"{speed:,.0f} steps/s", f"{_clock(left_s)} left", *figures])


def _cell(value: Any) -> str:
    """repr of floats: enough digits to be exact, the same everywhere."""
    if value is None:
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


def _number(text: str | None) -> float:
    """A cell's number; 0 where it holds none."""
    try:
        return float(text or 0.0)
    except ValueError:
        return 0.0


def _clock(seconds: float) -> str:
    minutes, s = divmod(int(max(seconds, 0)), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


def _rows(folder: Path, name: str, last: int | None) -> tuple[list[str], list[list[str]]]:
    """Columns and whole rows of a log up to iteration `last`: later ones were written between the checkpoint and the
    kill.

    Nothing for a file that is absent or empty.
    """
    path = folder / name
    if not path.is_file():
        return [], []
    with open(path, newline="", errors="replace") as file:
        rows = list(csv.reader(file))
    if not rows or not rows[0] or rows[0][0] != "iteration":
        return [], []
    whole = [row for row in rows[1:] if len(row) == len(rows[0]) and row[0].isdigit()]
    return rows[0], [row for row in whole if last is None or int(row[0]) <= last]


def _rewrite(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a log anew, in one step; rows shorter than the columns are filled up with empty cells."""
    with atomic_path(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([*row, *[""] * (len(columns) - len(row))] for row in rows)
