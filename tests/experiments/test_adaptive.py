"""`randomization=adaptive` in training runs: ranges move, are in the metrics, the checkpoints and
the record."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from npmp import SkillModule
from npmp.experiments import imitate, reuse
from npmp.policy import HighLevelPolicy

SETTINGS = [
    "debug=tiny",
    "threads=1",
    "randomization=adaptive",
    "randomization.adaptive.episodes=4",
]


def reaches(out: Path, name: str = "range_share") -> list[float]:
    with open(out / "metrics.csv", newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file)]


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
    record = SkillModule.load(a / "module").contract.training["randomization_ranges"]
    assert record == json.loads((a / "summary.json").read_text())["randomization_ranges"]
    assert set(record) >= {"friction", "mass_whole", "joint_offset", "pushes"}
    assert sum(sum(shares) / len(shares) for shares in record.values()) / len(
        record
    ) == pytest.approx(found[-1])


@pytest.mark.slow
def test_reuse_moves_each_end_by_itself(trained: Path, tmp_path: Path) -> None:
    out, module = tmp_path / "run", trained / "module"
    each = [
        "randomization.adaptive.kind=each",
        "randomization.adaptive.episodes=1",
        "task.episode_s=0.1",
    ]
    assert (
        reuse.main([f"module={module}", f"out={out}", *SETTINGS, *each, "algo.episode_s=0.1"]) == 0
    )
    record = HighLevelPolicy.load(out / "policy").contract.training["randomization_ranges"]
    assert len({share for shares in record.values() for share in shares}) > 1
    mean = sum(record["friction"]) / 2
    assert reaches(out, "range_share_friction")[-1] == pytest.approx(mean)


def test_collectors_of_their_own_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert (
        imitate.main([f"data={data}", f"out={tmp_path / 'out'}", *SETTINGS, "actors=inline"]) == 2
    )
    assert "adaptive randomization follows the robots of one process" in capfd.readouterr().err
