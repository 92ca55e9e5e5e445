"""`npmp imitate` at its tiniest: the run folder, equal bytes for equal seeds, and resuming after a kill."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch

from experiments import imitate
from mocap_data.store import MotionSet, write_motions
from npmp import SkillModule, checkpoint


@pytest.fixture(scope="module")
def data(motions: MotionSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "motions.h5"
    write_motions(path, motions)
    return path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def npmp_imitate(data: Path, out: Path, *more: str) -> int:
    return imitate.main([f"data={data}", f"out={out}", "debug=tiny", "threads=1", *more])


def rows(out: Path) -> list[dict[str, str]]:
    with open(out / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_equal_seeds_give_equal_bytes_and_a_module(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for out in ("a", "b"):
        assert npmp_imitate(data, tmp_path / out, "seed=3") == 0
    a, b = (tmp_path / out for out in "ab")
    assert (a / "metrics.csv").read_bytes() == (b / "metrics.csv").read_bytes()
    log = rows(a)
    assert [int(r["iteration"]) for r in log] == list(range(1, len(log) + 1)) and int(log[-1]["env_steps"]) == 1024
    assert {"model_loss", "tracking_loss", "kl", "beta", "tracked_fraction", "tracked_s"} <= set(log[0])
    assert not any("wall" in column or "per_s" in column.replace("failures_per_s", "") for column in log[0])
    module = SkillModule.load(a / "module")
    assert module.contract.training["seed"] == 3 and module.contract.training["env_steps"] == 1024
    assert json.loads((a / "summary.json").read_text())["after"]["tracked_fraction"] >= 0.0
    assert (a / "config.yaml").is_file() and (a / "timing.csv").is_file() and (a / "checkpoints").is_dir()


def test_a_killed_run_resumes_to_the_same_bytes(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert npmp_imitate(data, whole) == 0
    real = imitate.WorldModelTrainer.iteration

    def killed(self: imitate.WorldModelTrainer, progress: float) -> dict[str, float]:
        if self.iteration_count == 5:  # after checkpoints at 2 and 4
            raise KeyboardInterrupt
        return real(self, progress)

    monkeypatch.setattr(imitate.WorldModelTrainer, "iteration", killed)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        raise SystemExit(npmp_imitate(data, cut))
    monkeypatch.undo()
    assert checkpoint.load_latest(cut / "checkpoints")[0] == 4 and len(rows(cut)) == 5
    assert npmp_imitate(data, cut, f"resume={cut}") == 0
    assert (cut / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    for name, value in SkillModule.load(whole / "module").state_dict().items():
        assert torch.equal(SkillModule.load(cut / "module").state_dict()[name], value), name


def test_resuming_a_finished_run_changes_nothing(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, calls = tmp_path / "run", []

    def judge(self: imitate.Judge, skill: SkillModule) -> dict[str, float]:
        calls.append(skill)
        return {"tracked_fraction": len(calls) / 100, "tracked_s": 1.0}

    monkeypatch.setattr(imitate.Judge, "__call__", judge)
    assert npmp_imitate(data, out) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["before"]["tracked_fraction"] == 0.01
    assert summary["after"]["tracked_fraction"] == len(calls) / 100
    metrics = (out / "metrics.csv").read_bytes()
    assert npmp_imitate(data, out, f"resume={out}") == 0
    again = json.loads((out / "summary.json").read_text())
    assert (again["before"], again["after"]) == (summary["before"], summary["after"])
    assert SkillModule.load(out / "module").contract.training["after"] == summary["after"]
    assert (out / "metrics.csv").read_bytes() == metrics


def test_a_damaged_newest_checkpoint_costs_an_interval_not_the_run(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert npmp_imitate(data, out) == 0
    expected = (out / "metrics.csv").read_bytes()
    newest = max((out / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:1000])
    assert npmp_imitate(data, out, f"resume={out}") == 0
    assert (out / "metrics.csv").read_bytes() == expected


def test_bad_input_is_one_line(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truncated = tmp_path / "truncated.h5"
    truncated.write_bytes(data.read_bytes()[:5000])
    for given, words in ((tmp_path / "absent.h5", "absent.h5"), (truncated, "truncated.h5")):
        capsys.readouterr()
        assert npmp_imitate(given, tmp_path / "out") == 2
        text = capsys.readouterr().err
        assert len(text.strip().splitlines()) == 1 and words in text and "Traceback" not in text
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
