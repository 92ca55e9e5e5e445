"""A ball among the legs of a robot, as a pure function with gradients: rolling, and pushed by what the legs do.

A leg is heavy beside a ball and goes where it goes: whatever of the ball it would run into is pushed out of its way, in
the plane, and takes on the leg's speed on the way. Against MuJoCo the ball of a walking robot is 8 mm off after ten
control steps, 28 mm where legs have met it meanwhile and moved it by 104 mm [D].
"""

from __future__ import annotations

from typing import NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor, nn

from mocap_data.errors import InputError
from npmp import geometry
from npmp.envs.kinematics import Kinematics
from npmp.robots import Robot

BOUNCE = -0.2  # share of a push that the ball keeps as speed, above that of the leg [D: fitted to MuJoCo]
ROLLING = 1.3  # deceleration of a ball that was kicked, which slips at first [m/s^2; D: likewise]
INERTIA = 1.4  # of a rolling solid ball, in its mass
SOFT_M = 0.002  # over which contact sets in [m]


class Ball(NamedTuple):
    """Balls on flat ground, n of them."""

    place: Tensor  # (n, 2) of the centre [m], world
    velocity: Tensor  # (n, 2) [m/s]
    radius: Tensor  # (n,) [m]
    mass: Tensor  # (n,) [kg]
    drag: Tensor  # (n,) c of the force c |v| v [N s^2/m^2]


class Legs(nn.Module):
    """The spheres and capsules of a robot's feet and of the links that carry them, C in all: `radius` (C,) [m]."""

    _body: Tensor
    _ends: Tensor
    radius: Tensor

    def __init__(self, robot: Robot, kinematics: Kinematics):
        """Raises InputError for a robot whose legs have neither."""
        super().__init__()
        self.kinematics, model = kinematics, robot.model()
        feet = [model.body(name).id for name in robot.foot_bodies]
        legs = {*feet, *(int(model.body_parentid[foot]) for foot in feet)}
        body, ends, radius = [], [], []
        for geom in np.flatnonzero(model.geom_group == _COLLISION):
            kind, where = int(model.geom_type[geom]), int(model.geom_bodyid[geom])
            if where not in legs or kind not in (mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CAPSULE):
                continue
            axis = np.zeros(9)
            mujoco.mju_quat2Mat(axis, model.geom_quat[geom])
            half = model.geom_size[geom][1] * (kind == mujoco.mjtGeom.mjGEOM_CAPSULE) * axis.reshape(3, 3)[:, 2]
            body.append(where - 1)
            ends.append([model.geom_pos[geom] - half, model.geom_pos[geom] + half])
            radius.append(model.geom_size[geom][0])
        if not body:
            raise InputError(f"the feet and shanks of '{robot.name}' have no spheres or capsules to push a ball with")
        self.register_buffer("_body", torch.tensor(body), persistent=False)
        self.register_buffer("_ends", torch.tensor(np.array(ends), dtype=torch.float32), persistent=False)
        self.register_buffer("radius", torch.tensor(radius, dtype=torch.float32), persistent=False)

    def forward(self, root_pos: Tensor, root_rot: Tensor, joint_pos: Tensor) -> Tensor:
        """Poses as `Kinematics` takes them -> the ends of their axes in the world, (..., C, 2, 3) [m]."""
        poses = self.kinematics(root_pos, root_rot, joint_pos)
        turn = poses.rotation.index_select(-3, self._body).unsqueeze(-3)
        return poses.position.index_select(-2, self._body).unsqueeze(-2) + geometry.to_world(turn, self._ends)


_COLLISION = 3  # group of the robots' collision geoms


def rolled(ball: Ball, legs: Tensor, radius: Tensor, dt: float) -> Ball:
    """The balls after dt [s].

    Args:
      legs: (n, C, 2, 3) ends of capsules then [m]. radius: (C,) theirs [m].
    """
    speed = torch.sqrt(ball.velocity.square().sum(-1) + 1e-6)
    slower = 1.0 + ball.drag * speed * dt / (INERTIA * ball.mass)
    velocity = ball.velocity * (torch.relu(1.0 - ROLLING * dt / speed) / slower).unsqueeze(-1)
    place = ball.place + velocity * dt
    centre = torch.cat((place, ball.radius.unsqueeze(-1)), -1).unsqueeze(-2)
    low, axis = legs[..., 0, :], legs[..., 1, :] - legs[..., 0, :]
    along = ((centre - low) * axis).sum(-1) / axis.square().sum(-1).clamp(min=1e-9)
    away = centre - low - along.clamp(0.0, 1.0).unsqueeze(-1) * axis  # from the nearest point of each leg
    gap = torch.sqrt(away[..., :2].square().sum(-1) + 1e-8)
    # in the plane they touch at this distance, as they are not equally high
    room = (ball.radius.unsqueeze(-1) + radius).square() - away[..., 2].square()
    inside = SOFT_M * nn.functional.softplus((torch.sqrt(room.clamp(min=1e-6)) - gap) / SOFT_M) * (room > 0.0)
    push = (inside.unsqueeze(-1) * away[..., :2] / gap.unsqueeze(-1)).sum(-2)
    # no gradient through the kick: that of 1 / dt would ask for a jerk in a single step, where a push is to be led
    return ball._replace(place=place + push, velocity=velocity + (1.0 + BOUNCE) * push.detach() / dt)
