from __future__ import annotations

import numpy as np
import pytest

from mocap_data import rotations
from mocap_data.clip import Clip
from mocap_data.readers.common import DOG_NAMES
from mocap_data.synthetic import GAITS, LEGS, demo_clips, dog_gait, gait_clips

PAWS = {leg: LEGS[leg].keypoints[3] for leg in LEGS}


def paw(clip: Clip, leg: str) -> np.ndarray:
    return clip.positions[:, clip.index(PAWS[leg])]


def in_stance(clip: Clip, gait: str, leg: str) -> np.ndarray:
    """(T,) bool, from the pattern alone."""
    pattern = GAITS[gait]
    phase = np.arange(clip.num_frames) / clip.rate_hz / pattern.stride_s - pattern.touchdown[leg]
    return (phase + 1e-9) % 1.0 < pattern.duty


@pytest.mark.parametrize("gait", GAITS)
@pytest.mark.parametrize("turn_rate", [-0.6, 0.0, 0.5])
def test_feet_stand_still_on_the_floor(gait: str, turn_rate: float) -> None:
    clip = dog_gait(gait, turn_rate=turn_rate, rate_hz=200.0, duration_s=4.0)
    for leg in LEGS:
        stance = in_stance(clip, gait, leg)
        position = paw(clip, leg)
        both = stance[1:] & stance[:-1]
        assert 0.9 * GAITS[gait].duty < both.mean() < 1.1 * GAITS[gait].duty
        assert np.abs(np.diff(position, axis=0)[both]).max() < 1e-9
        assert np.abs(position[stance, 2]).max() < 1e-9
        assert abs(position[:, 2].max() - GAITS[gait].clearance_m) < 1e-4
    assert clip.positions[..., 2].min() >= 0.0  # nothing under the floor


@pytest.mark.parametrize("gait", GAITS)
def test_periodic_up_to_the_way_travelled(gait: str) -> None:
    clip = dog_gait(gait, duration_s=4 * GAITS[gait].stride_s)
    frames = round(GAITS[gait].stride_s * clip.rate_hz)
    # the default strides are whole frames at 60 Hz
    assert frames == GAITS[gait].stride_s * clip.rate_hz
    turn = rotations.exp([0.0, 0.0, -GAITS[gait].turn_rate * GAITS[gait].stride_s])
    first = clip.positions[:-frames]
    later = clip.positions[frames:]
    # a stride later: turned by the yaw of a stride, and moved by one fixed offset
    moved = rotations.rotate(turn, later)
    np.testing.assert_allclose(moved, first + (moved[0, 0] - first[0, 0]), atol=1e-12)


@pytest.mark.parametrize("clip", demo_clips(), ids=lambda clip: clip.name)
def test_demo_clips(clip: Clip) -> None:
    assert clip.names == DOG_NAMES
    assert clip.rate_hz == 60.0
    assert clip.licence == "Apache-2.0 (generated)"
    # segments keep their lengths
    for i, parent in enumerate(clip.parents or ()):
        if parent >= 0:
            length = np.linalg.norm(clip.positions[:, i] - clip.positions[:, parent], axis=-1)
            assert np.ptp(length) < 1e-12, clip.names[i]
    # body-sized
    at = {name: clip.positions[:, clip.index(name)] for name in clip.names}
    assert 0.46 < at["LeftUpLeg"][:, 2].mean() < 0.51
    result = np.linalg.norm(at["LeftArm"] - at["LeftUpLeg"], axis=-1)
    np.testing.assert_allclose(result, 0.56, atol=1e-12)
    result = np.linalg.norm(at["LeftArm"] - at["RightArm"], axis=-1)
    np.testing.assert_allclose(result, 0.20, atol=1e-12)
    # left is left: at the start the dog faces +X
    assert at["LeftArm"][0, 1] > at["RightArm"][0, 1]
    assert at["Head_end"][0, 0] > at["Hips"][0, 0]


@pytest.mark.parametrize("gait", ["walk", "trot"])
def test_left_and_right_are_half_a_stride_apart(gait: str) -> None:
    stride = GAITS[gait].stride_s
    clip = dog_gait(gait, duration_s=3 * stride)
    half = round(stride * clip.rate_hz / 2)
    swap = [
        clip.index(n.replace("Left", "Right") if "Left" in n else n.replace("Right", "Left"))
        for n in clip.names
    ]
    mirrored = clip.positions[:, swap] * (1.0, -1.0, 1.0)
    way = np.array([GAITS[gait].speed_mps * stride / 2, 0.0, 0.0])
    np.testing.assert_allclose(clip.positions[half:], mirrored[:-half] + way, atol=1e-12)


def test_sideways_and_on_the_spot() -> None:
    """0.3 m/s to the left for four strides; four on the spot at 1 rad/s turn
    everything by 4 rad about the origin."""
    side = dog_gait("walk", speed_mps=0.0, lateral_mps=0.3, duration_s=4.0 + 1 / 60)
    way = side.positions[-1] - side.positions[0]
    np.testing.assert_allclose(way, np.tile([0.0, 1.2, 0.0], (len(DOG_NAMES), 1)), atol=1e-12)
    spot = dog_gait("walk", speed_mps=0.0, turn_rate=1.0, duration_s=4.0 + 1 / 60)
    turned = rotations.rotate(rotations.exp([0.0, 0.0, 4.0]), spot.positions[0])
    np.testing.assert_allclose(spot.positions[-1], turned, atol=1e-12)


def test_gait_clips_have_the_speeds_in_their_names() -> None:
    """Mean velocity in the trunk's frame, and yaw rate, over the seconds; all within 1 cm/s."""
    clips = gait_clips()
    assert len({clip.name for clip in clips}) == len(clips) == 28
    for clip in clips:
        _, speed, side, turn = clip.name.split("_")
        seconds = clip.num_frames / clip.rate_hz
        ahead = (
            clip.positions[:, clip.index("Neck"), :2] - clip.positions[:, clip.index("Hips"), :2]
        )
        yaw = np.unwrap(np.arctan2(ahead[:, 1], ahead[:, 0]))
        assert (yaw[-1] - yaw[0]) / seconds == pytest.approx(float(turn), abs=0.01)
        velocity = np.diff(clip.positions[:, clip.index("Spine1"), :2], axis=0) * clip.rate_hz
        axes = np.stack((ahead, np.stack((-ahead[:, 1], ahead[:, 0]), axis=-1)), axis=1)
        axes /= np.linalg.norm(ahead, axis=-1)[:, None, None]
        mean = np.einsum("tac,tc->ta", axes[:-1], velocity).mean(axis=0)
        np.testing.assert_allclose(mean, [float(speed), float(side)], atol=0.02)
