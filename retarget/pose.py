"""Poses from markers: forward kinematics, analytic Jacobians, Levenberg-Marquardt over all frames at once.

Solves the pose half of eq. 8 of robot-NPMP (Bohez et al. 2022, arXiv 2203.17138): for every frame t

    min over q_t of  sum_m w_m ||f_m(q_t) - p_tm||^2 + c ||q_t - q_stand||^2

with f_m the world position of marker m, p_tm its target, and c = 0.01 per radian squared. The regularizer
acts on the joints only: a free root has no home place in the world, and tilting the trunk is what the
markers are there to say.

Everything is vectorised over frames (and over the bodies of one depth of the tree); there is no loop over
frames, so no frame waits for its neighbour's solution. Arrays: T frames, B bodies (without the world), M
markers, J hinges, V = 6 + J. SI units; world frame unless it says local. Poses are MuJoCo's qpos: root
position (3), root quaternion (w, x, y, z), J hinge angles. Steps are in MuJoCo's tangent space: root
translation in the world frame (3), root rotation vector in the root's frame (3), J hinge angles.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import mujoco
import numpy as np
from numpy.typing import NDArray

from mocap_data import rotations
from mocap_data.errors import InputError
from retarget import batch

Array = NDArray[np.float64]
Index = NDArray[np.intp]

_CHUNK = 4096  # frames solved together: long enough for the cost of a call to vanish, short enough for the cache


@dataclass(frozen=True)
class Tree:
    """A robot's kinematic tree: a free root and at most one hinge per body.

    The rotation of body b in its parent is `fixed[b] + cos(q) cosine[b] + sin(q) sine[b]` (Rodrigues, with
    the constant part folded in); a welded body has zero `cosine` and `sine`.
    """

    body_names: tuple[str, ...]
    joint_names: tuple[str, ...]
    parent: Index  # (B,) body index, -1 for the root
    levels: tuple[Index, ...]  # bodies by depth, the root's level left out
    position: Array  # (B, 3) [m] in the parent's frame
    fixed: Array  # (B, 3, 3)
    cosine: Array  # (B, 3, 3)
    sine: Array  # (B, 3, 3)
    hinge: Index  # (B,) joint index, -1 for none
    axis: Array  # (B, 3) hinge axis, local
    anchor: Array  # (B, 3) [m] hinge anchor, local

    @property
    def num_joints(self) -> int:
        """J, the number of hinges."""
        return len(self.joint_names)

    def chain(self, body: int) -> list[int]:
        """Bodies with a hinge on the way from `body` up to the root."""
        found = []
        while body >= 0:
            if self.hinge[body] >= 0:
                found.append(body)
            body = int(self.parent[body])
        return found


def tree_of(model: mujoco.MjModel) -> Tree:
    """Read the tree of a compiled model.

    Raises InputError when the model is not one free root with hinges (no slides, no balls, one joint a body).
    """
    count = model.nbody - 1
    if count < 1 or model.body_jntnum[1] != 1 or model.jnt_type[0] != mujoco.mjtJoint.mjJNT_FREE:
        raise InputError("retargeting needs a robot whose first body has a free joint")
    parent = np.asarray(model.body_parentid[1:], dtype=np.intp) - 1
    if np.count_nonzero(parent < 0) != 1:
        raise InputError("retargeting needs a robot with one root body")
    fixed = np.zeros((count, 3, 3))
    cosine = np.zeros((count, 3, 3))
    sine = np.zeros((count, 3, 3))
    hinge = np.full(count, -1, dtype=np.intp)
    axis = np.zeros((count, 3))
    anchor = np.zeros((count, 3))
    depth = np.zeros(count, dtype=np.intp)
    body_names: list[str] = [model.body(1).name]
    joint_names: list[str] = []
    for body in range(1, count):
        body_names.append(model.body(body + 1).name)
        depth[body] = depth[parent[body]] + 1
        constant = rotations.to_matrix(model.body_quat[body + 1])
        fixed[body] = constant
        joints = int(model.body_jntnum[body + 1])
        if joints == 0:
            continue
        joint = int(model.body_jntadr[body + 1])
        if joints > 1 or model.jnt_type[joint] != mujoco.mjtJoint.mjJNT_HINGE:
            raise InputError(f"retargeting knows hinges, one a body; body '{body_names[-1]}' has something else")
        hinge[body] = len(joint_names)
        joint_names.append(model.joint(joint).name)
        axis[body] = model.jnt_axis[joint] / np.linalg.norm(model.jnt_axis[joint])
        anchor[body] = model.jnt_pos[joint]
        cross = _cross_matrix(axis[body])
        fixed[body] = constant @ (np.eye(3) + cross @ cross)
        cosine[body] = -constant @ cross @ cross
        sine[body] = constant @ cross
    levels = tuple(np.flatnonzero(depth == d) for d in range(1, int(depth.max(initial=0)) + 1))
    position = np.array(model.body_pos[1:], dtype=np.float64)
    # The body turns about its anchor: fold the constant part of that into the offset in the parent's frame.
    constant_rotation = fixed + cosine
    position = position + np.einsum("bij,bj->bi", constant_rotation, anchor)
    return Tree(
        tuple(body_names),
        tuple(joint_names),
        parent,
        levels,
        position,
        fixed,
        cosine,
        sine,
        hinge,
        axis,
        anchor,
    )


def forward(tree: Tree, qpos: Array) -> tuple[Array, Array]:
    """World positions (T, B, 3) [m] and rotations (T, B, 3, 3) of all bodies at poses `qpos` (T, 7 + J)."""
    frames, bodies = len(qpos), len(tree.parent)
    position = np.empty((frames, bodies, 3))
    rotation = np.empty((frames, bodies, 3, 3))
    position[:, 0] = qpos[:, :3]
    rotation[:, 0] = rotations.to_matrix(qpos[:, 3:7])
    angle = np.zeros((frames, bodies))
    jointed = tree.hinge >= 0
    angle[:, jointed] = qpos[:, 7 + tree.hinge[jointed]]
    cos, sin = np.cos(angle)[..., None, None], np.sin(angle)[..., None, None]
    for level in tree.levels:
        up = tree.parent[level]
        local = tree.fixed[level] + cos[:, level] * tree.cosine[level] + sin[:, level] * tree.sine[level]
        outer = rotation[:, up]
        turned = outer @ local
        rotation[:, level] = turned
        position[:, level] = position[:, up] + _apply(outer, tree.position[level])
        if tree.anchor[level].any():
            position[:, level] -= _apply(turned, tree.anchor[level])
    return position, rotation


def forward_quaternions(tree: Tree, qpos: Array) -> tuple[Array, Array]:
    """As `forward`, with the orientations as unit quaternions (T, B, 4; w, x, y, z)."""
    position, rotation = forward(tree, qpos)
    return position, rotations.from_matrix(rotation)


@dataclass(frozen=True)
class Points:
    """Points fixed to bodies of a tree: the robot's side of the markers."""

    body: Index  # (M,)
    local: Array  # (M, 3) [m] in the body's frame


