"""The range of postures that robots acting from the prior are asked to stay in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp import geometry
from npmp.envs.reference import Reference, ReferenceFrames
from npmp.envs.state import RobotState
from npmp.robots import Robot
from npmp.world_model.losses import TrackingWeights, wander_loss
from npmp.world_model.posture import PostureRange

WEIGHTS = {"position": 4.0, "rotation": 1.0, "joints": 0.5}


@pytest.fixture
def postures() -> PostureRange:
    """Heights from 0.4 to 0.6 m, level, all twelve joints from -0.5 to 0.5 rad; the rarest are kept."""
    share = torch.linspace(0.0, 1.0, 11)
    values = {name: torch.zeros(11) for name in ReferenceFrames._fields}
    values["root_pos"] = torch.stack((torch.zeros(11), torch.zeros(11), 0.4 + 0.2 * share), -1)
    values["root_rot"] = torch.eye(3).repeat(11, 1, 1)
    values["joint_pos"] = (share - 0.5).unsqueeze(-1).repeat(1, 12)
    return PostureRange(ReferenceFrames(**values), rare=0.0)


def at(height: float, rotation: Tensor | None = None, joint: float = 0.0) -> RobotState:
    """One robot at rest, its first joint bent."""
    zeros, joints = torch.zeros(1, 3), torch.zeros(1, 12)
    joints[0, 0] = joint
    turned = torch.eye(3) if rotation is None else rotation
    return RobotState(torch.tensor([[7.0, -3.0, height]]), turned.expand(1, 3, 3), joints, zeros, zeros, zeros, zeros, joints)


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
        (at(0.5, geometry.exp_so3(torch.tensor([torch.pi / 6, 0.0, 0.0]))), 0.5 + (1.0 - 0.75**0.5)),
        (at(0.3, joint=0.6), 4.0 * 0.1 + 0.5 * 0.1),
    ],
)
def test_distance_from_the_range_by_hand(postures: PostureRange, state: RobotState, expected: float) -> None:
    torch.testing.assert_close(postures(state, **WEIGHTS), torch.tensor([expected]), atol=1e-6, rtol=1e-5)


def test_the_price_of_actions_by_hand(postures: PostureRange) -> None:
    # effort: |0.3 - 0.1| * 12 * 0.02; smoothness: |0.3 - 0.2| * 12 * 0.02
    before = at(0.5)._replace(joint_pos=torch.full((1, 12), 0.1), setpoint=torch.full((1, 12), 0.2))
    after = at(0.5)._replace(setpoint=torch.full((1, 12), 0.3))
    loss = wander_loss(after, before, postures, TrackingWeights())
    torch.testing.assert_close(loss, torch.tensor([0.048 + 0.024]))


def test_the_rarest_postures_are_outside(robot: Robot, motions: MotionSet) -> None:
    reference = Reference(robot, motions)
    postures = PostureRange(reference.frames, rare=0.1)
    height = reference.frames.root_pos[:, 2]
    assert 0.05 < float((height < postures.low[0]).float().mean()) < 0.15
    assert 0.05 < float((height > postures.high[0]).float().mean()) < 0.15
    everything = PostureRange(reference.frames, rare=0.0)
    assert everything(reference.state(torch.arange(reference.num_frames)), **WEIGHTS).max() == 0.0
