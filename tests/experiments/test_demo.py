"""`npmp demo` from end to end on one short gait: its figures, its report, and what a second demo
takes over from the first."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from mocap_data import dog_gait, read_motions
from npmp.core.settings import read_run_settings
from npmp.core.signals import Stopped
from npmp.evaluation.policy import PolicyEvaluationConfig
from npmp.experiments import cli, demo
from npmp.experiments.command import Run
from npmp.experiments.compose import Job
from retarget.sources import GENERATED


@pytest.fixture(scope="module", autouse=True)
def short_gait() -> None:
    """Two seconds of trot instead of all gaits, four of walking on command instead of twenty. The
    machine is not measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "yardstick", lambda: 0.032)
        gait = dog_gait("trot", speed_mps=0.8, duration_s=2.0)
        patch.setitem(GENERATED, "synthetic", lambda: [gait])
        patch.setattr(
            demo,
            "PolicyEvaluationConfig",
            lambda robots, seconds: PolicyEvaluationConfig(robots, seconds=seconds / 5),
        )
        yield


def npmp_demo(out: Path, *more: str) -> int:
    return cli.main(["demo", "debug=tiny", f"out={out}", "threads=1", *more])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "a demo"
    assert npmp_demo(out) == 0
    return out


def test_summary_and_report(done: Path) -> None:
    summary = json.loads((done / "summary.json").read_text())
    (motion,) = read_motions(done / "motions.h5").motions
    assert summary["retarget_rms_marker_m"] == pytest.approx(motion.quality["rms_marker_m"])
    assert 0.0 < summary["retarget_rms_marker_m"] < 0.03
    assert set(summary["tracked_s"]) == {"before", "after"} and summary["tracked_s"]["after"] >= 0.0
    assert {"random_latents", "before", "after"} == set(summary["velocity_error"])
    assert set(summary["steps_per_s"]) == {"imitate", "reuse"}
    assert min(summary["steps_per_s"].values()) > 0.0
    assert summary["seed"] == 0
    assert {"npmp", "torch", "mujoco"} <= set(summary["versions"])
    report = (done / "report.html").read_text()
    assert "</html>" in report and str(done) not in report
    expected = {"evaluation.json", "rollouts.h5", "config.yaml"}
    assert expected <= {entry.name for entry in done.iterdir()}
    assert "velocity_error" in json.loads((done / "evaluation.json").read_text())["walking"]
    for name in ("imitate", "reuse"):
        assert yaml.safe_load((done / name / "config.yaml").read_text())["verb"] == name


def test_a_demo_that_is_there_is_kept(
    done: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(done, kept)
    assert npmp_demo(kept) == 2  # its config.yaml names another out=, which is no difference
    assert "a finished demo" in capfd.readouterr().err
    (kept / "summary.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in sorted(kept.rglob("*"))}
    for other in ("seed=1", "robot=unitree_go2", "starts=5"):
        assert npmp_demo(kept, other) == 2
        line = capfd.readouterr().err
        assert f"contains a demo with {other.partition('=')[0]}=" in line and "replace=true" in line
    assert {path: path.stat().st_mtime_ns for path in sorted(kept.rglob("*"))} == before
    demo.clear(demo.Demo(out=kept, replace=True), Run("demo", kept, 0, "cpu", 1))
    assert not (kept / "imitate").exists()


def test_runs_of_no_demo_are_never_deleted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "imitate" / "mine" / "module"
    other.mkdir(parents=True)
    assert npmp_demo(tmp_path, "replace=true") == 2
    assert "imitate is not part of a demo" in capfd.readouterr().err and other.is_dir()


def test_a_demo_goes_on_with_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    resumed: list[Path | None] = []

    def stages(config: demo.Demo, run: Run, jobs: dict[str, Job]) -> None:
        _, begun = demo.stage(run, "imitate", jobs["imitate"])
        resumed.append(begun.resume)
        begun.begin()
        (begun.folder / "checkpoints").mkdir(exist_ok=True)
        (begun.folder / "checkpoints" / "checkpoint_1.json").write_text("{}")
        raise Stopped("SIGTERM", 143)

    monkeypatch.setattr(demo, "run_stages", stages)
    out = tmp_path / "demo"
    assert npmp_demo(out) == 143
    assert cli.main(["demo", "debug=tiny", f"out={out}", "threads=2", "torch_threads=2"]) == 143
    assert resumed == [None, out / "imitate"]
    assert npmp_demo(out, 'imitate=["steps=2048"]') == 2
    assert "contains a demo with imitate=" in capfd.readouterr().err
    other = Run("demo", out, 0, "cuda", 1, values={**read_run_settings(out)[1], "device": "cuda"})
    demo.clear(demo.Demo(out=out), other)


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (Stopped("SIGTERM again", 143), 143)]
)
def test_an_interrupted_demo_names_the_command_that_goes_on(
    error: KeyboardInterrupt,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def stages(*given: object) -> None:
        raise error

    monkeypatch.setattr(demo, "run_stages", stages)
    out = tmp_path / "a demo"
    assert npmp_demo(out, 'imitate=["steps=2048"]') == code
    expected = f"npmp demo debug=tiny 'imitate=['\"'\"'steps=2048'\"'\"']' 'out={out}' threads=1"
    assert f"to resume: {expected}" in capfd.readouterr().err
    # which is the same demo
    assert cli.main(shlex.split(expected)[1:]) == code


def test_a_mistake_in_a_stages_settings_shows_before_any_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for wrong, words in (
        ('imitate=["stpes=3"]', "the nearest are: steps, "),
        ('reuse=["steps=abc"]', "steps must be a whole number, got 'abc'"),
    ):
        assert npmp_demo(tmp_path / "out", wrong) == 2
        assert words in capfd.readouterr().err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("source", "mirrors"), [("gaits", "none"), ("a_dog", "left_right")])
def test_generated_gaits_are_not_mirrored(source: str, mirrors: str, tmp_path: Path) -> None:
    # a turn to the left held out would be a turn to the right, mirrored, for training
    config = demo.Demo(source=source, out=tmp_path)
    run = Run("demo", tmp_path, seed=0, device="cpu", threads=1)
    assert demo.jobs_of(config, run)["retarget"].config.mirrors == mirrors


@pytest.mark.slow
def test_from_recordings_and_a_robot_to_a_policy_that_was_pushed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gait, out = dog_gait("walk", speed_mps=0.5, duration_s=3.0), tmp_path / "demo"
    recording = tmp_path / "a dog.npz"
    np.savez(recording, positions=gait.positions, names=np.array(gait.names), fps=gait.rate_hz)
    more = ("robot=unitree_go2", f"source=[{recording}]", 'retarget=["up=z"]', "starts=2")
    assert npmp_demo(out, *more) == 0
    assert "minutes of learning on two idle cores" in capfd.readouterr().out
    motions = read_motions(out / "motions.h5")
    assert motions.robot == "unitree_go2" and {m.mirror for m in motions.motions} == {
        "",
        "left_right",
    }
    _, hardened = read_run_settings(out / "harden")
    assert hardened["policy"] == str(out / "reuse" / "policy")
    assert hardened["randomization"]["name"] == "paper"
    assert hardened["randomization"]["pushes"]["force"] == 75  # less than 5 N/kg
    (low, high), *_ = hardened["task"]["command_range"]
    assert low == 0.0 and 0.2 < high < 0.3  # standing to the gait's speed at the robot's size
    summary = json.loads((out / "summary.json").read_text())
    assert list(summary["env_steps"]) == ["imitate", "reuse", "harden"]
    assert "velocity_error" in json.loads((out / "evaluation.json").read_text())["walking"]
