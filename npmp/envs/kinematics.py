"""Batched, differentiable forward kinematics in torch, equal to MuJoCo's.

The kinematic tree is evaluated level by level, all bodies of a level in one batched product: the
cost grows with the tree's depth (five for a quadruped), not with its number of bodies.
"""

from __future__ import annotations

from typing import NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor, nn

from mocap_data import rotations
from mocap_data.errors import InputError


class BodyPoses(NamedTuple):
    """World poses of all bodies but the world, in MuJoCo's order, and the centre of mass."""

    position: Tensor  # (..., nbody, 3) [m]
    rotation: Tensor  # (..., nbody, 3, 3)
    center_of_mass: Tensor  # (..., 3) [m]


class Kinematics(nn.Module):
    """Body poses and centre of mass from root pose and joint angles.

    Serves trees whose root has a free joint and whose other bodies have one hinge or none.
    """

    _still: Tensor
    _sine: Tensor
    _versine: Tensor
    _joint: Tensor
    _rows: Tensor
    _mass: Tensor

    def __init__(self, model: mujoco.MjModel):
        """Read the tree from a compiled robot without a scene.

        Raises:
          InputError: for a body with several hinges, or outside the root's tree.
        """
        super().__init__()
        crowded = [
            model.joint(j).name
            for j in range(model.njnt)
            if model.body_jntnum[model.jnt_bodyid[j]] != 1
        ]
        if crowded:
            raise InputError(f"joint '{crowded[0]}': only bodies with a single hinge are supported")
        nbody = model.nbody - 1
        parent = model.body_parentid[1:] - 1
        depth = np.zeros(nbody, dtype=int)
        for b in range(1, nbody):
            if parent[b] < 0:
                raise InputError(
                    f"body '{model.body(b + 1).name}' is not part of the tree of the free root"
                )
            depth[b] = depth[parent[b]] + 1
        # the order of evaluation: level by level, the root first
        sequence = np.argsort(depth, kind="stable")
        self._levels: list[slice] = []  # indices of each level in `sequence` without the root
        for level in range(1, depth.max() + 1):
            bodies = np.flatnonzero(depth == level)
            above = np.flatnonzero(depth == level - 1)
            start = int(np.searchsorted(depth[sequence], level)) - 1
            self._levels.append(slice(start, start + len(bodies)))
            choice = np.searchsorted(above, parent[bodies])
            # one parent broadcasts, and parents in order need no gather
            plain = len(above) == 1 or np.array_equal(choice, np.arange(len(above)))
            self.register_buffer(
                f"_parents_{level}", None if plain else torch.tensor(choice), persistent=False
            )
        still, sine, versine, joint = _local_transforms(model, sequence[1:])
        # poses are rows (body in `sequence`, axis, [rotation | position]): the rows of each output,
        source = np.arange(12 * nbody).reshape(nbody, 3, 4)[np.argsort(sequence)]
        rows = np.concatenate([source[..., :3].ravel(), source[..., 3].ravel()])
        # and their weights in the centre of mass; body b's is at position + rotation @ ipos
        share = model.body_mass[1:][sequence] / model.body_mass[1:].sum()
        local = np.concatenate([model.body_ipos[1:][sequence], np.ones((nbody, 1))], 1)
        mass = np.einsum("b,bk,ij->ibjk", share, local, np.eye(3)).reshape(3, 12 * nbody)
        for name, value in {"still": still, "sine": sine, "versine": versine, "mass": mass}.items():
            single = torch.tensor(value, dtype=torch.float32)
            self.register_buffer(f"_{name}", single, persistent=False)
        self.register_buffer("_joint", torch.tensor(joint, dtype=torch.long), persistent=False)
        self.register_buffer("_rows", torch.tensor(rows), persistent=False)
        self.num_bodies = nbody

    def forward(self, root_pos: Tensor, root_rot: Tensor, joint_pos: Tensor) -> BodyPoses:
        """root_pos (..., 3) [m], root_rot (..., 3, 3), joint_pos (..., nu) [rad] -> world poses of
        all bodies."""
        batch = joint_pos.shape[:-1]
        # welded bodies index the appended zero
        padded = nn.functional.pad(joint_pos, (0, 1))
        angles = padded.reshape(-1, padded.shape[-1]).T.contiguous()
        angle = angles.index_select(0, self._joint)[:, None, None]
        # Transforms are (bodies, 3, 4, n), the batch last: multiply-adds of long rows are faster
        # than batched products of small matrices.
        local = self._still + torch.sin(angle) * self._sine
        local = torch.addcmul(local, 1.0 - torch.cos(angle), self._versine)
        root = torch.cat((root_rot, root_pos.unsqueeze(-1)), -1).reshape(-1, 12)
        world = [root.T.contiguous().view(1, 3, 4, -1)]
        for level, bodies in enumerate(self._levels, 1):
            above = world[-1]
            parents = getattr(self, f"_parents_{level}")
            if parents is not None:
                above = above.index_select(0, parents)
            world.append(_compose(above, local[bodies]))
        rows = torch.cat(world).flatten(0, 2)  # (12 bodies, n)
        rows = torch.cat((rows.index_select(0, self._rows), self._mass @ rows))
        rows = rows.T.contiguous().view(*batch, len(rows))
        rotation, position, center = rows.split((9 * self.num_bodies, 3 * self.num_bodies, 3), -1)
        position = position.unflatten(-1, (-1, 3))
        rotation = rotation.unflatten(-1, (-1, 3, 3))
        return BodyPoses(position, rotation, center)


