"""`npmp inspect` on every format of motion: recordings, robots' motions, CMU clips, our own
file."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from mocap_data import dog_gait, write_motions
from mocap_data.export import write_mjlab_npz, write_unitree_csv
from mocap_data.readers.robot_motions import RobotMotion
from mocap_data.store import MotionSet
from npmp.robots import Robot
from retarget.kinematics import body_states, tree_of
from retarget.robot_motion_import import to_reference_motion
from tests.experiments.command import Inspects, Says
from tests.experiments.test_retarget import save


@pytest.fixture(scope="module")
def standing(robot: Robot) -> MotionSet:
    """Four chunks of two recordings: one recording and its mirror to train on, one to validate."""
    motions = []
    for name, frames, recording, mirror, split, weight in (
        ("a", 20, "walk", "", "train", 1.0),
        ("a_lr", 20, "walk", "left_right", "train", 0.5),
        ("b", 30, "walk", "", "train", 2.0),
        ("c", 10, "trot", "", "validation", 1.0),
    ):
        raw = RobotMotion(
            name, np.tile(robot.home_qpos, (frames, 1)), 50.0, robot.joint_names, licence="none"
        )
        motion = to_reference_motion(raw, robot)
        motions.append(
            dataclasses.replace(
                motion, recording=recording, mirror=mirror, split=split, weight=weight
            )
        )
    return MotionSet(
        robot.name, robot.model_sha256, robot.joint_names, robot.body_names, tuple(motions)
    )


def test_our_own_file(standing: MotionSet, tmp_path: Path, inspected: Inspects) -> None:
    write_motions(tmp_path / "m.h5", standing)
    result, printed = inspected(tmp_path / "m.h5")
    assert result["in all"] == {"clips": 4, "seconds": 1.6, "recordings": 2, "mirrored clips": 1}
    train = {"split": "train", "clips": 3, "seconds": 1.4, "recordings": 1, "mirrored clips": 1}
    assert result["splits"] == [
        train | {"least weight": 0.5, "greatest weight": 2.0},
        {
            "split": "validation",
            "clips": 1,
            "seconds": 0.2,
            "recordings": 1,
            "least weight": 1.0,
            "greatest weight": 1.0,
        },
    ]
    clip = result["clips"][1]
    assert (clip["recording"], clip["mirror"], clip["split"]) == ("walk", "left_right", "train")
    assert (clip["weight"], clip["feet"]) == (0.5, 4)
    assert "a_lr" not in printed


def test_a_large_dataset(standing: MotionSet, tmp_path: Path, inspected: Inspects) -> None:
    still, mirror, _, _ = standing.motions
    qpos = still.qpos.copy()
    qpos[:, 0] += 0.02 * np.arange(len(qpos))  # 1 m/s at 50 Hz: a trot
    motions = [dataclasses.replace(still, name=f"still_{i:02d}") for i in range(70)]
    motions += [dataclasses.replace(still, name="trot", qpos=qpos), mirror]
    provenance = {"offsets": "x" * 20_000}
    large = dataclasses.replace(standing, motions=tuple(motions), provenance=provenance)
    write_motions(tmp_path / "m.h5", large)
    result, printed = inspected(tmp_path / "m.h5")
    assert result["provenance"] == provenance
    assert f"  offsets: {'x' * 200}... (out= writes all)\n" in printed
    assert [row["name"].strip() for row in result["medians"]] == [
        "median",
        "still (70)",
        "trot (1)",
    ]
    assert "the first 60 of 71; out= writes all" in printed and "still_60" not in printed


def test_robots_motions(
    robot: Robot, standing: MotionSet, tmp_path: Path, inspected: Inspects, printed: Says
) -> None:
    motion = standing.motions[0]
    bodies = body_states(tree_of(robot.model(visuals=False)), motion)
    write_mjlab_npz(tmp_path / "a.npz", motion, robot.joint_names, robot.body_names, bodies)
    write_unitree_csv(tmp_path / "b.csv", motion, robot.joint_names, robot=robot.name)
    for name, kind in (("a.npz", "mjlab"), ("b.csv", "unitree_csv")):
        result, _ = inspected(tmp_path / name)
        assert result["kind"] == f"robot's motion ({kind})" and result["frames"] == 20
        assert result["rate_hz"] == 50
        assert (
            robot.name in result["robots here with these joints"] and result["root tilt_deg"] == 0
        )
        assert [row["joint"] for row in result["joint angles"]] == list(robot.joint_names)
        home = float(np.degrees(robot.home_joints[1]))
        assert result["joint angles"][1]["least_deg"] == pytest.approx(home, abs=0.06)
    result, _ = inspected(tmp_path / "b.json")
    assert result["kind"] == "joint names and rate of b.csv"
    (tmp_path / "findings.json").unlink()
    result, _ = inspected(tmp_path)
    assert result["kind"] == "folder of robots' motions"
    assert [(row["file"], row["seconds"], row["rate_hz"]) for row in result["files"]] == [
        ("a.npz", 0.4, 50),
        ("b.csv", 0.4, 50),
    ]


def test_unitrees_g1(tmp_path: Path, inspected: Inspects) -> None:
    row = [0.0, 0.0, 0.79, 0.0, 0.0, 0.0, 1.0, *[0.1] * 29]
    np.savetxt(tmp_path / "dance.csv", [row] * 30, delimiter=",")
    result, _ = inspected(tmp_path / "dance.csv")
    assert result["robot"] == "unitree_g1" and result["duration_s"] == 1.0
    assert result["joint angles"][12]["joint"] == "waist_yaw_joint" and "warnings" not in result
    np.savetxt(
        tmp_path / "wrong.csv",
        [[0.0, 0.0, 0.79, 1.0, 0.0, 0.0, 0.0, *[0.1] * 29]] * 30,
        delimiter=",",
    )  # w first
    result, _ = inspected(tmp_path / "wrong.csv")
    assert "upside down" in result["warnings"][0] and result["root tilt_deg"] == 180.0


def test_what_could_be_two_things(tmp_path: Path, inspected: Inspects, refused: Says) -> None:
    row = [0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0, *[0.1] * 8]  # 8 joints, or 5 keypoints
    np.savetxt(tmp_path / "a.csv", [row] * 30, delimiter=",")
    message = refused("inspect", tmp_path / "a.csv")
    assert "could be keypoints, or a robot's motion" in message
    assert "kind=recording or kind=unitree_csv" in message
    result, _ = inspected(tmp_path / "a.csv", "kind=recording")
    assert result["keypoints"].startswith("5, not named") and "source_rate_hz=" in result["rate_hz"]
    result, _ = inspected(tmp_path / "a.csv", "kind=unitree_csv")
    assert result["joints"].startswith("8, not named")
    message = refused("inspect", tmp_path / "a.csv", "kind=bvh")
    assert "no kind of file 'bvh'; available: recording, mjlab, unitree_csv" in message
    assert "mjlab" not in refused("inspect", tmp_path / "none.csv")


def test_keypoints(tmp_path: Path, inspected: Inspects) -> None:
    clip = dog_gait("trot", speed_mps=1.0, duration_s=1.0)
    save(tmp_path / "k.npz", clip)
    result, _ = inspected(tmp_path / "k.npz")
    assert result["kind"] == "recording (npz)" and result["keypoints"] == list(clip.names)
    # a root that stays at the origin, first: the other 27 of 28 go
    still = np.concatenate([np.zeros_like(clip.positions[:, :1]), clip.positions], axis=1)
    np.savez(tmp_path / "w.npz", positions=still, names=["world", *clip.names], fps=clip.rate_hz)
    result, _ = inspected(tmp_path / "w.npz")
    assert result["speed_mps"]["mean"] == pytest.approx(27 / 28, abs=0.05)
    result, _ = inspected(tmp_path / "k.npz")
    assert result["read as"] == {"scale": 1.0, "up": "y"}
    np.savez(tmp_path / "n.npz", positions=clip.positions, fps=clip.rate_hz)
    result, _ = inspected(tmp_path / "n.npz")
    assert result["keypoints"].startswith(f"{len(clip.names)}, not named")
    result, _ = inspected(tmp_path / "n.npz", f"names=[{','.join(clip.names)}]")
    assert result["keypoints"] == list(clip.names)


def test_a_folder_is_a_table(tmp_path: Path, inspected: Inspects) -> None:
    clip = dog_gait("trot", speed_mps=1.0, duration_s=2.0)
    folder = tmp_path / "dogs"
    (folder / "more").mkdir(parents=True)
    save(folder / "good.npz", clip)
    save(folder / "more" / "huge.npz", dataclasses.replace(clip, positions=100 * clip.positions))
    np.savetxt(folder / "dog.csv", clip.positions.reshape(120, -1), delimiter=",")
    (folder / "cut.npz").write_bytes(b"PK")
    (folder / "README.md").write_text("dogs")
    (folder / ".venv").mkdir()
    shutil.copy(folder / "good.npz", folder / ".venv")
    result, printed = inspected(folder, "up=z", code=2)
    rows = {row["file"]: row for row in result["files"]}
    assert list(rows) == ["cut.npz", "dog.csv", "good.npz", "more/huge.npz"]
    assert rows["good.npz"] == {
        "file": "good.npz",
        "kind": "recording (npz)",
        "seconds": 2.0,
        "rate_hz": 60.0,
        "doubts": "-",
    }
    assert rows["dog.csv"]["rate_hz"] == "60 assumed" and rows["dog.csv"]["doubts"] == "-"
    assert rows["more/huge.npz"]["doubts"].endswith("(units? scale= should be 100 times smaller)")
    assert rows["cut.npz"]["doubts"].startswith("cut.npz") and "truncated" in printed
    assert result["problems"] == [rows["cut.npz"]["doubts"]]
    assert "good.npz" in printed


def test_unit_and_axis_are_taken(tmp_path: Path, inspected: Inspects, refused: Says) -> None:
    clip = dog_gait("trot", speed_mps=1.0, duration_s=2.0)
    save(tmp_path / "k.npz", clip)
    result, _ = inspected(tmp_path / "k.npz")
    assert result["assumed"] == ["scale=1", "up=y"]
    # one fault, one warning: neither its size nor its feet are doubted where it lies
    [warning] = result["warnings"]
    assert "axis? up=" in warning
    result, _ = inspected(tmp_path / "k.npz", "up=z", "scale=m")
    assert "warnings" not in result and "assumed" not in result
    assert result["read as"] == {"scale": "m", "up": "z"}
    [warning] = inspected(tmp_path / "k.npz", "up=z", "scale=2.54")[0]["warnings"]
    assert "scale= should be 2.54 times smaller" in warning
    np.savetxt(tmp_path / "dog.csv", clip.positions.reshape(120, -1), delimiter=",")
    _, printed = inspected(tmp_path / "dog.csv", "up=z")
    assert "rate_hz: 60 assumed, as the file has none (source_rate_hz=)" in printed
    result, _ = inspected(tmp_path / "dog.csv", "up=z", "source_rate_hz=50")
    assert result["rate_hz"] == 50 and result["assumed"] == ["scale=1", "the dog set's keypoints"]
    assert "asf=a.asf: needs AMC motions" in refused("inspect", tmp_path / "k.npz", "asf=a.asf")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("dog_bvh/D1_007_KAN01_001.bvh", "recording (bvh)"),
        ("cmu_bvh/002_01.bvh", "recording (bvh)"),
        ("cmu_asfamc/07/07_01.amc", "recording (amc)"),
        ("cmu_asfamc/07/07.asf", "skeleton (asf); the motions are the .amc files beside it"),
        ("dog_keypoints/joint_pos/dog_trot_joint_pos.txt", "recording (txt)"),
        ("cmu_run_keypoints/09_11_cmu_worldpos.npz", "recording (npz)"),
        ("deepmimic/dog3d_trot.txt", "recording (txt)"),
        ("deepmimic/humanoid3d_walk.txt", "recording (txt)"),
        ("dm_control_h5/test_trajectories.h5", "CMU humanoid clips (dm_control's HDF5)"),
        ("cmu_bvh", "folder of recordings"),
    ],
)
def test_real_files(shared: Path, inspected: Inspects, path: str, kind: str) -> None:
    assert inspected(shared / "mocap" / path)[0]["kind"] == kind
