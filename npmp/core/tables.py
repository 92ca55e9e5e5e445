"""Reading a run's tables, metrics.csv and timing.csv."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mocap_data.errors import InputError
from mocap_data.input_files import reading, regular_file

FloatArray = npt.NDArray[np.float64]


def read_table(path: Path | str) -> list[dict[str, str]]:
    """The rows of a CSV file by its header's names.

    Raises:
      InputError: as `regular_file`, and for a file that is not text or has no header.
    """
    path = regular_file(path)
    with reading(path), path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        header = reader.fieldnames
        rows = list(reader)
    if not header:
        raise InputError(f"{path} is empty, expected a header line of column names")
    return rows


def to_float(text: str | None) -> float:
    """A cell's number; NaN for an empty or other text."""
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")


def read_metrics(path: Path | str) -> dict[str, FloatArray]:
    """The columns of a metrics.csv with any number, each (rows,), NaN for other cells. Raises
    InputError as `read_table`."""
    rows = read_table(path)
    names = [name for name in rows[0] if name is not None] if rows else []
    columns = {name.strip(): np.array([to_float(row.get(name)) for row in rows]) for name in names}
    return {name: column for name, column in columns.items() if np.isfinite(column).any()}


def wall_clock_hours(folder: Path) -> float | None:
    """Wall-clock hours of a run from its timing.csv; None without one."""
    try:
        rows = read_table(folder / "timing.csv")
        return float(rows[-1]["wall_s"]) / 3600.0 if rows else None
    except (InputError, KeyError, ValueError, TypeError):
        return None
