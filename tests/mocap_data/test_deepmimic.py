"""DeepMimic JSON: small characters by hand; the published cycles where they are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import mocap_data
from mocap_data.clip_checks import clip_warnings
from mocap_data.readers.common import MissingOptions
from mocap_data.readers.deepmimic import HUMANOID, joint_positions, size_of
from tests.refusals import refusal

HALF = float(np.sqrt(0.5))
# A root, a ball joint 1 above it, a hinge 1 further along x, an end fixed 1 further along x.
CHARACTER = {
    "Skeleton": {
        "Joints": [
            {"Name": name, "Type": kind, "Parent": parent, "AttachX": x, "AttachY": y, "AttachZ": 0}
            for name, kind, parent, x, y in (
                ("root", "none", -1, 50, 0),
                ("ball", "spherical", 0, 0, 1),
                ("hinge", "revolute", 1, 1, 0),
                ("end", "fixed", 2, 1, 0),
            )
        ]
    }
}
REST = [0.02, 0, 2, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]
BENT = [0.0, 1, 2, 0, 1, 0, 0, 0, HALF, 0, 0, HALF, np.pi / 2]


@pytest.fixture
def motion(tmp_path: Path) -> Path:
    (tmp_path / "toy_character.txt").write_text(json.dumps(CHARACTER))
    path = tmp_path / "toy_bend.txt"
    path.write_text(json.dumps({"Loop": "wrap", "Frames": [REST, BENT]}))
    return path


def test_by_hand(motion: Path) -> None:
    clip = mocap_data.read(motion)
    expected = (("root", "ball", "hinge", "end"), (-1, 0, 1, 2), 50.0)
    assert (clip.names, clip.parents, clip.rate_hz) == expected
    # At rest (0, 2, 0), (0, 3, 0), (1, 3, 0), (2, 3, 0): Y up to Z up, (x, y, z) -> (z, x, y).
    expected = [[0, 0, 2], [0, 0, 3], [0, 1, 3], [0, 2, 3]]
    np.testing.assert_allclose(clip.positions[0], expected, atol=1e-15)
    # The ball turns 90 degrees about z: x to y, the hinge is at (1, 4, 0); 90 more: the end is at
    # (0, 4, 0).
    expected = [[0, 1, 2], [0, 1, 3], [0, 1, 4], [0, 0, 4]]
    np.testing.assert_allclose(clip.positions[1], expected, atol=1e-15)


def test_the_humanoid_by_another_path() -> None:
    """A leg by scipy's rotations, at a random pose."""
    rng = np.random.default_rng(0)
    assert size_of(HUMANOID) == 44
    frame = np.zeros(44)
    columns = (4, 8, 12, 16, 21, 25, 30, 34, 39)
    quaternions = {column: Rotation.random(rng=rng) for column in columns}
    for column, rotation in quaternions.items():
        frame[column : column + 4] = rotation.as_quat(scalar_first=True)
    frame[[20, 29, 38, 43]] = angles = rng.uniform(-2, 2, size=4)
    frame[1:4] = (1, 2, 3)
    places = joint_positions(HUMANOID, frame[None])[0]
    names = [joint.name for joint in HUMANOID]
    hip = np.array([1, 2, 3]) + quaternions[4].apply([0, 0, 0.084887])
    thigh = quaternions[4] * quaternions[16]
    knee = hip + thigh.apply([0, -0.421546, 0])
    ankle = knee + (thigh * Rotation.from_euler("z", angles[0])).apply([0, -0.40987, 0])
    np.testing.assert_allclose(places[names.index("right_knee")], knee, atol=1e-12)
    np.testing.assert_allclose(places[names.index("right_ankle")], ankle, atol=1e-12)
    chest = quaternions[4] * quaternions[8]
    shoulder = (
        np.array([1, 2, 3])
        + quaternions[4].apply([0, 0.236151, 0])
        + chest.apply([-0.02405, 0.2435, -0.18311])
    )
    arm = chest * quaternions[39]
    elbow = shoulder + arm.apply([0, -0.274788, 0])
    wrist = elbow + (arm * Rotation.from_euler("z", angles[3])).apply([0, -0.258947, 0])
    np.testing.assert_allclose(places[names.index("left_wrist")], wrist, atol=1e-12)


def test_the_character_file_beside_a_motion(motion: Path, tmp_path: Path) -> None:
    other = tmp_path / "some.txt"
    other.write_text(motion.read_text())
    with pytest.raises(MissingOptions, match="character=") as error:
        mocap_data.read(other)
    assert error.value.options == ("character",)
    np.testing.assert_array_equal(
        mocap_data.read(other, character=tmp_path / "toy_character.txt").positions,
        mocap_data.read(motion).positions,
    )
    refusal("character=", mocap_data.read, other, character="none.txt")


def frames(*rows: list[float]) -> str:
    return json.dumps({"Frames": rows})


def test_published_people_walk_upright(shared: Path) -> None:
    for kind, speed in (("walk", 1.0), ("jog", 2.7), ("run", 3.5)):
        clip = mocap_data.read(shared / f"mocap/deepmimic/humanoid3d_{kind}.txt")
        assert clip.rate_hz == 30.0
        heights = clip.positions[..., 2]
        # the published run sinks by 6 cm
        assert -0.06 < heights.min() < 0.02, kind
        # the middle of its ball; bent over when running
        assert 1.35 < np.median(heights[:, clip.index("head")]) < 1.6, kind
        way = np.linalg.norm(clip.positions[-1, 0] - clip.positions[0, 0])
        assert way / (clip.duration_s - 1 / 30) == pytest.approx(speed, rel=0.1), kind
        # 19 m/s, a hand
        assert np.linalg.norm(np.diff(clip.positions, axis=0), axis=-1).max() < 0.65, kind
        assert clip_warnings(clip) == []
