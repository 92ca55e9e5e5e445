"""Levenberg-Marquardt for the poses of many frames at once, for a root and limbs that hang from it.

A joint of one limb moves no marker of another: a frame's normal equations are a block of 6 x 6 for
the root, one block per limb, and the limbs' couplings to the root. Each limb is eliminated by its
own Cholesky factor, a 6 x 6 system remains (the Schur complement), and the limbs follow by back
substitution: for ANYmal four 3 x 3 systems and one 6 x 6 instead of one 18 x 18.

Frames are the last axis, so that each line of arithmetic runs over all frames of a chunk. Shapes: T
frames, M points, J hinges, n hinges of one limb. Frames of hinges are turned so that every hinge
turns about its own z axis.

`inverse_kinematics.solve_poses` and `solve_track` are the way in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array, Bools
from retarget.kinematics import Points, Tree

# entries of constant rotations this close to 0 or 1 are that: products with them are skipped
_ROUND = 1e-14
# of a rotation matrix, each (3, T)
Columns = tuple[Array, Array, Array]


@dataclass(frozen=True)
class Hinge:
    """One hinge of a limb, at angle zero in the frame of the hinge before it (or the root)."""

    # index among the J hinges
    joint: int
    # index in the limb, -1 for the root
    parent: int
    # [m]
    origin: Sequence[float]
    # (3, 3)
    turn: Array
    # indices in the limb from the root's side to this hinge, itself last
    chain: tuple[int, ...]


@dataclass(frozen=True)
class Point:
    """A point that counts."""

    # index among the M points
    index: int
    # index in the limb of the hinge that carries it, -1 for the root
    hinge: int
    # place in that hinge's frame [m]
    place: Sequence[float]


@dataclass(frozen=True)
class Limb:
    """A subtree of the root: hinges, parents before children, and the points they carry."""

    hinges: tuple[Hinge, ...]
    points: tuple[Point, ...]

    @property
    def joints(self) -> list[int]:
        """The hinges' numbers among the J."""
        return [hinge.joint for hinge in self.hinges]


@dataclass(frozen=True)
class SolverPlan:
    """A tree with points, taken apart into limbs."""

    limbs: tuple[Limb, ...]
    # points on the root
    trunk: tuple[Point, ...]


@dataclass(frozen=True)
class Goal:
    """What the poses of one chunk shall meet; frames last."""

    # (M, 3, T) [m]
    target: Array
    # (M, T) or (M, 1)
    weight: Array
    # (J, T) or (J, 1) [rad]
    home: Array
    # (J, 1) weight of the distance from home [m^2 / rad^2]
    pull: Array
    # (J, 1) [rad]
    lower: Array
    # (J, 1) [rad]
    upper: Array

    def of(self, frames: Bools) -> Goal:
        """The goal of some of the frames."""
        weight = self.weight if self.weight.shape[-1] == 1 else self.weight[:, frames]
        home = self.home if self.home.shape[-1] == 1 else self.home[:, frames]
        return Goal(self.target[..., frames], weight, home, self.pull, self.lower, self.upper)


@dataclass
class _State:
    """Kinematics at one set of poses."""

    root: Columns
    # (T,)
    cost: Array
    # per limb and hinge its axis (3, T)
    axes: list[list[Array]] = field(default_factory=list)
    # per limb and hinge a point on that axis (3, T)
    origins: list[list[Array]] = field(default_factory=list)
    # per point that counts its place (3, T)
    world: dict[int, Array] = field(default_factory=dict)
    # per point that counts its distance from the target (3, T)
    error: dict[int, Array] = field(default_factory=dict)


# --- the plan ---


