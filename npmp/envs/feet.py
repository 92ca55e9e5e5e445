"""Where a robot's feet are, in torch and with gradients: the points that touch the ground."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from npmp.core import geometry, ranges
from npmp.envs.state import RobotState, pose_from_qpos
from npmp.robots import Robot
from npmp.robots.model import hinges_to, in_world, posed

SOFT_M = 0.01  # [m] standing and stepping feet sink in less
# [m/s] robots whose feet travel slower, by walking or turning, may leave them on the ground
WALKING_MPS = 0.15


class Feet(nn.Module):
    """Centres of the contact spheres under the feet, F feet with K spheres each of radius `radius`
    [m].

    A foot's points are turned by the joints between it and the root, from the foot up (product of
    exponentials): all feet at once, and without the other bodies that `Kinematics` places.
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
        # a leg of fewer joints than others ends in turns about nothing
        for foot, leg in enumerate(legs):
            for level, j in enumerate(leg):
                joint[level, foot] = j
                axis[level, foot] = data.xaxis[j + 1]
                anchor[level, foot] = data.xanchor[j + 1]
        soles = zip(robot.foot_bodies, robot.foot_points, strict=True)
        point = np.stack([in_world(data, body, points) for body, points in soles])
        cross = geometry.skew(torch.tensor(axis)).transpose(-1, -2)  # v @ cross is the axis x v
        self.register_buffer("_joint", torch.tensor(joint), persistent=False)
        for name, values in {"cross": cross, "anchor": anchor, "point": point}.items():
            single = torch.as_tensor(values, dtype=torch.float32)
            self.register_buffer(f"_{name}", single, persistent=False)

    def forward(self, root_pos: Tensor, root_rot: Tensor, joint_pos: Tensor) -> Tensor:
        """Poses as `Kinematics` takes them -> centres in the world, (..., F, K, 3) [m]."""
        place, _ = self.moving(joint_pos, torch.zeros_like(joint_pos))
        world = place.flatten(-3, -2) @ root_rot.transpose(-1, -2)
        return world.unflatten(-2, self.shape) + root_pos[..., None, None, :]

    def moving(self, joint_pos: Tensor, joint_vel: Tensor) -> tuple[Tensor, Tensor]:
        """Centres in the root's frame (..., F, K, 3) [m] of joints at (..., nu) [rad], and how fast
        they move there [m/s] under the joints' velocities (..., nu) [rad/s]."""
        feet, points = self.shape
        # (levels, F, n) each
        of_legs = [v.reshape(-1, v.shape[-1]).T[self._joint] for v in (joint_pos, joint_vel)]
        angle, rate = (v.repeat(1, 1, points).unsqueeze(-1) for v in of_legs)  # (levels, F, K n, 1)
        sine, versine = (v.repeat(1, 1, 2, 1) for v in (torch.sin(angle), 1.0 - torch.cos(angle)))
        place = self._point.repeat_interleave(of_legs[0].shape[-1], 1)  # (F, K n, 3)
        moved = torch.zeros_like(place)
        hinges = zip(self._cross, self._anchor.unsqueeze(-2), strict=True)
        for level, (cross, anchor) in enumerate(hinges):
            both = torch.cat((place - anchor, moved), 1)
            across = both @ cross
            # Rodrigues
            both = both + sine[level] * across + versine[level] * (across @ cross)
            arm, turned = both.chunk(2, 1)
            place = arm + anchor
            moved = turned + rate[level] * (arm @ cross)
        shape = (feet, points, *joint_pos.shape[:-1], 3)
        place, moved = (v.view(shape).movedim((0, 1), (-3, -2)) for v in (place, moved))
        return place, moved

    def heights(self, qpos: np.ndarray) -> np.ndarray:
        """Heights above 0 of the lowest points of the feet in poses (T, 7 + nu): (T, F) [m]."""
        poses = pose_from_qpos(torch.tensor(qpos).to(self._point.device))
        return (self(*poses)[..., 2].amin(-1) - self.radius).cpu().numpy()


