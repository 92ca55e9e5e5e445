"""`npmp evaluate` on a tiny module: its figures follow from rollouts.h5, its mistakes are one line
and destroy nothing."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import h5py
import mujoco
import numpy as np
import pytest
import yaml

from mocap_data import read_motions
from mocap_data.store import MotionSet, write_motions
from npmp.experiments import cli
from npmp.robots import Robot

TINY = ["debug=tiny", "threads=1"]


@pytest.fixture(scope="module")
def evaluated(data: Path, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluated") / "evaluation"
    args = [f"module={trained / 'module'}", f"data={data}", f"out={out}", "seed=2"]
    assert cli.main(["evaluate", *args, *TINY]) == 0
    return out


def test_the_figures_follow_from_the_rollouts(evaluated: Path) -> None:
    result = json.loads((evaluated / "evaluation.json").read_text())
    expected = {"module", "data", "robot", "seed", "versions", "clips", "mean", "random_starts"}
    assert expected <= set(result)
    assert (result["robot"], result["seed"], result["random_starts"]["starts"]) == (
        "anymal_b",
        2,
        4,
    )
    assert result["seen_in_training"] == 2
    assert len(result["clips"]) == 2
    # generated gaits are within the robot's limits
    assert [clip["infeasible_by"] for clip in result["clips"]] == ["", ""]
    assert result["feasible"]["number"] == 2 and "infeasible" not in result
    assert result["feasible"]["time_share"] == pytest.approx(result["mean"]["time_share"])
    with h5py.File(evaluated / "rollouts.h5") as file:
        assert file.attrs["robot"] == "anymal_b"
        for clip in result["clips"]:
            group = file[clip["name"]]
            qpos, reference = group["qpos"][()], group["reference_qpos"][()]
            steps = int(group.attrs["tracked_frames"]) - 1
            assert clip["tracked_s"] == pytest.approx(steps / group.attrs["rate_hz"])
            expected = pytest.approx(clip["tracked_s"] / clip["duration_s"], abs=1e-6)
            assert clip["tracked_fraction"] == expected
            # what an export for LeRobot needs
            assert group["qvel"].shape == (len(qpos), qpos.shape[1] - 1)
            assert group["setpoints"].shape == (len(qpos) - 1, qpos.shape[1] - 7)
            # of each step its own
            assert len(qpos) < 3 or np.ptp(group["setpoints"][()], axis=0).all()
            assert group.attrs["licence"] == "Apache-2.0 (generated)"
            # it starts on the reference
            np.testing.assert_allclose(qpos[0], reference[0], atol=1e-9)
            frames = range(1, max(steps, 1) + 1)  # the tracked ones; at least one
            base = [float(np.sqrt(((qpos[t, :3] - reference[t, :3]) ** 2).sum())) for t in frames]
            joints = [float(np.abs(qpos[t, 7:] - reference[t, 7:]).sum() / 12) for t in frames]
            expected = pytest.approx(sum(base) / len(base), rel=1e-9)
            assert clip["base_deviation_m"]["mean"] == expected
            assert clip["base_deviation_m"]["max"] == pytest.approx(max(base), rel=1e-9)
            assert clip["base_deviation_m"]["last"] == pytest.approx(base[-1], rel=1e-9)
            assert clip["joint_error_rad"] == pytest.approx(sum(joints) / len(joints), rel=1e-9)
            assert (
                group["foot_height"].shape == group["reference_foot_height"].shape == (len(qpos), 4)
            )
    for key in ("tracked_fraction", "joint_error_rad"):
        assert result["mean"][key] == pytest.approx(sum(clip[key] for clip in result["clips"]) / 2)
    seconds = {
        key: sum(clip[key] for clip in result["clips"]) for key in ("tracked_s", "duration_s")
    }
    expected = pytest.approx(seconds["tracked_s"] / seconds["duration_s"])
    assert result["mean"]["time_share"] == expected
    for key in ("mean", "max", "last"):
        deviations = [clip["base_deviation_m"][key] for clip in result["clips"]]
        for average in ("mean", "median"):  # of two clips both are the middle
            assert result[average]["base_deviation_m"][key] == pytest.approx(sum(deviations) / 2)


def test_validation_clips_that_were_trained_on_are_told(
    trained: Path, motions: MotionSet, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A module of all clips and one of the training split, on the validation split."""
    train, validation = (
        dataclasses.replace(m, split=s)
        for m, s in zip(motions.motions, ("train", "validation"), strict=True)
    )
    write_motions(tmp_path / "split.h5", dataclasses.replace(motions, motions=(train, validation)))
    shutil.copytree(trained / "module", tmp_path / "honest")
    contract = json.loads((trained / "module" / "module.json").read_text())
    assert contract["training"]["clips"] == [train.name, validation.name]
    contract["training"]["clips"] = [train.name]
    (tmp_path / "honest" / "module.json").write_text(json.dumps(contract))
    report = "trained on recordings of 1 of 1 validation clips"
    for module, seen in ((trained / "module", 1), (tmp_path / "honest", 0)):
        out = tmp_path / f"seen_{seen}"
        args = [f"module={module}", f"data={tmp_path / 'split.h5'}", f"out={out}"]
        assert cli.main(["evaluate", *args, *TINY, "split=validation"]) == 0
        error = capfd.readouterr().err
        assert (report in error and "npmp imitate split=train" in error) if seen else not error
        assert json.loads((out / "evaluation.json").read_text())["seen_in_training"] == seen
        assert (
            "1 of recordings that the module was trained on" in (out / "report.html").read_text()
        ) == bool(seen)