def plan_of(tree: Tree, points: Points, counts: Bools) -> SolverPlan:
    """Take a tree apart. counts: which points matter at all, (M,)."""
    bodies = len(tree.parent)
    # the hinge (as its body) that carries each body, -1 for the root
    node = np.full(bodies, -1)
    # the body in the frame of that hinge
    turn, shift = np.tile(np.eye(3), (bodies, 1, 1)), np.zeros((bodies, 3))
    origin, first = np.zeros((bodies, 3)), np.zeros((bodies, 3, 3))
    limb_of, members = np.full(bodies, -1), list[list[int]]()
    for body in range(1, bodies):
        up = int(tree.parent[body])
        anchor = shift[up] + turn[up] @ tree.position[body]
        limb_of[body] = limb_of[up]
        if tree.hinge[body] < 0:
            node[body], turn[body], shift[body] = node[up], turn[up] @ tree.fixed[body], anchor
            continue
        frame = _z_to(tree.axis[body])
        origin[body] = anchor
        first[body] = turn[up] @ (tree.fixed[body] + tree.cosine[body]) @ frame
        node[body], turn[body], shift[body] = body, frame.T, -frame.T @ tree.anchor[body]
        if node[up] < 0:
            limb_of[body] = len(members)
            members.append([])
        members[limb_of[body]].append(body)
    place = shift[points.body] + np.einsum("mij,mj->mi", turn[points.body], points.local)
    first = np.where(np.abs(first - np.round(first)) < _ROUND, np.round(first), first)
    wanted = np.flatnonzero(counts).tolist()
    carrier = node[points.body]
    limbs = []
    for limb in members:
        hinges: list[Hinge] = []
        for body in limb:
            above = node[int(tree.parent[body])]
            parent = limb.index(above) if above >= 0 else -1
            chain = (*(hinges[parent].chain if parent >= 0 else ()), len(hinges))
            joint = int(tree.hinge[body])
            hinges.append(Hinge(joint, parent, origin[body].tolist(), first[body], chain))
        carried = (m for m in wanted if carrier[m] in limb)
        on_limb = (Point(m, limb.index(carrier[m]), place[m].tolist()) for m in carried)
        limbs.append(Limb(tuple(hinges), tuple(on_limb)))
    on_trunk = (Point(m, -1, place[m].tolist()) for m in wanted if carrier[m] < 0)
    return SolverPlan(tuple(limbs), tuple(on_trunk))


def _z_to(axis: Array) -> Array:
    """A rotation (3, 3) whose z axis is `axis`; a signed permutation for a coordinate axis."""
    k = int(np.argmax(np.abs(axis)))
    x = np.zeros(3)
    x[(k + 1) % 3] = 1.0
    x -= (x @ axis) * axis
    x /= np.linalg.norm(x)
    return np.stack((x, np.cross(axis, x), axis), axis=1)


# --- kinematics ---


def _combine(
    columns: Columns, factors: Sequence[float] | Array, start: Array | None = None
) -> Array:
    """`start` + sum of columns times factors, (3, T); products with 0 and 1 are skipped."""
    total = start
    for column, factor in zip(columns, factors, strict=True):
        if factor == 0.0:
            continue
        if total is None:
            total = column if factor == 1.0 else factor * column
        elif factor == 1.0:
            total = total + column
        elif factor == -1.0:
            total = total - column
        else:
            total = total + factor * column
    return np.zeros_like(columns[0]) if total is None else total


def _forward(plan: SolverPlan, goal: Goal, pose: Array) -> _State:
    """Kinematics, errors and cost at poses (7 + J, T)."""
    x, y, z = np.ascontiguousarray(rotations.to_matrix(pose[3:7].T).transpose(2, 1, 0))
    root, position = (x, y, z), pose[:3]
    away = pose[7:] - goal.home
    state = _State(root, np.einsum("jt,jt->t", goal.pull * away, away))
    for point in plan.trunk:
        state.world[point.index] = _combine(root, point.place, position)
    cos, sin = np.cos(pose[7:]), np.sin(pose[7:])
    for limb in plan.limbs:
        frames: list[Columns] = []
        places: list[Array] = []
        for hinge in limb.hinges:
            outer, start = root, position
            if hinge.parent >= 0:
                outer, start = frames[hinge.parent], places[hinge.parent]
            places.append(_combine(outer, hinge.origin, start))
            x, y, z = (_combine(outer, hinge.turn[:, k]) for k in range(3))
            c, s = cos[hinge.joint], sin[hinge.joint]
            frames.append((c * x + s * y, c * y - s * x, z))
        for point in limb.points:
            carrier, place = frames[point.hinge], places[point.hinge]
            state.world[point.index] = _combine(carrier, point.place, place)
        state.axes.append([columns[2] for columns in frames])
        state.origins.append(places)
    for m in sorted(state.world):
        off = state.error[m] = state.world[m] - goal.target[m]
        state.cost += goal.weight[m] * np.einsum("it,it->t", off, off)
    return state


def _cross(a: Array, b: Array) -> Array:
    out = np.empty_like(b)
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        np.multiply(a[j], b[k], out=out[i])
        out[i] -= a[k] * b[j]
    return out


def _dot(a: Array, b: Array) -> Array:
    out = a[0] * b[0]
    out += a[1] * b[1]
    out += a[2] * b[2]
    return out


# --- normal equations, by blocks ---