def _compose(outer: Tensor, inner: Tensor) -> Tensor:
    """Product of rigid transforms [R | p], both (bodies or 1, 3, 4, n)."""
    product = outer[:, :, 0, None] * inner[:, None, 0]
    product = torch.addcmul(product, outer[:, :, 1, None], inner[:, None, 1])
    product = torch.addcmul(product, outer[:, :, 2, None], inner[:, None, 2])
    product[:, :, 3] += outer[:, :, 3]
    return product


def in_root_frame(poses: BodyPoses, bodies: Tensor) -> Tensor:
    """Origins of bodies (k,), by index, relative to the root in its frame: (..., k, 3) [m]."""
    origins = poses.position.index_select(-2, bodies) - poses.position[..., :1, :]
    return origins @ poses.rotation[..., 0, :, :]


def _local_transforms(model: mujoco.MjModel, bodies: np.ndarray) -> tuple[np.ndarray, ...]:
    """Bodies' transforms to their parents as functions of the joint angle q,

        still + sin(q) sine + (1 - cos(q)) versine

    (Rodrigues' formula about the hinge's anchor a: x -> F (a + R(q) (x - a)) + p, with the body's
    fixed rotation F and position p in its parent).

    Returns: still, sine, versine (k, 3, 4, 1) float64, [rotation | position]; joint (k,) index
      among the hinges, for a welded body the number of hinges.
    """
    fixed = rotations.to_matrix(model.body_quat[bodies + 1])
    hinge = model.body_jntadr[bodies + 1]
    # cross @ v = axis x v; zero for a welded body, whose hinge is -1
    axis = np.where(hinge[:, None] < 0, 0.0, model.jnt_axis[hinge])
    cross = np.cross(axis[:, None], np.eye(3)).swapaxes(-1, -2)
    turns = (fixed @ cross, fixed @ cross @ cross)
    anchor = model.jnt_pos[hinge][..., None]
    places = (model.body_pos[bodies + 1][..., None], *(-turn @ anchor for turn in turns))
    parts = zip((fixed, *turns), places, strict=True)
    joint = np.where(hinge < 0, model.nq, model.jnt_qposadr[hinge]) - 7
    return *(np.concatenate(part, -1)[..., None] for part in parts), joint