def test_only_clips_below_a_speed(
    evaluated: Path, data: Path, trained: Path, robot: Robot, tmp_path: Path
) -> None:
    """A limit between the speeds of the two clips leaves the slower one."""
    result = json.loads((evaluated / "evaluation.json").read_text())
    clips = {clip["name"]: clip for clip in result["clips"]}
    model = robot.model()
    physics = mujoco.MjData(model)
    for motion in read_motions(data).motions:
        half_a_second = motion.qpos[25:, :2] - motion.qpos[:-25, :2]  # 25 steps of 20 ms
        fastest = max(2.0 * float(np.hypot(*way)) for way in half_a_second)
        # the ends count as well
        assert clips[motion.name]["top_speed_mps"] >= fastest - 1e-9
        height = []
        for physics.qpos[:] in motion.qpos:
            mujoco.mj_kinematics(model, physics)
            # ANYmal's feet are balls
            for name, (ball,) in zip(robot.foot_bodies, robot.foot_points, strict=True):
                body = physics.body(name)
                height.append((body.xpos + body.xmat.reshape(3, 3) @ ball)[2])
        expected = max(height) - robot.foot_radius
        assert clips[motion.name]["foot_height_m"] == pytest.approx(expected, abs=1e-6)
    args = ["evaluate", f"module={trained / 'module'}", f"data={data}", *TINY]
    slow, fast = sorted(clips, key=lambda name: clips[name]["top_speed_mps"])
    limit = 0.5 * (clips[slow]["top_speed_mps"] + clips[fast]["top_speed_mps"])
    assert cli.main([*args, f"max_speed={limit}", f"out={tmp_path / 'slow'}"]) == 0
    result = json.loads((tmp_path / "slow" / "evaluation.json").read_text())
    assert [clip["name"] for clip in result["clips"]] == [slow]
    assert result["max_speed"] == limit


def test_the_folder(evaluated: Path) -> None:
    expected = {".hydra", "config.yaml", "evaluation.json", "rollouts.h5", "report.html"}
    assert {entry.name for entry in evaluated.iterdir()} == expected
    assert yaml.safe_load((evaluated / "config.yaml").read_text())["verb"] == "evaluate"
    assert "</html>" in (evaluated / "report.html").read_text()


def test_footsteps_are_evaluated_as_a_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["evaluate", "policy=footsteps", "robot=unitree_go2", f"out={tmp_path / 'out'}"]
    assert cli.main(args) == 2
    assert "policy=footsteps: needs module=, e.g. module=go2_ground" in capsys.readouterr().err
    terrain = ["task=walk", "task.terrain=stairs", "task.terrain_fields=2"]
    few = ["evaluation.robots=2", "evaluation.seconds=1", "threads=1"]
    assert cli.main([*args, "module=go2_ground", *terrain, *few]) == 0
    result = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert (result["policy"], result["module"]) == ("footsteps", "go2_ground")
    assert result["settings"]["clock_s"] == 0.5
    assert result["falls_per_minute"] == 0.0
