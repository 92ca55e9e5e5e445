"""Forward kinematics of a robot's kinematic tree, and Jacobians of points on it.

Vectorised over frames and over the bodies of one depth of the tree. T frames, B bodies (without the
world), M points, J hinges, V = 6 + J. SI units; world frame unless it says local. Poses are
MuJoCo's qpos: root position (3), root quaternion (w, x, y, z), J hinge angles. Steps are in its
tangent space: root translation in the world (3), rotation vector in the root's frame (3), J
angles.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import InputError
from mocap_data.input_files import require_memory
from mocap_data.motion import BodyStates, ReferenceMotion

Index = NDArray[np.intp]
# bytes of `body_states` per frame and body, measured at the peak
_STATE_BYTES = 8.0 * 49.0


# least joints of a limb; fingers have fewer
LIMB = 3


@dataclass(frozen=True)
class Tree:
    """A robot's kinematic tree: a free root and at most one hinge per body.

    The rotation of body b in its parent is `fixed[b] + cos(q) cosine[b] + sin(q) sine[b]`
    (Rodrigues, with the constant part folded in); a welded body has zero `cosine` and `sine`.
    """

    body_names: tuple[str, ...]
    joint_names: tuple[str, ...]
    # (B,) body index, -1 for the root
    parent: Index
    # bodies by depth, without the root's level
    levels: tuple[Index, ...]
    # (B, 3) [m] in the parent's frame
    position: Array
    # (B, 3, 3)
    fixed: Array
    # (B, 3, 3)
    cosine: Array
    # (B, 3, 3)
    sine: Array
    # (B,) joint index, -1 for none
    hinge: Index
    # (B, 3) hinge axis, local
    axis: Array
    # (B, 3) [m] hinge anchor, local
    anchor: Array

    @property
    def num_joints(self) -> int:
        """J, the number of hinges."""
        return len(self.joint_names)

    @property
    def trunk(self) -> list[int]:
        """The root, and bodies from which two limbs of LIMB joints or more start, such as a torso
        on a waist."""
        joints = np.zeros(len(self.parent), dtype=int)
        limbs = np.zeros(len(self.parent), dtype=int)
        # children come after their parents
        for body in range(len(self.parent) - 1, 0, -1):
            joints[body] += self.hinge[body] >= 0
            up = self.parent[body]
            joints[up] = max(joints[up], joints[body])
            limbs[up] += joints[body] >= LIMB
        return [0, *(int(body) for body in np.flatnonzero(limbs > 1) if body)]

    def chain(self, body: int) -> list[int]:
        """Bodies with a hinge on the way from `body` up to the root."""
        bodies = []
        while body >= 0:
            if self.hinge[body] >= 0:
                bodies.append(body)
            body = int(self.parent[body])
        return bodies


def tree_of(model: mujoco.MjModel) -> Tree:
    """Read the tree of a compiled model.

    Raises:
      InputError: a model other than one free root with at most one hinge a body.
    """
    count = model.nbody - 1
    kinds = mujoco.mjtJoint
    if count < 1 or model.body_jntnum[1] != 1 or model.jnt_type[0] != kinds.mjJNT_FREE:
        raise InputError("the first body has no free joint, which retargeting needs")
    parent = np.asarray(model.body_parentid[1:], dtype=np.intp) - 1
    if np.count_nonzero(parent < 0) != 1:
        raise InputError("several root bodies, expected one")
    body_names = tuple(model.body(body + 1).name for body in range(count))
    number = model.body_jntnum[1:]
    joint = np.where(np.arange(count) > 0, model.body_jntadr[1:], -1)
    other = (joint >= 0) & ((number > 1) | (model.jnt_type[joint] != kinds.mjJNT_HINGE))
    if other.any():
        body = int(other.argmax())
        raise InputError(
            f"body {body_names[body]!r} has {number[body]} joints, the first of type "
            f"{kinds(int(model.jnt_type[joint[body]])).name}; expected at most one hinge"
        )
    jointed = joint >= 0
    depth = np.zeros(count, dtype=np.intp)
    for body in range(1, count):
        depth[body] = depth[parent[body]] + 1
    hinge = np.where(jointed, np.cumsum(jointed) - 1, -1)
    joint_names = tuple(model.joint(j).name for j in joint[jointed])
    axis, anchor = (
        np.where(jointed[:, None], values[joint], 0.0) for values in (model.jnt_axis, model.jnt_pos)
    )
    constant = rotations.to_matrix(model.body_quat[1:])
    cross = np.cross(axis[:, None], np.eye(3)).swapaxes(-1, -2)
    square = cross @ cross
    fixed = constant @ (np.eye(3) + square)
    cosine = -constant @ square
    sine = constant @ cross
    levels = tuple(np.flatnonzero(depth == d) for d in range(1, int(depth.max(initial=0)) + 1))
    # a body rotates about its anchor; the constant part is added to its position
    position = np.array(model.body_pos[1:], dtype=np.float64)
    position = position + np.einsum("bij,bj->bi", fixed + cosine, anchor)
    return Tree(
        body_names, joint_names, parent, levels, position, fixed, cosine, sine, hinge, axis, anchor
    )


def forward(tree: Tree, qpos: Array) -> tuple[Array, Array]:
    """World positions (T, B, 3) [m] and rotations (T, B, 3, 3) of bodies at poses (T, 7 + J)."""
    frames = len(qpos)
    bodies = len(tree.parent)
    position = np.empty((frames, bodies, 3))
    rotation = np.empty((frames, bodies, 3, 3))
    position[:, 0] = qpos[:, :3]
    rotation[:, 0] = rotations.to_matrix(qpos[:, 3:7])
    angle = np.zeros((frames, bodies))
    jointed = tree.hinge >= 0
    angle[:, jointed] = qpos[:, 7 + tree.hinge[jointed]]
    cos = np.cos(angle)[..., None, None]
    sin = np.sin(angle)[..., None, None]
    for level in tree.levels:
        up = tree.parent[level]
        turn = cos[:, level] * tree.cosine[level]
        local = tree.fixed[level] + turn + sin[:, level] * tree.sine[level]
        outer = rotation[:, up]
        turned = outer @ local
        rotation[:, level] = turned
        position[:, level] = position[:, up] + _apply(outer, tree.position[level])
        if tree.anchor[level].any():
            position[:, level] -= _apply(turned, tree.anchor[level])
    return position, rotation


def body_states(tree: Tree, motion: ReferenceMotion) -> BodyStates:
    """Poses and velocities of all bodies of a motion, as mj_objectVelocity gives them.

    Raises:
      InputError: more frames than memory holds.
    """
    frames = len(motion.qpos)
    bodies = len(tree.parent)
    size = f"{frames:,} frames of {bodies} bodies"
    require_memory(_STATE_BYTES * frames * bodies, f"motion {motion.name!r}: {size}")
    position, rotation = forward(tree, motion.qpos)
    qvel = motion.qvel
    linear = np.zeros_like(position)
    angular = np.zeros_like(position)
    linear[:, 0] = qvel[:, :3]
    angular[:, 0] = np.einsum("tij,tj->ti", rotation[:, 0], qvel[:, 3:6])
    for body in np.concatenate((np.zeros(0, dtype=np.intp), *tree.levels)):
        parent = int(tree.parent[body])
        hinge = int(tree.hinge[body])
        arm = position[:, body] - position[:, parent]
        angular[:, body] = angular[:, parent]
        linear[:, body] = linear[:, parent] + np.cross(angular[:, parent], arm)
        if hinge >= 0:
            spin = (rotation[:, body] @ tree.axis[body]) * qvel[:, 6 + hinge, None]
            angular[:, body] += spin
            linear[:, body] -= np.cross(spin, rotation[:, body] @ tree.anchor[body])
    return BodyStates(position, rotations.from_matrix(rotation), linear, angular)


@dataclass(frozen=True)
class Points:
    """Points fixed to bodies of a tree."""

    # (M,)
    body: Index
    # (M, 3) [m] in the body's frame
    local: Array

    def select(self, indices: Index) -> Points:
        """Some of the points."""
        return Points(self.body[indices], self.local[indices])

    def __add__(self, other: Points) -> Points:
        """These points, then the others."""
        body = np.concatenate((self.body, other.body))
        return Points(body, np.concatenate((self.local, other.local)))


def positions_of(points: Points, position: Array, rotation: Array) -> Array:
    """World positions (T, M, 3) [m] of `points`, of the bodies' poses by `forward`."""
    return position[:, points.body] + _apply(rotation[:, points.body], points.local)