def dragging(before: Tensor, after: Tensor, height: Tensor, free: float, dt: float) -> Tensor:
    """How fast feet move near the ground: all of their speed on the ground, none of it at the
    height `free` [m] and above. A foot is to stand still or to be lifted, as the foot slip and
    clearance costs of Hwangbo et al. 2019 do, and to be put down gently.

    before, after: (..., 3) places dt [s] apart. height: (...) above the ground then [m]. -> (...)
    [m/s].
    """
    # the norm has no gradient at zero
    speed = torch.sqrt((after - before).square().sum(-1) + 1e-10) / dt
    return speed * (1.0 - height / free).clamp(0.0, 1.0)


def unlifted(height: Tensor, travelled: Tensor, free: float, seconds: float) -> Tensor:
    """Which part of the height `free` [m] feet miss at the highest that each gets, mean over feet:
    feet of a robot that walks come up once in a stride. Unlike `dragging`, it counts feet that
    glide a millimetre above the ground, too.

    Args:
      height: (H, B, F, K) of the feet's points above the ground [m]; the lowest point of a foot
        counts.
      travelled: (B,) mean way of its feet in that time [m]; below `WALKING_MPS` the loss is in
        proportion.

    Returns: (B,). Gradients reach the heights only, as standing still shall not save it.
    """
    walks = (travelled.detach() / seconds / WALKING_MPS).clamp(max=1.0)
    # in the ground: more than 1
    return walks * (1.0 - height.amin(-1).amax(0) / free).clamp(min=0.0).mean(-1)


@dataclass(frozen=True)
class SteppingConfig:
    """The loss of imagined robots for their feet. Raises ValueError for values out of
    range."""

    # of the worst foot's speed near the ground, below the swing height [s/m]
    drag_weight: float = 0.3
    # height that a foot is to reach, and above which it moves freely [m]
    swing_height_m: float = 0.04
    # of the depth to which feet are pressed into MuJoCo's soft ground [1/m]: it stamps
    press_weight: float = 100.0
    # of the part of the swing height that the feet of a walking robot miss
    lift_weight: float = 0.5

    def __post_init__(self) -> None:
        ranges.above_zero(self, "swing_height_m")
        ranges.not_negative(self, "drag_weight", "press_weight", "lift_weight")


def stepping(
    feet: Feet,
    states: RobotState,
    config: SteppingConfig,
    dt: float,
    ground: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The loss for the feet over H control steps, states (H, B, ...) dt [s] apart: (B,).

    ground: its height [m] at places (B, ..., 3); None: flat, at 0.
    """
    c = config
    free = config.swing_height_m
    weighs = c.drag_weight or c.press_weight or c.lift_weight
    if not weighs or len(states.root_pos) == 1:
        return states.root_pos.new_zeros(states.root_pos.shape[1])
    place = feet(states.root_pos, states.root_rot, states.joint_pos)
    middle = 0.5 * (place[1:] + place[:-1])
    height = middle[..., 2] - feet.radius
    if ground is not None:
        height = height - ground(middle.transpose(0, 1)).transpose(0, 1)
    dragged = dragging(place[:-1], place[1:], height, free, dt)
    pressed = torch.relu(-height - SOFT_M).amax(-1).sum(-1)
    # the worst foot: a robot may step with two feet and glide on the others
    worst = dragged.mean((0, 3)).amax(-1)
    loss = c.drag_weight * worst + c.press_weight * pressed.mean(0)
    if c.lift_weight:
        # of the feet, not of the root, which does not move while a robot turns
        moved = (place[-1] - place[0])[..., :2].mean(-2)
        travelled = torch.linalg.vector_norm(moved, dim=-1).mean(-1)
        loss = loss + c.lift_weight * unlifted(height, travelled, free, dt * len(height))
    return loss
