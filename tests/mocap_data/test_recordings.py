"""Readers on real recordings; skipped where there are none."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import mocap_data
from mocap_data.readers.common import DOG_NAMES, DOG_PARENTS


def test_every_dog_recording_reads(shared: Path) -> None:
    files = sorted((shared / "mocap/dog_bvh").glob("*.bvh"))
    assert len(files) == 40
    for file in files:
        clip = mocap_data.read(file)
        assert (clip.names, clip.parents, clip.rate_hz) == (DOG_NAMES, DOG_PARENTS, 60.0), file.name
        height = clip.positions[:, clip.index("Hips"), 2]
        # metres and upright: lying, sitting, standing, and in ex03 on a platform
        assert 0.05 < np.median(height) < (1.3 if "ex03" in file.name else 0.7), file.name


def test_cmu_on_another_skeleton(shared: Path) -> None:
    files = sorted((shared / "mocap/cmu_bvh").glob("*.bvh"))
    assert len(files) == 5
    for file in files:
        # these two were exported relative to the root's OFFSET
        clip = mocap_data.read(file, add_root_offset=file.stem in ("007_05", "007_12"))
        assert clip.rate_hz == 60.0
        assert -0.01 < clip.positions[..., 2].min() < 0.05, file.name
        assert 1.6 < clip.positions[..., 2].max() < 1.9, file.name


def test_forward_kinematics_equals_the_published_keypoints(shared: Path) -> None:
    ours = mocap_data.read(shared / "mocap/dog_bvh/D1_007_KAN01_001.bvh")
    published = mocap_data.read(shared / "mocap/dog_keypoints/joint_pos/dog_walk00_joint_pos.txt")
    assert ours.names == published.names
    shift = (ours.positions - published.positions).mean(axis=(0, 1)) * (1.0, 1.0, 0.0)  # horizontal
    np.testing.assert_allclose(ours.positions, published.positions + shift, atol=1e-5)


def test_every_keypoint_file_reads(shared: Path) -> None:
    files = sorted((shared / "mocap/dog_keypoints/joint_pos").glob("*.txt"))
    assert len(files) == 13
    for file in files:
        assert mocap_data.read(file).names == DOG_NAMES


def test_cmu_npz(shared: Path) -> None:
    clip = mocap_data.read(shared / "mocap/cmu_run_keypoints/07_01_cmu_worldpos.npz", scale=0.00056444)
    assert (clip.rate_hz, clip.num_frames, len(clip.names)) == (120.0, 317, 38)
    way = clip.positions[-1, 0] - clip.positions[0, 0]
    assert way[0] > 3.0  # along the file's Z, our X
    assert 1.4 < clip.positions[..., 2].max() < 1.8


def test_a_long_recording_reads_fast(shared: Path) -> None:
    path = shared / "mocap/dog_bvh/D1_053_KAN01_001.bvh"  # 72 s
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        clip = mocap_data.read(path)
        seconds.append(time.perf_counter() - start)
    assert clip.num_frames == 4336
    assert min(seconds) < 0.5  # about 0.1 s on an idle core