def heights_of(points: Points, position: Array, rotation: Array) -> Array:
    """World heights (T, M) [m] of `points`."""
    along = np.einsum("tmj,mj->tm", rotation[:, points.body, 2], points.local)
    return np.asarray(position[:, points.body, 2] + along)


def jacobian_of(
    tree: Tree, points: Points, position: Array, rotation: Array, world: Array
) -> Array:
    """Derivative (T, M, 3, V) of the points' world positions `world` (T, M, 3) by a tangent step.

    A rotation about a unit axis a through c moves a point p by a x (p - c).
    """
    frames, count = world.shape[:2]
    jacobian = np.zeros((frames, count, 3, 6 + tree.num_joints))
    jacobian[:, :, [0, 1, 2], [0, 1, 2]] = 1.0
    # (T, M, 3) from the root
    arm = world - position[:, :1]
    for k in range(3):
        jacobian[:, :, :, 3 + k] = _cross(rotation[:, :1, :, k], arm)
    jointed = np.flatnonzero(tree.hinge >= 0)
    slot = np.full(len(tree.parent), -1)
    slot[jointed] = np.arange(len(jointed))
    # (T, J, 3) world
    axis = _apply(rotation[:, jointed], tree.axis[jointed])
    centre = position[:, jointed]
    if tree.anchor.any():
        centre = centre + _apply(rotation[:, jointed], tree.anchor[jointed])
    pairs = [(m, b) for m, body in enumerate(points.body) for b in tree.chain(int(body))]
    if pairs:
        marker, body = np.array(pairs).T
        # (T, pairs, 3)
        column = _cross(axis[:, slot[body]], world[:, marker] - centre[:, slot[body]])
        jacobian[:, marker, :, 6 + tree.hinge[body]] = column.transpose(1, 0, 2)
    return jacobian


def integrate(qpos: Array, step: Array) -> Array:
    """Move poses (T, 7 + J) by tangent steps (T, V); the root quaternion stays a unit one."""
    moved = np.empty_like(qpos)
    moved[:, :3] = qpos[:, :3] + step[:, :3]
    turned = rotations.multiply(qpos[:, 3:7], rotations.exp(step[:, 3:6]))
    moved[:, 3:7] = turned / np.linalg.norm(turned, axis=-1, keepdims=True)
    moved[:, 7:] = qpos[:, 7:] + step[:, 6:]
    return moved


def _apply(rotation: Array, vector: Array) -> Array:
    """Rotations (T, N, 3, 3) applied to constant vectors (N, 3): (T, N, 3)."""
    return np.einsum("tnij,nj->tni", rotation, vector)


def _cross(a: Array, b: Array) -> Array:
    """Cross product over the last axis, broadcast; much faster than numpy's."""
    ax = a[..., 0]
    ay = a[..., 1]
    az = a[..., 2]
    bx = b[..., 0]
    by = b[..., 1]
    bz = b[..., 2]
    return np.stack((ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx), axis=-1)
