"""`npmp evaluate compare`: groups of runs, their table and their plot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pytest import CaptureFixture, MonkeyPatch

from npmp.experiments import cli
from tests.evaluation.test_comparison import make_run
from tests.experiments.command import Says


def test_compare(tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for beta in (2, 3):
        for seed in (0, 1):
            scores = (0.2, 0.4, 0.8) if seed else (0.2, 0.4, 0.6 / (beta - 1))
            algo = {"name": "a", "beta": [0.1, beta]}
            run = tmp_path / "sweep" / f"algo.beta=[0.1,{beta}],seed={seed}"
            make_run(run, scores, seed=seed, settings={"algo": algo}, finished=seed == 0)
    out = tmp_path / "out"
    places = [str(entry) for entry in sorted((tmp_path / "sweep").iterdir())]
    code = cli.main(["evaluate", "compare", *places, "threshold=0.5", "minutes=3", f"out={out}"])
    assert code == 0
    printed = capsys.readouterr().out
    assert all(len(line) <= 80 for line in printed.splitlines() if str(out) not in line)
    assert "beta=[0.1,2], seed 1: incomplete: 400 of 400" in printed and "at 3 min" in printed
    result = json.loads((out / "comparison.json").read_text())
    two, three = (group["figures"] for group in result["groups"])
    # at minute 3 half way from 0.4 to the end: 0.6 and 0.5; 0.6 and 0.35
    assert two["at 3 min"]["mean"] == pytest.approx(0.55)
    assert three["at 3 min"]["low"] == pytest.approx(0.35)
    assert (two["min to 0.5"]["count"], three["min to 0.5"]["count"]) == (2, 1)
    assert result["groups"][0]["runs"][1]["run"] == "algo.beta=[0.1,2],seed=1"
    assert str(tmp_path) not in json.dumps(result)
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_a_real_run(trained: Path, tmp_path: Path, printed: Says) -> None:
    args = [f"runs={trained}", "score=kl", "lower=true", "threshold=null", f"out={tmp_path}"]
    output = printed("evaluate", "compare", *args)
    assert "kl: mean" in output and "incomplete" not in output