@dataclass
class _Block:
    """A limb's equations."""

    # (n, n, T) its own matrix, lower half
    own: Array
    # (n, 7, T) couplings to the root, and the gradient
    side: Array

    def hold(self, held: Bools) -> None:
        """Take hinges pressed against a bound, `held` (n, T), out of the equations: unit rows."""
        free = np.where(held, 0.0, 1.0)
        self.side *= free[:, None]
        self.own *= free[:, None]
        self.own *= free[None, :]
        for i in range(len(free)):
            self.own[i, i] += 1.0 - free[i]


class _RootSums:
    """Sums over points of their weights and arms about the root, and the root's gradient."""

    def __init__(self, frames: int) -> None:
        # (T,) sum of weights, (3, T) of arms, (6, T) of xx yy zz xy xz yz of arms, (6, T)
        self.weight, self.arm = np.zeros(frames), np.zeros((3, frames))
        self.second, self.gradient = np.zeros((6, frames)), np.zeros((6, frames))

    def add(self, weight: Array, arm: Array, pull: Array) -> None:
        """A point at `arm` (3, T) from the root with the weighted error `pull` (3, T)."""
        load = weight * arm
        self.weight += weight
        self.arm += load
        self.second[:3] += load * arm
        self.second[3] += load[0] * arm[1]
        self.second[4] += load[0] * arm[2]
        self.second[5] += load[1] * arm[2]
        self.gradient[:3] += pull
        self.gradient[3:] += _cross(arm, pull)

    def equations(self) -> Array:
        """The root's equations (6, 7, T; lower half), the gradient their last column."""
        root = np.zeros((6, 7, len(self.weight)))
        arm = self.arm
        root[:, 6] = self.gradient
        root[0, 0] = root[1, 1] = root[2, 2] = self.weight
        # d(point)/d(rotation) = -[arm]x
        root[3, 1], root[3, 2], root[4, 2] = -arm[2], arm[1], -arm[0]
        root[4, 0], root[5, 0], root[5, 1] = arm[2], -arm[1], arm[0]
        xx, yy, zz, xy, xz, yz = self.second
        root[3, 3], root[4, 4], root[5, 5] = yy + zz, xx + zz, xx + yy
        root[4, 3], root[5, 3], root[5, 4] = -xy, -xz, -yz
        return root


def _blocks(
    plan: SolverPlan, goal: Goal, state: _State, pose: Array, free_root: bool
) -> tuple[Array, list[_Block]]:
    """The root's equations (6, 7, T) and those of the limbs; root rotations in the WORLD frame."""
    frames, position = pose.shape[1], pose[:3]
    sums = _RootSums(frames)

    def seen(point: Point) -> tuple[Array, Array, Array]:
        """The point's weight, arm and weighted error; it counts for the root, too."""
        weight, arm = goal.weight[point.index], state.world[point.index] - position
        pull = weight * state.error[point.index]
        if free_root:
            sums.add(weight, arm, pull)
        return weight, arm, pull

    for point in plan.trunk:
        seen(point)
    blocks = []
    away = goal.pull * (pose[7:] - goal.home)
    for limb, axes, origins in zip(plan.limbs, state.axes, state.origins, strict=True):
        size = len(limb.hinges)
        own, side = np.zeros((size, size, frames)), np.zeros((size, 7, frames))
        for i, joint in enumerate(limb.joints):
            own[i, i] = goal.pull[joint]
            side[i, 6] = away[joint]
        for point in limb.points:
            weight, arm, pull = seen(point)
            place, loads = state.world[point.index], list[Array]()
            chain = limb.hinges[point.hinge].chain
            for a, i in enumerate(chain):
                column = _cross(axes[i], place - origins[i])
                load = weight * column
                loads.append(load)
                side[i, 6] += _dot(column, pull)
                if free_root:
                    side[i, :3] += load
                    side[i, 3:6] += _cross(arm, load)
                for b in range(a + 1):
                    own[i, chain[b]] += _dot(column, loads[b])
        blocks.append(_Block(own, side))
    return sums.equations(), blocks


def _factor(own: Array, side: Array) -> None:
    """Cholesky of `own` (n, n, T) and forward substitution of `side` (n, k, T), in place."""
    for k in range(len(own)):
        scale = 1.0 / np.sqrt(own[k, k])
        # the inverse is what is needed later
        own[k, k] = scale
        side[k] *= scale
        if k + 1 < len(own):
            own[k + 1 :, k] *= scale
            column = own[k + 1 :, k]
            for i in range(k + 1, len(own)):
                own[i, k + 1 : i + 1] -= column[i - k - 1] * column[: i - k]
                side[i] -= column[i - k - 1] * side[k]


