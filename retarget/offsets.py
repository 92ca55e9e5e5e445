"""The offsets' half of eq. 8: marker offsets from a sample of frames, jointly over clips of one
skeleton."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mocap_data.arrays import Array
from retarget import inverse_kinematics, kinematics
from retarget.markers import offset_jacobian, offset_step
from retarget.options import Options
from retarget.prepared_robot import PreparedRobot
from retarget.targets import Targets

_SAMPLE = 512  # frames from which the offsets are estimated, spread evenly over all clips
_MOVING = 0.15  # [m/s] slower trunks (sitting, lying) take no part, if enough faster frames exist
# trunks further than this share from the usual height over the floor (jumping, crouching) neither
_HEIGHT = 0.12
# nor those whose ends are further than this share of the trunk's length from their usual heights
_TILT = 0.12
_OUTLIER = 2.5  # times the median marker error: such frames are left out after the first rounds
_FIRST_ROUNDS = 2


def estimate(clips: Sequence[Targets], prepared: PreparedRobot, options: Options) -> Array:
    """Parameters (P,) of the offsets: poses and offsets in turn over a sample of frames.

    The sample is of walking-like frames: moving, with the trunk at its usual height and tilt. An
    animal that sits, lies or jumps does so beside any robot's proportions; its frames would be
    fitted at the cost of the walks.
    """
    layout = prepared.layout
    locked, heading = sample(clips, prepared)
    theta = layout.initial()
    weight = prepared.weights(options.weights)
    qpos: Array | None = None
    for k in range(options.rounds):
        problem = prepared.problem(theta, prepared.regularization(options), weight)
        goal = locked + layout.displacement(theta, heading)
        if qpos is None:
            qpos = inverse_kinematics.fit_root(problem.points, goal, problem.stand)
        qpos = inverse_kinematics.solve_poses(
            problem, goal, qpos, iterations=5, tolerance=1e-4, threads=1
        )
        bodies = kinematics.forward(problem.tree, qpos)
        if k == _FIRST_ROUNDS:
            error = np.square(kinematics.positions_of(problem.points, *bodies) - goal).sum(
                axis=(1, 2)
            )
            good = np.flatnonzero(error <= _OUTLIER**2 * np.median(error))
            qpos, locked, heading, goal = qpos[good], locked[good], heading[good], goal[good]
            bodies = bodies[0][good], bodies[1][good]
        system = inverse_kinematics.linearize(problem, qpos, goal)
        jacobian = offset_jacobian(layout, bodies[1], heading, weight)
        step = offset_step(system, jacobian, theta - layout.initial(), layout.pull)
        theta = theta + step
        if np.abs(step).max() < 1e-5:
            break
    return theta


def sample(clips: Sequence[Targets], prepared: PreparedRobot) -> tuple[Array, Array]:
    """Planted targets (S, M, 3) and headings (S, M) of frames spread over all clips, walking-like
    ones first."""
    trunk = prepared.layout.on_trunk
    locked = np.concatenate([t.locked for t in clips])
    heading = np.concatenate([t.heading for t in clips])
    speed = np.concatenate(
        [
            np.linalg.norm(np.gradient(t.locked[:, trunk, :2].mean(axis=1), axis=0), axis=-1)
            * t.rate_hz
            for t in clips
        ]
    )
    moving = speed > _MOVING
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
    chosen = frames[
        np.unique(
            np.linspace(0, len(frames) - 1, min(_SAMPLE, len(frames))).round().astype(np.intp)
        )
    ]
    return locked[chosen], heading[chosen]