def positions_of(points: Points, position: Array, rotation: Array) -> Array:
    """World positions (T, M, 3) [m] of `points`, given the bodies' poses from `forward`."""
    return position[:, points.body] + _apply(rotation[:, points.body], points.local)


def heights_of(points: Points, position: Array, rotation: Array) -> Array:
    """World heights (T, M) [m] of `points`."""
    along = np.einsum("tmj,mj->tm", rotation[:, points.body, 2], points.local)
    return np.asarray(position[:, points.body, 2] + along)


def jacobian_of(tree: Tree, points: Points, position: Array, rotation: Array, world: Array) -> Array:
    """Derivative (T, M, 3, V) of the points' world positions `world` (T, M, 3) by a tangent step.

    Columns: root translation (world), root rotation vector (root's frame), hinges. A rotation about a unit
        axis a through c moves a point p by a x (p - c).
    """
    frames, count = world.shape[:2]
    jacobian = np.zeros((frames, count, 3, 6 + tree.num_joints))
    jacobian[:, :, [0, 1, 2], [0, 1, 2]] = 1.0
    lever = world - position[:, :1]  # (T, M, 3) from the root
    for k in range(3):
        jacobian[:, :, :, 3 + k] = _cross(rotation[:, :1, :, k], lever)
    jointed = np.flatnonzero(tree.hinge >= 0)
    slot = np.full(len(tree.parent), -1)
    slot[jointed] = np.arange(len(jointed))
    axis = _apply(rotation[:, jointed], tree.axis[jointed])  # (T, J, 3) world
    centre = position[:, jointed]
    if tree.anchor.any():
        centre = centre + _apply(rotation[:, jointed], tree.anchor[jointed])
    pairs = [(m, b) for m, body in enumerate(points.body) for b in tree.chain(int(body))]
    if pairs:
        marker = np.array([m for m, _ in pairs])
        body = np.array([b for _, b in pairs])
        column = _cross(axis[:, slot[body]], world[:, marker] - centre[:, slot[body]])  # (T, P, 3)
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


