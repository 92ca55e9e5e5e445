"""Reading the tables that a run leaves: metrics.csv and timing.csv."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mocap_data.errors import InputError
from mocap_data.input_files import regular_file

FloatArray = npt.NDArray[np.float64]


def read_table(path: Path | str) -> list[dict[str, str]]:
    """The rows of a CSV file by its header's names.

    Raises:
      InputError: as `regular_file`, and for a file that is missing, no text or without a header.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no metrics file {path}")
    regular_file(path)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames
            rows = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV file: {error}") from error
    if not header:
        raise InputError(f"{path} is empty, expected a header line of column names")
    return rows


def as_number(text: str | None) -> float:
    """A cell's number; NaN where it is empty or none."""
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")


def read_metrics(path: Path | str) -> dict[str, FloatArray]:
    """The numeric columns of a metrics.csv, each (rows,), NaN where a cell is empty or no number.
    Columns without any number are left out. Raises InputError as `read_table` does."""
    rows = read_table(path)
    names = [name for name in rows[0] if name is not None] if rows else []
    columns = {name.strip(): np.array([as_number(row.get(name)) for row in rows]) for name in names}
    return {name: column for name, column in columns.items() if np.isfinite(column).any()}


def hours_of(folder: Path) -> float | None:
    """Wall-clock hours of a run, from its timing.csv; None where it has none."""
    try:
        rows = read_table(folder / "timing.csv")
        return float(rows[-1]["wall_s"]) / 3600.0 if rows else None
    except (InputError, KeyError, ValueError, TypeError):
        return None
