"""The logs of a run folder: metrics.csv, timing.csv, a logger's, and progress in the terminal."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mocap_data.files import atomic_path
from npmp.core.tables import to_float
from npmp.learning.live import LiveLine
from npmp.learning.loggers import Logger


class RunLog:
    """Appends one row per call of `write`.

    metrics.csv depends on the seed only, so equal runs give equal bytes; timing.csv has wall-clock
    and CPU time, which continue after a resume. Columns are those of the first row and of the
    evaluation, which are empty in most rows; a later row with new columns rewrites the file.
    """

    def __init__(
        self,
        folder: Path,
        total: int,
        *,
        evaluation_keys: Sequence[str] = (),
        resume_after: int | None = None,
        resume_from: Path | None = None,
        board: Logger | None = None,
        progress: LiveLine | None = None,
    ):
        """Args:
        folder: the run folder.
        total: iterations of the run, for the time left.
        evaluation_keys: metrics that few rows have; `progress` shows their curves.
        resume_after: keep rows up to this iteration; None: none.
        resume_from: the run folder with those rows, by default `folder`.
        board: a logger. progress: the line in the terminal.
        """
        self.folder = folder
        self.total = total
        self.evaluation_keys = tuple(evaluation_keys)
        self._start = time.perf_counter()
        self._cpu_start = time.process_time()
        # time, iteration and steps at the end of this process's first iteration
        self._pace_start: tuple[float, int, int] | None = None
        self._columns: dict[str, list[str]] = {}
        # all evaluations so far, by metric
        self._curves: dict[str, list[float]] = {key: [] for key in self.evaluation_keys}
        kept: dict[str, list[dict[str, str]]] = {}
        source = resume_from or folder
        for name in ("metrics.csv", "timing.csv"):
            columns, rows = ([], []) if resume_after is None else _rows(source, name, resume_after)
            if columns:
                self._columns[name] = columns
                _rewrite(folder / name, columns, rows)
            else:
                (folder / name).unlink(missing_ok=True)
            kept[name] = [dict(zip(columns, row)) for row in rows]
        timing = kept["timing.csv"]
        last = timing[-1] if timing else {}
        self._wall_before = to_float(last.get("wall_s") or "0")
        self._cpu_before = to_float(last.get("cpu_s") or "0")
        for row in kept["metrics.csv"]:
            self._add_to_curves({key: to_float(value) for key, value in row.items() if value})
        self._board = board
        self._progress = progress

    @property
    def wall_s(self) -> float:
        """Seconds of the run, including those before a resume."""
        return self._wall_before + time.perf_counter() - self._start

    def write(
        self, iteration: int, env_steps: int, metrics: Mapping[str, float], *, env_steps_here: int
    ) -> None:
        """Log one iteration; env_steps_here: of this process, for the speed."""
        now = time.perf_counter()
        elapsed = now - self._start
        speed, left = self._pace(now, iteration, env_steps_here)
        row = {"iteration": iteration, "env_steps": env_steps, **metrics}
        self._append("metrics.csv", row, self.evaluation_keys)
        spent = {
            "wall_s": round(self._wall_before + elapsed, 3),
            "cpu_s": round(self._cpu_before + time.process_time() - self._cpu_start, 3),
            "steps_per_s": None if speed is None else round(speed, 1),
        }
        self._append("timing.csv", {"iteration": iteration, **spent})
        if self._board is not None:
            timing = {} if speed is None else {"steps_per_s": speed}
            self._board.write({**metrics, **timing}, env_steps)
        self._add_to_curves(metrics)
        if self._progress is not None:
            self._progress.show(iteration, self.total, speed, left, metrics, self._curves)

    def _add_to_curves(self, metrics: Mapping[str, float]) -> None:
        for key, values in self._curves.items():
            if key in metrics:
                values.append(metrics[key])

    def _pace(self, now: float, iteration: int, steps: int) -> tuple[float | None, float | None]:
        """Environment steps per second and seconds left; None at this process's first iteration,
        which includes warm-up and compilation."""
        if self._pace_start is None:
            self._pace_start = (now, iteration, steps)
            return None, 0.0 if iteration == self.total else None
        start, first, steps_before = self._pace_start
        seconds = max(now - start, 1e-9)
        left = seconds / max(iteration - first, 1) * (self.total - iteration)
        return (steps - steps_before) / seconds, left

    def _append(self, name: str, row: dict[str, Any], later: Sequence[str] = ()) -> None:
        path = self.folder / name
        columns = self._columns.get(name, [])
        if new := [key for key in dict.fromkeys((*row, *later)) if key not in columns]:
            self._columns[name] = columns = [*columns, *new]
            _rewrite(path, columns, _rows(self.folder, name, None)[1] if columns else [])
        # csv writes enough digits of a float to be exact, the same everywhere, and nothing for None
        with open(path, "a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(map(row.get, columns))

    def flush(self) -> None:
        """Force the logs to disk: a checkpoint must not be ahead of them."""
        for name in self._columns:
            with open(self.folder / name, "rb+") as file:
                os.fsync(file.fileno())
        if self._board is not None:
            self._board.flush()

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def _rows(folder: Path, name: str, last: int | None) -> tuple[list[str], list[list[str]]]:
    """Columns and complete rows of a log, up to iteration `last`: later rows were written between
    the checkpoint and the kill. Empty if the file is missing or is not a log."""
    path = folder / name
    if not path.is_file():
        return [], []
    with open(path, newline="", errors="replace") as file:
        rows = list(csv.reader(file))
    if not rows or not rows[0] or rows[0][0] != "iteration":
        return [], []
    complete = [row for row in rows[1:] if len(row) == len(rows[0]) and row[0].isdigit()]
    return rows[0], [row for row in complete if last is None or int(row[0]) <= last]


def _rewrite(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Replace a log atomically; short rows are padded with empty cells."""
    with atomic_path(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([*row, *[""] * (len(columns) - len(row))] for row in rows)
