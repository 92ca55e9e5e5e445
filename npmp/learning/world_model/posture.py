"""Losses of imagined robots that act on the prior: leaving the range of recorded postures, and the
distance from recorded motion."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from npmp.envs.reference import Reference, ReferenceFrames
from npmp.envs.state import RobotState
from npmp.skills.normalizer import Normalizer

# weights of distances from the range: height [1/m], entries of the vertical, joints [1/rad]
HEIGHT = 4.0
VERTICAL = 1.0
JOINTS = 0.5


class PostureRange(nn.Module):
    """Distance from the range of root heights, tilts and joint angles in recorded frames.

    Standing still is in the range; for motion see `SlicedWasserstein`.
    """

    low: Tensor
    high: Tensor

    def __init__(self, frames: ReferenceFrames | RobotState, rare: float = 0.01):
        """frames: (F, ...) of a reference, or states; rare: quantile of frames that is cut off at
        each end."""
        super().__init__()
        postures = _posture(frames.root_pos, frames.root_rot, frames.joint_pos)
        ends = postures.new_tensor([rare, 1.0 - rare])
        bounds = torch.stack([torch.quantile(column, ends) for column in postures.T.contiguous()])
        self.register_buffer("low", bounds[:, 0], persistent=True)
        self.register_buffer("high", bounds[:, 1], persistent=True)

    def forward(self, state: RobotState) -> Tensor:
        """Weighted sum of distances from the range, (...)."""
        posture = _posture(state.root_pos, state.root_rot, state.joint_pos)
        outside = torch.relu(self.low - posture) + torch.relu(posture - self.high)
        return (
            HEIGHT * outside[..., 0]
            + VERTICAL * outside[..., 1:4].sum(-1)
            + JOINTS * outside[..., 4:].sum(-1)
        )


def _posture(root_pos: Tensor, root_rot: Tensor, joint_pos: Tensor) -> Tensor:
    """Height, the world's vertical in the root frame, joint angles: (..., 4 + nu)."""
    return torch.cat((root_pos[..., 2:], root_rot[..., 2, :], joint_pos), -1)


class SlicedWasserstein(nn.Module):
    """Sliced Wasserstein distance between the states of a batch of robots and recorded states.

    A state is the root's height, vertical and velocities in the root frame, joint angles and joint
    velocities, each in standard deviations of the recordings. Both sets are projected onto random
    directions; in one dimension the distance is the mean difference of sorted values [Rabin et al.
    2011, Wasserstein barycenter and its application to texture mixing]. It is large for robots that
    stand while the recordings walk, and needs no training, unlike a discriminator.
    """

    states: Tensor
    cumulative_weight: Tensor
    last_frame: Tensor

    def __init__(self, reference: Reference, directions: int = 64):
        """reference: frames are sampled by their clips' weights; directions: projections per
        call."""
        super().__init__()
        states = _motion(reference.tracked(reference.above_ground))
        weight = reference.weight.repeat_interleave(reference.length)
        self.scale = Normalizer(states.shape[-1]).to(states.device)
        self.scale.fit(states[weight > 0], 0.01)
        self.register_buffer("states", self.scale(states), persistent=False)
        self.register_buffer("cumulative_weight", weight.cumsum(0) / weight.sum(), persistent=False)
        last_frame = (reference.start + reference.length - 1).repeat_interleave(reference.length)
        self.register_buffer("last_frame", last_frame, persistent=False)
        self.directions = directions

    def forward(self, state: RobotState, generator: torch.Generator) -> Tensor:
        """Distance of n robots over T steps, batch shape (T, n), from n random recorded sequences.

        Sequences, as consecutive states are correlated on both sides; they stay at their clip's
        last frame.

        Returns: (), in standard deviations of a projection; for equal distributions the sampling
          error.
        """
        motion = self.scale(_motion(state))
        steps, robots, width = motion.shape
        uniform = torch.rand(
            robots, generator=generator, dtype=self.cumulative_weight.dtype, device=motion.device
        )
        # clamp: by rounding the last entry may be below 1
        first = torch.searchsorted(self.cumulative_weight, uniform, right=True).clamp(
            max=len(self.cumulative_weight) - 1
        )
        frames = torch.minimum(
            first + torch.arange(steps, device=motion.device).unsqueeze(-1), self.last_frame[first]
        )
        axes = torch.randn(width, self.directions, generator=generator, device=motion.device)
        axes = axes / axes.norm(dim=0)
        projected, recorded = (
            (states @ axes).flatten(0, 1).sort(0).values for states in (motion, self.states[frames])
        )
        return (projected - recorded).abs().mean()


def _motion(state: RobotState) -> Tensor:
    """Posture and velocities, without place and heading: (..., 10 + 2 nu)."""
    posture = _posture(state.root_pos, state.root_rot, state.joint_pos)
    return torch.cat((posture, state.root_vel, state.root_ang, state.joint_vel), -1)
