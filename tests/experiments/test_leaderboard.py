"""The leaderboard of finished suites, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pytest import CaptureFixture

from npmp.experiments.benchmarks import leaderboard

ABOUT = {"source": "here", "commit": "abc", "date": "2026-11-30", "licence": "MIT"}


def scenario(name: str, success: float, **others: Any) -> dict[str, Any]:
    return {
        "name": name,
        "success": success,
        "fell": 0.25,
        "trials": 4,
        "scaled": False,
        "passed": success == 1.0,
        "settings": {"seconds": 8.0},
        "gait": {"foot_lift_m": 0.01, "stance_mps": 0.9},
        "effort": {"energy_j_per_m": 40.4, "mechanical_power_w": 20.0},
    } | others


def write_suite(folder: Path, *scenarios: dict[str, Any], seed: int = 0) -> str:
    folder.mkdir()
    run = {
        "robot": "robots/my_dog",
        "seed": seed,
        "trials": 4,
        "randomization": "none",
        "success": {},
        "command_range": [[-0.5, 1.0], [0.0, 0.0], [-1.0, 1.0]],
        "scenarios": scenarios,
        "red_flags": [{"name": "jerk", "raised": True}, {"name": "heat", "raised": False}],
    }
    (folder / "suite.json").write_text(json.dumps(run))
    return str(folder)


@pytest.fixture
def policies(tmp_path: Path) -> str:
    path = tmp_path / "policies.yaml"
    path.write_text(yaml.safe_dump({name: ABOUT | {"policy": name} for name in ("a", "b")}))
    return str(path)


def test_the_tables(policies: str, tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    """The gait is of scenarios that only set a command, the worst; falls are counted."""
    plain = scenario("flat_forward", 1.0, skating=["lifts"], scaled=True)
    slow = scenario("flat_slow", 0.5, skating=[], gait={"foot_lift_m": 0.03, "stance_mps": 0.1})
    first = write_suite(tmp_path / "a", plain, slow, scenario("push", 0.0))
    others = [scenario(name, 1.0, gait={}, fell=0.0) for name in ("flat_forward", "flat_slow")]
    second = write_suite(tmp_path / "b", *others, scenario("push", 0.5, fell=0.0))
    assert leaderboard.main([policies, first, second]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "## my_dog"
    assert lines[4] == "| b | 0.83 | 2/3 | 1.00 | 1.00 | 0.50 | - | - | 40 | 20 | 0 | jerk |"
    assert (
        lines[5] == "| a | 0.50 | 1/3 | 1.00 s c | 0.50 | 0.00 | 1.0 | 0.90 | 40 | 20 | 3 | jerk |"
    )
    about = "here | abc | 2026-11-30 | MIT | -0.5 to 1, 0 to 0, -1 to 1 |"
    assert lines[9] == f"| b | {about}"


def test_refusals(policies: str, tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    first = write_suite(tmp_path / "a", scenario("push", 1.0))
    for folder, key in (
        (write_suite(tmp_path / "b", scenario("push", 1.0), seed=1), "seed"),
        (write_suite(tmp_path / "c", scenario("push", 1.0)), "licence"),
        (str(tmp_path), "expected keys"),
    ):
        assert leaderboard.main([policies, first, folder]) == 2
        assert key in capsys.readouterr().err


def test_a_suite_without_gait_is_refused(
    policies: str, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    row = scenario("flat_forward", 1.0)
    del row["gait"]
    assert leaderboard.main([policies, write_suite(tmp_path / "a", row)]) == 2
    assert "gait" in capsys.readouterr().err
