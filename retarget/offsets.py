"""The offsets of eq. 8: marker offsets from sampled frames, jointly over a subject's clips.

Shapes: M markers, P parameters, S sampled frames, T frames, B bodies, V tangent dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mocap_data.arrays import Array
from retarget import kinematics
from retarget.inverse_kinematics import Linearized, fit_root, linearize, solve_poses
from retarget.markers import MarkerLayout
from retarget.prepared_robot import PreparedRobot
from retarget.targets import Targets

# frames from which the offsets are estimated, spread evenly over all clips
_SAMPLE = 512
# [m/s] frames with slower trunks (sitting, lying) are left out, if enough faster ones exist
_MOVING = 0.15
# and with trunks further from the usual height [heights] (jumping, crouching)
_HEIGHT = 0.12
# and with trunk ends further from their usual heights [trunk lengths]
_TILT = 0.12
# frames beyond this many median marker errors are left out after the first rounds
_OUTLIER = 2.5
_FIRST_ROUNDS = 2
# alternations of poses and offsets
_ROUNDS = 6
# ridge of the offset step [1 per frame], for parameters that no joint depends on
_RIDGE = 1e-6


def estimate_offsets(clips: Sequence[Targets], prepared: PreparedRobot) -> Array:
    """Parameters (P,) of the offsets: poses and offsets in turn over a sample of frames."""
    layout = prepared.layout
    locked, heading = sample(clips, prepared)
    initial = layout.initial()
    theta = initial
    weight = prepared.weights
    qpos: Array | None = None
    for k in range(_ROUNDS):
        problem = prepared.problem(theta)
        goal = locked + layout.displacement(theta, heading)
        if qpos is None:
            qpos = fit_root(problem.tree, problem.points, goal, problem.stand)
        qpos = solve_poses(problem, goal, qpos, iterations=5, tolerance=1e-4)
        position, rotation = kinematics.forward(problem.tree, qpos)
        if k == _FIRST_ROUNDS:
            residual = kinematics.positions_of(problem.points, position, rotation) - goal
            error = np.square(residual).sum(axis=(1, 2))
            good = np.flatnonzero(error <= _OUTLIER**2 * np.median(error))
            qpos = qpos[good]
            locked = locked[good]
            heading = heading[good]
            goal = goal[good]
            rotation = rotation[good]
        jacobian = offset_jacobian(layout, rotation, heading, weight)
        system = linearize(problem, qpos, goal)
        step = offset_step(system, jacobian, theta - initial, layout.pull)
        theta = theta + step
        if np.abs(step).max() < 1e-5:
            break
    return theta


def sample(clips: Sequence[Targets], prepared: PreparedRobot) -> tuple[Array, Array]:
    """Locked targets (S, M, 3) and headings (S, M) of walking-like frames spread over all clips.

    Walking-like frames move, with the trunk at its usual height and tilt. Frames of sitting, lying
    or jumping would degrade the fit of walks.
    """
    trunk = prepared.layout.on_trunk
    locked = np.concatenate([t.locked for t in clips])
    heading = np.concatenate([t.heading for t in clips])
    steps = [np.gradient(t.locked[:, trunk, :2].mean(axis=1), axis=0) for t in clips]
    speed = [np.linalg.norm(s, axis=-1) * t.rate_hz for s, t in zip(steps, clips, strict=True)]
    moving = np.concatenate(speed) > _MOVING
    if np.count_nonzero(moving) < _SAMPLE // 4:
        moving = np.ones(len(locked), dtype=bool)
    heights = locked[:, trunk, 2]
    middle = heights.mean(axis=1)
    usual = np.median(middle[moving])
    size = np.median(np.linalg.norm(np.ptp(locked[moving][:, trunk], axis=1), axis=-1))
    tilt = heights - middle[:, None]
    level = np.abs(tilt - np.median(tilt[moving], axis=0)).max(axis=1) < _TILT * size
    walking = moving & level & (np.abs(middle - usual) < _HEIGHT * usual)
    frames = np.flatnonzero(walking if np.count_nonzero(walking) >= _SAMPLE // 4 else moving)
    even = np.linspace(0, len(frames) - 1, min(_SAMPLE, len(frames))).round().astype(np.intp)
    indices = frames[np.unique(even)]
    return locked[indices], heading[indices]


def offset_jacobian(layout: MarkerLayout, rotation: Array, heading: Array, weight: Array) -> Array:
    """Derivative (T, 3M, P) of the residual f - (p + displacement) by the parameters.

    rotation: (T, B, 3, 3) of all bodies. heading: (T, M) [rad]. weight: (M,), as in the problem.
    """
    frames, count = heading.shape
    jacobian = np.zeros((frames, count, 3, len(layout.axis)))
    cos = np.cos(heading)
    sin = np.sin(heading)
    # the heading frame's x and y axes, in the world
    turned = np.zeros((frames, count, 2, 3))
    turned[:, :, 0, 0] = cos
    turned[:, :, 0, 1] = sin
    turned[:, :, 1, 0] = -sin
    turned[:, :, 1, 1] = cos
    for p, axis in enumerate(layout.axis):
        for m in np.flatnonzero(layout.sign[p]):
            if layout.footprint[m]:
                column = -turned[:, m, axis]
            elif layout.on_trunk[m]:
                column = rotation[:, 0, :, axis]
            else:
                column = rotation[:, layout.body[m]] @ layout.turn[m, :, axis]
            jacobian[:, m, :, p] = layout.sign[p, m] * column
    jacobian *= np.sqrt(weight)[:, None, None]
    return jacobian.reshape(frames, 3 * count, -1)


def offset_step(system: Linearized, jacobian: Array, theta: Array, pull: Array) -> Array:
    """The closed-form step (P,) of the parameters, jointly over all frames.

    Alternation converges slowly: fitted poses leave little residual. So the poses are eliminated
    from the joint normal equations (the Schur complement), which leaves a P x P system with the
    same minimum of eq. 8.

    theta, pull: (P,) the parameters and the weights of their squares per frame.
    """
    transposed = jacobian.transpose(0, 2, 1)
    # (T, V, P)
    cross = system.jacobian.transpose(0, 2, 1) @ jacobian
    right = np.concatenate((cross, system.gradient[..., None]), axis=-1)
    reduced = np.einsum("tvp,tvk->pk", cross, np.linalg.solve(system.hessian, right))
    hessian = np.einsum("tpr,trk->pk", transposed, jacobian) - reduced[:, :-1]
    gradient = np.einsum("tpr,tr->p", transposed, system.residual) - reduced[:, -1]
    hessian += len(jacobian) * np.diag(pull + _RIDGE)
    gradient += len(jacobian) * pull * theta
    return -np.linalg.solve(hessian, gradient)
