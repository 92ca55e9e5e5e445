"""Differentiable dynamics of a ball that rolls and is pushed by a robot's legs.

The ball does not affect the legs. A leg that penetrates the ball pushes it out horizontally, along
the line between them, and the ball takes on the velocity of the push. After ten control steps of a
walking robot the ball is 7 mm from MuJoCo's, or 24 mm if legs touched it and moved it by 104 mm
[D].
"""

from __future__ import annotations

from typing import NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor, nn

from mocap_data.errors import InputError
from npmp.core import geometry
from npmp.envs.kinematics import Kinematics
from npmp.robots import Robot

# deceleration of a ball that was kicked, which slips at first [m/s^2; D: fitted to MuJoCo]
ROLLING = 1.3
INERTIA = 1.4  # effective inertia of a rolling solid ball, relative to its mass
SOFT_M = 0.002  # penetration over which contact sets in [m]
COLLISION = 3  # group of the robots' collision geoms
LOW_M = 0.2  # geoms above this height in the home pose touch no ball [D]


class Ball(NamedTuple):
    """Balls on flat ground, n of them."""

    position: Tensor  # (n, 2) of the centre [m], world
    velocity: Tensor  # (n, 2) [m/s]
    radius: Tensor  # (n,) [m]
    mass: Tensor  # (n,) [kg]
    drag: Tensor  # (n,) c of the force c |v| v [N s^2/m^2]


class Shapes(NamedTuple):
    """Boxes with rounded edges, K for each of L legs. A sphere is a box of size zero, a capsule one
    with a single nonzero side."""

    # (..., L, K, 3) of the centres [m], world
    position: Tensor
    # (..., L, K, 3, 3) shape to world
    turn: Tensor
    # (L, K, 3) of the sides, without the edges [m]
    half: Tensor
    # (L, K) of the edges [m]
    radius: Tensor


class Legs(nn.Module):
    """Collision geoms of a robot's feet and the links above them, up to the height of a ball.

    Legs with fewer shapes repeat the last one.
    """

    _body: Tensor
    _centre: Tensor
    _turn: Tensor
    _half: Tensor
    _radius: Tensor

    def __init__(self, robot: Robot):
        """Raises InputError for collision geoms of the legs other than spheres, capsules and
        boxes."""
        super().__init__()
        model = robot.model()
        data = mujoco.MjData(model)
        data.qpos[:] = robot.home_qpos
        mujoco.mj_kinematics(model, data)
        self.kinematics = Kinematics(model)
        legs = [_shapes(model, data, model.body(name).id, robot.name) for name in robot.foot_bodies]
        most = max(len(leg) for leg in legs)
        rows = [[*leg, *[leg[-1]] * (most - len(leg))] for leg in legs]
        columns = [np.array([[shape[i] for shape in row] for row in rows]) for i in range(5)]
        self.register_buffer("_body", torch.from_numpy(columns[0]), persistent=False)
        for name, column in zip(("_centre", "_turn", "_half", "_radius"), columns[1:], strict=True):
            self.register_buffer(name, torch.from_numpy(column).float(), persistent=False)

    def forward(self, root_pos: Tensor, root_rot: Tensor, joint_pos: Tensor) -> Shapes:
        """The shapes at poses as `Kinematics` takes them."""
        poses = self.kinematics(root_pos, root_rot, joint_pos)
        chosen = self._body.flatten()
        turn = poses.rotation.index_select(-3, chosen).unflatten(-3, self._body.shape)
        position = poses.position.index_select(-2, chosen).unflatten(-2, self._body.shape)
        position = position + geometry.to_world(turn, self._centre)
        return Shapes(position, turn @ self._turn, self._half, self._radius)


def _shapes(
    model: mujoco.MjModel, data: mujoco.MjData, foot: int, robot: str
) -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray, float]]:
    """Shapes of a foot and the links above it: body index without the world, position, rotation (3,
    3), half sides, radius."""
    shapes = []
    body = foot
    while int(model.body_parentid[body]) > 0:  # the trunk carries no leg
        for geom in np.flatnonzero((model.geom_group == COLLISION) & (model.geom_bodyid == body)):
            kind = mujoco.mjtGeom(int(model.geom_type[geom]))
            size = model.geom_size[geom]
            if data.geom_xpos[geom, 2] - model.geom_rbound[geom] > LOW_M:
                continue
            if kind == mujoco.mjtGeom.mjGEOM_BOX:
                half = size.copy()
                radius = 0.0
            elif kind in (mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CAPSULE):
                half = np.array([0.0, 0.0, size[1]])
                radius = float(size[0])
            else:
                shape = kind.name.removeprefix("mjGEOM_").lower()
                raise InputError(
                    f"'{model.body(body).name}' of '{robot}' collides as a {shape}, expected a"
                    " sphere, capsule or box in imagination; use algo=vmpo"
                )
            turn = np.zeros(9)
            mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
            shapes.append((body - 1, model.geom_pos[geom], turn.reshape(3, 3), half, radius))
        body = int(model.body_parentid[body])
    if not shapes:
        raise InputError(
            f"'{model.body(foot).name}' of '{robot}' has no collision geoms that can push a ball"
        )
    return shapes


def rolled(ball: Ball, legs: Shapes, dt: float) -> Ball:
    """The balls after dt [s]. legs: shapes at the end of the step, (n, L, K, ...)."""
    speed = torch.sqrt(ball.velocity.square().sum(-1) + 1e-6)
    slower = 1.0 + ball.drag * speed * dt / (INERTIA * ball.mass)
    velocity = ball.velocity * (torch.relu(1.0 - ROLLING * dt / speed) / slower).unsqueeze(-1)
    position = ball.position + velocity * dt
    centre = torch.cat((position, ball.radius.unsqueeze(-1)), -1)[:, None, None]
    # from the nearest point of each shape
    local = geometry.to_local(legs.turn, centre - legs.position)
    away = geometry.to_world(legs.turn, local - local.clamp(-legs.half, legs.half))
    gap = torch.sqrt(away.square().sum(-1) + 1e-8)
    room = ball.radius[:, None, None] + legs.radius - gap
    inside = SOFT_M * nn.functional.softplus(room / SOFT_M)
    # foot and shank adjoin: only the deepest shape of each leg counts
    deepest = inside.argmax(-1, keepdim=True)
    depth = inside.gather(-1, deepest)
    distance = gap.gather(-1, deepest)
    way = away[..., :2].gather(-2, deepest.unsqueeze(-1).expand(*deepest.shape, 2)).squeeze(-2)
    push = (depth / distance * way).sum(-2)
    # no gradient through the kick: with 1 / dt it would favour a jerk in a single step over a push
    return ball._replace(position=position + push, velocity=velocity + push.detach() / dt)
