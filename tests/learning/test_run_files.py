"""The logs of a run folder: rows, columns, and what a resume keeps."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from npmp.learning.run_files import RunLog


def write(log: RunLog, *iterations: int, **metrics: float) -> None:
    for i in iterations:
        log.write(i, 10 * i, {"loss": i / 2, **metrics}, env_steps_here=10 * i)


def table(folder: Path, name: str = "metrics.csv") -> list[dict[str, str]]:
    with open(folder / name, newline="") as file:
        return list(csv.DictReader(file))


def test_rows_have_the_evaluation_columns_from_the_start(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 3, evaluation_keys=("tracked_s",))
    write(log, 1)
    write(log, 2, tracked_s=0.1)
    expected = "iteration,env_steps,loss,tracked_s\n1,10,0.5,\n2,20,1.0,0.1\n"
    assert (tmp_path / "metrics.csv").read_text() == expected
    assert list(table(tmp_path, "timing.csv")[0]) == ["iteration", "wall_s", "cpu_s", "steps_per_s"]


def test_a_later_column_is_added_to_all_rows(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 3)
    write(log, 1)
    write(log, 2, extra=7.0)
    write(log, 3)
    assert [row["extra"] for row in table(tmp_path)] == ["", "7.0", ""]


def test_floats_are_exact(tmp_path: Path) -> None:
    write(RunLog(tmp_path, 1), 1, a=0.1 + 0.2, b=math.nan)
    row = table(tmp_path)[0]
    assert float(row["a"]) == 0.1 + 0.2 and row["b"] == "nan"


def test_a_resume_keeps_rows_up_to_the_checkpoint_and_the_clock(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 9, evaluation_keys=("tracked_s",))
    write(log, 1, tracked_s=0.25)
    write(log, 2, 3, 4)
    (tmp_path / "timing.csv").write_text(
        "iteration,wall_s,steps_per_s\n1,100.0,1\n2,200.0,1\n3,300.0,1\n"
    )
    with open(tmp_path / "metrics.csv", "a") as file:
        file.write("5,50,1.")  # killed while writing
    again = RunLog(tmp_path, 9, evaluation_keys=("tracked_s",), resume_after=2)
    assert [row["iteration"] for row in table(tmp_path)] == ["1", "2"]
    assert again.wall_s >= 200.0
    write(again, 3)
    assert [row["iteration"] for row in table(tmp_path)] == ["1", "2", "3"]
    assert 200.0 <= float(table(tmp_path, "timing.csv")[-1]["wall_s"]) < 290.0
    assert again._curves == {"tracked_s": [0.25]}


@pytest.mark.parametrize("content", [None, ""])
def test_missing_logs_have_no_rows(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        for name in ("metrics.csv", "timing.csv"):
            (tmp_path / name).write_text(content)
    write(RunLog(tmp_path, 9, evaluation_keys=("tracked_s",), resume_after=2), 3)
    assert [row["iteration"] for row in table(tmp_path)] == ["3"]


def test_a_new_run_drops_old_logs_and_a_moved_one_takes_its_rows_along(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    write(RunLog(one, 3), 1, 2)
    write(RunLog(other, 3, resume_after=1, resume_from=one), 2, 3)
    assert [row["iteration"] for row in table(other)] == ["1", "2", "3"]
    assert [row["iteration"] for row in table(one)] == ["1", "2"]
    RunLog(one, 3)
    assert not (one / "metrics.csv").exists()
