"""Inverse kinematics: the poses that put a robot's markers where a recording has them, every frame
for itself.

The pose half of eq. 8 of robot-NPMP (Bohez et al. 2022, arXiv 2203.17138): for every frame t

    min over q_t of  sum_m w_m ||f_m(q_t) - p_tm||^2 + c ||q_t - q_stand||^2

with f_m the world position of marker m, p_tm its target, and c = 0.01 per radian squared. The
regularizer acts on the joints only: a free root has no home place in the world, and tilting the
trunk is what the markers are there to say.

There is no loop over frames, so no frame waits for its neighbour's solution: `levenberg_marquardt`
solves all frames of a chunk at once. What eq. 8 does not know (time, floor, speed limits) is
`pose_sequence`'s and `trajectory_optimization`'s. Arrays and conventions as in `kinematics`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import InputError
from retarget import levenberg_marquardt
from retarget.kinematics import Index, Points, Tree, forward, jacobian_of, positions_of

# frames solved together: long enough for the cost of a call to vanish, short enough for the cache
_CHUNK = 4096


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
        weight = (
            self.weight if self.weight is None or self.weight.ndim == 1 else self.weight[frames]
        )
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

    Levenberg-Marquardt, all frames of a chunk at once (see `levenberg_marquardt`); a frame leaves
    when its step falls below `tolerance` [m or rad]. Joint bounds are kept by projection inside the
    iteration: a joint at its bound whose gradient points outward is held, the others solve without
    it. threads: chunks solved at a time; the machine's cores (at most 8) when None. The result does
    not depend on it.
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
    """Poses (T, 7 + J) that minimise eq. 8 for the markers of a track, `targets` (T, M, 3) [m],
    cold start.

    Every `stride`-th frame is solved from the root that fits the trunk's markers and the home pose;
    the others start between their solved neighbours, where a step or two is enough. starts: the
    first frames of several tracks, one after the other in `targets`, solved together. Other
    arguments as of `solve_poses`.

    Raises:
      InputError: where the trunk's markers give no root (see `fit_root`).
    """
    frames = len(targets)
    stops = [*starts[1:], frames]
    coarse = np.unique(
        np.concatenate(
            [np.append(np.arange(a, b, stride), b - 1) for a, b in zip(starts, stops, strict=True)]
        )
    )
    sparse = fit_root(problem.points, targets[coarse], problem.home(coarse))
    sparse[:, 7:] = np.clip(sparse[:, 7:], problem.lower, problem.upper)
    sparse = _by_chunks(problem.of(coarse), targets[coarse], sparse, iterations, tolerance, threads)
    if len(coarse) == frames:
        return sparse
    start = between(sparse, coarse, frames)
    return _by_chunks(problem, targets, start, iterations, tolerance, threads)


def between(sparse: Array, frames: Index, count: int) -> Array:
    """Poses (count, 7 + J) from those of some `frames` (K,), linear in between; quaternions
    renormalized."""
    known = sparse.copy()
    known[:, 3:7] = rotations.make_continuous(known[:, 3:7])
    after = np.clip(np.searchsorted(frames, np.arange(count)), 1, len(frames) - 1)
    share = (np.arange(count) - frames[after - 1]) / (frames[after] - frames[after - 1])
    out: Array = known[after - 1] + share[:, None] * (known[after] - known[after - 1])
    out[:, 3:7] /= np.linalg.norm(out[:, 3:7], axis=1, keepdims=True)
    return out


def _by_chunks(
    problem: Problem,
    targets: Array,
    start: Array,
    iterations: int,
    tolerance: float,
    threads: int | None,
) -> Array:
    if threads is None:
        threads = min(os.cpu_count() or 1, 8)
    joints = problem.tree.num_joints
    counts = (
        None
        if problem.weight is None
        else np.any(problem.weight.reshape(-1, targets.shape[1]) != 0.0, axis=0)
    )
    plan = levenberg_marquardt.plan_of(problem.tree, problem.points, counts)
    pull = np.broadcast_to(np.asarray(problem.regularization, dtype=np.float64), (joints,))[:, None]
    pieces = (
        -(-len(targets) // _CHUNK) if len(targets) > _CHUNK else 1 + (len(targets) > _CHUNK // 2)
    )
    # chunks of about one size
    edges = np.linspace(0, len(targets), pieces + 1).round().astype(np.intp)
    out = np.empty_like(start)

    def work(k: int) -> None:
        piece = slice(int(edges[k]), int(edges[k + 1]))
        weight, home = problem.weight, problem.stand
        if weight is not None:
            weight = weight[:, None] if weight.ndim == 1 else np.ascontiguousarray(weight[piece].T)
        home = home[:, None] if home.ndim == 1 else np.ascontiguousarray(home[piece].T)
        target = np.ascontiguousarray(targets[piece].transpose(1, 2, 0))
        goal = levenberg_marquardt.Goal(
            target, weight, home, pull, problem.lower[:, None], problem.upper[:, None]
        )
        pose = np.ascontiguousarray(start[piece].T)
        free = not problem.hold_root
        out[piece] = levenberg_marquardt.solve(
            plan, goal, pose, iterations=iterations, tolerance=tolerance, free_root=free
        ).T

    if threads > 1 and pieces > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(pieces)))
    else:
        for k in range(pieces):
            work(k)
    return out


def fit_root(points: Points, targets: Array, stand: Array) -> Array:
    """Initial poses (T, 7 + J): the root that best carries the trunk's points to their targets
    (Kabsch).

    The joints stand at `stand`, (J,) or (T, J). Only points on body 0 count; there must be three
    that are not on a line.
    """
    trunk = np.flatnonzero(points.body == 0)
    local = points.local[trunk]
    centred = local - local.mean(axis=0)
    if len(trunk) < 3 or np.linalg.matrix_rank(centred, tol=1e-6) < 2:
        raise InputError(
            f"fitting the root needs 3 trunk markers that are not on a line; there are {len(trunk)}"
        )
    goal = targets[:, trunk]
    middle = goal.mean(axis=1)
    # (T, 3, 3) local x world
    covariance = np.einsum("mi,tmj->tij", centred, goal - middle[:, None])
    left, _, right = np.linalg.svd(covariance)
    sign = np.linalg.det(left @ right)
    right[:, 2] *= sign[:, None]  # a rotation, not a reflection
    rotation = (left @ right).transpose(0, 2, 1)
    qpos = np.empty((len(targets), 7 + stand.shape[-1]))
    qpos[:, :3] = middle - rotation @ local.mean(axis=0)
    qpos[:, 3:7] = rotations.from_matrix(rotation)
    qpos[:, 7:] = stand
    return qpos
