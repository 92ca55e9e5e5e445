"""Whether a robot can do a motion: its joints' speed, its drives' torque, the forces of its feet.

Newton and Euler ask for a wrench on the robot at each frame. Feet near the floor push within their
friction pyramids, and drives turn joints within their limits. `FeasibilityMeter` finds the forces
that keep the robot nearest to the motion on its footfalls, without any policy:

    min over f >= 0 of  |K (w - A f)|^2 + |excess(tau - B f)|^2

w (T, 6): force and moment about the centre of mass [weight, weight * k], with the robot's radius of
gyration k: both accelerate mass by the same; f (T, N): forces along the edges of the pyramids
[weight]; A f: their wrench; tau - B f (T, J): torques of the drives [torque limit], their excess
beyond +-1; K: `least_deviation`.

Shapes: T frames, J joints, C contact points, N = 4 C edges. World frame, Z up, floor z = 0, SI
units.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import mujoco
import numpy as np
from scipy.ndimage import uniform_filter1d

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion, velocities
from npmp.robots import Robot
from retarget import kinematics
from retarget.quality import OFF_FLOOR, leg_length

SPEED = "joint speed"
TORQUE = "torque"
BALANCE = "balance"
# speeds, accelerations and torques are means over this time [s]
SMOOTH_S = 0.1
# largest deviation from a feasible motion [leg length]: ANYmal's trunk, lowered by this over its
# feet at home, has an error of 0.3, the limit of eq. 2
MAX_DEVIATION = 0.2
# largest excess of a torque [torque limit]
MAX_EXCESS = 0.1
_ITERATIONS = 800


class Feasibility(NamedTuple):
    """The worst stretch of a motion in each respect."""

    # speed of a joint [speed limit]
    speed: float
    # excess of a drive's torque over its limit [torque limit]
    excess: float
    # least deviation of the robot's mass, moved and turned, on the motion's footfalls [m]
    deviation_m: float
    # the exceeded limits, joined by ", "; "" for a motion that the robot can do
    reason: str


class FeasibilityMeter:
    """The feasibility of a robot's motions on level treads. Not to be shared between threads."""

    def __init__(self, robot: Robot) -> None:
        self.robot = robot
        self._model = robot.model(visuals=False)
        # the floor's forces are the unknowns
        self._model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
        self._data = mujoco.MjData(self._model)
        self._tree = kinematics.tree_of(self._model)
        self._leg_m = leg_length(robot, self._tree)
        gravity = float(np.linalg.norm(self._model.opt.gravity))
        self._weight = float(self._model.body_subtreemass[1]) * gravity
        self.gyration_m = self._gyration()
        # [s] for second differences of a deviation: a step; a fall by twice the legs' length
        self.step_s = 2.0 * math.sqrt(self._leg_m / gravity)

        feet = [robot.body_names.index(name) for name in robot.foot_bodies]
        count = robot.foot_points.shape[1]
        self._points = kinematics.Points(
            np.repeat(feet, count), np.reshape(robot.foot_points, (-1, 3))
        )
        friction = np.repeat([self._friction(foot + 1) for foot in feet], count)
        self._edges = np.zeros((len(friction), 4, 3))
        self._edges[..., 2] = 1.0
        for edge, (axis, sign) in enumerate(((0, 1.0), (0, -1.0), (1, 1.0), (1, -1.0))):
            self._edges[:, edge, axis] = sign * friction

    def _gyration(self) -> float:
        """The radius of gyration [m] in the home pose, mean of the squares over axes."""
        model = self._model
        data = self._data
        data.qpos[:] = self.robot.home_qpos
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        arms = np.square(data.xipos - data.subtree_com[1]).sum(axis=1)
        inertia = model.body_inertia.sum() + 2.0 * model.body_mass @ arms
        return math.sqrt(inertia / (3.0 * model.body_subtreemass[1]))

    def _friction(self, body: int) -> float:
        """The sliding friction of a foot. Raises InputError if nothing of it collides."""
        model = self._model
        collides = (model.geom_contype | model.geom_conaffinity) != 0
        geoms = collides & (model.geom_bodyid == body)
        if not geoms.any():
            raise InputError(
                f"robot '{self.robot.name}': foot '{model.body(body).name}': no geom of it collides"
            )
        return float(model.geom_friction[geoms, 0].max())

    def __call__(self, motion: ReferenceMotion) -> Feasibility:
        """The worst stretch of a motion in each respect."""
        rate = motion.rate_hz
        wrench, torque, push, load = self.dynamics(motion)
        count = max(1, round(self.step_s * rate))
        force = _least_residual(wrench, torque, push, load, count)
        deviation_m = self._leg_m * _largest_deviation(wrench - _apply(push, force), count)
        excess = np.abs(_smooth(_excess(torque - _apply(load, force)), rate)).max(initial=0.0)
        speed = np.abs(_smooth(motion.qvel[:, 6:], rate)) / self.robot.velocity_limit

        far = deviation_m > MAX_DEVIATION * self._leg_m
        unbalanced = far
        if far:
            # without limits of torque
            force = _least_residual(wrench, 0.0 * torque, push, 0.0 * load, count)
            unbalanced = _largest_deviation(wrench - _apply(push, force), count) > MAX_DEVIATION
        exceeded = {
            SPEED: speed.max(initial=0.0) > 1.0,
            TORQUE: excess > MAX_EXCESS or (far and not unbalanced),
            BALANCE: unbalanced,
        }
        reason = ", ".join(name for name, beyond in exceeded.items() if beyond)
        return Feasibility(float(speed.max(initial=0.0)), float(excess), deviation_m, reason)

    def dynamics(self, motion: ReferenceMotion) -> tuple[Array, Array, Array, Array]:
        """The motion's w (T, 6) and tau (T, J), and A (T, 6, N) and B (T, J, N) of its feet."""
        model = self._model
        data = self._data
        qvel, qacc = _derivatives(motion.qpos, motion.rate_hz)
        forces = np.empty_like(qvel)
        centre = np.empty((len(qvel), 3))
        for t, pose in enumerate(motion.qpos):
            data.qpos[:] = pose
            data.qvel[:] = qvel[t]
            data.qacc[:] = qacc[t]
            mujoco.mj_inverse(model, data)
            forces[t] = data.qfrc_inverse
            centre[t] = data.subtree_com[1]
        root = forces[:, :3]
        moment = rotations.rotate(motion.qpos[:, 3:7], forces[:, 3:6])
        moment = moment + np.cross(motion.qpos[:, :3] - centre, root)
        wrench = np.concatenate((root, moment / self.gyration_m), axis=1) / self._weight
        limit = self.robot.torque_limit

        bodies = kinematics.forward(self._tree, motion.qpos)
        # (T, C, 3) lowest points of the contact spheres
        world = kinematics.positions_of(self._points, *bodies)
        world[..., 2] -= self.robot.foot_radius
        ground = motion.ground_at(world[..., 0], self.robot.foot_radius)
        near = world[..., 2] - ground < OFF_FLOOR * self._leg_m
        jacobian = kinematics.jacobian_of(self._tree, self._points, *bodies, world)
        edges = near[..., None, None] * self._edges
        arms = (world - centre[:, None])[:, :, None]
        push = np.concatenate((edges, np.cross(arms, edges) / self.gyration_m), axis=-1)
        load = np.einsum("tckj,tcek->tcej", jacobian[..., 6:], edges) * (self._weight / limit)
        frames = len(world)
        return (
            wrench,
            forces[:, 6:] / limit,
            push.reshape(frames, -1, 6).swapaxes(1, 2),
            load.reshape(frames, -1, len(limit)).swapaxes(1, 2),
        )


