"""`npmp evaluate suite` on an untrained policy."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from npmp import robots
from npmp.evaluation import dead_zones
from npmp.evaluation.suite import FlagConfig, SuccessConfig
from npmp.experiments import cli
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.tasks import Dribble
from tests.experiments.jobs import job_of

TINY = ["debug=tiny", "threads=1"]


@pytest.fixture(autouse=True)
def short_trials_of_dead_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_zones, "SECONDS", 1.0)
    monkeypatch.setattr(dead_zones, "LAST_S", 0.5)


def suite(policy: Path, out: Path, *more: str) -> int:
    return cli.main(["evaluate", "suite", f"policy={policy}", f"out={out}", *TINY, *more])


def test_who_does_not_pass_exits_with_three(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The untrained policy stands: upright, and off its command."""
    chosen = "scenarios=[flat_forward,stairs_up,strong_push]"
    short = [
        f"scenario.{name}.seconds=0.4" for name in ("flat_forward", "stairs_up", "strong_push")
    ]
    assert suite(policy, tmp_path / "out", chosen, *short, "task.terrain_fields=2") == 3
    expected = {".hydra", "config.yaml", "suite.json", "suite.html"}
    assert {entry.name for entry in (tmp_path / "out").iterdir()} == expected
    result = json.loads((tmp_path / "out/suite.json").read_text())
    expected = ["flat_forward", "stairs_up", "strong_push"]
    assert [row["name"] for row in result["scenarios"]] == expected
    row = result["scenarios"][0]
    expected = (4, pytest.approx([0.8, 0, 0]), True, 0.9)
    assert (row["trials"], row["command"], row["scaled"], row["pass_mark"]) == expected
    assert (
        not row["passed"] and not result["passed"] and row["low"] <= row["success"] <= row["high"]
    )
    # the gait is that after the first second
    assert row["gait"] == {} and row["effort"]["mechanical_power_w"] > 0.0
    message = capsys.readouterr().out
    assert "0 of 3 scenarios passed" in message and "not passed" in message
    assert "dead zone: forward +" in message
    assert result["dead_zones"][0]["up_to"] == pytest.approx(0.5)
    page = (tmp_path / "out/suite.html").read_text()
    assert all(words in page for words in ("Red flags", "Dead zones", "stairs_up"))


def test_who_passes_exits_with_zero(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is asked for: the same robots stand as they are told to."""
    more = [
        "scenarios=[delay]",
        "scenario.delay.command=[0,0,0]",
        "scenario.delay.seconds=0.2",
        "success.last_s=0.1",
    ]
    assert (
        suite(policy, tmp_path / "out", *more, "success.velocity_mps=5", "success.yaw_rate_rps=5")
        == 0
    )
    assert "1 of 1 scenarios passed" in capsys.readouterr().out


def test_the_defaults_are_the_librarys() -> None:
    job = job_of("evaluate suite", "policy=x")
    assert (job.config.success, job.config.flags) == (SuccessConfig(), FlagConfig())
    assert job.config.trials == 100 and job.chosen["randomization"] == "none"
    small = job_of("evaluate suite", "policy=x", "robot=op3").config
    strong = small.scenario["strong_push"]
    assert strong.push.force_n == 5.0 and strong.pass_mark == 0.85
    assert small.scenario["stairs_up"].task["terrain_starts"] == "uphill"
    assert (small.task.phi, small.task.start_tilt_deg) == (0.05, 5.0)


def test_a_policy_that_dribbles_is_refused(
    policy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "commanded"
    HighLevelPolicy.load(policy).for_other_task(Dribble(robots.load("anymal_b"))).save(folder)
    assert suite(folder, tmp_path / "out", f"module={policy.parent / 'module'}") == 2
    assert "was trained for task 'dribble'" in capfd.readouterr().err


def test_fallen_starts_take_who_gets_up(
    policy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert suite(policy, tmp_path / "no", "scenarios=[fallen_start]") == 2
    assert "recovery=NAME" in capfd.readouterr().err
    short = [
        "scenarios=[fallen_start]",
        "scenario.fallen_start.seconds=0.2",
        "recovery=anymal_b_recover",
    ]
    assert suite(policy, tmp_path / "out", *short) == 2
    expected = "accelerometer"
    assert expected in capfd.readouterr().err


def save_standing(folder: Path) -> Path:
    """A policy of another project that holds ANYmal's pose, whatever it observes, and its
    description."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    robot = robots.load("anymal_b")
    inputs = helper.make_tensor_value_info("obs", TensorProto.FLOAT, [1, 15])
    outputs = helper.make_tensor_value_info("actions", TensorProto.FLOAT, [1, 12])
    weight = numpy_helper.from_array(np.zeros((15, 12), np.float32), "weight")
    node = helper.make_node("MatMul", ["obs", "weight"], ["actions"])
    graph = helper.make_graph([node], "g", [inputs], [outputs], [weight])
    path = folder / "policy.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    settings = {
        "joint_names": list(robot.joint_names),
        "joint_stiffness": robot.kp.tolist(),
        "joint_damping": robot.kd.tolist(),
        "default_joint_pos": robot.home_joints.tolist(),
        "action_scale": 0.5,
        "step_dt": 0.02,
        "command_ranges": {"lin_vel_x": [0, 0.6], "lin_vel_y": [0, 0], "ang_vel_z": [0, 0]},
        "observations": {"velocity_commands": None, "joint_vel": None},
    }
    path.with_suffix(".yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    return path


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")),
    reason="the extra deploy is not installed",
)
def test_a_policy_of_another_project(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It stands: upright, and off its command, which is clipped to its description's range."""
    policy = save_standing(tmp_path)
    scenario = ["scenarios=[flat_forward]", "scenario.flat_forward.seconds=0.4"]
    assert suite(policy, tmp_path / "out", *scenario) == 3
    result = json.loads((tmp_path / "out/suite.json").read_text())
    row = result["scenarios"][0]
    assert (result["policy"], result["module"]) == ("policy.onnx", None)
    assert row["command"] == pytest.approx([0.6, 0, 0])
    assert row["fell"] == 0.0 and row["off_command"] == 1.0

    assert suite(policy, tmp_path / "no", *scenario, "module=anymal_b_dog") == 2
    assert "module=anymal_b_dog" in capfd.readouterr().err
    policy.with_suffix(".yaml").unlink()
    assert suite(policy, tmp_path / "no", *scenario) == 2
    assert "joint_names" in capfd.readouterr().err


def test_keys_of_other_projects_policies(
    policy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert suite(policy, tmp_path / "no", "trust=true") == 2
    assert "trust" in capfd.readouterr().err
