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
from npmp.evaluation.module import average_clips, seen_in_training
from npmp.experiments import cli
from npmp.robots import Robot

TINY = ["debug=tiny", "threads=1"]


@pytest.fixture(scope="module")
def evaluated(data: Path, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluated") / "evaluation"
    given = [f"module={trained / 'module'}", f"data={data}", f"out={out}", "seed=2"]
    assert cli.main(["evaluate", *given, *TINY]) == 0
    return out


def test_the_figures_follow_from_the_rollouts(evaluated: Path) -> None:
    found = json.loads((evaluated / "evaluation.json").read_text())
    expected = {"module", "data", "robot", "seed", "versions", "clips", "mean", "random_starts"}
    assert expected <= set(found)
    assert (found["robot"], found["seed"], found["random_starts"]["starts"]) == ("anymal_b", 2, 4)
    assert found["seen_in_training"] == 2
    assert len(found["clips"]) == 2
    with h5py.File(evaluated / "rollouts.h5") as file:
        assert file.attrs["robot"] == "anymal_b"
        for clip in found["clips"]:
            group = file[clip["name"]]
            qpos, reference = group["qpos"][()], group["reference_qpos"][()]
            steps = int(group.attrs["tracked_frames"]) - 1
            assert clip["tracked_s"] == pytest.approx(steps / group.attrs["rate_hz"])
            expected = pytest.approx(clip["tracked_s"] / clip["duration_s"], abs=1e-6)
            assert clip["tracked_fraction"] == expected
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
        assert found["mean"][key] == pytest.approx(sum(clip[key] for clip in found["clips"]) / 2)
    seconds = {
        key: sum(clip[key] for clip in found["clips"]) for key in ("tracked_s", "duration_s")
    }
    expected = pytest.approx(seconds["tracked_s"] / seconds["duration_s"])
    assert found["mean"]["time_share"] == expected
    for key in ("mean", "max", "last"):
        deviations = [clip["base_deviation_m"][key] for clip in found["clips"]]
        for average in ("mean", "median"):  # of two clips both are the middle
            assert found[average]["base_deviation_m"][key] == pytest.approx(sum(deviations) / 2)


def test_mean_and_median_over_clips() -> None:
    """Of 0.1, 0.2 and 0.6 they are 0.3 and 0.2."""
    figures = ("tracked_fraction", "tracked_s", "joint_error_rad")
    clips = [
        dict.fromkeys(figures, 2.0 * last) | {"base_deviation_m": {"mean": 0.01, "last": last}}
        for last in (0.6, 0.1, 0.2)
    ]
    for average, last in ((np.mean, 0.3), (np.median, 0.2)):
        found = average_clips(clips, average)
        assert found.pop("base_deviation_m") == pytest.approx({"mean": 0.01, "last": last})
        assert found == pytest.approx(dict.fromkeys(figures, 2.0 * last))


@pytest.mark.parametrize(
    ("training", "seen"),
    [
        ({"clips": ["r1_c00"]}, 3),  # its chunk and its mirror with it
        ({"clips": ["r1_c00_lr", "elsewhere"]}, 3),
        ({"clips": ["lone", "r1_c00"]}, 4),
        ({"clips": ["lone"]}, 1),  # "" is no recording that the other nameless one shares
        ({"clips": ["elsewhere"]}, 0),
        ({}, None),
    ],
)
def test_clips_seen_in_training(
    training: dict[str, list[str]], seen: int | None, motions: MotionSet
) -> None:
    recordings = dict.fromkeys(("r1_c00", "r1_c00_lr", "r1_c01"), "r1")
    recordings |= {"r2": "r2", "lone": "", "other": ""}
    made = [
        dataclasses.replace(motions.motions[0], name=name, recording=key)
        for name, key in recordings.items()
    ]
    assert seen_in_training(training, dataclasses.replace(motions, motions=tuple(made))) == seen


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
    told = "trained on recordings of 1 of 1 validation clips"
    for module, seen in ((trained / "module", 1), (tmp_path / "honest", 0)):
        out = tmp_path / f"seen_{seen}"
        given = [f"module={module}", f"data={tmp_path / 'split.h5'}", f"out={out}"]
        assert cli.main(["evaluate", *given, *TINY, "split=validation"]) == 0
        error = capfd.readouterr().err
        assert (told in error and "npmp imitate split=train" in error) if seen else not error
        assert json.loads((out / "evaluation.json").read_text())["seen_in_training"] == seen
        assert (
            "1 of recordings that the module was trained on" in (out / "report.html").read_text()
        ) == bool(seen)


def test_only_clips_within_limits(
    evaluated: Path,
    data: Path,
    trained: Path,
    robot: Robot,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Limits between what MuJoCo and a sum over the path say of the two clips leave the one that
    keeps them."""
    clips = {
        clip["name"]: clip
        for clip in json.loads((evaluated / "evaluation.json").read_text())["clips"]
    }
    model, speeds, heights = robot.model(), {}, {}
    physics = mujoco.MjData(model)
    for motion in read_motions(data).motions:
        steps = np.diff(motion.qpos[:, :2], axis=0)
        speeds[motion.name] = (
            sum(float(np.hypot(*step)) for step in steps) / clips[motion.name]["duration_s"]
        )
        assert clips[motion.name]["speed_mps"] == pytest.approx(speeds[motion.name], rel=1e-6)
        half_a_second = motion.qpos[25:, :2] - motion.qpos[:-25, :2]  # 25 steps of 20 ms
        speeds[motion.name] = max(2.0 * float(np.hypot(*way)) for way in half_a_second)
        # the ends count as well
        assert clips[motion.name]["top_speed_mps"] >= speeds[motion.name] - 1e-9
        speeds[motion.name] = clips[motion.name]["top_speed_mps"]
        height = []
        for physics.qpos[:] in motion.qpos:
            mujoco.mj_kinematics(model, physics)
            # ANYmal's feet are balls
            for name, (ball,) in zip(robot.foot_bodies, robot.foot_points, strict=True):
                height.append(
                    (physics.body(name).xpos + physics.body(name).xmat.reshape(3, 3) @ ball)[2]
                )
        heights[motion.name] = max(height) - robot.foot_radius
        assert clips[motion.name]["foot_height_m"] == pytest.approx(heights[motion.name], abs=1e-6)
    for key, figures in (("max_speed", speeds), ("max_foot_height", heights)):
        low, high = sorted(figures, key=lambda name: figures[name])
        limit = 0.5 * (figures[low] + figures[high])
        given = ["evaluate", f"module={trained / 'module'}", f"data={data}"]
        assert cli.main([*given, *TINY, f"{key}={limit}", f"out={tmp_path / key}"]) == 0
        found = json.loads((tmp_path / key / "evaluation.json").read_text())
        assert [clip["name"] for clip in found["clips"]] == [low]
        assert found[key] == limit
    capfd.readouterr()
    assert cli.main([*given, "max_speed=1.0e-6", f"out={tmp_path / 'none'}"]) == 2
    assert "max_speed=1e-06" in capfd.readouterr().err


def test_the_folder(evaluated: Path) -> None:
    expected = {".hydra", "config.yaml", "evaluation.json", "rollouts.h5", "report.html"}
    assert {entry.name for entry in evaluated.iterdir()} == expected
    assert yaml.safe_load((evaluated / "config.yaml").read_text())["verb"] == "evaluate"
    assert "</html>" in (evaluated / "report.html").read_text()


def test_mistakes_are_one_line_and_leave_the_folder_as_it_was(
    evaluated: Path, data: Path, trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    garbled = tmp_path / "garbled"
    shutil.copytree(trained / "module", garbled)
    weights = garbled / "module.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    scrambled = tmp_path / "scrambled"
    shutil.copytree(trained / "module", scrambled)
    (scrambled / "module.json").write_text('{"robot": ')
    walking = {"policy": "anymal_b_walk", "task": "walk"}
    mistakes = [
        ({"module": garbled}, "garbled"),
        ({"module": scrambled}, "module.json"),
        ({"module": tmp_path / "nowhere"}, "no skill module '"),
        ({"data": tmp_path / "absent.h5"}, "absent.h5"),
        ({"policy": tmp_path / "nowhere"}, "no policy '"),
        ({"policy": tmp_path / "nowhere", "task": "walk"}, "no policy '"),
        ({"task": "walk"}, "task=walk is of a policy's evaluation: give policy="),
        (walking | {"module": "null", "data": "null", "max_speed": 2}, "max_speed=2.0 "),
        ({"data": "null"}, "npmp evaluate needs data=... (the motion dataset"),
        ({"module": "null"}, "npmp evaluate needs module=... (a skill module), or policy=..."),
        ({"starts": 0}, "starts must be a whole number of at least 1, got 0"),
        ({"evaluation.robots": 3}, "evaluation.robots=3 is of a policy's evaluation: give policy="),
        (walking | {"starts": 3}, "starts=3 is of a module's evaluation"),
        ({"out": trained}, "holds a run of npmp imitate; choose another out="),
    ]
    files = [path for path in evaluated.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in [*files, trained / "config.yaml"]}
    for change, words in mistakes:
        arguments = {"module": trained / "module", "data": data, "out": evaluated, **change}
        capfd.readouterr()
        given = [f"{key}={value}" for key, value in arguments.items()]
        assert cli.main(["evaluate", *given, "debug=tiny", "seed=9"]) == 2
        lines = capfd.readouterr().err.strip().splitlines()
        assert len(lines) == 1 and words in lines[0], lines
        assert before == {path: path.read_bytes() for path in before}
