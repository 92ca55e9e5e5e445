"""Where a robot's feet are, in torch and with gradients: the points that touch the ground."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from npmp import geometry
from npmp.envs.kinematics import Kinematics
from npmp.envs.state import RobotState, pose_from_qpos
from npmp.robots import Robot

SOFT_M = 0.01  # [m] standing and stepping feet sink in less


class Feet(nn.Module):
    """Centres of the contact spheres under the feet, F feet with K spheres each of radius `radius` [m]."""

    _body: Tensor
    _point: Tensor

    def __init__(self, robot: Robot):
        """Raises InputError for a robot that `Kinematics` does not serve."""
        super().__init__()
        self.kinematics, self.radius = Kinematics(robot.model()), robot.foot_radius
        body = torch.tensor([robot.body_names.index(name) for name in robot.foot_bodies])
        self.register_buffer("_body", body, persistent=False)
        point = torch.tensor(robot.foot_points, dtype=torch.float32)  # (F, K, 3)
        self.register_buffer("_point", point, persistent=False)

    def forward(self, root_pos: Tensor, root_rot: Tensor, joint_pos: Tensor) -> Tensor:
        """Poses as `Kinematics` takes them -> centres in the world, (..., F, K, 3) [m]."""
        poses = self.kinematics(root_pos, root_rot, joint_pos)
        turn = poses.rotation.index_select(-3, self._body).unsqueeze(-3)  # (..., F, 1, 3, 3)
        return poses.position.index_select(-2, self._body).unsqueeze(-2) + geometry.to_world(turn, self._point)

    def heights(self, qpos: np.ndarray) -> np.ndarray:
        """Heights of the lowest points of the feet above height 0 in poses (T, 7 + nu): (T, F) [m]."""
        poses = pose_from_qpos(torch.tensor(qpos).to(self._point.device))
        return (self(*poses)[..., 2].amin(-1) - self.radius).cpu().numpy()


def dragging(before: Tensor, after: Tensor, height: Tensor, free: float, dt: float) -> Tensor:
    """How fast feet move near the ground: all of their speed on the ground, none of it at the height `free` [m] and
    above. It asks to stand still or to be lifted, as the foot slip and clearance costs of Hwangbo et al. 2019 do, and
    to be put down gently.

    before, after: (..., 3) places dt [s] apart. height: (...) above the ground then [m]. -> (...) [m/s].
    """
    speed = torch.sqrt((after - before).square().sum(-1) + 1e-10) / dt  # the norm has no gradient at zero
    return speed * (1.0 - height / free).clamp(0.0, 1.0)


def stepping(
    feet: Feet,
    states: RobotState,
    free: float,
    weights: tuple[float, float],
    dt: float,
    ground: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """What robots owe over H control steps, states (H, B, ...) dt [s] apart, for how they put their feet: (B,).

    Args:
      free: the height [m] from which on a foot may move as it likes, as in `dragging`.
      weights: of the worst foot's speed near the ground [s/m], of the depth [1/m] to which feet are pressed into it.
      ground: its height [m] at places (B, ..., 3); None: flat, at 0.
    """
    if weights == (0.0, 0.0) or len(states.root_pos) == 1:
        return states.root_pos.new_zeros(states.root_pos.shape[1])
    place = feet(states.root_pos, states.root_rot, states.joint_pos)
    middle = 0.5 * (place[1:] + place[:-1])
    height = middle[..., 2] - feet.radius
    if ground is not None:
        height = height - ground(middle.transpose(0, 1)).transpose(0, 1)
    dragged = dragging(place[:-1], place[1:], height, free, dt)
    pressed = torch.relu(-height - SOFT_M).amax(-1).sum(-1)
    worst = dragged.mean((0, 3)).amax(-1)  # who steps with two feet and glides on the others owes for these
    return weights[0] * worst + weights[1] * pressed.mean(0)
