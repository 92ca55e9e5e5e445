"""Inverse kinematics: poses that put a robot's markers where a recording has them.

The pose half of eq. 8 of robot-NPMP (Bohez et al. 2022, arXiv 2203.17138): for every frame t

    min over q_t of  sum_m w_m ||f_m(q_t) - p_tm||^2 + c ||q_t - q_stand||^2

with f_m the world position of marker m, p_tm its target, and c = 0.01 per radian squared, on the
joints only: a free root has no home place in the world. All frames are solved at once, by
Levenberg-Marquardt; `pose_sequence` and `trajectory_optimization` handle time, floor and speed
limits. Arrays and conventions as in `kinematics`.
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
from retarget.kinematics import Index, Points, Tree, forward, integrate, jacobian_of, positions_of

# frames solved together: few enough for the cache, enough to amortize calls
_CHUNK = 512
_THREADS = min(os.cpu_count() or 1, 8)


@dataclass(frozen=True)
class Problem:
    """The constants of eq. 8: robot, points, home pose, bounds and weights."""

    tree: Tree
    points: Points
    # (J,), or (T, J) where it differs from frame to frame [rad]
    stand: Array
    # (J,) [rad]
    lower: Array
    # (J,) [rad]
    upper: Array
    # c of eq. 8 [m^2 / rad^2]
    regularization: float
    # (M,) or (T, M)
    weight: Array
    # solve for the joints only
    hold_root: bool = False

    def select(self, frames: Index | slice) -> Problem:
        """The problem of some of the frames."""
        weight = self.weight if self.weight.ndim == 1 else self.weight[frames]
        return replace(self, stand=self.home(frames), weight=weight)

    def home(self, frames: Index | slice) -> Array:
        """The joints (J,) or (T, J) that the regularizer pulls some of the frames to."""
        return self.stand if self.stand.ndim == 1 else self.stand[frames]


@dataclass(frozen=True)
class Linearized:
    """The least-squares problem of every frame, linearized at its pose."""

    # (T, 3M) [m], weighted
    residual: Array
    # (T, 3M, V), weighted
    jacobian: Array
    # (T, V, V) Gauss-Newton, with the regularizer
    hessian: Array
    # (T, V)
    gradient: Array
    # (T,)
    cost: Array


def linearize(problem: Problem, qpos: Array, targets: Array) -> Linearized:
    """Residuals, Jacobians and Gauss-Newton matrices at poses (T, 7 + J) for targets (T, M, 3)."""
    position, rotation = forward(problem.tree, qpos)
    world = positions_of(problem.points, position, rotation)
    root = np.sqrt(problem.weight)
    residual = ((world - targets) * root[..., None]).reshape(len(qpos), -1)
    jacobian = jacobian_of(problem.tree, problem.points, position, rotation, world)
    jacobian *= root[..., None, None]
    flat = jacobian.reshape(len(qpos), -1, jacobian.shape[-1])
    transposed = flat.transpose(0, 2, 1)
    hessian = transposed @ flat
    gradient = (transposed @ residual[..., None])[..., 0]
    joints = np.arange(6, flat.shape[-1])
    away = qpos[:, 7:] - problem.stand
    hessian[:, joints, joints] += problem.regularization
    gradient[:, 6:] += problem.regularization * away
    cost = np.square(residual).sum(-1) + problem.regularization * np.square(away).sum(-1)
    return Linearized(residual, flat, hessian, gradient, cost)


def solve_poses(
    problem: Problem, targets: Array, start: Array, *, iterations: int = 30, tolerance: float = 1e-5
) -> Array:
    """Poses (T, 7 + J) that minimise eq. 8 for `targets` (T, M, 3) [m], from poses `start`.

    A frame is done when its step falls below `tolerance` [m or rad]. Joint bounds are kept.
    """
    start = start.copy()
    start[:, 7:] = np.clip(start[:, 7:], problem.lower, problem.upper)
    return _solve(problem, targets, start, iterations, tolerance)


def solve_track(
    problem: Problem,
    targets: Array,
    *,
    iterations: int = 30,
    tolerance: float = 1e-4,
    stride: int = 6,
    starts: Sequence[int] = (0,),
) -> Array:
    """Poses (T, 7 + J) that minimise eq. 8 for a track's `targets` (T, M, 3) [m], cold start.

    Every `stride`-th frame is solved from the root that fits the trunk's markers and the home pose.
    The others start from the interpolation of solved neighbours. starts: the first frames of
    several tracks, one after the other in `targets`.

    Raises:
      InputError: as `fit_root`.
    """
    frames = len(targets)
    tracks = zip(starts, [*starts[1:], frames], strict=True)
    coarse = np.unique(
        np.concatenate([np.append(np.arange(a, b, stride), b - 1) for a, b in tracks])
    )
    sparse = fit_root(problem.tree, problem.points, targets[coarse], problem.home(coarse))
    sparse = solve_poses(
        problem.select(coarse), targets[coarse], sparse, iterations=iterations, tolerance=tolerance
    )
    if len(coarse) == frames:
        return sparse
    return _solve(problem, targets, between(sparse, coarse, frames), iterations, tolerance)


def between(sparse: Array, frames: Index, count: int) -> Array:
    """Poses (count, 7 + J) from those of some `frames` (K,), linear in between."""
    keyframes = sparse.copy()
    keyframes[:, 3:7] = rotations.make_continuous(keyframes[:, 3:7])
    after = np.clip(np.searchsorted(frames, np.arange(count)), 1, len(frames) - 1)
    share = (np.arange(count) - frames[after - 1]) / (frames[after] - frames[after - 1])
    out: Array = keyframes[after - 1] + share[:, None] * (keyframes[after] - keyframes[after - 1])
    out[:, 3:7] /= np.linalg.norm(out[:, 3:7], axis=1, keepdims=True)
    return out


def _solve(
    problem: Problem, targets: Array, start: Array, iterations: int, tolerance: float
) -> Array:
    """Poses (T, 7 + J) that minimise eq. 8, from poses `start` within the bounds, by
    Levenberg-Marquardt: chunks of frames, several in parallel; the result does not depend on it.

    A frame is done when its step falls below `tolerance` [m or rad], or when no damped step helps
    any more.
    """
    out = start.copy()
    # targets without weight may be not a number
    targets = np.where(problem.weight[..., None] > 0.0, targets, 0.0)

    def solve_chunk(first: int) -> None:
        alive = np.arange(first, min(first + _CHUNK, len(start)))
        part = problem.select(alive)
        qpos = start[alive]
        goal = targets[alive]
        damping = np.full(len(qpos), 1e-6)
        system = linearize(part, qpos, goal)
        for _ in range(iterations):
            step = _damped_step(part, system, qpos, damping)
            trial = integrate(qpos, step)
            trial[:, 7:] = np.clip(trial[:, 7:], part.lower, part.upper)
            ahead = linearize(part, trial, goal)
            better = ahead.cost <= system.cost * (1.0 + 1e-12)
            qpos = np.where(better[:, None], trial, qpos)
            damping = np.where(better, 0.1 * damping, np.maximum(10.0 * damping, 1e-4))
            out[alive] = qpos
            going = (np.abs(step).max(axis=1) > tolerance) & (damping < 1e6)
            if not going.any():
                break
            if better.all() and going.mean() > 0.8:
                system = ahead
                continue
            alive = alive[going]
            qpos = qpos[going]
            damping = damping[going]
            goal = goal[going]
            part = part.select(np.flatnonzero(going))
            system = linearize(part, qpos, goal)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(solve_chunk, range(0, len(start), _CHUNK)))
    return out


def _damped_step(problem: Problem, system: Linearized, qpos: Array, damping: Array) -> Array:
    """The damped Gauss-Newton step (T, V). A joint at its bound with an outward gradient is fixed
    during the step (projected Levenberg-Marquardt)."""
    joints = qpos[:, 7:]
    slope = system.gradient[:, 6:]
    held = np.full(system.gradient.shape, problem.hold_root)
    low = (joints <= problem.lower) & (slope > 0.0)
    held[:, 6:] = low | ((joints >= problem.upper) & (slope < 0.0))
    free = ~held
    places = np.arange(system.gradient.shape[1])
    matrix = system.hessian * (free[:, :, None] & free[:, None, :])
    matrix[:, places, places] += damping[:, None] * np.maximum(matrix[:, places, places], 1e-3)
    matrix[:, places, places] += held
    return -np.linalg.solve(matrix, (system.gradient * free)[..., None])[..., 0]


def fit_root(tree: Tree, points: Points, targets: Array, stand: Array) -> Array:
    """Poses (T, 7 + J) whose root best carries the trunk's points to their targets (Kabsch).

    stand: the joints, (J,) or (T, J); joints of a waist have the first frame's values.

    Raises:
      InputError: fewer than three points on `tree.trunk`, or points on a line.
    """
    trunk = np.flatnonzero(np.isin(points.body, tree.trunk))
    home = np.concatenate(([0, 0, 0, 1, 0, 0, 0], stand.reshape(-1, tree.num_joints)[0]))
    local = positions_of(points, *forward(tree, home[None]))[0, trunk]
    centred = local - local.mean(axis=0)
    if len(trunk) < 3 or np.linalg.matrix_rank(centred, tol=1e-6) < 2:
        raise InputError(f"{len(trunk)} trunk markers, expected at least 3 that are not on a line")
    goal = targets[:, trunk]
    middle = goal.mean(axis=1)
    rotation = best_rotation(centred, goal - middle[:, None])
    qpos = np.empty((len(targets), 7 + stand.shape[-1]))
    qpos[:, :3] = middle - rotation @ local.mean(axis=0)
    qpos[:, 3:7] = rotations.from_matrix(rotation)
    qpos[:, 7:] = stand
    return qpos


def best_rotation(local: Array, world: Array) -> Array:
    """The rotations (T, 3, 3) that best map points `local` (M, 3) to `world` (T, M, 3)."""
    left, _, right = np.linalg.svd(np.einsum("mi,tmj->tij", local, world))
    # a rotation, not a reflection
    right[:, 2] *= np.linalg.det(left @ right)[:, None]
    return np.asarray((left @ right).transpose(0, 2, 1))
