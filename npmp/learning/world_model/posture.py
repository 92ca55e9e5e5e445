"""What is asked of imagined robots that follow the prior instead of a reference: to stay up, and to
move as the recordings do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from npmp.envs.reference import Reference, ReferenceFrames
from npmp.envs.state import RobotState
from npmp.skills.normalizer import Normalizer

# what a metre of height, an entry of the vertical and a radian of a joint outside the range count
HEIGHT = 4.0
VERTICAL = 1.0
JOINTS = 0.5


class PostureRange(nn.Module):
    """The range of root heights, tilts and joint angles that a reference's frames take, but for
    their rarest.

    A robot that acts from the prior has nothing to track; it can be asked to remain where the
    recordings are. Standing still is enough for that: see `SlicedWasserstein`.
    """

    low: Tensor
    high: Tensor

    def __init__(self, frames: ReferenceFrames | RobotState, rare: float = 0.01):
        """frames: all of a reference, or states (F, ...); rare: share of them below, and above, the
        range of each quantity."""
        super().__init__()
        seen = _posture(frames.root_pos, frames.root_rot, frames.joint_pos)
        ends = seen.new_tensor([rare, 1.0 - rare])
        bounds = torch.stack([torch.quantile(column, ends) for column in seen.T.contiguous()])
        self.register_buffer("low", bounds[:, 0], persistent=True)
        self.register_buffer("high", bounds[:, 1], persistent=True)

    def forward(self, state: RobotState) -> Tensor:
        """Weighted distances from the range, summed: (...)."""
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
    """How unlike the recordings a crowd of robots moves: the sliced Wasserstein distance between
    their states and recorded ones.

    A state is its root's height, vertical and velocities in the root frame, its joints' angles and
    velocities, each in standard deviations of the recordings; place and heading are left out. Both
    crowds are projected onto random directions, where the distance between distributions is the
    mean distance of what has the same rank [Rabin et al. 2011, Wasserstein barycenter and its
    application to texture mixing]. Unlike a range of postures it is not met by standing still where
    the recordings walk, and unlike a discriminator there is nothing to train.
    """

    states: Tensor
    chance: Tensor
    last: Tensor

    def __init__(self, reference: Reference, directions: int = 64):
        """reference: its frames are drawn by their clips' weights, as starts are; directions:
        projections of each call."""
        super().__init__()
        states = _motion(reference.tracked(reference.frames))
        weight = reference.weight.repeat_interleave(reference.length)
        self.scale = Normalizer(states.shape[-1]).to(states.device)
        self.scale.fit(states[weight > 0], 0.01)
        self.register_buffer("states", self.scale(states), persistent=False)
        self.register_buffer("chance", weight.cumsum(0) / weight.sum(), persistent=False)
        last = (reference.start + reference.length - 1).repeat_interleave(reference.length)
        self.register_buffer("last", last, persistent=False)
        self.directions = directions

    def forward(self, state: RobotState, generator: torch.Generator) -> Tensor:
        """Distance of what n robots do over T steps, batch shape (T, n), from as many stretches of
        as many frames drawn.

        Stretches, as states that follow each other are alike on either side; one stays at the last
        frame of its clip.

        Returns: (), in standard deviations of a projection; above zero by the chance of the draws
        for robots that do
          move alike.
        """
        motion = self.scale(_motion(state))
        steps, robots, width = motion.shape
        draw = torch.rand(
            robots, generator=generator, dtype=self.chance.dtype, device=motion.device
        )
        # rounding may leave the last entry of the cumulated chances below the highest draw
        first = torch.searchsorted(self.chance, draw, right=True).clamp(max=len(self.chance) - 1)
        frames = torch.minimum(
            first + torch.arange(steps, device=motion.device).unsqueeze(-1), self.last[first]
        )
        axes = torch.randn(width, self.directions, generator=generator, device=motion.device)
        axes = axes / axes.norm(dim=0)
        ranked = (
            (states @ axes).flatten(0, 1).sort(0).values for states in (motion, self.states[frames])
        )
        return torch.sub(*ranked).abs().mean()


def _motion(state: RobotState) -> Tensor:
    """What a robot's posture is and how it changes, whatever its place and heading: (..., 10 + 2
    nu)."""
    posture = _posture(state.root_pos, state.root_rot, state.joint_pos)
    return torch.cat((posture, state.root_vel, state.root_ang, state.joint_vel), -1)
