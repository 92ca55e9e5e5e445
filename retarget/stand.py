"""Feet that stand: still, level, on the floor; the root moved little and smoothly, the legs by inverse kinematics.

Two ways in. `hold_feet` takes any motion of a robot with its stances and makes the standing feet stand. The
retargeting pipeline has its own goals for the feet and uses the parts: `put_feet` solves the limbs for
where contact points shall be on a given path of the root, and lifts the root where the legs cannot fold far
enough to keep the feet out of the floor.

Shapes: T frames, F feet, K contact points a foot, J joints. World frame, Z up, floor z = 0, metres.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from scipy.ndimage import gaussian_filter1d

from mocap_data import rotations
from mocap_data.arrays import Array
from retarget import ground, pose
from retarget.ground import Bools
from retarget.solver import Solver

SOLE_WEIGHT = 100.0  # of all contact points of a foot together, against 1 for a trunk marker
_SUNK = 0.001  # [m] deeper feet lift the trunk
_LIFT_TIME = 0.3  # [s] within which it rises
_LIFTS = 6
STEPS = 12  # of the solver for limbs on a given root, at most
_STILL = 2e-5  # [rad] smaller steps end it
_ROOT_TIME = 0.1  # [s] standard deviation of the window that the root's displacement is smoothed with
_KEEP = 1e-3  # [m^2 / rad^2] pull of the joints to where they were


def hold_feet(qpos: Array, contacts: Bools, rate_hz: float, solver: Solver) -> Array:
    """A motion (T, 7 + J) whose feet stand where `contacts` (T, F) says so: still, level, on the floor.

    Through each of its stances a foot keeps the mean place and heading that it had in them, its contact
    points all at the floor; the correction fades from one stance into the next, and no contact point goes
    below the floor. The root moves little and smoothly to let the legs reach; joints stay within their
    bounds; joints of limbs without feet stay as they are.
    """
    goal = stand_soles(solver.soles_at(qpos), contacts, solver.home_soles, solver.robot.foot_radius)
    moved = _follow(qpos, goal, rate_hz, solver)
    problem = _problem(solver, qpos, solver.soles, SOLE_WEIGHT / solver.points_per_foot)
    return put_feet(moved, replace(problem, hold_root=True), _flat(goal), rate_hz, solver)


def stand_soles(soles: Array, standing: Bools, home: Array, radius: float) -> Array:
    """Where contact points (T, F, K, 3) shall be: rigid feet, planted in their stances, nowhere below the floor.

    home: (F, K, 3) the points with the feet level, from which a foot's heading is counted. radius: of the
    contact spheres [m].
    """
    out = soles.copy()
    for foot in range(soles.shape[1]):
        out[:, foot] = _stand_sole(soles[:, foot], standing[:, foot], home[foot], radius)
    return out


def _stand_sole(sole: Array, standing: Bools, home: Array, radius: float) -> Array:
    level = home - home.mean(axis=0)
    level[:, 2] = 0.0
    middle = sole.mean(axis=1)
    stances = ground.runs(standing)
    if stances and len(home) > 2:
        turn = np.zeros((len(sole), 3))  # rotation vector that levels the foot, in the world
        attitude = _attitudes(sole - middle[:, None], level)
        for start, stop in stances:
            upright = _mean_heading(attitude[start:stop])
            turn[start:stop] = rotations.log(
                rotations.multiply(upright, rotations.conjugate(attitude[start:stop]))
            )
        turn = fade(turn, stances)
        quaternion = rotations.exp(turn)
        arms = rotations.rotate(quaternion[:, None], sole - middle[:, None])
    else:
        arms = sole - middle[:, None]
    shift = np.zeros((len(sole), 3))
    for start, stop in stances:
        held = middle[start:stop].mean(axis=0)
        held[2] = radius
        shift[start:stop] = held - middle[start:stop]
    if stances:
        shift = fade(shift, stances)
    out: Array = (middle + shift)[:, None] + arms
    out[..., 2] += np.maximum(0.0, radius - out[..., 2].min(axis=1))[:, None]
    return out


def fade(correction: Array, stances: list[tuple[int, int]]) -> Array:
    """`correction` (T, K), known in the stances, faded by a smooth step from each into the next; ends are kept."""
    out = correction.copy()
    out[: stances[0][0]] = out[stances[0][0]]
    out[stances[-1][1] :] = out[stances[-1][1] - 1]
    for (_, leave), (land, _) in pairwise(stances):
        share = np.arange(1, land - leave + 1) / (land - leave + 1)
        rise = (share * share * (3.0 - 2.0 * share))[:, None]
        out[leave:land] = (1.0 - rise) * out[leave - 1] + rise * out[land]
    return out


def _attitudes(arms: Array, level: Array) -> Array:
    """Quaternions (T, 4) that turn `level` (K, 3) best into `arms` (T, K, 3)."""
    extra = np.zeros((1, 3))  # flat points leave a mirror image open: their normal tells
    a, b = _two_arms(level)
    extra[0] = np.cross(level[a], level[b])
    normal = np.cross(arms[:, a], arms[:, b])[:, None]
    size = np.linalg.norm(extra)
    local = np.concatenate((level, extra / np.sqrt(size)))
    world = np.concatenate((arms, normal / np.sqrt(size)), axis=1)
    left, _, right = np.linalg.svd(np.einsum("mi,tmj->tij", local, world))
    right[:, 2] *= np.linalg.det(left @ right)[:, None]
    return rotations.make_continuous(rotations.from_matrix((left @ right).transpose(0, 2, 1)))


def _two_arms(level: Array) -> tuple[int, int]:
    pairs = [(a, b) for a in range(len(level)) for b in range(a)]
    return max(pairs, key=lambda pair: float(np.linalg.norm(np.cross(level[pair[0]], level[pair[1]]))))


def _mean_heading(attitude: Array) -> Array:
    """The rotation about z (4,) nearest to attitudes (T, 4) on the whole."""
    w, z = attitude[:, 0], attitude[:, 3]
    # twice the heading's half angle, so that q and -q agree
    yaw = np.arctan2((2.0 * w * z).sum(), (w * w - z * z).sum())
    return rotations.from_axis_angle(np.array([0.0, 0.0, 1.0]), float(yaw))


def _problem(solver: Solver, qpos: Array, points: pose.Points, weight: float) -> pose.Problem:
    robot = solver.robot
    each = np.full(len(points.body), weight)
    return pose.Problem(
        solver.tree, points, qpos[:, 7:], robot.joint_lower, robot.joint_upper, _KEEP, weight=each
    )


def _flat(soles: Array) -> Array:
    return soles.reshape(len(soles), -1, 3)


def _follow(qpos: Array, goal: Array, rate_hz: float, solver: Solver) -> Array:
    """The motion with its root displaced, smoothly, towards where the legs reach the goal (T, F, K, 3) at ease."""
    size = float(np.ptp(solver.home_soles.reshape(-1, 3), axis=0).max()) + solver.robot.home_qpos[2]
    corners = 0.5 * size * np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]], dtype=np.float64)
    points = pose.Points(
        np.concatenate((np.zeros(4, dtype=np.intp), solver.soles.body)),
        np.concatenate((corners, solver.soles.local)),
    )
    keep = qpos[:, None, :3] + rotations.rotate(qpos[:, None, 3:7], corners)
    problem = _problem(solver, qpos, points, SOLE_WEIGHT / solver.points_per_foot)
    assert problem.weight is not None
    problem.weight[:4] = 0.25
    solved = pose.solve_poses(problem, np.concatenate((keep, _flat(goal)), axis=1), qpos, tolerance=1e-4)
    out = qpos.copy()
    out[:, :3] += smooth(solved[:, :3] - qpos[:, :3], rate_hz)
    turn = rotations.log(rotations.multiply(solved[:, 3:7], rotations.conjugate(qpos[:, 3:7])))
    out[:, 3:7] = rotations.multiply(rotations.exp(smooth(turn, rate_hz)), qpos[:, 3:7])
    out[:, 3:7] = rotations.normalize(out[:, 3:7])
    out[:, 7:] = solved[:, 7:]
    return out


def smooth(values: Array, rate_hz: float) -> Array:
    """`values` (T, K) averaged over a moment, without lag."""
    return np.asarray(gaussian_filter1d(values, _ROOT_TIME * rate_hz, axis=0, mode="nearest"))


def put_feet(
    qpos: Array,
    problem: pose.Problem,
    goal: Array,
    rate_hz: float,
    solver: Solver,
    *,
    pieces: Sequence[slice] = (slice(None),),
    iterations: int = 30,
    threads: int | None = None,
) -> Array:
    """Poses (T, 7 + J) with the limbs solved for `goal` (T, M, 3) of a problem that holds the root.

    Legs that cannot fold as far as the goals ask (an animal that sits) would push their feet into the floor, one
    that lies its belly: there the root is carried higher, smoothly. Feet at their bounds follow only in part,
    hence some rounds. pieces: the tracks that the frames are of.
    """
    # Where a leg cannot reach, the iteration creeps along its bounds; a few steps are as good as many.
    steps = min(iterations, STEPS)
    qpos = pose.solve_poses(problem, goal, qpos, iterations=steps, tolerance=_STILL, threads=threads)
    for _ in range(_LIFTS):
        depth = solver.depth(qpos)
        if depth.max() <= _SUNK:
            break
        moved = lift(qpos, depth - 0.5 * _SUNK, rate_hz, pieces)
        qpos[moved] = pose.solve_poses(
            problem.of(moved), goal[moved], qpos[moved], iterations=steps, tolerance=_STILL, threads=threads
        )
    return qpos


def lift(qpos: Array, depth: Array, rate_hz: float, pieces: Sequence[slice]) -> pose.Index:
    """Carry roots (T, 7 + J), in place, smoothly higher where something is `depth` (T,) [m] below the floor.

    Returns the indices of the frames that moved.
    """
    rise = np.zeros(len(qpos))
    for piece in pieces:
        if depth[piece].max() > 0.0:
            rise[piece] = ground.envelope(np.maximum(depth[piece], 0.0), round(_LIFT_TIME * rate_hz))
    qpos[:, 2] += rise
    return np.flatnonzero(rise > 1e-6)
