"""`npmp data export`: datasets in other projects' formats, and back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from pytest import CaptureFixture

from mocap_data import read_motions, write_motions
from mocap_data.ground_profile import GroundProfile
from mocap_data.readers.robot_motions import read_robot_motion
from mocap_data.store import MotionSet
from npmp.experiments import cli
from npmp.robots import Robot
from retarget.robot_motion_import import to_reference_motion
from tests.experiments.command import Says


def motion_set(robot: Robot) -> MotionSet:
    """Two standing motions of different length, in one split each; made without the solver."""
    from retarget.robot_motion_import import RobotMotion

    motions = []
    for name, frames, split in (("stand", 20, "train"), ("sway", 30, "validation")):
        qpos = np.tile(robot.home_qpos, (frames, 1))
        qpos[:, 0] += 0.05 * np.sin(np.arange(frames) / 10.0)
        raw = RobotMotion(name, qpos, 50.0, robot.joint_names, source="made up", licence="none")
        motions.append(dataclasses.replace(to_reference_motion(raw, robot), split=split))
    return MotionSet(
        robot.name, robot.model_sha256, robot.joint_names, robot.body_names, tuple(motions)
    )


@pytest.fixture
def dataset(robot: Robot, tmp_path: Path) -> Path:
    write_motions(tmp_path / "two.h5", motion_set(robot))
    return tmp_path / "two.h5"


@pytest.mark.parametrize(("kind", "suffix"), [("mjlab", ".npz"), ("unitree_csv", ".csv")])
def test_there_and_back(
    robot: Robot, dataset: Path, tmp_path: Path, printed: Says, kind: str, suffix: str
) -> None:
    out = tmp_path / "exported"
    message = printed("data", "export", str(dataset), f"format={kind}", f"out={out}")
    assert "2 clips and export.json in" in message
    for motion in read_motions(dataset).motions:
        back = read_robot_motion(out / f"{motion.name}{suffix}")
        assert back.joint_names == robot.joint_names and back.rate_hz == 50.0
        np.testing.assert_allclose(back.qpos, motion.qpos, atol=1e-6)
    about = json.loads((out / "export.json").read_text())
    assert about["format"] == kind and about["joint_names"] == list(robot.joint_names)
    assert about["robot"] == robot.name
    expected = [("stand", "none", "train"), ("sway", "none", "validation")]
    assert [(clip["name"], clip["licence"], clip["split"]) for clip in about["clips"]] == expected
    assert (out / "config.yaml").is_file()
    assert f"export to {kind}" in printed("inspect", str(out))


def test_a_dataset_of_lerobot(dataset: Path, tmp_path: Path, printed: Says, refused: Says) -> None:
    """20 and 30 frames at 50 Hz are 19 and 29 at 50 Hz; at 25 Hz 10 and 15, of which 9 and 14."""
    pytest.importorskip("pyarrow")
    arguments = ("data", "export", str(dataset), "format=lerobot")
    out = tmp_path / "exported"
    message = printed(*arguments, f"out={out}")
    assert "2 episodes, 48 frames, 50 Hz" in message and "licence: none" in message
    names = {path.name for path in out.iterdir()}
    assert names == {"README.md", "data", "meta"}  # no settings, which have paths of this machine
    assert "name another folder" in refused(*arguments, f"out={out}")
    half = printed(*arguments, "rate_hz=25", f"out={tmp_path / 'half'}")
    assert "2 episodes, 23 frames, 25 Hz" in half


def test_bodies_of_another_model_are_refused(robot: Robot, tmp_path: Path, refused: Says) -> None:
    args = motion_set(robot)
    other = dataclasses.replace(args, body_names=("world", *args.body_names))
    write_motions(tmp_path / "other.h5", other)
    out = tmp_path / "exported"
    message = refused("data", "export", str(tmp_path / "other.h5"), f"out={out}")
    assert "body 0 is 'world', expected 'base'" in message and not list(out.glob("*.npz"))


@pytest.mark.parametrize("kind", ["mjlab", "unitree_csv", "lerobot"])
def test_stairs_are_refused(kind: str, robot: Robot, tmp_path: Path, refused: Says) -> None:
    """Nothing is written; without the clip the others are."""
    if kind == "lerobot":
        pytest.importorskip("pyarrow")
    flat = motion_set(robot)
    stairs = dataclasses.replace(flat.motions[1], ground=GroundProfile(np.array([0.0, 0.1])))
    both = dataclasses.replace(flat, motions=(flat.motions[0], stairs))
    write_motions(tmp_path / "stairs.h5", both)
    out = tmp_path / "out"
    arguments = ["data", "export", str(tmp_path / "stairs.h5"), f"format={kind}", f"out={out}"]
    message = refused(*arguments)
    assert f"motion 'sway' is over stairs or gaps, which format={kind} cannot express" in message
    assert not out.exists()
    assert cli.main([*arguments, "clips=[stand]"]) == 0


def test_some_clips(dataset: Path, tmp_path: Path) -> None:
    for wanted, clip in (
        ("clips=[sway]", "sway"),
        ("clips=stand", "stand"),
        ("split=validation", "sway"),
    ):
        out = tmp_path / wanted.partition("=")[2].strip("[]")
        assert cli.main(["data", "export", str(dataset), wanted, f"out={out}"]) == 0
        assert [path.name for path in out.glob("*.npz")] == [f"{clip}.npz"]


def test_another_rate(dataset: Path, tmp_path: Path) -> None:
    pytest.importorskip("retarget.resampling")
    arguments = [str(dataset), "format=unitree_csv", "rate_hz=30", f"out={tmp_path / 'a'}"]
    assert cli.main(["data", "export", *arguments]) == 0
    back = read_robot_motion(tmp_path / "a" / "sway.csv")
    assert back.rate_hz == 30.0 and back.num_frames == 18  # 29 periods of 20 ms hold 17 of 33.3 ms


def test_a_robot_that_is_not_here_is_exported_without_its_bodies(
    dataset: Path, tmp_path: Path, robot: Robot, capsys: CaptureFixture[str]
) -> None:
    with h5py.File(dataset, "r+") as file:
        file.attrs["robot"] = "hexapod"
    assert cli.main(["data", "export", str(dataset), f"out={tmp_path / 'a'}"]) == 2
    assert "the model of robot 'hexapod'" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
    arguments = ["data", "export", str(dataset), "format=unitree_csv", f"out={tmp_path / 'a'}"]
    assert cli.main(arguments) == 0
    back = read_robot_motion(tmp_path / "a" / "sway.csv", joint_names=robot.joint_names)
    assert back.num_frames == 30
