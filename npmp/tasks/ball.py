"""A ball among the legs of a robot, as a pure function with gradients: rolling, and pushed by what
the legs do.

A leg is heavy beside a ball and goes where it goes: what of the ball it would run into is pushed
out of its way, along the line between them, as far as the floor lets it, and takes on the leg's
speed on the way. Against MuJoCo the ball of a walking robot is 7 mm off after ten control steps, 24
mm where legs have met it meanwhile and moved it by 104 mm [D].
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

# deceleration of a ball that was kicked, which slips at first [m/s^2; D: fitted to MuJoCo]
ROLLING = 1.3
INERTIA = 1.4  # of a rolling solid ball, in its mass
SOFT_M = 0.002  # over which contact sets in [m]
COLLISION = 3  # group of the robots' collision geoms


class Ball(NamedTuple):
    """Balls on flat ground, n of them."""

    place: Tensor  # (n, 2) of the centre [m], world
    velocity: Tensor  # (n, 2) [m/s]
    radius: Tensor  # (n,) [m]
    mass: Tensor  # (n,) [kg]
    drag: Tensor  # (n,) c of the force c |v| v [N s^2/m^2]


class Legs(nn.Module):
    """The spheres and capsules of a robot's feet and of the links that carry them, K for each of L
    legs.

    radius: (L, K) [m]. A leg with fewer than others has its last several times.
    """

    _body: Tensor
    _ends: Tensor
    radius: Tensor

    def __init__(self, robot: Robot):
        """Raises InputError for a robot whose feet or shanks collide as anything else."""
        super().__init__()
        model = robot.model()
        self.kinematics = Kinematics(model)
        legs = [_capsules(model, model.body(name).id, robot.name) for name in robot.foot_bodies]
        most = max(len(leg) for leg in legs)
        rows = [[*leg, *[leg[-1]] * (most - len(leg))] for leg in legs]
        self.register_buffer(
            "_body", torch.tensor([[body for body, _, _ in row] for row in rows]), persistent=False
        )
        ends = torch.tensor(
            np.array([[end for _, end, _ in row] for row in rows]), dtype=torch.float32
        )
        self.register_buffer("_ends", ends, persistent=False)
        radius = torch.tensor([[size for _, _, size in row] for row in rows], dtype=torch.float32)
        self.register_buffer("radius", radius, persistent=False)

    def forward(self, root_pos: Tensor, root_rot: Tensor, joint_pos: Tensor) -> Tensor:
        """Poses as `Kinematics` takes them -> the ends of their axes in the world, (..., L, K, 2,
        3) [m]."""
        poses, chosen = self.kinematics(root_pos, root_rot, joint_pos), self._body.flatten()
        turn = poses.rotation.index_select(-3, chosen).unflatten(-3, self._body.shape).unsqueeze(-3)
        place = (
            poses.position.index_select(-2, chosen).unflatten(-2, self._body.shape).unsqueeze(-2)
        )
        return place + geometry.to_world(turn, self._ends)


def _capsules(model: mujoco.MjModel, foot: int, robot: str) -> list[tuple[int, np.ndarray, float]]:
    """The collision geoms of a foot and of the link that carries it: body without the world, ends
    (2, 3), radius."""
    found = []
    for body in (int(model.body_parentid[foot]), foot):
        for geom in np.flatnonzero((model.geom_group == COLLISION) & (model.geom_bodyid == body)):
            kind, axis = int(model.geom_type[geom]), np.zeros(9)
            if kind not in (mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CAPSULE):
                shape = mujoco.mjtGeom(kind).name.removeprefix("mjGEOM_").lower()
                raise InputError(
                    f"'{model.body(body).name}' of '{robot}' collides as a {shape}; in imagination"
                    " only spheres and capsules push a ball (algo=vmpo does without)"
                )
            mujoco.mju_quat2Mat(axis, model.geom_quat[geom])
            length = model.geom_size[geom][1] if kind == mujoco.mjtGeom.mjGEOM_CAPSULE else 0.0
            half = length * axis.reshape(3, 3)[:, 2]
            ends = np.stack((model.geom_pos[geom] - half, model.geom_pos[geom] + half))
            found.append((body - 1, ends, float(model.geom_size[geom][0])))
    if not found:
        raise InputError(
            f"'{model.body(foot).name}' of '{robot}' has no collision geoms to push a ball with"
        )
    return found


def rolled(ball: Ball, legs: Tensor, radius: Tensor, dt: float) -> Ball:
    """The balls after dt [s].

    Args:
      legs: (n, L, K, 2, 3) ends of capsules then [m]. radius: (L, K) theirs [m].
    """
    speed = torch.sqrt(ball.velocity.square().sum(-1) + 1e-6)
    slower = 1.0 + ball.drag * speed * dt / (INERTIA * ball.mass)
    velocity = ball.velocity * (torch.relu(1.0 - ROLLING * dt / speed) / slower).unsqueeze(-1)
    place = ball.place + velocity * dt
    centre = torch.cat((place, ball.radius.unsqueeze(-1)), -1)[:, None, None]
    low, axis = legs[..., 0, :], legs[..., 1, :] - legs[..., 0, :]
    along = ((centre - low) * axis).sum(-1) / axis.square().sum(-1).clamp(min=1e-9)
    # from the nearest point of each capsule
    away = centre - low - along.clamp(0.0, 1.0).unsqueeze(-1) * axis
    gap = torch.sqrt(away.square().sum(-1) + 1e-8)
    inside = SOFT_M * nn.functional.softplus((ball.radius[:, None, None] + radius - gap) / SOFT_M)
    # foot and shank adjoin: of each leg that counts which is deeper in the ball
    deepest = inside.argmax(-1, keepdim=True)
    depth, distance = inside.gather(-1, deepest), gap.gather(-1, deepest)
    way = away[..., :2].gather(-2, deepest.unsqueeze(-1).expand(*deepest.shape, 2)).squeeze(-2)
    push = (depth / distance * way).sum(-2)
    # no gradient through the kick: that of 1 / dt would ask for a jerk in a single step, where a
    # push is to be led
    return ball._replace(place=place + push, velocity=velocity + push.detach() / dt)
