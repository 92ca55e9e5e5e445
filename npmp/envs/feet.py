"""Differentiable positions of a robot's feet, and losses on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from mocap_data.ground_profile import GroundProfile
from npmp.core import geometry, ranges
from npmp.core.host_waits import constant
from npmp.envs.state import RobotState, pose_from_qpos
from npmp.robots import Robot
from npmp.robots.model import hinges_to, in_world, posed

# penetration into MuJoCo's soft ground that is not penalized [m]
SOFT_M = 0.01
# mean speed of the feet above which a robot must lift them [m/s]
WALKING_MPS = 0.15
# distance over which a swinging foot rises onto a step [m]
SWING_REACH_M = 0.1
# highest rise within that distance that a foot swings over: the highest stairs of
# `TerrainLimits`; walls are not climbed [m]
MAX_RISE_M = 0.2
# a point and eight directions around it
AROUND = ((0.0, 0.0), *((math.cos(k * math.pi / 4), math.sin(k * math.pi / 4)) for k in range(8)))
# time in which a standing robot puts down a raised foot [s]
LANDING_S = 0.1
# height of the ground at positions (B, ..., 2 or 3) [m]
GroundHeight = Callable[[Tensor], Tensor]


class Feet(nn.Module):
    """Centres of the contact spheres under F feet, K spheres of radius `radius` [m] each.

    The points are rotated by the joints from the foot up to the root (product of exponentials), for
    all feet at once; other bodies are not evaluated.
    """

    _joint: Tensor
    _cross: Tensor
    _anchor: Tensor
    _point: Tensor

    def __init__(self, robot: Robot):
        super().__init__()
        self.radius = robot.foot_radius
        self.shape = robot.foot_points.shape[:2]
        model = robot.model()
        data = posed(model)
        # from the feet up
        legs = [hinges_to(model, model.body(name).id)[::-1] for name in robot.foot_bodies]
        size = max(map(len, legs)), len(legs)
        joint = np.zeros(size, int)
        axis = np.zeros((*size, 3))
        anchor = np.zeros((*size, 3))
        # shorter legs are padded with a zero axis
        for foot, leg in enumerate(legs):
            for level, j in enumerate(leg):
                joint[level, foot] = j
                axis[level, foot] = data.xaxis[j + 1]
                anchor[level, foot] = data.xanchor[j + 1]
        soles = zip(robot.foot_bodies, robot.foot_points, strict=True)
        point = np.stack([in_world(data, body, points) for body, points in soles])
        # v @ cross = axis x v
        cross = geometry.skew(torch.tensor(axis)).transpose(-1, -2)
        self.register_buffer("_joint", torch.tensor(joint), persistent=False)
        for name, values in {"cross": cross, "anchor": anchor, "point": point}.items():
            single = torch.as_tensor(values, dtype=torch.float32)
            self.register_buffer(f"_{name}", single, persistent=False)

    def forward(self, root_pos: Tensor, root_rot: Tensor, joint_pos: Tensor) -> Tensor:
        """Poses as `Kinematics` takes them -> centres in the world, (..., F, K, 3) [m]."""
        position, _ = self.moving(joint_pos, torch.zeros_like(joint_pos))
        world = position.flatten(-3, -2) @ root_rot.transpose(-1, -2)
        return world.unflatten(-2, self.shape) + root_pos[..., None, None, :]

    def moving(self, joint_pos: Tensor, joint_vel: Tensor) -> tuple[Tensor, Tensor]:
        """Centres in the root's frame (..., F, K, 3) [m] of joints at (..., nu) [rad], and how fast
        they move there [m/s] under the joints' velocities (..., nu) [rad/s]."""
        feet, points = self.shape
        # angles and velocities of the legs' joints, (levels, F, n) each
        of_legs = [v.reshape(-1, v.shape[-1]).T[self._joint] for v in (joint_pos, joint_vel)]
        angle, rate = (v.repeat(1, 1, points).unsqueeze(-1) for v in of_legs)  # (levels, F, K n, 1)
        sine, versine = (v.repeat(1, 1, 2, 1) for v in (torch.sin(angle), 1.0 - torch.cos(angle)))
        position = self._point.repeat_interleave(of_legs[0].shape[-1], 1)  # (F, K n, 3)
        moved = torch.zeros_like(position)
        hinges = zip(self._cross, self._anchor.unsqueeze(-2), strict=True)
        for level, (cross, anchor) in enumerate(hinges):
            both = torch.cat((position - anchor, moved), 1)
            across = both @ cross
            # Rodrigues
            both = both + sine[level] * across + versine[level] * (across @ cross)
            arm, turned = both.chunk(2, 1)
            position = arm + anchor
            moved = turned + rate[level] * (arm @ cross)
        shape = (feet, points, *joint_pos.shape[:-1], 3)
        position, moved = (v.view(shape).movedim((0, 1), (-3, -2)) for v in (position, moved))
        return position, moved

    def heights(self, qpos: np.ndarray, ground: GroundProfile | None = None) -> np.ndarray:
        """Heights above the ground of the lowest points of the feet in poses (T, 7 + nu): (T, F)
        [m]. ground: None: flat, at 0."""
        poses = pose_from_qpos(torch.tensor(qpos).to(self._point.device))
        points = self(*poses)
        if ground is not None:
            x = points[..., 0].double().cpu().numpy()
            points[..., 2] -= torch.from_numpy(ground.height_at(x, self.radius)).to(points)
        return (points[..., 2].amin(-1) - self.radius).cpu().numpy()


