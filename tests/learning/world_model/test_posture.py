"""The range of recorded postures, and the sliced Wasserstein distance, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.core import geometry
from npmp.envs.reference import Reference, ReferenceFrames
from npmp.envs.state import RobotState
from npmp.learning.world_model.posture import PostureRange, SlicedWasserstein
from npmp.robots import Robot


@pytest.fixture
def postures() -> PostureRange:
    """Heights from 0.4 to 0.6 m, level, all twelve joints from -0.5 to 0.5 rad."""
    share = torch.linspace(0.0, 1.0, 11)
    values = {name: torch.zeros(11) for name in ReferenceFrames._fields}
    values["root_pos"] = torch.stack((torch.zeros(11), torch.zeros(11), 0.4 + 0.2 * share), -1)
    values["root_rot"] = torch.eye(3).repeat(11, 1, 1)
    values["joint_pos"] = (share - 0.5).unsqueeze(-1).repeat(1, 12)
    return PostureRange(ReferenceFrames(**values), rare=0.0)


def at(height: float, rotation: Tensor | None = None, joint: float = 0.0) -> RobotState:
    """One robot at rest, its first joint bent."""
    joints = torch.zeros(1, 12)
    joints[0, 0] = joint
    turned = torch.eye(3) if rotation is None else rotation
    return RobotState.still(torch.tensor([[7.0, -3.0, height]]), turned.expand(1, 3, 3), joints)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (at(0.4), 0.0),
        (at(0.5, joint=0.5), 0.0),
        (at(0.6, geometry.yaw_matrix(torch.tensor(2.0))), 0.0),  # heading and place are free
        (at(0.3), 4.0 * 0.1),
        (at(0.65), 4.0 * 0.05),
        (at(0.5, joint=-0.7), 0.5 * 0.2),
        # rolled by 30 degrees: the vertical in the root frame is (0, sin, cos)
        (
            at(0.5, geometry.exp_so3(torch.tensor([torch.pi / 6, 0.0, 0.0]))),
            0.5 + (1.0 - 0.75**0.5),
        ),
        (at(0.3, joint=0.6), 4.0 * 0.1 + 0.5 * 0.1),
    ],
)
def test_distance_from_the_range_by_hand(
    postures: PostureRange, state: RobotState, expected: float
) -> None:
    torch.testing.assert_close(postures(state), torch.tensor([expected]), atol=1e-6, rtol=1e-5)


def test_wasserstein_distance_of_a_shift_by_hand(robot: Robot, motions: MotionSet) -> None:
    """Recordings of one pose, robots shifted from it by delta deviations in one of D channels: on a
    random direction the distance is delta times that direction's entry, in the mean gamma(D / 2) /
    (sqrt(pi) gamma((D + 1) / 2))."""
    reference = Reference(robot, motions)
    wasserstein = SlicedWasserstein(reference, directions=20_000)
    wasserstein.states[:] = 0.0  # every frame is the mean one
    mean = wasserstein.scale.mean
    width = len(mean)
    assert width == 10 + 2 * 12
    one = reference.state(torch.zeros(2, 5, dtype=torch.long))._replace(
        root_pos=mean[:1].expand(2, 5, 3),
        root_rot=mean[1:4].expand(2, 5, 3, 3),
        joint_pos=mean[4:16].expand(2, 5, 12),
        root_vel=mean[16:19].expand(2, 5, 3),
        root_ang=mean[19:22].expand(2, 5, 3),
        joint_vel=mean[22:].expand(2, 5, 12),
    )
    assert wasserstein(one, torch.Generator().manual_seed(0)) < 1e-5
    shifted = one._replace(
        root_vel=one.root_vel + 3.0 * wasserstein.scale.std[16] * torch.tensor([1.0, 0.0, 0.0])
    )
    expected = 3.0 * math.gamma(width / 2) / (math.pi**0.5 * math.gamma((width + 1) / 2))
    distance = wasserstein(shifted, torch.Generator().manual_seed(0)).item()
    torch.testing.assert_close(distance, expected, rtol=0.02, atol=0.0)
