"""How far a robot that follows no reference is from the recordings' postures: what keeps latents of the prior on their feet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from npmp.envs.reference import ReferenceFrames
from npmp.envs.state import RobotState


class PostureRange(nn.Module):
    """The range of root heights, tilts and joint angles that a reference's frames take, but for their rarest.

    A robot that acts from the prior has nothing to track; all that is asked of it is to remain where the recordings are.
    """

    low: Tensor
    high: Tensor

    def __init__(self, frames: ReferenceFrames, rare: float = 0.01):
        """frames: all of the reference, (F, ...); rare: share of them below, and above, the range of each quantity."""
        super().__init__()
        seen = _posture(frames.root_pos, frames.root_rot, frames.joint_pos)
        ends = seen.new_tensor([rare, 1.0 - rare])
        bounds = torch.stack([torch.quantile(column, ends) for column in seen.T.contiguous()])
        self.register_buffer("low", bounds[:, 0], persistent=False)
        self.register_buffer("high", bounds[:, 1], persistent=False)

    def forward(self, state: RobotState, position: float, rotation: float, joints: float) -> Tensor:
        """Weighted distances from the range, summed: (...).

        Args:
          position: weight of the root's height [1/m].
          rotation: of the entries of the root's vertical.
          joints: of the joint angles [1/rad].
        """
        posture = _posture(state.root_pos, state.root_rot, state.joint_pos)
        outside = torch.relu(self.low - posture) + torch.relu(posture - self.high)
        return position * outside[..., 0] + rotation * outside[..., 1:4].sum(-1) + joints * outside[..., 4:].sum(-1)


def _posture(root_pos: Tensor, root_rot: Tensor, joint_pos: Tensor) -> Tensor:
    """Height, the world's vertical in the root frame, joint angles: (..., 4 + nu)."""
    return torch.cat((root_pos[..., 2:], root_rot[..., 2, :], joint_pos), -1)