def dragging(before: Tensor, after: Tensor, height: Tensor, free: float, dt: float) -> Tensor:
    """Speed of feet (...) [m/s], scaled from 1 on the ground to 0 at height `free` [m] and above
    (foot slip and clearance, Hwangbo et al. 2019).

    Args:
      before, after: (..., 3) positions [m] dt [s] apart. height: (...) above the ground [m].
    """
    # the norm has no gradient at zero
    speed = torch.sqrt((after - before).square().sum(-1) + 1e-10) / dt
    return speed * (1.0 - height / free).clamp(0.0, 1.0)


def unlifted(height: Tensor, travelled: Tensor, free: float, seconds: float) -> Tensor:
    """Share of the height `free` [m] by which each foot's highest position falls short, mean over
    feet, (B,). Unlike `dragging` it also penalizes feet that glide a millimetre above the ground.

    Args:
      height: (H, B, F, K) of the feet's points above the ground [m]; a foot's lowest point counts.
      travelled: (B,) mean distance of the feet [m]; below `WALKING_MPS` the loss is scaled down. No
        gradient passes through it, so that standing still does not reduce the loss.
    """
    walks = (travelled.detach() / seconds / WALKING_MPS).clamp(max=1.0)
    # above 1 for feet below the ground
    return walks * (1.0 - height.amin(-1).amax(0) / free).clamp(min=0.0).mean(-1)


@dataclass(frozen=True)
class SteppingConfig:
    """The loss on imagined feet. Raises ValueError for values out of range."""

    # weight of the worst foot's speed below the swing height [s/m]
    drag_weight: float = 0.3
    # target height of a foot's swing, above which its speed is not penalized [m]
    swing_height_m: float = 0.04
    # weight of the feet's penetration into MuJoCo's soft ground [1/m], against stamping
    press_weight: float = 100.0
    # weight of the share of the swing height that a walking robot's feet do not reach
    lift_weight: float = 0.5

    def __post_init__(self) -> None:
        ranges.above_zero(self, "swing_height_m")
        ranges.not_negative(self, "drag_weight", "press_weight", "lift_weight")


def stepping(
    feet: Feet,
    states: RobotState,
    config: SteppingConfig,
    dt: float,
    ground: GroundHeight | None = None,
) -> Tensor:
    """The loss on the feet (B,) over H control steps, states (H, B, ...) dt [s] apart.

    Feet swing over the highest ground within `SWING_REACH_M`, so that they rise before a step.

    Args:
      ground: its height [m] at positions (B, ..., 3); None: flat, at 0.
    """
    c = config
    free = config.swing_height_m
    weighs = c.drag_weight or c.press_weight or c.lift_weight
    if not weighs or len(states.root_pos) == 1:
        return states.root_pos.new_zeros(states.root_pos.shape[1])
    position, middle = _soles(feet, states)
    height = _above(middle, feet.radius, ground)
    clearance = height
    if ground is not None:
        clearance = _above(middle, feet.radius, partial(highest, ground=ground))
    dragged = dragging(position[:-1], position[1:], clearance, free, dt)
    # in the side of a step a foot's whole depth counts, which lifts it onto the step
    pressed = torch.relu(-height - SOFT_M).amax(-1).sum(-1)
    # the worst foot, as a robot may step with two feet and glide on the others
    worst = dragged.mean((0, 3)).amax(-1)
    loss = c.drag_weight * worst + c.press_weight * pressed.mean(0)
    if c.lift_weight:
        # distance of the feet, not of the root, which does not move while a robot turns
        moved = (position[-1] - position[0])[..., :2].mean(-2)
        travelled = torch.linalg.vector_norm(moved, dim=-1).mean(-1)
        loss = loss + c.lift_weight * unlifted(clearance, travelled, free, dt * len(height))
    return loss


def highest(position: Tensor, *, ground: GroundHeight) -> Tensor:
    """The highest ground within `SWING_REACH_M` of positions (B, ..., 3), (B, ...) [m]: at the
    position and in eight directions, at most `MAX_RISE_M` above the ground beneath."""
    offsets = SWING_REACH_M * constant(AROUND, position.device)
    heights = ground(position[..., None, :2] + offsets)
    return torch.minimum(heights.amax(-1), heights[..., 0] + MAX_RISE_M)


def stand_still(
    feet: Feet, states: RobotState, dt: float, ground: GroundHeight | None = None
) -> Tensor:
    """Motion of the feet between H control steps, which is zero for a robot that stands,
    (H - 1, B) [m/s]: their speed, plus their height above the ground over `LANDING_S`, mean over
    feet.

    Args:
      states: (H, B, ...) dt [s] apart. ground: as of `stepping`.
    """
    position, middle = _soles(feet, states)
    height = _above(middle, feet.radius, ground)
    # the norm has no gradient at zero
    speed = torch.sqrt((position[1:] - position[:-1]).square().sum(-1) + 1e-10) / dt
    raised = torch.relu(height.amin(-1))
    return (speed.mean(-1) + raised / LANDING_S).mean(-1)


def _soles(feet: Feet, states: RobotState) -> tuple[Tensor, Tensor]:
    """Centres of the feet's points (H, B, F, K, 3), and half-way between control steps (H - 1, B,
    F, K, 3) [m]."""
    position = feet(states.root_pos, states.root_rot, states.joint_pos)
    return position, 0.5 * (position[1:] + position[:-1])


def _above(centers: Tensor, radius: float, ground: GroundHeight | None) -> Tensor:
    """Height of spheres at (H, B, F, K, 3) above the ground, (H, B, F, K) [m]."""
    height = centers[..., 2] - radius
    if ground is not None:
        height = height - ground(centers.transpose(0, 1)).transpose(0, 1)
    return height