def _backward(own: Array, right: Array) -> Array:
    """Solve L^T x = right (n, T) for the factor that `_factor` left."""
    out = np.empty_like(right)
    for k in reversed(range(len(own))):
        value = right[k]
        for i in range(k + 1, len(own)):
            value = value - own[i, k] * out[i]
        out[k] = value * own[k, k]
    return out


def _damp(matrix: Array, damping: Array, indices: Iterable[int]) -> None:
    for i in indices:
        matrix[i, i] += damping * np.maximum(matrix[i, i], 1e-3)


def _step(
    plan: SolverPlan,
    root: Array,
    blocks: list[_Block],
    damping: Array,
    free_root: bool,
    joints: int,
) -> Array:
    """The damped Gauss-Newton step (6 + J, T); root rotation in the world frame."""
    out = np.zeros((6 + joints, root.shape[-1]))
    for block in blocks:
        _damp(block.own, damping, range(len(block.own)))
        _factor(block.own, block.side)
    if free_root:
        _damp(root, damping, range(6))
        for block in blocks:
            for row in block.side:
                for i in range(6):
                    root[i, : i + 1] -= row[i] * row[: i + 1]
                root[:, 6] -= row[:6] * row[6]
        _factor(root[:, :6], root[:, 6:])
        out[:6] = -_backward(root[:, :6], root[:, 6])
    for limb, block in zip(plan.limbs, blocks, strict=True):
        right = -block.side[:, 6]
        if free_root:
            right -= np.einsum("nat,at->nt", block.side[:, :6], out[:6])
        out[[6 + joint for joint in limb.joints]] = _backward(block.own, right)
    return out


def _integrate(pose: Array, step: Array, goal: Goal) -> Array:
    """Poses (7 + J, T) moved by a step (6 + J, T) and kept within the bounds."""
    out = np.empty_like(pose)
    out[:3] = pose[:3] + step[:3]
    turn = step[3:6]
    half = 0.5 * np.sqrt(_dot(turn, turn))
    a, b = np.cos(half), 0.5 * np.sinc(half / np.pi) * turn
    w, v = pose[3], pose[4:7]
    out[3] = a * w - _dot(b, v)
    out[4:7] = a * v + w * b + _cross(b, v)
    out[3:7] /= np.sqrt(np.einsum("it,it->t", out[3:7], out[3:7]))
    out[7:] = np.clip(pose[7:] + step[6:], goal.lower, goal.upper)
    return out


def solve(
    plan: SolverPlan,
    goal: Goal,
    pose: Array,
    iterations: int,
    tolerance: float,
    *,
    free_root: bool = True,
) -> Array:
    """Poses (7 + J, T) that minimise the goal's cost, from `pose` (7 + J, T) within the bounds.

    A frame is done when its step falls below `tolerance` [m or rad], or when no damped step helps
    any more. A joint at its bound whose gradient points outward is held while the others solve
    without it (projected Levenberg-Marquardt).
    """
    solution = pose.copy()
    # frames that are not done
    alive, going = np.arange(pose.shape[1]), np.ones(pose.shape[1], dtype=bool)
    damping = np.full(pose.shape[1], 1e-6)
    state = _forward(plan, goal, pose)
    for _ in range(iterations):
        root, blocks = _blocks(plan, goal, state, pose, free_root)
        for limb, block in zip(plan.limbs, blocks, strict=True):
            index = limb.joints
            angle, slope = pose[[7 + j for j in index]], block.side[:, 6]
            low = (angle <= goal.lower[index]) & (slope > 0.0)
            held = low | ((angle >= goal.upper[index]) & (slope < 0.0))
            if held.any():
                block.hold(held)
        step = _step(plan, root, blocks, damping, free_root, len(pose) - 7)
        if not going.all():
            step *= going
        trial = _integrate(pose, step, goal)
        ahead = _forward(plan, goal, trial)
        better = ahead.cost <= state.cost * (1.0 + 1e-12)
        if better.all():
            pose, state = trial, ahead
            damping = damping * 0.1
        else:
            pose = np.where(better, trial, pose)
            damping = np.where(better, damping * 0.1, np.maximum(damping * 10.0, 1e-4))
            state = _forward(plan, goal, pose)
        going &= (np.abs(step).max(axis=0) > tolerance) & (damping < 1e6)
        left = int(np.count_nonzero(going))
        if left == 0:
            break
        if left < 0.8 * len(going):
            solution[:, alive] = pose
            alive, pose, goal = alive[going], pose[:, going], goal.of(going)
            damping, going = damping[going], np.ones(left, dtype=bool)
            state = _forward(plan, goal, pose)
    solution[:, alive] = pose
    return solution
