"""A run folder's logs: metrics.csv, timing.csv, a board to look at, and the display of its
progress."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp.core.tables import to_float
from npmp.learning.live import LiveLine
from npmp.learning.loggers import Logger


class RunLog:
    """Appends one row per call of `write`.

    metrics.csv holds only what the seed determines, so equal runs give equal bytes; wall-clock goes
    to timing.csv, and goes on after a resume. The columns are those of the first row and the judged
    figures, which most rows leave empty; should a later row bring others, the file is written anew
    with them.
    """

    def __init__(
        self,
        folder: Path,
        total: int,
        *,
        judged: Sequence[str] = (),
        resume_after: int | None = None,
        resume_from: Path | None = None,
        board: Logger | None = None,
        progress: LiveLine | None = None,
    ):
        """Args:
        folder: the run folder.
        total: iterations of the whole run, for the time left.
        judged: metrics that are measured only now and then; `progress` is shown their last values.
        resume_after: keep rows of earlier iterations up to this one; None starts afresh.
        resume_from: the run folder that holds those rows, `folder` by default. No such files, or
        empty ones: no rows. board: where the metrics go as well. progress: shows them while
        they come.
        """
        self.folder = folder
        self.total = total
        self.judged = tuple(judged)
        self._start = time.perf_counter()
        # where the pace is counted from: the end of this process's first iteration
        self._paced: tuple[float, int, int] | None = None
        self._columns: dict[str, list[str]] = {}
        self._latest: dict[str, float] = {}
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
        timed = kept["timing.csv"]
        # of a damaged cell NaN, of which max makes 0
        self._wall_before = max(0.0, to_float(timed[-1].get("wall_s"))) if timed else 0.0
        for row in kept["metrics.csv"]:
            self._latest |= {key: to_float(row[key]) for key in self.judged if row.get(key)}
        self._board = board
        self._progress = progress

    @property
    def wall_s(self) -> float:
        """Seconds that the run has taken, those before a resume included."""
        return self._wall_before + time.perf_counter() - self._start

    def write(
        self,
        iteration: int,
        env_steps: int,
        metrics: Mapping[str, float],
        *,
        env_steps_done_here: int,
    ) -> None:
        """Log one iteration and show it.

        Args:
          env_steps_done_here: environment steps since this process started, for the speed.
        """
        now = time.perf_counter()
        elapsed = now - self._start
        speed, left = self._pace(now, iteration, env_steps_done_here)
        row = {"iteration": iteration, "env_steps": env_steps, **metrics}
        self._append("metrics.csv", row, self.judged)
        spent = {
            "wall_s": round(self._wall_before + elapsed, 3),
            "steps_per_s": None if speed is None else round(speed, 1),
        }
        self._append("timing.csv", {"iteration": iteration, **spent})
        if self._board is not None:
            paced = {} if speed is None else {"steps_per_s": speed}
            self._board.write({**metrics, **paced}, env_steps)
        self._latest |= {key: metrics[key] for key in self.judged if key in metrics}
        if self._progress is not None:
            self._progress.show(iteration, self.total, speed, left, {**self._latest, **metrics})

    def _pace(self, now: float, iteration: int, steps: int) -> tuple[float | None, float | None]:
        """Environment steps per second, and seconds left; None at this process's first iteration,
        which compiles and comes after the warm-up."""
        if self._paced is None:
            self._paced = now, iteration, steps
            return None, 0.0 if iteration == self.total else None
        began, first, steps_before = self._paced
        seconds = max(now - began, 1e-9)
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
        """Everything written so far is on the disk when this returns: a checkpoint must not be
        ahead of its logs."""
        for name in self._columns:
            with open(self.folder / name, "rb+") as file:
                os.fsync(file.fileno())
        if self._board is not None:
            self._board.flush()

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def _rows(folder: Path, name: str, last: int | None) -> tuple[list[str], list[list[str]]]:
    """Columns and whole rows of a log up to iteration `last`: later ones were written between the
    checkpoint and the kill.

    Nothing for a file that is absent or empty. Raises InputError for one that is no CSV.
    """
    path = folder / name
    if not path.is_file():
        return [], []
    with open(path, newline="", errors="replace") as file:
        try:
            rows = list(csv.reader(file))
        except csv.Error as error:
            raise InputError(f"{path} is not a CSV file: {error}") from error
    if not rows or not rows[0] or rows[0][0] != "iteration":
        return [], []
    whole = [row for row in rows[1:] if len(row) == len(rows[0]) and row[0].isdigit()]
    return rows[0], [row for row in whole if last is None or int(row[0]) <= last]


def _rewrite(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a log anew, in one step; short rows are filled up with empty cells."""
    with atomic_path(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([*row, *[""] * (len(columns) - len(row))] for row in rows)