def least_deviation(residual: Array, count: int) -> Array:
    """Least size (T, ...) of a deviation x with the accelerations x'' = residual (T, ...).

    The triangular mean of x'' over the last 2 h is [x(t) - 2 x(t - h) + x(t - 2 h)] / h^2, with h
    of `count` frames, so at most 4 max|x| / h^2. A robot starts on the motion, x = 0 until then:
    this leaves max|x| / h^2 during the first h, and 3 max|x| / h^2 during the second.

    Returns: [h^2 * unit of the residual]
    """
    return _triangular_means(residual, count) / _terms(len(residual), count)


def _terms(frames: int, count: int) -> Array:
    """The sum of the second difference's coefficients (T, 1) of positions after the start."""
    t = np.arange(frames)[:, None]
    return np.where(t < count, 1.0, np.where(t < 2 * count, 3.0, 4.0))


def _triangular_means(values: Array, count: int) -> Array:
    """Means (T, ...) over the last 2 `count` frames with the weights of a triangle."""
    return _trailing_means(_trailing_means(values, count), count)


def _trailing_means(values: Array, count: int) -> Array:
    """Means (T, ...) over the last `count` frames of (T, ...), zero before the first."""
    sums = np.cumsum(values, axis=0)
    sums[count:] -= sums[:-count].copy()
    return sums / count


