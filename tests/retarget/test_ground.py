"""Stances, the floor, and locked feet, on constructed paws."""

from __future__ import annotations

import numpy as np
import pytest

from mocap_data.errors import InputError
from mocap_data.synthetic import dog_gait
from retarget import ground, skeletons


def paws() -> np.ndarray:
    """One paw (T, 1, 3) at 60 Hz: stands 30 frames creeping 1 mm a frame at height 0.10, swings 20
    frames by 0.6 m, stands 30."""
    creep = 0.001 * np.arange(30)
    share = np.arange(1, 21) / 21
    x = np.concatenate((creep, 0.03 + 0.6 * share, 0.63 + creep))
    z = np.concatenate((np.full(30, 0.10), 0.10 + 0.08 * np.sin(np.pi * share), np.full(30, 0.10)))
    return np.stack((x, np.zeros(80), z), axis=-1)[:, None]


def test_stance_is_slow_low_and_lasting() -> None:
    feet = paws()
    assert ground.runs(ground.stance(feet, 60.0)[:, 0]) == [
        (0, 29),
        (51, 80),
    ]  # the frame at each edge already has swing in its difference
    held_up = feet.copy()
    held_up[60:, 0, 2] += 0.08  # still, but in the air
    assert not ground.stance(held_up, 60.0)[61:].any()
    blink = feet.copy()
    blink[15, 0, 0] += 0.05  # one frame's glitch does not end a stance
    assert ground.runs(ground.stance(blink, 60.0)[:, 0])[0] == (0, 29)


def test_floor_is_the_mean_of_the_feets_standing_heights() -> None:
    two = np.concatenate((paws(), paws() + [0.0, 0.0, 0.02]), axis=1)
    assert ground.floor_height(two, ground.stance(two, 60.0)) == pytest.approx(0.11)
    nothing = np.zeros((80, 2), dtype=bool)
    assert ground.floor_height(two, nothing) == pytest.approx(0.10)  # the lowest heights


def test_locked_feet_stand_still_on_the_floor_and_swings_keep_their_shape() -> None:
    feet = paws() - [0.0, 0.0, 0.10]
    feet[:30, 0, 2] += np.linspace(0.0, 0.02, 30)  # rolling from heel to toe
    standing = ground.stance(feet, 60.0)
    locked = ground.lock_feet(feet, standing)
    for start, stop in ground.runs(standing[:, 0]):
        assert np.ptp(locked[start:stop, 0], axis=0) == pytest.approx(0.0, abs=1e-12)
        assert locked[start:stop, 0, 2] == pytest.approx(0.0)
        assert locked[start, 0, 0] == pytest.approx(feet[start:stop, 0, 0].mean())
    assert (locked[..., 2] >= 0.0).all()
    assert locked[30:50, 0, 2].max() == pytest.approx(0.08, abs=0.015)
    jump = np.abs(np.diff(locked[:, 0, 0])).max()
    assert jump < 1.3 * np.abs(np.diff(feet[:, 0, 0])).max()


@pytest.mark.parametrize("slope", [(0.0, 0.0), (0.019, 0.0), (-0.012, 0.015)])
def test_floor_slope(slope: tuple[float, float]) -> None:
    clip = dog_gait("walk", duration_s=12.0, turn_rate=0.2)
    feet = clip.select(
        ("LeftHand_end", "RightHand_end", "LeftFoot_end", "RightFoot_end")
    ).positions.copy()
    feet[:, 2:, 2] += 0.012  # hind paws' keypoints are higher than fore paws'
    feet[..., 2] += feet[..., :2] @ np.array(slope)
    result = ground.floor_slope(feet, clip.rate_hz)
    np.testing.assert_allclose(result, slope, atol=0.002)
    level = feet @ ground.level_turn(result).T
    assert (ground.floor_slope(level, clip.rate_hz) == 0.0).all()


def test_a_platform_and_a_raised_paw_are_no_slope() -> None:
    clip = dog_gait("walk", duration_s=6.0)
    feet = clip.select(
        ("LeftHand_end", "RightHand_end", "LeftFoot_end", "RightFoot_end")
    ).positions.copy()
    on_platform = feet.copy()
    on_platform[..., 2] += np.where(feet[..., 0] > 1.5, 0.3, 0.0)
    assert (ground.floor_slope(on_platform, clip.rate_hz) == 0.0).all()
    feet[-100:] = feet[-100]
    feet[-100:, 0, 2] += 0.2
    assert (ground.floor_slope(feet, clip.rate_hz) == 0.0).all()


def test_hold_leaves_a_wandering_stance_alone() -> None:
    values = np.linspace(0.0, 1.0, 20)[:, None]
    standing = np.ones(20, dtype=bool)
    np.testing.assert_array_equal(ground.hold(values, standing, most=0.1), values)
    np.testing.assert_allclose(ground.hold(values, standing), 0.5)
    np.testing.assert_array_equal(ground.hold(values, np.zeros(20, dtype=bool)), values)


def test_envelope_is_never_below_and_smooth() -> None:
    values = np.zeros(100)
    values[50] = 1.0
    over = ground.envelope(values, 20)
    assert (over >= values).all()
    assert np.abs(np.diff(over)).max() < 0.06
    np.testing.assert_allclose(over[50 - np.arange(40)], over[50 + np.arange(40)], atol=1e-12)


def test_stances_of_a_generated_gait_are_its_contacts() -> None:
    clip = dog_gait("walk", duration_s=4.0)
    feet = clip.select(("LeftHand_end", "RightHand_end", "LeftFoot_end", "RightFoot_end")).positions
    standing = ground.stance(feet, clip.rate_hz)
    assert (standing == (feet[..., 2] < 1e-6)).mean() > 0.9
    assert ground.floor_height(feet, standing) == pytest.approx(0.0, abs=1e-3)


def test_markers_are_weighted_means() -> None:
    clip = dog_gait("walk", duration_s=0.5)
    assert skeletons.find_skeleton(clip) == skeletons.shipped_skeletons()["dog"]
    both = skeletons.marker_positions(
        clip, skeletons.shipped_skeletons()["dog"], ("LF_shoulder", "RH_foot")
    )
    blade = clip.index("LeftShoulder")
    joint = clip.index("LeftArm")
    expected = 0.8 * clip.positions[:, blade] + 0.2 * clip.positions[:, joint]
    np.testing.assert_allclose(both[:, 0], expected, atol=1e-12)
    expected = clip.positions[:, clip.index("RightFoot_end")]
    np.testing.assert_allclose(both[:, 1], expected, atol=1e-12)
    with pytest.raises(InputError, match="'nose'"):
        skeletons.marker_positions(clip, skeletons.shipped_skeletons()["dog"], ("nose",))


def test_a_foot_held_in_the_air_does_not_stand() -> None:
    """A dancer on the left leg: the right foot is still 0.1 m up, and then on the floor for a
    while. Where the left never stands, nothing says where the floor is."""
    feet = np.zeros((100, 2, 3))
    feet[:70, 1, 2] = 0.1
    feet[70:, 1, 2] = 0.02
    standing = np.ones((100, 2), dtype=bool)
    result = ground.level_with(feet, standing, np.array([1, 0]))
    assert result[:, 0].all()
    np.testing.assert_array_equal(result[:, 1], np.arange(100) >= 70)
    standing[:, 0] = False
    np.testing.assert_array_equal(ground.level_with(feet, standing, np.array([1, 0])), standing)
