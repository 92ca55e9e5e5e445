"""The loss of an imagined step against the reference, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from npmp.envs.reference import ReferenceFrames
from npmp.envs.state import RobotState
from npmp.tasks.rewards import TrackingWeights, tracking_loss


def still(n: int) -> RobotState:
    return RobotState.still(torch.zeros(n, 3), torch.eye(3).repeat(n, 1, 1), torch.zeros(n, 12))


def frames_like(state: RobotState, **change: Tensor) -> ReferenceFrames:
    values = {k: torch.zeros(1) for k in ReferenceFrames._fields}
    values |= {
        "root_pos": state.root_pos,
        "root_rot": state.root_rot,
        "joint_pos": state.joint_pos,
        "root_vel_w": torch.zeros_like(state.root_pos),
        "root_ang_w": torch.zeros_like(state.root_pos),
        "joint_vel": torch.zeros_like(state.joint_pos),
    }
    return ReferenceFrames(**(values | change))


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("root_pos", torch.tensor([[0.1, 0.0, -0.1]]), 4.0 * 0.2),
        # a quarter turn about z: entries change by 1 four times
        (
            "root_rot",
            torch.tensor([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]),
            1.0 * 4.0,
        ),
        ("joint_pos", torch.full((1, 12), 0.1), 0.5 * 1.2),
        ("root_vel_w", torch.tensor([[1.0, 0.0, 0.0]]), 0.2),
        ("root_ang_w", torch.tensor([[0.0, 0.0, 2.0]]), 0.1 * 2.0),
        ("joint_vel", torch.full((1, 12), -1.0), 0.02 * 12.0),
    ],
)
def test_tracking_loss_by_hand(field: str, value: Tensor, expected: float) -> None:
    state = still(1)
    loss = tracking_loss(state, state, frames_like(state, **{field: value}), TrackingWeights())
    torch.testing.assert_close(loss, torch.tensor([expected]))


def test_effort_and_smoothness_by_hand() -> None:
    before = still(1)._replace(setpoint=torch.full((1, 12), 0.3))
    after = still(1)._replace(setpoint=torch.full((1, 12), 0.5))
    # effort: |0.5 - 0| * 12 * 0.02; smoothness: |0.5 - 0.3| * 12 * 0.02
    loss = tracking_loss(after, before, frames_like(after), TrackingWeights())
    torch.testing.assert_close(loss, torch.tensor([0.12 + 0.048]))
