"""dm_control's HDF5: its layout, the humanoid's names, keypoints at the ends of bones."""

from __future__ import annotations

from pathlib import Path

import h5py
import mujoco
import numpy as np
import pytest

from mocap_data import read_all
from mocap_data.readers.cmu_h5 import (
    BODY_NAMES,
    KEYPOINT_NAMES,
    is_cmu_h5,
    list_cmu_h5,
    read_bodies,
    read_cmu_h5,
)
from mocap_data.readers.common import MissingOptions
from tests.refusals import refusal


def write(path: Path, clips: dict[str, int], *, turned: bool = False) -> Path:
    """A file of clips with so many frames: the root at (t, 0, 1), body b at (t, b, 1), everything
    unturned."""
    with h5py.File(path, "w") as file:
        for name, frames in clips.items():
            group = file.create_group(name)
            group.attrs["dt"] = 0.03
            group.attrs["num_steps"] = frames
            walker = group.create_group("walkers/walker_0")
            times = np.arange(frames, dtype=float)
            bodies = np.ones((frames, 30, 3))
            bodies[..., 0] = times[:, None]
            bodies[..., 1] = np.arange(30)
            values = {
                "position": np.stack([times, 0 * times, 0 * times + 1.0], axis=1),
                "body_positions": bodies.reshape(frames, -1),
                "body_quaternions": np.tile([1.0, 0.0, 0.0, 0.0], (frames, 30)),
            }
            for key, array in values.items():
                walker[key] = array if turned else array.T
    return path


def test_keypoints_are_the_ends_of_bones(tmp_path: Path) -> None:
    clip = read_cmu_h5(write(tmp_path / "a.h5", {"CMU_001_01": 4}))
    assert (clip.name, clip.names) == ("CMU_001_01", KEYPOINT_NAMES)
    assert clip.rate_hz == pytest.approx(1 / 0.03) and clip.positions.shape == (4, 27, 3)
    expected = {
        "root": [2.0, 0.0, 1.0],
        # the knee, the end of lfemur, is where ltibia starts: body 2 of lhipjoint, lfemur, ltibia
        "lfemur": [2.0, 2.0, 1.0],
        # where ltoes starts
        "lfoot": [2.0, 4.0, 1.0],
        # the tip of the toes: body 4 and the point (0, -0.035, -0.01) in its frame
        "ltoes": [2.0, 4.0 - 0.035, 1.0 - 0.01],
        # the elbow: lradius is body 18
        "lhumerus": [2.0, 18.0, 1.0],
    }
    for name, place in expected.items():
        np.testing.assert_allclose(clip.positions[2, clip.index(name)], place, err_msg=name)
    assert clip.parents is not None and clip.parents[0] == -1
    parent_of = {name: clip.names[i] for name, i in zip(clip.names, clip.parents, strict=True)}
    assert (parent_of["lfemur"], parent_of["rclavicle"]) == ("lhipjoint", "thorax")
    other = read_cmu_h5(write(tmp_path / "b.h5", {"x": 4}, turned=True))
    np.testing.assert_array_equal(other.positions, clip.positions)


def test_many_clips_are_listed_without_their_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.h5", {f"CMU_{i:03}_01": 2 + i for i in range(300)})
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda *_: pytest.fail("an array was read"))
    clips = list_cmu_h5(path)
    assert len(clips) == 300 and clips[7][:2] == ("CMU_007_01", 9) and is_cmu_h5(path)


def test_a_clip_is_chosen_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {"b": 3, "a": 2})
    assert read_cmu_h5(path, clip="b").num_frames == 3
    with pytest.raises(MissingOptions, match="clip=") as caught:
        read_cmu_h5(path)
    assert caught.value.options == ("clip",)
    refusal("'c'", read_cmu_h5, path, clip="c")
    assert [clip.name for clip in read_all(path)] == ["a", "b"]


def test_bodies_are_where_the_humanoid_has_them(shared: Path) -> None:
    """The file's body poses are the kinematics of its own root and joints, body by body."""
    folder = shared / "mocap/dm_control_h5"
    spec = mujoco.MjSpec.from_file(str(folder / "humanoid_CMU_V2019.xml"))
    spec.body("root").add_freejoint()
    model = spec.compile()
    # after the world and the root
    assert tuple(model.body(i).name for i in range(2, model.nbody)) == BODY_NAMES
    data = mujoco.MjData(model)
    path = folder / "test_trajectories.h5"
    for name, frames, _ in list_cmu_h5(path):
        bodies = read_bodies(path, name)
        with h5py.File(path) as file:
            walker = file[name]["walkers/walker_0"]
            qpos = np.concatenate(
                [walker[key][...] for key in ("position", "quaternion", "joints")]
            )
        assert frames == 10 and qpos.shape == (63, 10)
        for t in range(frames):
            data.qpos[:] = qpos[:, t]
            mujoco.mj_kinematics(model, data)
            np.testing.assert_allclose(data.xpos[2:], bodies.positions[t], atol=2e-3)
            turn = np.abs(np.sum(data.xquat[2:] * bodies.quaternions[t], axis=-1))
            np.testing.assert_allclose(turn, 1.0, atol=1e-5)
