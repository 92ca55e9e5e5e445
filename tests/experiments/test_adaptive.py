"""`randomization=adaptive` in training runs: ranges move, are in the metrics, the checkpoints and
the record."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from npmp import SkillModule
from npmp.experiments import imitate

SETTINGS = [
    "debug=tiny",
    "threads=1",
    "randomization=adaptive",
    "randomization.adaptive.episodes=4",
]


def reaches(out: Path) -> list[float]:
    with open(out / "metrics.csv", newline="") as file:
        return [float(row["range_share"]) for row in csv.DictReader(file)]


@pytest.mark.slow
def test_imitation_moves_the_ranges_and_goes_on_with_them(data: Path, tmp_path: Path) -> None:
    """An untrained policy fails: the ranges narrow."""
    a, b, more = tmp_path / "a", tmp_path / "b", ("randomization.adaptive.least=0.001", "steps=768")
    assert imitate.main([f"data={data}", f"out={a}", *SETTINGS, *more]) == 0
    shutil.copytree(a, b)
    last = max(path.name.split(".")[0] for path in (b / "checkpoints").glob("checkpoint_*"))
    # as if it had been killed after the one before
    for path in (b / "checkpoints").glob(f"{last}.*"):
        path.unlink()
    assert imitate.main([f"resume={b}", f"out={b}", "threads=1"]) == 0
    assert (a / "metrics.csv").read_bytes() == (b / "metrics.csv").read_bytes()
    found = reaches(a)
    assert found[-1] < 0.3 and len(set(found)) > 1
    record = SkillModule.load(a / "module").contract.training["range_share"]
    assert record == json.loads((a / "summary.json").read_text())["range_share"]
    assert record == pytest.approx(found[-1])


def test_collectors_of_their_own_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert (
        imitate.main([f"data={data}", f"out={tmp_path / 'out'}", *SETTINGS, "actors=inline"]) == 2
    )
    assert "adaptive randomization follows the robots of one process" in capfd.readouterr().err
