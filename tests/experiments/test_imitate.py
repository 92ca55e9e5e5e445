"""`npmp imitate` at its tiniest: the run folder, equal bytes for equal seeds, and going on after a
kill at any moment."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from pytest import CaptureFixture, MonkeyPatch

from mocap_data import read_motions
from npmp import SkillModule
from npmp.evaluation.module import TrackingTrial
from npmp.evaluation.rollouts import read_rollouts
from npmp.experiments import evaluate, imitate, retarget
from npmp.learning import guard
from npmp.learning import run as training_run
from npmp.learning.model_based import ModelBasedTrainer
from tests.actuators.servos import save_knee


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def npmp_imitate(data: Path, out: Path, *more: str) -> int:
    return imitate.main([f"data={data}", f"out={out}", "debug=tiny", "threads=1", *more])


def error_line(capfd: CaptureFixture[str]) -> str:
    """The last line on stderr, after nothing but progress."""
    *progress, line = capfd.readouterr().err.strip().splitlines()
    # progress ends in a time, or has one before its figures
    assert all(re.search(r"  \d+:\d\d|estimating time left", entry) for entry in progress), progress
    assert line.startswith("npmp: error: ")
    return line


def rows(out: Path) -> list[dict[str, str]]:
    with open(out / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def assert_equal_runs(one: Path, other: Path) -> None:
    """The same bytes in metrics.csv, the same weights in the module."""
    assert (one / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()
    a, b = (SkillModule.load(run / "module").state_dict() for run in (one, other))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_equal_seeds_give_equal_bytes_and_a_module(
    data: Path, trained: Path, tmp_path: Path
) -> None:
    again, other = tmp_path / "again", tmp_path / "other"
    assert npmp_imitate(data, again) == 0
    assert_equal_runs(again, trained)
    assert npmp_imitate(data, other, "seed=3") == 0
    assert (other / "metrics.csv").read_bytes() != (trained / "metrics.csv").read_bytes()
    log = rows(other)
    assert [int(r["iteration"]) for r in log] == list(range(1, len(log) + 1))
    assert int(log[-1]["env_steps"]) == 1024
    expected = {"model_loss", "imagined_task", "kl", "beta", "tracked_fraction", "tracked_s"}
    assert expected <= set(log[0])
    assert not any(
        "wall" in column or "per_s" in column.replace("failures_per_s", "") for column in log[0]
    )
    module = SkillModule.load(other / "module")
    assert module.contract.training["seed"] == 3 and module.contract.training["env_steps"] == 1024
    summary = json.loads((other / "summary.json").read_text())
    assert summary["after"]["tracked_fraction"] >= 0.0 and summary["steps_per_s"] > 0.0
    assert (other / "timing.csv").is_file() and (other / "checkpoints").is_dir()
    assert yaml.safe_load((other / "config.yaml").read_text())["verb"] == "imitate"


def test_other_tempos_are_another_run(
    trained: Path, tmp_path: Path, capfd: CaptureFixture[str]
) -> None:
    arguments = [f"resume={trained}", "steps=2048", "tempos=[0.9]", f"out={tmp_path / 'run'}"]
    assert imitate.main(arguments) == 2
    assert "the checkpoint is of a run" in error_line(capfd)


def test_resuming_a_finished_run_changes_nothing(
    trained: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    out = tmp_path / "run"
    shutil.copytree(trained, out)
    summary = json.loads((out / "summary.json").read_text())

    def judge(self: TrackingTrial, skill: SkillModule) -> dict[str, float]:
        raise AssertionError("nothing is left to judge")

    monkeypatch.setattr(TrackingTrial, "__call__", judge)
    assert imitate.main([f"resume={out}", f"out={out}"]) == 0
    again = json.loads((out / "summary.json").read_text())
    assert (again["before"], again["after"]) == (summary["before"], summary["after"])
    assert SkillModule.load(out / "module").contract.training["after"] == summary["after"]
    assert_equal_runs(out, trained)


@pytest.mark.parametrize("change", ["threads=2", "torch_threads=2", "steps=1023"])
def test_a_finished_run_keeps_the_settings_that_trained_it(
    change: str, trained: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    out = tmp_path / "run"
    shutil.copytree(trained, out)
    before = (out / "config.yaml").read_bytes()
    announced: list[str] = []
    monkeypatch.setattr(training_run, "announce", announced.append)
    assert imitate.main([f"resume={out}", change]) == 0
    assert (out / "config.yaml").read_bytes() == before
    assert announced == []  # no iteration is left


@pytest.mark.parametrize("change", ["algo.policy_lr=[1e-3,1e-3]", "evaluation.starts=5"])
def test_a_finished_run_takes_no_other_settings(
    change: str, trained: Path, tmp_path: Path, capfd: CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(trained, out)
    before = (out / "config.yaml").read_bytes()
    assert imitate.main([f"resume={out}", change]) == 2
    line = error_line(capfd)
    assert change.partition("=")[0] in line and "steps=" in line
    assert (out / "config.yaml").read_bytes() == before


def test_a_damaged_newest_checkpoint_costs_an_interval_not_the_run(
    trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(trained, out)
    newest = max((out / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:1000])
    (out / "timing.csv").write_text("")  # logs are no reason to fail either
    assert imitate.main([f"resume={out}", f"out={out}"]) == 0
    assert_equal_runs(out, trained)


def test_a_run_goes_on_in_another_folder_but_not_over_another_run(
    trained: Path, tmp_path: Path, capfd: CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    out = tmp_path / "longer"
    assert imitate.main([f"resume={trained}", f"out={out}", "steps=1280"]) == 0
    log = rows(out)
    assert [int(r["iteration"]) for r in log] == list(range(1, 9))
    assert log[:6] == rows(trained)
    capfd.readouterr()
    assert imitate.main([f"resume={trained}", f"out={out}", "steps=1280"]) == 2
    assert "resume=" in error_line(capfd)
    assert before == {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}


def test_a_diverged_run_says_what_to_do_and_goes_on_from_its_last_checkpoint(
    data: Path, trained: Path, tmp_path: Path, capfd: CaptureFixture[str], monkeypatch: MonkeyPatch
) -> None:
    out, real = tmp_path / "run", ModelBasedTrainer.iteration

    def lost(self: ModelBasedTrainer, progress: float) -> dict[str, float]:
        metrics = real(self, progress)
        return metrics | {"model_loss": float("nan")} if self.iteration_count == 3 else metrics

    monkeypatch.setattr(ModelBasedTrainer, "iteration", lost)
    monkeypatch.setattr(guard, "PATIENCE", 0)
    assert npmp_imitate(data, out) == 2
    line = error_line(capfd)
    assert "diverged at iteration 3 (model: model_loss is nan" in line and "algo.model_lr=" in line
    assert f"resume={out}" in line
    details = json.loads((out / "diverged.json").read_text())
    assert details["iteration"] == 3 and details["metrics"]["model_loss"] == "nan"
    monkeypatch.undo()
    assert imitate.main([f"resume={out}", f"out={out}"]) == 0
    assert_equal_runs(out, trained)


@pytest.mark.slow
def test_the_motors_current_is_an_objective_and_resumes_to_the_bit(
    data: Path, tmp_path: Path, capfd: CaptureFixture[str]
) -> None:
    save_knee(tmp_path / "knee", current_scale=2.0)
    weighed = ("algo=mo_vmpo", "task.reward.current_weight=5e-4")
    with_knee = (
        *weighed,
        f"actuator={tmp_path / 'knee'}",
        "steps=768",
        "checkpoint_every=1",
        "evaluation.every=9",
    )
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert npmp_imitate(data, whole, *with_knee) == 0
    log = rows(whole)
    assert {"temperature_current", "value_error_current", "temperature_truncation"} <= set(log[0])
    assert all(float(row["return_current"]) < 0.0 for row in log)
    shutil.copytree(whole, resumed)
    last = max((resumed / "checkpoints").glob("*.safetensors"))
    for path in last.parent.glob(f"{last.stem}.*"):
        path.unlink()
    assert imitate.main([f"resume={resumed}", f"out={resumed}", "threads=1"]) == 0
    assert last.is_file()
    assert_equal_runs(whole, resumed)
    capfd.readouterr()
    assert npmp_imitate(data, tmp_path / "c", *weighed) == 2
    assert "actuator=pd does not model currents" in error_line(capfd)
    assert not (tmp_path / "c").exists()
    # an imagined robot's are learned
    assert npmp_imitate(data, tmp_path / "imagined", *with_knee[1:3], "steps=4096") == 0
    log = rows(tmp_path / "imagined")
    assert all(float(row["imagined_current"]) > 0.0 for row in log)
    assert float(log[-1]["model_current"]) < float(log[0]["model_current"])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "lengths"), [("stairs", [0.04, 0.06]), ("gaps", [0.1, 0.2])])
def test_recordings_over_stairs_and_gaps(tmp_path: Path, kind: str, lengths: list[float]) -> None:
    """Laid, imitated and evaluated on their ground, which the rollouts keep."""
    lay = ["source=synthetic", "stop=240", f"{kind}={lengths}", "report=null", "out=laid.h5"]
    assert retarget.main(lay) == 0
    motions = read_motions("laid.h5")
    grounds = {motion.name: motion.ground for motion in motions.motions if motion.ground}
    assert grounds and len(grounds) < len(motions.motions)
    assert all(f"_{kind}" in name for name in grounds)
    assert json.loads(motions.provenance[kind]) == lengths
    assert npmp_imitate(Path("laid.h5"), tmp_path / "run", "randomization=paper") == 0
    assert all(float(row["imagined_task"]) < 1e3 for row in rows(tmp_path / "run"))

    out = tmp_path / "evaluation"
    tried = ["module=run/module", "data=laid.h5", f"out={out}", "debug=tiny", "threads=1"]
    assert evaluate.main(tried) == 0
    for clip in read_rollouts(out / "rollouts.h5").clips:
        ground = grounds.get(clip.name)
        assert (clip.ground is None) == (ground is None)
        if ground is not None:
            assert (clip.ground.heights == ground.heights).all()
            # a foot of the reference stands at any time, also on the steps
            assert abs(clip.reference_foot_height.min(axis=1)).max() < 0.03
