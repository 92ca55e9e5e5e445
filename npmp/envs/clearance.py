"""How far above the ground the parts of a robot are that may not touch it, in torch, with gradients."""

from __future__ import annotations

from collections.abc import Collection

import mujoco
import numpy as np
import torch
from torch import Tensor, nn

from npmp.envs.kinematics import Kinematics
from npmp.envs.state import RobotState
from npmp.robots import Robot


class Clearance(nn.Module):
    """Heights of the lowest points of bodies' colliding geoms: what contact sensors would report below zero.

    Spheres and capsules exactly; of other shapes the corners of their bounding boxes, which lie outside round ones.
    """

    _point: Tensor
    _radius: Tensor
    _body: Tensor

    def __init__(self, robot: Robot, bodies: Collection[str]):
        """bodies: whose clearance counts. Raises ValueError where none of them has a colliding geom."""
        super().__init__()
        model = robot.model(visuals=False)
        points, radii, owners = [], [], []
        for g in range(model.ngeom):
            name = model.body(model.geom_bodyid[g]).name
            if name in bodies and (model.geom_contype[g] or model.geom_conaffinity[g]):
                ends, radius = _extremes(model, g)
                points.append(ends)
                radii.append(np.full(len(ends), radius))
                owners.append(np.full(len(ends), robot.body_names.index(name)))
        if not points:
            raise ValueError(f"none of {', '.join(bodies)} of '{robot.name}' has a colliding geom")
        self.kinematics = Kinematics(robot.model())
        for key, value in (("_point", points), ("_radius", radii)):
            self.register_buffer(key, torch.tensor(np.concatenate(value), dtype=torch.float32), persistent=False)
        self.register_buffer("_body", torch.tensor(np.concatenate(owners)), persistent=False)

    def forward(self, state: RobotState) -> Tensor:
        """Heights of all points' undersides above height 0, (..., points) [m]."""
        poses = self.kinematics(state.root_pos, state.root_rot, state.joint_pos)
        upright = poses.rotation[..., 2, :].index_select(-2, self._body)  # the vertical's row of each rotation
        height = poses.position[..., 2].index_select(-1, self._body)
        return height + (upright * self._point).sum(-1) - self._radius


def _extremes(model: mujoco.MjModel, g: int) -> tuple[np.ndarray, float]:
    """Points (k, 3) in the body's frame and the radius about them that make up geom g [m]."""
    kind, size = model.geom_type[g], model.geom_size[g]
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, model.geom_quat[g])
    if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        local, radius = np.zeros((1, 3)), float(size[0])
    elif kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        local, radius = np.array([[0.0, 0.0, -size[1]], [0.0, 0.0, size[1]]]), float(size[0])
    else:
        corners = np.stack(np.meshgrid(*[(-1.0, 1.0)] * 3), -1).reshape(8, 3)
        local, radius = model.geom_aabb[g, :3] + corners * model.geom_aabb[g, 3:], 0.0
    return model.geom_pos[g] + local @ turn.reshape(3, 3).T, radius
