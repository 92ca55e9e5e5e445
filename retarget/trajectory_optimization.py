"""A whole motion at once: feet that stand, legs that point as they should, joints that turn no
faster than they can.

Solved frame by frame these want different things: a leg that is nearly straight needs a fast knee
for the slightest rise of the hip, and slowing the knee afterwards moves the standing foot. So all
frames are solved together, a sparse least-squares problem over time:

    sum_t  leg vectors, joints, root near the given motion       (what the motion says)
         + standing soles where they stand, others not below     (W_SOLE, far heavier)
         + excess of a joint's speed over its limit, of a joint over its bounds    (W_SPEED,
         W_BOUND, heavier still) + second differences of the distance from the given motion   (so
         that corrections are smooth)

by Gauss-Newton steps, each one banded system (neighbours in time only; see `_solve`).
Shapes: T frames, J joints, V = 6 + J, M points. World frame, Z up, floor z = 0, metres, radians.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solveh_banded

from mocap_data import rotations
from mocap_data.arrays import Array
from npmp.robots import Robot
from retarget import kinematics
from retarget.foot_locking import stand_soles
from retarget.ground import Bools, runs
from retarget.prepared_robot import PreparedRobot

# Weights of squares. Leg vectors have 1 [1/m^2]: five degrees of a thigh of 0.11 m are 1 cm, so
# 1e-4.
_SOLE = 2000.0  # [1/m^2] a millimetre costs 2e-3
_SPEED = 50.0  # [1/rad^2] a frame's excess of 0.01 rad costs 5e-3
_BOUND = 50.0  # [1/rad^2]
_JOINT = 1e-3  # [1/rad^2]
_ROOT = (0.02, 0.02)  # [1/m^2], [1/rad^2] place and attitude
# of second differences: [1/m^2] root's place, [1/rad^2] its attitude, [1/rad^2] joints
_BEND = (5.0, 0.05, 0.02)
_ITERATIONS = 40
_TOLERANCE = 1e-5  # [m or rad]
_LONGEST_STEP = 0.3  # [m or rad]
_ROUNDING = 1e-9  # [m or rad] what is at its bound up to rounding is within it, in a mirror as well
_CHUNK = 2048  # frames whose Jacobians are in memory at a time


@dataclass(frozen=True)
class Track:
    """What a motion shall be near to, and what it must do.

    qpos: (T, 7 + J) the given motion. standing: (T, F). held: (T, F, K) contact points that stay
    where they are, on the floor: all of standing feet, others before and after (see `held_points`).
    clearance: (T, F) [m] that the others shall at least have over the floor. vectors: pairs (P, 2)
    of places in `points` whose difference shall be as in the given motion. most: (J,) [rad] by
    which a joint may change from frame to frame; inf: any.
    """

    prepared: PreparedRobot
    qpos: Array
    standing: Bools
    held: Bools
    clearance: Array
    points: kinematics.Points
    vectors: Array
    most: Array


def settle(track: Track, start: Array | None = None) -> Array:
    """The motion (T, 7 + J) nearest to the given one, as the module says. start: (T, 7 + J) where
    to look first."""
    prepared = track.prepared
    feet, each = len(prepared.feet), prepared.points_per_foot
    shape = (len(track.qpos), feet * each)
    sole = stand_soles(
        prepared.soles_at(track.qpos),
        track.standing,
        prepared.home_soles,
        prepared.robot.foot_radius,
    )
    goal = _kept(sole, track.standing, track.held).reshape(*shape, 3)
    held = track.held.reshape(shape)
    goal[..., 2] = prepared.robot.foot_radius + np.where(
        held, 0.0, np.repeat(track.clearance, each, axis=1)
    )
    points = kinematics.Points(
        np.concatenate((prepared.soles.body, track.points.body)),
        np.concatenate((prepared.soles.local, track.points.local)),
    )
    given = kinematics.positions_of(track.points, *kinematics.forward(prepared.tree, track.qpos))
    wanted = given[:, track.vectors[:, 1]] - given[:, track.vectors[:, 0]]
    qpos, damping = (track.qpos if start is None else start).copy(), 1e-6
    system = _system(track, points, goal, held, wanted, qpos)
    for _ in range(_ITERATIONS):
        step = _solve(system, damping)
        length = float(np.abs(step).max())
        trial = kinematics.integrate(qpos, step * min(1.0, _LONGEST_STEP / max(length, 1e-12)))
        ahead = _system(track, points, goal, held, wanted, trial)
        if ahead.cost <= system.cost * (1.0 + 1e-12):
            gain = system.cost - ahead.cost
            qpos, system, damping = trial, ahead, max(0.2 * damping, 1e-9)
            if length < _TOLERANCE or gain < 1e-5 * system.cost:
                break
        else:
            damping *= 20.0
            if damping > 1e4:
                break
    qpos[:, 7:] = np.clip(qpos[:, 7:], prepared.robot.joint_lower, prepared.robot.joint_upper)
    qpos[:, 3:7] = rotations.make_continuous(qpos[:, 3:7])
    return qpos


def held_points(robot: Robot, standing: Bools, heel: Bools, toe: Bools) -> Bools:
    """Which contact points (T, F, K) stay where they are: all of a standing foot; its heel's
    before, its toe's after.

    standing, heel, toe: (T, F). A person lands on the heel and leaves from the ball of the foot; a
    sole that held still only while it is flat would leave the robot without support in between. A
    heel counts that is down without a break until the foot stands, a toe that stays down after.
    Heel and toe are the points behind and before a foot's middle.
    """
    ahead = robot.foot_points[..., 0] > robot.foot_offset[0]  # (F, K)
    landing, leaving = np.zeros_like(standing), np.zeros_like(standing)
    for foot in range(standing.shape[1]):
        for start, stop in runs(standing[:, foot]):
            while start > 0 and heel[start - 1, foot] and not standing[start - 1, foot]:
                start -= 1
                landing[start, foot] = True
            while stop < len(standing) and toe[stop, foot] and not standing[stop, foot]:
                leaving[stop, foot] = True
                stop += 1
    landing &= ~leaving  # between two stances: still leaving the first
    return np.asarray(
        standing[..., None] | (landing[..., None] & ~ahead) | (leaving[..., None] & ahead)
    )


def _kept(sole: Array, standing: Bools, held: Bools) -> Array:
    """Contact points (T, F, K, 3) with those held beyond a stance where they are in it."""
    out = sole.copy()
    for foot in range(standing.shape[1]):
        stances = runs(standing[:, foot])
        for point in range(held.shape[2]):
            for start, stop in runs(held[:, foot, point]):
                inside = [a for a, b in stances if a < stop and b > start]
                if not inside:
                    continue
                out[start:stop, foot, point] = out[inside[0], foot, point]
    return out


@dataclass(frozen=True)
class _System:
    """Normal equations: blocks on the diagonal, and diagonals one and two frames away."""

    cost: float
    blocks: Array  # (T, V, V)
    next: Array  # (T - 1, V)
    second: Array  # (T - 2, V)
    gradient: Array  # (T, V)


def _places(
    track: Track, points: kinematics.Points, goal: Array, held: Bools, wanted: Array, qpos: Array
) -> tuple[Array, Array, float]:
    """What soles and legs want of each frame by itself: matrices (T, V, V), gradients (T, V), and
    their cost."""
    tree, count, frames = track.prepared.tree, goal.shape[1], len(qpos)
    position, rotation = kinematics.forward(tree, qpos)
    world = kinematics.positions_of(points, position, rotation)
    jacobian = kinematics.jacobian_of(tree, points, position, rotation, world)  # (T, M, 3, V)

    # soles: where they stand in all three axes, elsewhere only up, and only out of the floor
    miss = world[:, :count] - goal
    below = world[:, :count, 2] < goal[..., 2] - _ROUNDING
    weight = np.where(held[..., None], _SOLE, 0.0) * np.ones(3)
    weight[..., 2] = np.where(held | below, _SOLE, 0.0)
    first, last = count + track.vectors[:, 0], count + track.vectors[:, 1]
    legs = world[:, last] - world[:, first] - wanted
    rows = np.concatenate((jacobian[:, :count], jacobian[:, last] - jacobian[:, first]), axis=1)
    rows = rows.reshape(frames, -1, 6 + tree.num_joints)
    residual = np.concatenate((miss, legs), axis=1).reshape(frames, -1)
    weights = np.concatenate((weight, np.ones_like(legs)), axis=1).reshape(frames, -1)
    heavy = rows * weights[..., None]
    gradient = np.einsum("trv,tr->tv", heavy, residual)
    return heavy.transpose(0, 2, 1) @ rows, gradient, float((weights * residual**2).sum())


def _system(
    track: Track, points: kinematics.Points, goal: Array, held: Bools, wanted: Array, qpos: Array
) -> _System:
    tree, robot, frames = track.prepared.tree, track.prepared.robot, len(qpos)
    pieces = [slice(a, a + _CHUNK) for a in range(0, frames, _CHUNK)]  # Jacobians are large
    parts = [
        _places(track, points, goal[piece], held[piece], wanted[piece], qpos[piece])
        for piece in pieces
    ]
    blocks = np.concatenate([part[0] for part in parts])
    gradient = np.concatenate([part[1] for part in parts])
    cost = sum(part[2] for part in parts)

    # the distance from the given motion, and its second differences
    turned = rotations.difference(track.qpos[:, 3:7], qpos[:, 3:7])
    away = np.concatenate(
        (qpos[:, :3] - track.qpos[:, :3], turned, qpos[:, 7:] - track.qpos[:, 7:]), axis=1
    )
    joints = tree.num_joints
    near = np.concatenate((np.full(3, _ROOT[0]), np.full(3, _ROOT[1]), np.full(joints, _JOINT)))
    bend = np.concatenate((np.full(3, _BEND[0]), np.full(3, _BEND[1]), np.full(joints, _BEND[2])))
    diagonal = np.tile(near, (frames, 1))
    gradient += near * away
    cost += float((near * away**2).sum())
    one, two = np.zeros((frames - 1, len(near))), np.zeros((max(frames - 2, 0), len(near)))
    if frames > 2:
        curve = away[:-2] - 2.0 * away[1:-1] + away[2:]
        cost += float((bend * curve**2).sum())
        for shift, factor in ((0, 1.0), (1, -2.0), (2, 1.0)):
            diagonal[shift : frames - 2 + shift] += factor**2 * bend
            gradient[shift : frames - 2 + shift] += factor * bend * curve
        one[:-1] += -2.0 * bend
        one[1:] += -2.0 * bend
        two += bend

    # speeds and bounds
    change = np.diff(qpos[:, 7:], axis=0)
    excess = np.sign(change) * np.maximum(0.0, np.abs(change) - track.most - _ROUNDING)
    active = np.where(excess != 0.0, _SPEED, 0.0)
    cost += float((active * excess**2).sum())
    diagonal[1:, 6:] += active
    diagonal[:-1, 6:] += active
    one[:, 6:] -= active
    gradient[1:, 6:] += active * excess
    gradient[:-1, 6:] -= active * excess
    beyond = np.maximum(0.0, qpos[:, 7:] - robot.joint_upper) - np.maximum(
        0.0, robot.joint_lower - qpos[:, 7:]
    )
    diagonal[:, 6:] += np.where(beyond != 0.0, _BOUND, 0.0)
    gradient[:, 6:] += _BOUND * beyond
    cost += float(_BOUND * (beyond**2).sum())
    places = np.arange(len(near))
    blocks[:, places, places] += diagonal
    return _System(cost, blocks, one, two, gradient)


def _solve(system: _System, damping: float) -> Array:
    """The Gauss-Newton step (T, V): the blocks overlap nowhere, so the matrix has 2 V diagonals
    above its own."""
    frames, size = system.gradient.shape
    width = 2 * size
    banded = np.zeros((width + 1, frames, size))  # banded[width + i - j, j] of entry (i, j), i <= j
    for offset in range(size):
        values = np.diagonal(system.blocks, offset, axis1=1, axis2=2)  # (T, size - offset)
        banded[width - offset, :, offset:] = (
            values * (1.0 + damping) + damping * 1e-2 if offset == 0 else values
        )
    banded[width - size, 1:] = system.next
    banded[0, 2:] = system.second
    step = solveh_banded(
        banded.reshape(width + 1, -1),
        -system.gradient.reshape(-1),
        overwrite_ab=True,
        check_finite=False,
    )
    return np.asarray(step).reshape(frames, size)
