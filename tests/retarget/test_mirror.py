"""Mirrors of motions are exact, and retargeting commutes with them."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mocap_data import rotations
from mocap_data.clip import Clip
from mocap_data.motion import ReferenceMotion
from mocap_data.synthetic import dog_gait
from npmp import robots
from npmp.robots import Robot
from retarget import retarget
from retarget.kinematics import body_states, tree_of
from retarget.mirror import mirror, suffix
from retarget.skeletons import marker_positions, shipped_skeletons

ALL = ("left_right", "front_back", "left_right+front_back")
# How names of one side, or end, begin and how the other's do.
SIDES = {
    "left_right": ((("Left", "Right"), ("L", "R")), (1.0, -1.0, 1.0)),
    "front_back": (
        (("LF_shoulder", "LH_hip"), ("RF_shoulder", "RH_hip"), ("LF_", "LH_"), ("RF_", "RH_")),
        (-1.0, 1.0, 1.0),
    ),
}
CASES = [*(("anymal_b", name) for name in ALL), ("op3", "left_right")]


def random_motion(
    make: SimpleNamespace, robot: Robot, seed: int = 0, frames: int = 30
) -> ReferenceMotion:
    rng = np.random.default_rng(seed)
    return make.motion_of(
        robot,
        make.wandering(robot, frames, seed),
        contacts=rng.random((frames, len(robot.foot_bodies))) < 0.5,
        frame_quality={"marker_rms_m": rng.random(frames)},
        recording="walk",
        weight=1.5,
    )


@pytest.mark.parametrize(("name", "mirrors"), CASES)
def test_a_mirror_is_its_inverse(make: SimpleNamespace, name: str, mirrors: str) -> None:
    robot = robots.load(name)
    motion = random_motion(make, robot)
    image = mirror(motion, robot, mirrors)
    assert (image.mirror, image.name) == (mirrors, "m" + suffix(mirrors))
    assert (image.recording, image.weight, image.rate_hz) == ("walk", 1.5, 50.0)
    expected = motion.frame_quality["marker_rms_m"]
    np.testing.assert_array_equal(image.frame_quality["marker_rms_m"], expected)
    back = mirror(image, robot, mirrors, name="m")
    assert (back.mirror, back.name) == ("", "m")
    for key in ("qpos", "qvel", "contacts"):
        np.testing.assert_array_equal(getattr(back, key), getattr(motion, key))


@pytest.mark.parametrize(("name", "mirrors"), CASES)
def test_bodies_are_the_mirrored_poses_and_the_mirror_images(
    make: SimpleNamespace, name: str, mirrors: str
) -> None:
    """Forward kinematics of the mirrored pose by MuJoCo; and the same from the original's bodies,
    reflected."""
    robot = robots.load(name)
    motion = random_motion(make, robot, seed=1, frames=8)
    image = mirror(motion, robot, mirrors)
    model = robot.model()
    bodies = body_states(tree_of(model), image)
    data = mujoco.MjData(model)
    for t in range(motion.num_frames):
        data.qpos[:] = image.qpos[t]
        mujoco.mj_kinematics(model, data)
        np.testing.assert_allclose(bodies.position[t], data.xpos[1:], atol=1e-12)
        result = rotations.angle(bodies.quaternion[t], data.xquat[1:])
        np.testing.assert_allclose(result, 0.0, atol=1e-7)
    expected = body_states(tree_of(model), motion).position
    for part in mirrors.split("+"):
        symmetry = robot.symmetries[part]
        expected = symmetry.mirror_points(expected[:, symmetry.body_permutation])
    # OP3's head tilts about an axis that its body's origin is not on the middle of, so that its
    # origin has no image
    symmetric = [i for i, body in enumerate(robot.body_names) if "head" not in body]
    np.testing.assert_allclose(bodies.position[:, symmetric], expected[:, symmetric], atol=1e-9)


def test_by_hand(make: SimpleNamespace, robot: Robot) -> None:
    """ANYmal walks along x, its left fore foot standing: which feet stand in the mirrors, and which
    way it goes."""
    assert robot.foot_bodies[0].startswith("LF")
    qpos = np.tile(robot.home_qpos, (10, 1))
    qpos[:, 0] = 1.0 + 0.02 * np.arange(10)
    qpos[:, 1] = 0.5
    contacts = np.zeros((10, 4), bool)
    contacts[:, 0] = True
    motion = make.motion_of(robot, qpos, contacts=contacts)
    for mirrors, foot, forward, side in (
        ("left_right", "RF", 1.0, -0.5),
        ("front_back", "LH", -1.0, 0.5),
        ("left_right+front_back", "RH", -1.0, -0.5),
    ):
        image = mirror(motion, robot, mirrors)
        assert image.contacts is not None
        result = [b for b, on in zip(robot.foot_bodies, image.contacts[0], strict=True) if on]
        assert result == [b for b in robot.foot_bodies if b.startswith(foot)]
        # backwards, as the paper's
        np.testing.assert_allclose(image.qvel[:, 0], forward, atol=1e-12)
        expected = [[forward * x, side] for x in qpos[:, 0]]
        np.testing.assert_allclose(image.qpos[:, :2], expected, atol=1e-12)
        result = rotations.rotate(image.qpos[0, 3:7], [1.0, 0.0, 0.0])
        np.testing.assert_allclose(result, [1.0, 0.0, 0.0], atol=1e-12)


@settings(max_examples=10)
@given(first=st.sampled_from(ALL), second=st.sampled_from(ALL), seed=st.integers(0, 99))
def test_mirrors_form_a_group(make: SimpleNamespace, first: str, second: str, seed: int) -> None:
    robot = robots.load("anymal_b")
    motion = random_motion(make, robot, seed, frames=4)
    one_way = mirror(mirror(motion, robot, first), robot, second)
    other_way = mirror(mirror(motion, robot, second), robot, first)
    np.testing.assert_array_equal(one_way.qpos, other_way.qpos)
    assert one_way.mirror == other_way.mirror
    left = [
        name
        for name in robot.symmetries
        if (name in first.split("+")) != (name in second.split("+"))
    ]
    assert one_way.mirror == "+".join(left)


def as_markers(clip: Clip) -> Clip:
    """The nine markers of a dog clip, under their own names."""
    names = tuple(shipped_skeletons()["dog"].markers)
    return dataclasses.replace(
        clip,
        positions=marker_positions(clip, shipped_skeletons()["dog"], names),
        names=names,
        parents=None,
    )


def agree(make: SimpleNamespace, clip: Clip, robot: Robot, mirrors: str) -> None:
    """Mirrored, then retargeted, equals retargeted, then mirrored; to 1e-6 m and rad in every
    frame."""
    there = retarget(make.mirrored(clip, *SIDES[mirrors]), robot)
    back = mirror(retarget(clip, robot), robot, mirrors)
    assert there.contacts is not None and back.contacts is not None
    np.testing.assert_array_equal(there.contacts, back.contacts)
    np.testing.assert_allclose(there.qpos[:, :3], back.qpos[:, :3], atol=1e-6)
    result = rotations.angle(there.qpos[:, 3:7], back.qpos[:, 3:7])
    np.testing.assert_allclose(result, 0.0, atol=1e-6)
    np.testing.assert_allclose(there.qpos[:, 7:], back.qpos[:, 7:], atol=1e-6)
    tree = tree_of(robot.model())
    np.testing.assert_allclose(
        body_states(tree, there).position, body_states(tree, back).position, atol=1e-6
    )
    for key, value in back.quality.items():
        if key != "jerk_rms":  # differences of the third order raise 1e-6 to 1e-1
            assert there.quality[key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


@pytest.mark.parametrize("mirrors", ["left_right", "front_back"])
def test_retargeting_generated_motion_commutes(
    make: SimpleNamespace, robot: Robot, mirrors: str
) -> None:
    clip = dog_gait("walk", duration_s=2.0, turn_rate=0.4)
    rng = np.random.default_rng(0)
    time = np.arange(clip.num_frames)[:, None, None] / clip.rate_hz
    # so that no side is like another
    sway = np.sin(2 * np.pi * rng.uniform(0.2, 1.0, (1, len(clip.names), 3)) * time)
    clip = dataclasses.replace(clip, positions=clip.positions + 0.01 * sway)
    agree(make, clip if mirrors == "left_right" else as_markers(clip), robot, mirrors)