@dataclass(frozen=True)
class Problem:
    """What the pose solver holds fixed: robot, points, home pose, bounds and the weights of eq. 8."""

    tree: Tree
    points: Points
    stand: Array  # (J,), or (T, J) where it differs from frame to frame [rad]
    lower: Array  # (J,) [rad]
    upper: Array  # (J,) [rad]
    regularization: float | Array = 0.01  # eq. 8 [m^2 / rad^2]; a number or one per joint (J,)
    weight: Array | None = None  # (M,) or (T, M), all 1 when None (eq. 8)
    hold_root: bool = False  # solve for the joints only

    def of(self, frames: Index | slice) -> Problem:
        """The problem of some of the frames."""
        stand = self.stand if self.stand.ndim == 1 else self.stand[frames]
        weight = self.weight if self.weight is None or self.weight.ndim == 1 else self.weight[frames]
        return replace(self, stand=stand, weight=weight)

    def home(self, frames: Index | slice) -> Array:
        """The joints (J,) or (T, J) that the regularizer pulls some of the frames to."""
        return self.stand if self.stand.ndim == 1 else self.stand[frames]


@dataclass(frozen=True)
class Linearized:
    """The least-squares problem of every frame, linearized at its pose."""

    residual: Array  # (T, 3M) [m], weighted
    jacobian: Array  # (T, 3M, V), weighted
    hessian: Array  # (T, V, V) Gauss-Newton, with the regularizer
    gradient: Array  # (T, V)


def linearize(problem: Problem, qpos: Array, targets: Array) -> Linearized:
    """Residuals, Jacobians and Gauss-Newton matrices at `qpos` (T, 7 + J) for `targets` (T, M, 3)."""
    position, rotation = forward(problem.tree, qpos)
    world = positions_of(problem.points, position, rotation)
    frames = len(qpos)
    residual = world - targets
    jacobian = jacobian_of(problem.tree, problem.points, position, rotation, world)
    if problem.weight is not None:
        root = np.sqrt(problem.weight)
        residual = residual * root[..., None]
        jacobian *= root[..., None, None]
    flat = jacobian.reshape(frames, -1, jacobian.shape[-1])
    residual = residual.reshape(frames, -1)
    transposed = flat.transpose(0, 2, 1)
    hessian = transposed @ flat
    gradient = (transposed @ residual[..., None])[..., 0]
    joints = np.arange(6, flat.shape[-1])
    hessian[:, joints, joints] += problem.regularization
    gradient[:, 6:] += problem.regularization * (qpos[:, 7:] - problem.stand)
    return Linearized(residual, flat, hessian, gradient)


def solve_poses(
    problem: Problem,
    targets: Array,
    start: Array,
    *,
    iterations: int = 30,
    tolerance: float = 1e-5,
    threads: int | None = None,
) -> Array:
    """Poses (T, 7 + J) that minimise eq. 8 for `targets` (T, M, 3) [m], from initial poses `start`.

    Levenberg-Marquardt, all frames of a chunk at once (see `retarget.batch`); a frame leaves when its step
    falls below `tolerance` [m or rad]. Joint bounds are kept by projection inside the iteration: a joint at
    its bound whose gradient points outward is held, the others solve without it. threads: chunks solved at a
    time; the machine's cores (at most 8) when None. The result does not depend on it.
    """
    start = start.copy()
    start[:, 7:] = np.clip(start[:, 7:], problem.lower, problem.upper)
    return _by_chunks(problem, targets, start, iterations, tolerance, threads)


def solve_track(
    problem: Problem,
    targets: Array,
    *,
    iterations: int = 30,
    tolerance: float = 1e-4,
    stride: int = 6,
    starts: Sequence[int] = (0,),
    threads: int | None = None,
) -> Array:
    """Poses (T, 7 + J) that minimise eq. 8 for the markers of a track, `targets` (T, M, 3) [m], cold start.

    Every `stride`-th frame is solved from the root that fits the trunk's markers and the home pose; the
    others start between their solved neighbours, where a step or two is enough. starts: the first frames of
    several tracks, one after the other in `targets`, solved together. Other arguments as of `solve_poses`.
    Raises InputError where the trunk's markers give no root (see `fit_root`).
    """
    frames = len(targets)
    stops = [*starts[1:], frames]
    coarse = np.unique(
        np.concatenate([np.append(np.arange(a, b, stride), b - 1) for a, b in zip(starts, stops, strict=True)])
    )
    sparse = fit_root(problem.points, targets[coarse], problem.home(coarse))
    sparse[:, 7:] = np.clip(sparse[:, 7:], problem.lower, problem.upper)
    sparse = _by_chunks(problem.of(coarse), targets[coarse], sparse, iterations, tolerance, threads)
    if len(coarse) == frames:
        return sparse
    start = between(sparse, coarse, frames)
    return _by_chunks(problem, targets, start, iterations, tolerance, threads)


