"""dm_control's HDF5: its layout, the humanoid's names, keypoints at the ends of bones."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import h5py
import mujoco
import numpy as np
import pytest

from mocap_data import InputError, read_all
from mocap_data.readers.cmu_h5 import (
    BODY_NAMES,
    JOINT_NAMES,
    KEYPOINT_NAMES,
    is_cmu_h5,
    list_cmu_h5,
    read_cmu_h5,
    read_cmu_h5_motion,
)
from mocap_data.readers.common import MissingOptions


def write(path: Path, clips: dict[str, int], *, turned: bool = False, nested: bool = True) -> Path:
    """A file of clips with so many frames: the root at (t, 0, 1), body b at (t, b, 1), everything
    unturned."""
    with h5py.File(path, "w") as file:
        for name, frames in clips.items():
            group = file.create_group(name)
            group.attrs["dt"] = 0.03
            group.attrs["num_steps"] = frames
            walker = (
                group.create_group("walkers/walker_0") if nested else group.create_group("walker_0")
            )
            times = np.arange(frames, dtype=float)
            bodies = np.zeros((frames, 30, 3))
            bodies[..., 0], bodies[..., 1], bodies[..., 2] = times[:, None], np.arange(30), 1.0
            values = {
                "position": np.stack([times, 0 * times, 0 * times + 1.0], axis=1),
                "quaternion": np.tile([1.0, 0.0, 0.0, 0.0], (frames, 1)),
                "joints": np.tile(np.arange(56) / 56.0, (frames, 1)),
                "body_positions": bodies.reshape(frames, -1),
                "body_quaternions": np.tile([1.0, 0.0, 0.0, 0.0], (frames, 30)),
            }
            for key, array in values.items():
                walker[key] = array if turned else array.T
    return path


def test_keypoints_are_the_ends_of_bones(tmp_path: Path) -> None:
    clip = read_cmu_h5(write(tmp_path / "a.h5", {"CMU_001_01": 4}))
    assert (
        clip.name == "CMU_001_01"
        and clip.names == KEYPOINT_NAMES
        and clip.rate_hz == pytest.approx(1 / 0.03)
    )
    assert clip.positions.shape == (4, 27, 3)
    np.testing.assert_allclose(clip.positions[2, clip.index("root")], [2.0, 0.0, 1.0])
    # the knee, the end of lfemur, is where ltibia starts: body 2 of lhipjoint, lfemur, ltibia
    np.testing.assert_allclose(clip.positions[2, clip.index("lfemur")], [2.0, 2.0, 1.0])
    # where ltoes starts
    np.testing.assert_allclose(clip.positions[2, clip.index("lfoot")], [2.0, 4.0, 1.0])
    # the tip of the toes: body 4 and the point (0, -0.035, -0.01) in its frame
    np.testing.assert_allclose(
        clip.positions[2, clip.index("ltoes")], [2.0, 4.0 - 0.035, 1.0 - 0.01]
    )
    # the elbow: lradius
    np.testing.assert_allclose(clip.positions[0, clip.index("lhumerus")], [0.0, 18.0, 1.0])
    assert BODY_NAMES[18] == "lradius"
    assert (
        clip.parents is not None and clip.names[clip.parents[clip.index("lfemur")]] == "lhipjoint"
    )
    assert clip.names[clip.parents[clip.index("rclavicle")]] == "thorax" and clip.parents[0] == -1


@pytest.mark.parametrize(
    ("turned", "nested"), list(itertools.product([False, True], [False, True]))
)
def test_other_layouts_give_the_same(tmp_path: Path, turned: bool, nested: bool) -> None:
    want = read_cmu_h5(write(tmp_path / "a.h5", {"x": 5}))
    got = read_cmu_h5(write(tmp_path / "b.h5", {"x": 5}, turned=turned, nested=nested))
    np.testing.assert_array_equal(got.positions, want.positions)


def test_many_clips_are_listed_without_their_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.h5", {f"CMU_{i:03}_01": 2 + i for i in range(300)})

    def refuse(*_: Any) -> Any:
        raise AssertionError("an array was read")

    monkeypatch.setattr(h5py.Dataset, "__getitem__", refuse)
    clips = list_cmu_h5(path)
    assert len(clips) == 300 and clips[7].name == "CMU_007_01" and clips[7].num_frames == 9
    assert clips[7].duration_s == pytest.approx(0.27)
    assert is_cmu_h5(path)


def test_a_clip_is_chosen_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {"b": 3, "a": 2})
    assert read_cmu_h5(path, clip="b").num_frames == 3
    with pytest.raises(MissingOptions, match=r"holds 2 clips; give clip=, e\.g\. a, b") as caught:
        read_cmu_h5(path)
    assert caught.value.options == ("clip",)
    with pytest.raises(InputError, match=r"no clip 'c' in .*; there are 2: a, b"):
        read_cmu_h5(path, clip="c")
    assert [clip.name for clip in read_all(path)] == ["a", "b"]


def spoil(path: Path, key: str, value: Any) -> None:
    with h5py.File(path, "r+") as file:
        walker = file["a/walkers/walker_0"]
        del walker[key]
        if value is not None:
            walker[key] = value


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("body_positions", None, "no walkers/walker_0"),
        (
            "body_positions",
            np.zeros((90, 7)),
            r"body_positions is of shape \(90, 7\), expected \(90, 3\)",
        ),
        ("body_positions", np.full((90, 3), np.nan), "not finite"),
        ("body_quaternions", np.zeros((120, 3)), "not of length 1"),
        ("position", np.array(["a", "b"], dtype="S1"), "expected an array of numbers"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, key: str, value: Any, message: str) -> None:
    path = write(tmp_path / "a.h5", {"a": 3})
    spoil(path, key, value)
    with pytest.raises(InputError, match=message) as caught:
        read_cmu_h5(path, clip="a")
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.h5", {"a": 300}).read_bytes()
    (tmp_path / "cut.h5").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.h5").write_text("no")
    h5py.File(tmp_path / "empty.h5", "w").close()
    for name, message in (
        ("cut.h5", "cut short"),
        ("text.h5", "not HDF5"),
        ("empty.h5", "no clips"),
    ):
        with pytest.raises(InputError, match=message):
            list_cmu_h5(tmp_path / name)
        with pytest.raises(InputError):
            read_cmu_h5(tmp_path / name)
        assert not is_cmu_h5(tmp_path / name)
    with h5py.File(tmp_path / "rate.h5", "w") as file:
        file.create_group("a/walkers/walker_0")
    with pytest.raises(InputError, match="no clips in dm_control's layout"):
        list_cmu_h5(tmp_path / "rate.h5")
    with pytest.raises(InputError, match="no file"):
        read_cmu_h5(tmp_path / "none.h5")


def test_an_array_that_claims_any_size_is_not_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("a")
        group.attrs["dt"], group.attrs["num_steps"] = 0.03, 10**9
        for key, rows in (("position", 3), ("body_positions", 90), ("body_quaternions", 120)):
            group.create_dataset(
                f"walkers/walker_0/{key}", (rows, 10**9), dtype="f8", chunks=(rows, 1000)
            )
    assert (tmp_path / "a.h5").stat().st_size < 100_000
    with pytest.raises(InputError, match="coordinates that are read"):
        read_cmu_h5(tmp_path / "a.h5")


def test_names_are_those_of_the_humanoid(shared: Path) -> None:
    model = mujoco.MjModel.from_xml_path(str(shared / "mocap/dm_control_h5/humanoid_CMU_V2020.xml"))
    # after the world and the root
    assert tuple(model.body(i).name for i in range(2, model.nbody)) == BODY_NAMES
    assert tuple(model.joint(i).name for i in range(model.njnt)) == JOINT_NAMES


def test_bodies_are_where_the_humanoid_has_them(shared: Path) -> None:
    """The file's body poses are the kinematics of its own root and joints, body by body."""
    folder = shared / "mocap/dm_control_h5"
    spec = mujoco.MjSpec.from_file(str(folder / "humanoid_CMU_V2019.xml"))
    spec.body("root").add_freejoint()
    model = spec.compile()
    data = mujoco.MjData(model)
    for header in list_cmu_h5(folder / "test_trajectories.h5"):
        motion = read_cmu_h5_motion(folder / "test_trajectories.h5", header.name)
        assert motion.num_frames == header.num_frames == 10 and motion.qpos.shape == (10, 63)
        for t in range(10):
            data.qpos[:] = motion.qpos[t]
            mujoco.mj_kinematics(model, data)
            np.testing.assert_allclose(data.xpos[2:], motion.body_pos[t], atol=2e-3)
            turn = np.abs(np.sum(data.xquat[2:] * motion.body_quat[t], axis=-1))
            np.testing.assert_allclose(turn, 1.0, atol=1e-5)
