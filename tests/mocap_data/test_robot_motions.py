"""Robot motions of other projects: conventions, names, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mocap_data.readers.common import MissingOptions
from mocap_data.readers.robot_motions import ambiguous, kind_of, read_robot_motion
from mocap_data.readers.robot_motions.mjlab import AMP_KEYS
from mocap_data.readers.robot_motions.unitree_csv import DOCUMENTED
from tests.refusals import refusal

QUARTER = float(np.sqrt(0.5))  # a quarter turn's w, and its z about the vertical


def archive(joints: int = 3, frames: int = 4, bodies: int = 2, **changes: Any) -> dict[str, Any]:
    """mjlab's arrays: the root a quarter turn about z, turning with 2 rad/s about the world's x."""
    arrays: dict[str, Any] = {
        "fps": np.array([50.0]),
        "joint_pos": np.tile(np.arange(joints) / 10.0, (frames, 1)).astype(np.float32),
        "joint_vel": np.ones((frames, joints), np.float32),
        "body_pos_w": np.tile([1.0, 2.0, 0.5], (frames, bodies, 1)).astype(np.float32),
        "body_quat_w": np.tile([QUARTER, 0.0, 0.0, QUARTER], (frames, bodies, 1)).astype(
            np.float32
        ),
        "body_lin_vel_w": np.tile([3.0, 0.0, 0.0], (frames, bodies, 1)).astype(np.float32),
        "body_ang_vel_w": np.tile([2.0, 0.0, 0.0], (frames, bodies, 1)).astype(np.float32),
    }
    arrays.update(changes)
    return {key: value for key, value in arrays.items() if value is not None}


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_mjlab(tmp_path: Path) -> None:
    path = npz(
        tmp_path / "a.npz",
        **archive(joint_names=np.array(["a", "b", "c"]), body_names=np.array(["base", "foot"])),
    )
    motion = read_robot_motion(path)
    assert (
        kind_of(path) == "mjlab"
        and motion.joint_names == ("a", "b", "c")
        and motion.body_names == ("base", "foot")
    )
    assert motion.rate_hz == 50.0 and motion.num_frames == 4 and motion.duration_s == 0.08
    np.testing.assert_allclose(
        motion.qpos[1], [1.0, 2.0, 0.5, QUARTER, 0.0, 0.0, QUARTER, 0.0, 0.1, 0.2], atol=1e-7
    )


def test_isaac_labs_amp_motions_are_read(tmp_path: Path) -> None:
    """The same arrays by other names."""
    arrays = archive(bodies=1, joint_names=np.array(["a", "b", "c"]))
    there = {AMP_KEYS.get(key, key): value for key, value in arrays.items()}
    path = npz(tmp_path / "amp.npz", **there, body_names=np.array(["pelvis"]))
    assert kind_of(path) == "mjlab" and "dof_positions" in there
    motion = read_robot_motion(path)
    assert motion.joint_names == ("a", "b", "c")
    np.testing.assert_allclose(motion.qpos[1, 7:], [0.0, 0.1, 0.2], atol=1e-7)


def test_mjlab_without_names_needs_them(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", **archive())
    with pytest.raises(MissingOptions, match="joint_names=") as error:
        read_robot_motion(path)
    assert error.value.options == ("joint_names",)
    assert read_robot_motion(path, joint_names=["x", "y", "z"]).joint_names == ("x", "y", "z")
    refusal("2 joint names", read_robot_motion, path, joint_names=["x", "y"])
    # 29 joints are not enough for a G1: Isaac Lab writes the same keys in another order
    with pytest.raises(MissingOptions):
        read_robot_motion(npz(tmp_path / "g1.npz", **archive(joints=29)))


def test_names_in_the_file_must_equal_the_option(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", **archive(joint_names=np.array(["a", "b", "c"])))
    assert read_robot_motion(path, joint_names=["a", "b", "c"]).joint_names == ("a", "b", "c")
    refusal("joint 1 is 'b'", read_robot_motion, path, joint_names=["a", "c", "b"])
    twice = npz(tmp_path / "b.npz", **archive(joint_names=np.array(["a", "a", "c"])))
    refusal("'a'", read_robot_motion, twice)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"joint_vel": None}, "joint_vel"),
        ({"body_quat_w": np.zeros((4, 2, 3))}, "body_quat_w"),
        ({"joint_pos": np.full((4, 3), 90.0)}, "degrees"),
        ({"joint_names": np.array(["a", {}, "c"], dtype=object)}, "pickle"),
    ],
)
def test_mjlab_refusals(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    changes = {"joint_names": np.array(["a", "b", "c"]), **changes}
    path = npz(tmp_path / "a.npz", **archive(**changes))
    assert str(path) in refusal(key, read_robot_motion, path, kind="mjlab")


# --- Unitree CSV ---


def rows(joints: int, frames: int = 3) -> np.ndarray:
    """Root at (t, 0, 0.8), a quarter turn to the left, joint j at j / 100."""
    # x, y, z, then x, y, z, w
    root = np.array([[t, 0.0, 0.8, 0.0, 0.0, QUARTER, QUARTER] for t in range(frames)])
    return np.concatenate([root, np.tile(np.arange(joints) / 100.0, (frames, 1))], axis=1)


def csv(path: Path, values: np.ndarray, header: str = "") -> Path:
    np.savetxt(path, values, delimiter=",", header=header, comments="")
    return path


@pytest.mark.parametrize(
    ("joints", "robot"), [(29, "unitree_g1"), (27, "unitree_h1_2"), (19, "unitree_h1")]
)
def test_the_lafan1_layouts_need_no_options(tmp_path: Path, joints: int, robot: str) -> None:
    path = csv(tmp_path / "dance.csv", rows(joints))
    motion = read_robot_motion(path)
    assert kind_of(path) == "unitree_csv" and not ambiguous(path)
    assert (
        motion.robot == robot and motion.rate_hz == 30.0 and motion.joint_names == DOCUMENTED[robot]
    )
    np.testing.assert_allclose(motion.qpos[2, :7], [2.0, 0.0, 0.8, QUARTER, 0.0, 0.0, QUARTER])
    assert motion.qpos[0, 7 + 5] == pytest.approx(0.05) and motion.joint_names[0].startswith(
        "left_hip"
    )
    assert motion.assumed == ("rate_hz", "joint_names", "quaternion")
    faster = read_robot_motion(path, rate_hz=60)
    assert faster.rate_hz == 60.0 and faster.assumed == ("joint_names", "quaternion")


def test_a_header_is_understood(tmp_path: Path) -> None:
    names = [f"j{i}" for i in range(4)]
    header = ",".join(["root_x", "root_y", "root_z", "qx", "qy", "qz", "qw", *names])
    path = csv(tmp_path / "a.csv", rows(4), header)
    motion = read_robot_motion(path)
    assert kind_of(path) == "unitree_csv" and motion.joint_names == tuple(names)
    # a header that says w first is believed
    values = rows(4)[:, [0, 1, 2, 6, 3, 4, 5, 7, 8, 9, 10]]
    other = csv(tmp_path / "b.csv", values, header.replace("qx,qy,qz,qw", "qw,qx,qy,qz"))
    np.testing.assert_allclose(read_robot_motion(other).qpos, motion.qpos)
    wrong = csv(tmp_path / "c.csv", rows(4), header.replace("qx,qy,qz,qw", "roll,pitch,yaw,qw"))
    refusal("'roll', 'pitch', 'yaw', 'qw'", read_robot_motion, wrong, kind="unitree_csv")
    # a column of times gives the rate, one of frames none
    for first, step, rate in (("time [s]", 0.02, 50.0), ("Frame", 1.0, 30.0)):
        values = np.concatenate([step * np.arange(3.0)[:, None], rows(4)], axis=1)
        timed = read_robot_motion(csv(tmp_path / "t.csv", values, f"{first},{header}"))
        np.testing.assert_allclose(timed.qpos, motion.qpos)
        assert timed.rate_hz == rate
        assert timed.assumed == (() if rate == 50.0 else ("rate_hz",))
    short = csv(tmp_path / "d.csv", rows(4), header.rpartition(",")[0])
    refusal("10 names", read_robot_motion, short, kind="unitree_csv")


def test_euler_angles_and_centimetres_are_understood(tmp_path: Path) -> None:
    """BONES-SEED's layout. 90 degrees about the world's x, then 90 about its z, is 120 degrees
    about (1, 1, 1)."""
    root = [f"root_{what}{axis}" for what in ("translate", "rotate") for axis in "XYZ"]
    header = ",".join(["Frame", *root, "left_knee_joint_dof", "waist_dof"])
    values = np.array([[k, 100.0 * k, 0.0, 80.0, 90.0, 0.0, 90.0, 45.0, -90.0] for k in range(2)])
    path = csv(tmp_path / "a.csv", values, header)
    motion = read_robot_motion(path)
    assert kind_of(path) == "unitree_csv" and motion.rate_hz == 120.0
    assert motion.joint_names == ("left_knee_joint", "waist")
    expected = [1.0, 0.0, 0.8, 0.5, 0.5, 0.5, 0.5, np.pi / 4.0, -np.pi / 2.0]
    np.testing.assert_allclose(motion.qpos[1], expected, atol=1e-12)
    # as spreadsheets save it
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert kind_of(path) == "unitree_csv"
    np.testing.assert_allclose(read_robot_motion(path).qpos, motion.qpos)


def test_other_rotations_in_a_header_are_not_taken_for_those(tmp_path: Path) -> None:
    """A quaternion named root_rot_*, and Euler angles of unknown unit and order."""
    root = "root_x,root_y,root_z,root_rot_x,root_rot_y,root_rot_z"
    path = csv(tmp_path / "a.csv", rows(2), f"{root},root_rot_w,a_dof,b_dof")
    motion = read_robot_motion(path)
    assert motion.rate_hz == 30.0 and motion.qpos[0, 2] == 0.8
    assert motion.joint_names == ("a_dof", "b_dof")
    path = csv(tmp_path / "b.csv", rows(1), f"{root},a_dof,b_dof")
    assert kind_of(path) is None
    refusal("quaternion", read_robot_motion, path, kind="unitree_csv")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("0,0,1,0,0,0,1,0.1\n0,0,1,0,0,0,1\n", "line 2: 7 numbers"),
        ("0,0,1,0,0,0,5,0.1\n", "quaternion"),
        ("0,0,1,0,0,0,1,95\n", "'j'"),
        ("0,0,79,0,0,0,1,0.1\n", "79"),
    ],
)
def test_csv_refusals(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    message = refusal(key, read_robot_motion, path, kind="unitree_csv", joint_names=["j"])
    assert str(path) in message


def test_keypoints_are_no_robot_motion(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    assert kind_of(csv(tmp_path / "dog.csv", rng.normal(size=(20, 81)))) is None
    # 15 numbers are 5 keypoints, or 8 joints: where the quaternion would be stands one by chance
    path = csv(tmp_path / "both.csv", rows(8))
    assert ambiguous(path) and kind_of(path) is None
    # as many names as joints, or as keypoints, tell
    assert kind_of(path, ["j"] * 8) == "unitree_csv" and kind_of(path, ["p"] * 5) is None
    assert (
        read_robot_motion(
            path, kind="unitree_csv", joint_names=[f"j{i}" for i in range(8)]
        ).num_frames
        == 3
    )
    assert kind_of(tmp_path / "missing.csv") is None