def between(sparse: Array, frames: Index, count: int) -> Array:
    """Poses (count, 7 + J) from those of some `frames` (K,), linear in between; quaternions renormalized."""
    known = sparse.copy()
    known[:, 3:7] = rotations.make_continuous(known[:, 3:7])
    after = np.clip(np.searchsorted(frames, np.arange(count)), 1, len(frames) - 1)
    share = (np.arange(count) - frames[after - 1]) / (frames[after] - frames[after - 1])
    out: Array = known[after - 1] + share[:, None] * (known[after] - known[after - 1])
    out[:, 3:7] /= np.linalg.norm(out[:, 3:7], axis=1, keepdims=True)
    return out


def _by_chunks(
    problem: Problem, targets: Array, start: Array, iterations: int, tolerance: float, threads: int | None
) -> Array:
    if threads is None:
        threads = min(os.cpu_count() or 1, 8)
    joints = problem.tree.num_joints
    counts = None if problem.weight is None else np.any(problem.weight.reshape(-1, targets.shape[1]) != 0.0, axis=0)
    plan = batch.plan_of(problem.tree, problem.points, counts)
    pull = np.broadcast_to(np.asarray(problem.regularization, dtype=np.float64), (joints,))[:, None]
    pieces = -(-len(targets) // _CHUNK) if len(targets) > _CHUNK else 1 + (len(targets) > _CHUNK // 2)
    edges = np.linspace(0, len(targets), pieces + 1).round().astype(np.intp)  # chunks of about one size
    out = np.empty_like(start)

    def work(k: int) -> None:
        piece = slice(int(edges[k]), int(edges[k + 1]))
        weight, home = problem.weight, problem.stand
        if weight is not None:
            weight = weight[:, None] if weight.ndim == 1 else np.ascontiguousarray(weight[piece].T)
        home = home[:, None] if home.ndim == 1 else np.ascontiguousarray(home[piece].T)
        target = np.ascontiguousarray(targets[piece].transpose(1, 2, 0))
        goal = batch.Goal(target, weight, home, pull, problem.lower[:, None], problem.upper[:, None])
        pose = np.ascontiguousarray(start[piece].T)
        free = not problem.hold_root
        out[piece] = batch.solve(plan, goal, pose, iterations=iterations, tolerance=tolerance, free_root=free).T

    if threads > 1 and pieces > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(pieces)))
    else:
        for k in range(pieces):
            work(k)
    return out


def fit_root(points: Points, targets: Array, stand: Array) -> Array:
    """Initial poses (T, 7 + J): the root that best carries the trunk's points to their targets (Kabsch).

    The joints stand at `stand`, (J,) or (T, J). Only points on body 0 count; there must be three that are not on a
    line.
    """
    trunk = np.flatnonzero(points.body == 0)
    local = points.local[trunk]
    centred = local - local.mean(axis=0)
    if len(trunk) < 3 or np.linalg.matrix_rank(centred, tol=1e-6) < 2:
        raise InputError(f"fitting the root needs 3 trunk markers that are not on a line; there are {len(trunk)}")
    goal = targets[:, trunk]
    middle = goal.mean(axis=1)
    covariance = np.einsum("mi,tmj->tij", centred, goal - middle[:, None])  # (T, 3, 3) local x world
    left, _, right = np.linalg.svd(covariance)
    sign = np.linalg.det(left @ right)
    right[:, 2] *= sign[:, None]  # a rotation, not a reflection
    rotation = (left @ right).transpose(0, 2, 1)
    qpos = np.empty((len(targets), 7 + stand.shape[-1]))
    qpos[:, :3] = middle - rotation @ local.mean(axis=0)
    qpos[:, 3:7] = rotations.from_matrix(rotation)
    qpos[:, 7:] = stand
    return qpos


def _apply(rotation: Array, vector: Array) -> Array:
    """Rotations (T, N, 3, 3) applied to constant vectors (N, 3): (T, N, 3)."""
    product: Array = np.einsum("tnij,nj->tni", rotation, vector)
    return product


def _cross_matrix(vector: Array) -> Array:
    x, y, z = vector
    return np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])


def _cross(a: Array, b: Array) -> Array:
    """Cross product over the last axis, broadcast; much faster than numpy's on small trailing axes."""
    ax, ay, az = a[..., 0], a[..., 1], a[..., 2]
    bx, by, bz = b[..., 0], b[..., 1], b[..., 2]
    return np.stack((ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx), axis=-1)
