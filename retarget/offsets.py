"""The offsets' half of eq. 8: marker offsets from a sample of frames, jointly over clips of one skeleton."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mocap_data.arrays import Array
from retarget import pose
from retarget.markers import offset_jacobian, offset_step
from retarget.options import Options
from retarget.solver import Solver
from retarget.targets import Targets

_SAMPLE = 512  # frames from which the offsets are estimated, spread evenly over all clips
_MOVING = 0.15  # [m/s] slower trunks (sitting, lying) take no part, if enough faster frames exist
_HEIGHT = 0.12  # trunks further than this share from the usual height over the floor (jumping, crouching) neither
_TILT = 0.12  # nor those whose ends are further than this share of the trunk's length from their usual heights
_OUTLIER = 2.5  # times the median marker error: such frames are left out after the first rounds
_FIRST_ROUNDS = 2


def estimate(clips: Sequence[Targets], solver: Solver, options: Options) -> Array:
    """Parameters (P,) of the offsets: poses and offsets in turn over a sample of frames.

    The sample is of walking-like frames: moving, with the trunk at its usual height and tilt. An animal that sits,
    lies or jumps does so beside any robot's proportions; its frames would be fitted at the cost of the walks.
    """
    layout = solver.layout
    planted, heading = sample(clips, solver)
    theta = layout.initial()
    weight = solver.weights(options.weights)
    qpos: Array | None = None
    for k in range(options.rounds):
        problem = solver.problem(theta, solver.regularization(options), weight)
        goal = planted + layout.displacement(theta, heading)
        if qpos is None:
            qpos = pose.fit_root(problem.points, goal, problem.stand)
        qpos = pose.solve_poses(problem, goal, qpos, iterations=5, tolerance=1e-4, threads=1)
        bodies = pose.forward(problem.tree, qpos)
        if k == _FIRST_ROUNDS:
            error = np.square(pose.positions_of(problem.points, *bodies) - goal).sum(axis=(1, 2))
            good = np.flatnonzero(error <= _OUTLIER**2 * np.median(error))
            qpos, planted, heading, goal = qpos[good], planted[good], heading[good], goal[good]
            bodies = bodies[0][good], bodies[1][good]
        system = pose.linearize(problem, qpos, goal)
        jacobian = offset_jacobian(layout, bodies[1], heading, weight)
        step = offset_step(system, jacobian, theta - layout.initial(), layout.pull)
        theta = theta + step
        if np.abs(step).max() < 1e-5:
            break
    return theta


def sample(clips: Sequence[Targets], solver: Solver) -> tuple[Array, Array]:
    """Planted targets (S, M, 3) and headings (S, M) of frames spread over all clips, walking-like ones first."""
    trunk = solver.layout.on_trunk
    planted = np.concatenate([t.planted for t in clips])
    heading = np.concatenate([t.heading for t in clips])
    speed = np.concatenate(
        [np.linalg.norm(np.gradient(t.planted[:, trunk, :2].mean(axis=1), axis=0), axis=-1) * t.rate_hz for t in clips]
    )
    moving = speed > _MOVING
    if np.count_nonzero(moving) < _SAMPLE // 4:
        moving = np.ones(len(planted), dtype=bool)
    heights = planted[:, trunk, 2]
    middle = heights.mean(axis=1)
    usual = np.median(middle[moving])
    size = np.median(np.linalg.norm(np.ptp(planted[moving][:, trunk], axis=1), axis=-1))
    tilt = heights - middle[:, None]
    level = np.abs(tilt - np.median(tilt[moving], axis=0)).max(axis=1) < _TILT * size
    walking = moving & level & (np.abs(middle - usual) < _HEIGHT * usual)
    frames = np.flatnonzero(walking if np.count_nonzero(walking) >= _SAMPLE // 4 else moving)
    chosen = frames[np.unique(np.linspace(0, len(frames) - 1, min(_SAMPLE, len(frames))).round().astype(np.intp))]
    return planted[chosen], heading[chosen]
