"""Readers on real recordings; skipped where there are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import mocap_data
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


def test_forward_kinematics_equals_the_published_keypoints(shared: Path) -> None:
    ours = mocap_data.read(shared / "mocap/dog_bvh/D1_007_KAN01_001.bvh")
    published = mocap_data.read(shared / "mocap/dog_keypoints/joint_pos/dog_walk00_joint_pos.txt")
    assert ours.names == published.names
    shift = (ours.positions - published.positions).mean(axis=(0, 1)) * (1.0, 1.0, 0.0)  # horizontal
    np.testing.assert_allclose(ours.positions, published.positions + shift, atol=1e-5)