def _largest_deviation(residual: Array, count: int) -> float:
    """The largest `least_deviation` [leg length] of a residual (T, 6) [weight]."""
    # h^2 is 4 leg lengths / gravity
    return float(4.0 * np.linalg.norm(least_deviation(residual, count), axis=1).max())


def _derivatives(qpos: Array, rate_hz: float) -> tuple[Array, Array]:
    """Velocities and accelerations (T, 6 + J): central differences, these smoothed. They are zero
    for a single frame."""
    backward = velocities(qpos, rate_hz)
    if len(qpos) < 2:
        return backward, np.zeros_like(backward)
    forward = np.concatenate((backward[1:], backward[-1:]))
    acceleration = (forward - backward) * rate_hz
    # a velocity at either end appears twice
    acceleration[:1] = acceleration[1:2]
    acceleration[-1:] = acceleration[-2:-1]
    return 0.5 * (backward + forward), _smooth(acceleration, rate_hz)


def _smooth(values: Array, rate_hz: float) -> Array:
    """Means of values (T, ...) over SMOOTH_S."""
    frames = max(1, round(SMOOTH_S * rate_hz))
    return np.asarray(uniform_filter1d(values, frames, axis=0, mode="nearest"))


def _least_residual(wrench: Array, torque: Array, push: Array, load: Array, count: int) -> Array:
    """The forces f (T, N) of the file's head, by accelerated projected gradients (FISTA).

    count: frames of `least_deviation`; as a mean it does not add to the bound of a frame's step.
    """
    bound = np.square(np.linalg.norm(push, ord=2, axis=(1, 2)))
    bound = bound + np.square(np.linalg.norm(load, ord=2, axis=(1, 2)))
    step = 1.0 / np.maximum(bound, 1e-9)[:, None]
    push_back = np.ascontiguousarray(push.swapaxes(1, 2))
    load_back = np.ascontiguousarray(load.swapaxes(1, 2))
    terms = _terms(len(push), count)
    force = np.zeros((len(push), push.shape[2]))
    ahead = force
    momentum = 1.0
    for _ in range(_ITERATIONS):
        residual = least_deviation(wrench - _apply(push, ahead), count)
        # the transpose: the division, then the means backwards in time
        residual = _triangular_means((residual / terms)[::-1], count)[::-1]
        excess = _excess(torque - _apply(load, ahead))
        before = force
        down = _apply(push_back, residual) + _apply(load_back, excess)
        force = np.maximum(ahead + step * down, 0.0)
        after = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum**2))
        ahead = force + (momentum - 1.0) / after * (force - before)
        momentum = after
    return force


def _excess(share: Array) -> Array:
    """What exceeds [-1, 1]."""
    return share - np.clip(share, -1.0, 1.0)


def _apply(matrix: Array, vector: Array) -> Array:
    """Matrices (T, M, N) times vectors (T, N): (T, M)."""
    return np.asarray((matrix @ vector[..., None])[..., 0])
