"""`npmp bench retarget`: its keys, that both sides solve the same problem, and what it says without mink."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mocap_data import dog_gait
from npmp.experiments import cli
from npmp.experiments.bench_retarget import MinkLoop, Track, eq8, memory_figures, solve, tracks_of
from npmp.memory import peak_bytes
from npmp.robots import Robot

FIGURES = {
    "pipeline_frames_per_s", "pose_ratio_to_mink", "pose_frames_per_s", "pose_frames_per_s_one_thread", "pose_rms_m",
    "pose_cost", "mink_frames_per_s", "mink_rms_m", "mink_cost", "rms_marker_m", "frames", "clips", "threads",
}  # fmt: skip


def figures_of(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> dict[str, Any]:
    """The JSON object on the last line that the command prints."""
    assert cli.main(["bench", "retarget", "debug=tiny", *arguments]) == 0
    return dict(json.loads(capsys.readouterr().out.strip().splitlines()[-1]))


@pytest.fixture(scope="module")
def tracks(robot: Robot) -> list[Track]:
    return tracks_of([dog_gait("walk", duration_s=2.0), dog_gait("trot", duration_s=2.0)], robot, {}, 150)


def test_without_mink_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mink", None)
    figures = figures_of(capsys, [])
    assert set(figures) >= FIGURES
    assert figures["pose_ratio_to_mink"] is figures["mink_frames_per_s"] is figures["mink_rms_m"] is None
    assert "npmp[bench]" in figures["note"] and "mink" in figures["note"]
    assert figures["pipeline_frames_per_s"] > 0 and figures["pose_frames_per_s"] > 0
    assert figures["pose_rms_m"] < 0.05


def test_against_mink(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mink")
    pytest.importorskip("daqp")
    out = tmp_path / "figures.json"
    figures = figures_of(capsys, [f"out={out}"])
    assert figures == json.loads(out.read_text())
    assert set(figures) >= FIGURES and "note" not in figures
    # One round: the ratio of the two rates, but for what rounding does to them.
    ratio = figures["pose_frames_per_s"] / figures["mink_frames_per_s"]
    assert figures["pose_ratio_to_mink"] == pytest.approx(ratio, rel=1e-2)
    assert figures["pose_error_within_minks"] and figures["pose_cost"] <= figures["mink_cost"]
    assert figures["pose_rms_m"] == pytest.approx(figures["mink_rms_m"], abs=1e-5)


def test_mink_solves_the_same_problem(robot: Robot, tracks: list[Track]) -> None:
    """With iterations enough, both end in the same poses."""
    pytest.importorskip("mink")
    pytest.importorskip("daqp")
    short = [Track(track.problem, track.goal[:20]) for track in tracks]
    ours = [solve(track, 1) for track in short]
    theirs = MinkLoop.of(robot, short, ours, 10).run()
    for own, other in zip(ours, theirs, strict=True):
        sign = np.sign((own[:, 3:7] * other[:, 3:7]).sum(axis=1, keepdims=True))
        other[:, 3:7] *= sign
        np.testing.assert_allclose(other, own, atol=2e-4)


def test_tracks_take_so_many_frames(tracks: list[Track]) -> None:
    # 2 s at 60 Hz are 120 frames: all of the first clip, 30 of the second. At the robot's 50 Hz, first and last frame
    # kept: 119 / 60 s and 29 / 60 s hold 99 and 24 periods.
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


def test_memory(robot: Robot) -> None:
    figures = memory_figures(robot.name, 200)
    assert figures["memory_frames"] == [200, 2000]
    assert 0 < figures["bytes_per_frame"] < 1e6
    assert peak_bytes() > 1e7


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
