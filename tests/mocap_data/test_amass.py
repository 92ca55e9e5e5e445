"""AMASS: joint rotations as keypoints, by a random body model; pickles are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import mocap_data
from mocap_data.readers.amass import NAMES
from retarget.skeletons import find_skeleton
from tests.refusals import refusal

PARENTS = (-1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 12, 13, 14, 16, 17, 18, 19)
RNG = np.random.default_rng(0)
# a vertex at each joint
REST = RNG.normal(size=(24, 3))
SHAPES = RNG.normal(size=(24, 3, 4))
POSES = RNG.normal(size=(9, 72))
TRANS = RNG.normal(size=(9, 3))
BETAS = RNG.normal(size=3)


def body(path: Path, **changes: Any) -> Path:
    tree = np.array([[2**32 - 1, *PARENTS[1:], 20, 21], range(24)])
    arrays = {"v_template": REST, "shapedirs": SHAPES, "J_regressor": np.eye(24)}
    np.savez(path, **(arrays | {"kintree_table": tree} | changes))
    return path


def motion(path: Path, **changes: Any) -> Path:
    arrays = {"poses": POSES, "trans": TRANS, "betas": BETAS, "mocap_framerate": np.array(60.0)}
    np.savez(path, **{k: v for k, v in (arrays | changes).items() if v is not None})
    return path


def test_joints_are_those_of_a_chain_of_turns(tmp_path: Path) -> None:
    """By matrices of 4 x 4, joint after joint."""
    clip = mocap_data.read(motion(tmp_path / "a.npz"), body_model=body(tmp_path / "smpl.npz"))
    assert (clip.names, clip.parents, clip.rate_hz) == (NAMES, PARENTS, 60.0)
    rest = REST + SHAPES[..., :3] @ BETAS
    for frame in (0, 8):
        world: list[np.ndarray] = []
        for joint, up in enumerate(PARENTS):
            local = np.eye(4)
            local[:3, :3] = Rotation.from_rotvec(POSES[frame].reshape(-1, 3)[joint]).as_matrix()
            local[:3, 3] = rest[joint] - (rest[up] if joint else 0.0)
            world.append(world[up] @ local if joint else local)
        expected = np.stack([place[:3, 3] for place in world]) + TRANS[frame]
        np.testing.assert_allclose(clip.positions[frame], expected, atol=1e-9)
    assert find_skeleton(clip).name == "smpl_short"


@pytest.mark.parametrize(
    ("changes", "model", "key"),
    [
        ({}, None, "body_model="),
        ({"trans": TRANS[:3]}, {}, "trans"),
        ({}, {"v_template": REST[:5]}, "smpl.npz"),
    ],
)
def test_refusals(tmp_path: Path, changes: Any, model: Any, key: str) -> None:
    path = motion(tmp_path / "a.npz", **changes)
    body_model = None if model is None else body(tmp_path / "smpl.npz", **model)
    refusal(key, mocap_data.read, path, body_model=body_model)


def test_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "gmr.pkl"
    path.write_bytes(b"\x80\x04.")
    refusal("gmr.pkl", mocap_data.read, path)
    refusal("gmr.pkl", mocap_data.read, motion(tmp_path / "a.npz"), body_model=path)
