"""Mirror images of what robots see and do: the same as seeing and doing in the mirror, and their
own inverse."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mocap_data.store import MotionSet
from npmp.envs.features import ReferenceFeatures, encoder_context, proprioception
from npmp.envs.mirrors import Mirrors
from npmp.envs.reference import Reference
from npmp.robots import Robot
from retarget import mirror

HORIZON = 3
WAYS = ("left_right", "front_back", "left_right+front_back")


def seen(robot: Robot, motions: MotionSet) -> tuple[torch.Tensor, torch.Tensor]:
    """Context and observation of robots at frames of the first motion, which are told of frames
    later on; their last setpoints and accelerometers are something that mirrors as these do."""
    reference, home = (
        Reference(robot, motions),
        torch.tensor(robot.home_joints, dtype=torch.float32),
    )
    frames = torch.arange(0, 90, 7)
    state = reference.state(frames)
    state = state._replace(setpoint=reference.state(frames + 1).joint_pos, accel=state.root_vel)
    last = torch.full_like(frames, int(reference.length[0]) - 1)
    context = encoder_context(
        ReferenceFeatures(robot, reference, HORIZON), state, frames + 5, last, home
    )
    return context, proprioception(state, home)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_seen_in_a_mirror_is_what_a_mirrored_robot_sees(
    robot: Robot, motions: MotionSet, way: str
) -> None:
    """Against the features of motions that `retarget.mirror` reflected."""
    mirrors = Mirrors(robot, HORIZON)
    number = mirrors.onto(way).index(frozenset())
    mirrored = replace(
        motions, motions=tuple(mirror.mirror(motion, robot, way) for motion in motions.motions)
    )
    permutations = (mirrors.context, mirrors.observation)
    for permutation, own, expected in zip(
        permutations, seen(robot, motions), seen(robot, mirrored), strict=True
    ):
        torch.testing.assert_close(permutation.images(own)[:, number], expected, atol=1e-5, rtol=0)
        assert (expected - own).abs().amax() > 0.1


def test_an_image_of_an_image_is_the_thing_itself(robot: Robot) -> None:
    mirrors = Mirrors(robot, HORIZON)
    expected = (frozenset(), {"left_right"}, {"front_back"}, {"left_right", "front_back"})
    assert mirrors.names == expected
    for permutation in (mirrors.context, mirrors.observation, mirrors.action):
        rows = torch.randn(5, permutation.source.shape[1])
        images = permutation.images(rows)
        assert images.shape == (5, 4, rows.shape[1]) and torch.equal(images[:, 0], rows)
        assert torch.equal(permutation.back(images), rows.unsqueeze(1).expand_as(images))


def test_actions_are_mirrored_as_joints_are(robot: Robot) -> None:
    action = torch.randn(3, len(robot.joint_names), dtype=torch.float64)
    image = Mirrors(robot, 1).action.images(action)[:, 2]
    expected = robot.symmetries["front_back"].mirror_joints(action.numpy())
    assert torch.equal(image, torch.from_numpy(expected))


def test_mirrors_of_mirrors_cancel(robot: Robot) -> None:
    both = frozenset(("left_right", "front_back"))
    expected = [{"front_back"}, both, frozenset(), {"left_right"}]
    assert Mirrors(robot, 1).onto("front_back") == expected
