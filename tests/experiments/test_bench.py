"""`npmp bench`: what retarget and env print; the objective of the pose solve by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mocap_data import dog_gait
from npmp.experiments import cli
from npmp.experiments.bench_retarget import Track, eq8, tracks_of
from npmp.robots import Robot


@pytest.fixture(scope="module")
def tracks(robot: Robot) -> list[Track]:
    return tracks_of(
        [dog_gait("walk", duration_s=2.0), dog_gait("trot", duration_s=2.0)], robot, {}, 150
    )


def test_retarget(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    assert cli.main(["bench", "retarget", "debug=tiny", f"out={out}"]) == 0
    figures = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert figures == json.loads(out.read_text())
    speeds = (
        "pipeline_frames_per_s",
        "frames_per_s",
        "pose_frames_per_s",
        "pose_frames_per_s_one_thread",
    )
    assert all(figures[name] > 0 for name in speeds)
    assert (
        0 < figures["rms_marker_m"] < 0.05
        and 0 < figures["pose_rms_m"] < 0.05
        and figures["pose_cost"] > 0
    )


def test_tracks_take_so_many_frames(tracks: list[Track]) -> None:
    # 2 s at 60 Hz are 120 frames: all of the first clip, 30 of the second. At the robot's 50 Hz,
    # first and last frame kept: 119 / 60 s and 29 / 60 s hold 99 and 24 periods.
    assert [len(track.goal) for track in tracks] == [100, 25]
    assert tracks[0].problem is tracks[1].problem


def test_eq8_by_hand(tracks: list[Track]) -> None:
    """Targets at the markers of a standing pose, one moved by 3 cm, and one joint bent by 0.1 rad."""
    from retarget import kinematics

    problem = tracks[0].problem
    qpos = np.concatenate([[0.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0], problem.stand])[None]
    qpos[0, 8] += 0.1
    goal = kinematics.positions_of(problem.points, *kinematics.forward(problem.tree, qpos))
    goal[0, 0, 1] += 0.03
    rms, cost = eq8([Track(problem, goal)], [qpos])
    # RMS over 9 markers: 0.03 / 3. Cost: w 0.03^2 + c 0.1^2.
    assert rms == pytest.approx(0.03 / np.sqrt(goal.shape[1]))
    weight = 1.0 if problem.weight is None else problem.weight[0]
    assert cost == pytest.approx(weight * 0.0009 + problem.regularization * 0.01)


def test_the_environment_on_warp(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mujoco_warp")
    arguments = ["bench", "env", "debug=tiny", "sim=warp", "num_envs=2", "seconds=0.05"]
    assert cli.main(arguments) == 0
    figures = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert (figures["sim"], figures["device"], figures["num_envs"]) == ("warp", "cpu", 2)
    assert figures["steps_per_s"] > 0 and 0 < figures["ratio"] < 2


def test_other_benchmarks_refuse_what_they_have_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "retarget", "debug=tiny", "sim=warp"]) == 2
    assert "npmp bench retarget has neither sim= nor device=" in capsys.readouterr().err
