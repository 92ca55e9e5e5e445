"""Readers on real recordings; skipped where there are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import mocap_data
from mocap_data.clip_checks import clip_warnings
from mocap_data.readers.common import DOG_NAMES, DOG_PARENTS


def test_every_dog_recording_reads(shared: Path) -> None:
    files = sorted((shared / "mocap/dog_bvh").glob("*.bvh"))
    assert len(files) == 40
    for file in files[::4]:
        clip = mocap_data.read(file)
        assert (clip.names, clip.parents, clip.rate_hz) == (DOG_NAMES, DOG_PARENTS, 60.0), file.name
        height = clip.positions[:, clip.index("Hips"), 2]
        # metres and upright: lying, sitting, standing, and in ex03 on a platform
        assert 0.05 < np.median(height) < (1.3 if "ex03" in file.name else 0.7), file.name


def test_cmu_on_another_skeleton(shared: Path) -> None:
    files = sorted((shared / "mocap/cmu_bvh").glob("*.bvh"))
    assert len(files) == 5
    for file in files:
        # Their bones lie along Z and Y at rest, and yet all five have Y up: three have a root above
        # the hips that turns it all up at every frame. The other two have no such root and were
        # exported relative to the hips' OFFSET: they lie a metre too low.
        relative = file.stem in ("007_05", "007_12")
        clip = mocap_data.read(file, up="y", scale="cm")
        if relative:
            assert any("below the floor" in warning for warning in clip_warnings(clip))
            continue
        assert clip.rate_hz == 60.0
        heights = clip.positions[..., 2]
        assert -0.01 < heights.min() < 0.05, file.name
        assert 1.6 < heights.max() < 1.9, file.name
        head = np.median(heights[:, clip.index("CC_Base_Head")])
        hips = np.median(heights[:, clip.index("CC_Base_Hip")])
        feet = np.median(heights[:, [clip.index("CC_Base_L_Foot"), clip.index("CC_Base_R_Foot")]])
        assert 1.45 < head < 1.7 and 0.9 < hips < 1.1 and 0.05 < feet < 0.25, file.name


def test_forward_kinematics_equals_the_published_keypoints(shared: Path) -> None:
    ours = mocap_data.read(shared / "mocap/dog_bvh/D1_007_KAN01_001.bvh")
    published = mocap_data.read(shared / "mocap/dog_keypoints/joint_pos/dog_walk00_joint_pos.txt")
    assert ours.names == published.names
    shift = (ours.positions - published.positions).mean(axis=(0, 1)) * (1.0, 1.0, 0.0)  # horizontal
    np.testing.assert_allclose(ours.positions, published.positions + shift, atol=1e-5)
