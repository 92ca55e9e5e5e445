"""Standing feet, slow joints and arms that give way."""

from __future__ import annotations

import numpy as np
import pytest

from mocap_data import rotations
from npmp import robots
from retarget import foot_locking, pose_sequence
from retarget.prepared_robot import PreparedRobot


@pytest.fixture(scope="module", params=["anymal_b", "op3"])
def prepared(request: pytest.FixtureRequest) -> PreparedRobot:
    return PreparedRobot.of(robots.load(request.param))


def test_a_turned_and_tilted_sole_is_levelled_with_its_heading() -> None:
    home = PreparedRobot.of(robots.load("op3")).home_soles
    turn = rotations.multiply(
        rotations.from_euler("Z", [0.7]), rotations.from_euler("XY", [0.2, -0.1])
    )
    soles = rotations.rotate(turn, home - home.mean(axis=1, keepdims=True)) + [1.0, 2.0, 0.05]
    stood = foot_locking.stand_soles(
        np.tile(soles, (20, 1, 1, 1)), np.ones((20, 2), dtype=bool), home, 0.005
    )
    level = rotations.rotate(
        rotations.from_euler("Z", [0.7]), home - home.mean(axis=1, keepdims=True)
    )
    # headings differ by some 0.01 rad
    np.testing.assert_allclose(stood[7], level + [1.0, 2.0, 0.005], atol=2e-3)
    assert np.ptp(stood[..., 2]) < 1e-9


def test_limit_speed() -> None:
    rng = np.random.default_rng(1)
    joints = np.cumsum(rng.normal(size=(60, 3)), axis=0)
    most = np.array([0.5, 1.0, 20.0])
    slowed = pose_sequence.limit_speed(joints, most)
    assert (np.abs(np.diff(slowed, axis=0)) <= most + 1e-12).all()
    np.testing.assert_allclose(slowed[:, 2], joints[:, 2], atol=1e-12)
    assert (slowed <= joints.max(axis=0) + 1e-12).all()
    assert (slowed >= joints.min(axis=0) - 1e-12).all()
    # A jump of 3 in one frame at 1 a frame: both ends must give way by 1, and by less further off.
    jump = np.where(np.arange(10) < 5, 0.0, 3.0)[:, None]
    result = pose_sequence.limit_speed(jump, np.ones(1))[2:8, 0]
    np.testing.assert_allclose(result, [0.0, 0.5, 1.0, 2.0, 2.5, 3.0])
    held = rng.random(joints.shape) < 0.1  # a mirror turns joints around: up and down are alike
    up = pose_sequence.limit_speed(joints, most, held)
    down = pose_sequence.limit_speed(-joints, most, held)
    np.testing.assert_allclose(up, -down, atol=1e-12)
    assert (np.abs(np.diff(up, axis=0)) <= most + 1e-12).all()
    keep = (np.arange(10) < 5)[:, None]  # what must stay stays, and the other side gives way
    result = pose_sequence.limit_speed(jump, np.ones(1), keep)[3:8, 0]
    np.testing.assert_allclose(result, [0.0, 0.0, 1.0, 2.0, 3.0])


def test_only_arms_avoid_collisions() -> None:
    prepared = PreparedRobot.of(robots.load("op3"))
    qpos = np.tile(prepared.robot.home_qpos, (60, 1))
    elbow = 7 + prepared.robot.joint_names.index("l_el")
    qpos[:, elbow] -= 1.0

    # the elbow bent by 0.5 is in the way, in the middle of the motion only
    def depth(at: np.ndarray) -> np.ndarray:
        middle = len(at) < 60 or (np.abs(np.arange(len(at)) - 30) < 5)
        return np.where(
            middle, np.maximum(0.0, prepared.robot.home_qpos[elbow] - 0.5 - at[:, elbow]), 0.0
        )

    freed = pose_sequence.free_arms(qpos, depth, 33.3, prepared)
    assert depth(freed).max() <= 0.0005
    np.testing.assert_allclose(freed[0], qpos[0])
    legs = np.delete(
        np.arange(qpos.shape[1]), [7 + joint for arm in prepared.arms for joint in arm]
    )
    np.testing.assert_array_equal(freed[:, legs], qpos[:, legs])
    assert pose_sequence.free_arms(qpos, lambda at: np.zeros(len(at)), 33.3, prepared) is qpos


def test_the_hull_finds_what_is_below_the_floor(prepared: PreparedRobot) -> None:
    home = np.tile(prepared.robot.home_qpos, (2, 1))
    home[1, 3:7] = rotations.from_euler("X", [np.pi])  # on its back, the legs up
    home[1, 2] = 0.0
    standing, lying = prepared.depth(home)
    assert standing == pytest.approx(0.0, abs=1e-6)
    assert lying > 0.02


def test_long_motions_are_cut_where_they_are_still() -> None:
    qpos = np.zeros((100, 9))
    # still from 32 to 33, from 60 to 61
    qpos[:, 7] = np.cumsum(np.where(np.isin(np.arange(100), [33, 61]), 0.0, 1.0))
    assert pose_sequence.still_frames(qpos, 40) == [0, 33, 61, 100]
    assert pose_sequence.still_frames(qpos, 100) == [0, 100]
