"""Trajectory optimization of flat feet: standing soles, leg directions and joint speeds at once.

Solved per frame, these conflict: a nearly straight leg needs a fast knee for a small rise of the
hip, and slowing the knee afterwards moves the standing foot. So all frames are solved together, a
sparse least-squares problem over time:

    sum_t  leg vectors, joints, root near the initial motion
         + standing soles where they stand, others not below                      (far heavier)
         + excess of a joint's speed over its limit, of a joint over its bounds   (heavier still)
         + second differences of the distance from the initial motion             (smoothness)

by Gauss-Newton steps, each one banded system (neighbours in time only).
Shapes: T frames, J joints, V = 6 + J, M points. World, Z up, floor z = 0, metres, radians.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solveh_banded

from mocap_data import rotations
from mocap_data.arrays import Array, Bools
from retarget.foot_locking import stand_soles
from retarget.kinematics import Points, forward, integrate, jacobian_of, positions_of
from retarget.prepared_robot import PreparedRobot

# weights of squares; leg vectors have 1 [1/m^2]: five degrees of a thigh of 0.11 m are 1 cm
# [1/m^2] a millimetre costs 2e-3
_SOLE = 2000.0
# [1/rad^2] a frame's excess of 0.01 rad costs 5e-3
_SPEED = 50.0
# [1/rad^2]
_BOUND = 50.0
# weights of the distance from the initial motion: root position [1/m^2], attitude, joints [1/rad^2]
_NEAR = (0.02, 0.02, 1e-3)
# weights of its second differences
_BEND = (5.0, 0.05, 0.02)
_ITERATIONS = 40
# [m or rad]
_TOLERANCE = 1e-5
# [m or rad]
_LONGEST_STEP = 0.3
# [m or rad] tolerance of bounds
_ROUNDING = 1e-9
# frames whose Jacobians are in memory at a time
_CHUNK = 2048


@dataclass(frozen=True)
class Track:
    """The initial motion and the constraints of an optimization."""

    prepared: PreparedRobot
    # (T, 7 + J) the initial motion
    qpos: Array
    # (T, F) feet whose contact points stay on the floor where they are
    standing: Bools
    points: Points
    # pairs (P, 2) of indices in `points` whose difference stays as in the initial motion
    vectors: Array
    # (J,) [rad] largest change of a joint from frame to frame
    most: Array


def optimize(track: Track) -> Array:
    """The motion (T, 7 + J) nearest to the initial one."""
    robot = track.prepared.robot
    problem = MotionProblem.of(track)
    qpos = track.qpos.copy()
    damping = 1e-6
    system = problem.linearize(qpos)
    for _ in range(_ITERATIONS):
        step = system.solve(damping)
        length = float(np.abs(step).max())
        trial = integrate(qpos, step * min(1.0, _LONGEST_STEP / max(length, 1e-12)))
        ahead = problem.linearize(trial)
        if ahead.cost <= system.cost * (1.0 + 1e-12):
            gain = system.cost - ahead.cost
            qpos = trial
            system = ahead
            damping = max(0.2 * damping, 1e-9)
            if length < _TOLERANCE or gain < 1e-5 * system.cost:
                break
        else:
            damping *= 20.0
            if damping > 1e4:
                break
    qpos[:, 7:] = np.clip(qpos[:, 7:], robot.joint_lower, robot.joint_upper)
    qpos[:, 3:7] = rotations.make_continuous(qpos[:, 3:7])
    return qpos


@dataclass(frozen=True)
class System:
    """Normal equations: blocks on the diagonal, and diagonals one and two frames away."""

    cost: float
    # (T, V, V)
    blocks: Array
    # (T - 1, V)
    next: Array
    # (T - 2, V)
    second: Array
    # (T, V)
    gradient: Array

    def solve(self, damping: float) -> Array:
        """The Gauss-Newton step (T, V); the matrix has 2 V upper diagonals."""
        frames, size = self.gradient.shape
        width = 2 * size
        # banded[width + i - j, j] of entry (i, j), i <= j
        banded = np.zeros((width + 1, frames, size))
        for offset in range(size):
            # (T, size - offset)
            values = np.diagonal(self.blocks, offset, axis1=1, axis2=2)
            if offset == 0:
                values = values * (1.0 + damping) + damping * 1e-2
            banded[width - offset, :, offset:] = values
        banded[width - size, 1:] = self.next
        banded[0, 2:] = self.second
        flat = banded.reshape(width + 1, -1)
        right = -self.gradient.reshape(-1)
        step = solveh_banded(flat, right, overwrite_ab=True, check_finite=False)
        return np.asarray(step).reshape(frames, size)


@dataclass(frozen=True)
class MotionProblem:
    """The least-squares problem of a track."""

    track: Track
    # the soles' contact points, then those of the leg vectors
    points: Points
    # (T, F K, 3) [m] of the contact points
    goal: Array
    # (T, F K)
    held: Bools
    # (T, P, 3) [m] leg vectors of the initial motion
    leg_vectors: Array

    @classmethod
    def of(cls, track: Track) -> MotionProblem:
        """Soles where they stand, and vectors as in the initial motion."""
        prepared = track.prepared
        qpos = track.qpos
        radius = prepared.robot.foot_radius
        points_per_foot = prepared.points_per_foot
        sole = stand_soles(prepared.soles_at(qpos), track.standing, prepared.home_soles, radius)
        goal = sole.reshape(len(qpos), -1, 3).copy()
        held = np.repeat(track.standing, points_per_foot, axis=1)
        goal[..., 2] = radius
        positions = positions_of(track.points, *forward(prepared.tree, qpos))
        leg_vectors = positions[:, track.vectors[:, 1]] - positions[:, track.vectors[:, 0]]
        return cls(track, prepared.soles + track.points, goal, held, leg_vectors)

    def linearize(self, qpos: Array) -> System:
        """Cost and normal equations at poses (T, 7 + J)."""
        track = self.track
        frames = len(qpos)
        robot = track.prepared.robot
        joints = qpos.shape[1] - 7
        # Jacobians are large
        pieces = [slice(a, a + _CHUNK) for a in range(0, frames, _CHUNK)]
        parts = [self._linearize_points(qpos, piece) for piece in pieces]
        blocks, gradient = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        cost = sum(part[2] for part in parts)

        # the distance from the initial motion, and its second differences
        turned = rotations.difference(track.qpos[:, 3:7], qpos[:, 3:7])
        moved = qpos - track.qpos
        distance = np.concatenate((moved[:, :3], turned, moved[:, 7:]), axis=1)
        near, bend = (np.repeat(weights, (3, 3, joints)) for weights in (_NEAR, _BEND))
        diagonal = np.tile(near, (frames, 1))
        gradient += near * distance
        cost += float((near * distance**2).sum())
        one = np.zeros((frames - 1, len(near)))
        two = np.zeros((max(frames - 2, 0), len(near)))
        if frames > 2:
            curve = distance[:-2] - 2.0 * distance[1:-1] + distance[2:]
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
        over = np.maximum(0.0, qpos[:, 7:] - robot.joint_upper)
        beyond = over - np.maximum(0.0, robot.joint_lower - qpos[:, 7:])
        diagonal[:, 6:] += np.where(beyond != 0.0, _BOUND, 0.0)
        gradient[:, 6:] += _BOUND * beyond
        cost += float(_BOUND * (beyond**2).sum())
        indices = np.arange(len(near))
        blocks[:, indices, indices] += diagonal
        return System(cost, blocks, one, two, gradient)

    def _linearize_points(self, qpos: Array, piece: slice) -> tuple[Array, Array, float]:
        """Matrices (T, V, V), gradients (T, V) and cost of soles and leg vectors, by frame."""
        track = self.track
        points = self.points
        qpos = qpos[piece]
        goal = self.goal[piece]
        held = self.held[piece]
        tree = track.prepared.tree
        count = goal.shape[1]
        frames = len(qpos)
        position, rotation = forward(tree, qpos)
        world = positions_of(points, position, rotation)
        # (T, M, 3, V)
        jacobian = jacobian_of(tree, points, position, rotation, world)

        # soles: in stance along all axes, else only upwards out of the floor
        miss = world[:, :count] - goal
        below = world[:, :count, 2] < goal[..., 2] - _ROUNDING
        weight = np.where(held[..., None], _SOLE, 0.0) * np.ones(3)
        weight[..., 2] = np.where(held | below, _SOLE, 0.0)
        first, last = count + track.vectors.T
        legs = world[:, last] - world[:, first] - self.leg_vectors[piece]
        rows = np.concatenate((jacobian[:, :count], jacobian[:, last] - jacobian[:, first]), axis=1)
        rows = rows.reshape(frames, -1, 6 + tree.num_joints)
        residual = np.concatenate((miss, legs), axis=1).reshape(frames, -1)
        weights = np.concatenate((weight, np.ones_like(legs)), axis=1).reshape(frames, -1)
        weighted = rows * weights[..., None]
        gradient = np.einsum("trv,tr->tv", weighted, residual)
        return weighted.transpose(0, 2, 1) @ rows, gradient, float((weights * residual**2).sum())
