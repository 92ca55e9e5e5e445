"""Pose sequences: eq. 8 with time, the floor and speed limits.

1. eq. 8, frame by frame (`inverse_kinematics.solve_track`)
2. smoothing of the root's path
3. limbs on that path, standing feet with a high weight
4. joints within their speed limits (`limit_speed`)
5. flat feet: all frames together (`trajectory_optimization`), as a slowed joint tilts the sole
Shapes: T frames, M markers, J joints, F feet with K contact points each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array, Bools
from retarget import leg_orientation
from retarget.foot_locking import stand_soles
from retarget.ground import envelope
from retarget.inverse_kinematics import Problem, solve_poses, solve_track
from retarget.kinematics import Index, Points
from retarget.options import ROOT_CUTOFF_HZ, SPEED_SHARE
from retarget.prepared_robot import PreparedRobot
from retarget.targets import Targets, low_pass
from retarget.trajectory_optimization import Track, optimize

# weight of a foot in the final poses; 1 in eq. 8, which determines the offsets
_FOOT_WEIGHT = 100.0
# largest number of steps of inverse kinematics for limbs, and step size [rad] that ends it
_STEPS = 12
_STILL = 2e-5
# [m] deeper feet lift the trunk, within this time [s]
_DEEP = 0.001
_LIFT_TIME = 0.3
_LIFTS = 6
# [m] feet that slowed legs drag deeper are lifted
_SUNK = 0.002
_RAISES = 4
# [s] within this time
_RAISE_TIME = 0.1
# frames of soles solved together at most: 70 kB of memory each
_TOGETHER = 8192
# [rad] for no bound
_FAR = 1e6
# [m] arms deeper in other parts move away
_TOUCH = 0.0005
# steps of it
_GIVE_WAYS = 5
# [s] within this time
_GIVE_TIME = 0.25
# [m or rad] the root is smoothed right after
_ROUGH = 1e-4


def solve(
    goals: Sequence[Array], tracks: Sequence[Targets], theta: Array, prepared: PreparedRobot
) -> list[Array]:
    """Poses (T, 7 + J) of each track for its marker goals (T, M, 3), targets plus offsets.

    The tracks, all of one rate, are solved together: one batch of frames.
    """
    robot = prepared.robot
    layout = prepared.layout
    rate = tracks[0].rate_hz
    edges = np.cumsum([0, *(len(goal) for goal in goals)])
    pieces = [slice(int(a), int(b)) for a, b in pairwise(edges)]
    starts = [piece.start for piece in pieces]
    goal = np.concatenate(goals)
    problem = prepared.problem(theta)
    body_markers = np.flatnonzero(~layout.on_foot)
    with_soles = _with_soles(problem, prepared, body_markers)
    if prepared.flat_feet:
        qpos = solve_track(problem, goal, tolerance=_ROUGH, starts=starts)
        soles = prepared.soles_at(qpos)
        for piece, track in zip(pieces, tracks, strict=True):
            soles[piece] = stand_soles(
                soles[piece], track.standing, prepared.home_soles, robot.foot_radius
            )
        all_goals = _concatenated(goal[:, body_markers], soles)
        qpos = solve_poses(with_soles, all_goals, qpos, tolerance=_ROUGH)
    else:
        columns = [foot[0] for foot in prepared.foot_markers]
        rise = robot.foot_radius - prepared.sole_height
        feet = (goal[:, columns] + [0.0, 0.0, rise])[:, :, None]
        soles = np.repeat(feet, prepared.points_per_foot, axis=2)
        all_goals = _concatenated(goal[:, body_markers], soles)
        qpos = solve_track(with_soles, all_goals, tolerance=_ROUGH, starts=starts)
    # the legs' regularizer disturbs a rotation that the trunk's markers hardly determine (its roll)
    for piece in pieces:
        qpos[piece, 3:7] = rotations.make_continuous(qpos[piece, 3:7])
        qpos[piece, :7] = low_pass(qpos[piece, :7], rate, ROOT_CUTOFF_HZ)
        qpos[piece, 3:7] = rotations.normalize(qpos[piece, 3:7])
    limbs = np.flatnonzero(~layout.on_foot & ~layout.on_trunk)
    on_root = replace(_with_soles(problem, prepared, limbs), hold_root=True)
    limb_goal = _concatenated(goal[:, limbs], soles)
    # legs out of reach converge slowly along their bounds; a few steps suffice
    solve_limbs = partial(solve_poses, iterations=_STEPS, tolerance=_STILL)
    qpos = solve_limbs(on_root, limb_goal, qpos)
    # lift the root smoothly where feet or belly are in the floor, in rounds: feet at their bounds
    # follow only in part
    for _ in range(_LIFTS):
        depth = prepared.depth(qpos)
        if depth.max() <= _DEEP:
            break
        moved = _lift(qpos, depth - 0.5 * _DEEP, rate, pieces)
        qpos[moved] = solve_limbs(on_root.select(moved), limb_goal[moved], qpos[moved])
    most = SPEED_SHARE * robot.velocity_limit / rate
    qpos = _slow_down(qpos, most, on_root, limb_goal, tracks, pieces, prepared)
    if prepared.flat_feet:
        return [
            _flattened(qpos[piece], track.standing, most, prepared)
            for piece, track in zip(pieces, tracks, strict=True)
        ]
    return [qpos[piece] for piece in pieces]


def _flattened(qpos: Array, standing: Bools, most: Array, prepared: PreparedRobot) -> Array:
    """Poses (T, 7 + J) with soles flat where `standing` (T, F) and the legs reach the floor."""
    stands = standing & prepared.on_floor(qpos)
    points = prepared.soles.select(np.zeros(0, dtype=np.intp))
    vectors = leg_orientation.SEGMENTS[:0]
    # without these markers only the joints determine the legs' directions
    if set(leg_orientation.LEG_MARKERS) <= set(prepared.robot.markers):
        points = leg_orientation.leg_points(prepared.robot)
        vectors = leg_orientation.SEGMENTS
    parts = [slice(a, b) for a, b in pairwise(still_frames(qpos, _TOGETHER))]
    tracks = (Track(prepared, qpos[p], stands[p], points, vectors, most) for p in parts)
    return np.concatenate([optimize(track) for track in tracks])


def still_frames(qpos: Array, longest: int) -> list[int]:
    """Edges [0, ..., T] of parts of at most `longest` frames, where joints move least."""
    edges = [0]
    while len(qpos) - edges[-1] > longest:
        half = edges[-1] + longest // 2
        change = np.abs(np.diff(qpos[half : edges[-1] + longest, 7:], axis=0)).max(axis=1)
        edges.append(half + 1 + int(np.argmin(change)))
    return [*edges, len(qpos)]


def _slow_down(
    qpos: Array,
    most: Array,
    on_root: Problem,
    goal: Array,
    tracks: Sequence[Targets],
    pieces: Sequence[slice],
    prepared: PreparedRobot,
) -> Array:
    """Poses (T, 7 + J) whose joints change by at most `most` (J,) [rad] a frame.

    on_root, goal: the limbs' problem and its targets (T, M, 3), contact points last. Joints of
    standing legs stay if possible. A slowed leg would drag its foot through the floor; the foot is
    lifted there, and slowed again.
    """
    robot = prepared.robot
    rate = tracks[0].rate_hz
    standing = np.concatenate([track.standing for track in tracks])
    keep: Bools = np.any(standing[:, :, None] & prepared.carries, axis=1)

    def slow(poses: Array) -> Array:
        out = poses.copy()
        for piece in pieces:
            out[piece, 7:] = limit_speed(poses[piece, 7:], most, keep[piece])
        # against rounding
        out[:, 7:] = np.clip(out[:, 7:], robot.joint_lower, robot.joint_upper)
        return out

    out = slow(qpos)
    goal = goal.copy()
    points = len(prepared.soles.body)
    soles = goal[:, -points:].reshape(len(goal), -1, prepared.points_per_foot, 3)
    for _ in range(_RAISES):
        # (T, F)
        depth = robot.foot_radius - prepared.soles_at(out)[..., 2].min(axis=2)
        if depth.max() <= _SUNK:
            break
        raised = np.zeros_like(depth)
        for piece in pieces:
            for foot in np.flatnonzero(depth[piece].max(axis=0) > _SUNK):
                deep = np.maximum(depth[piece, foot], 0.0)
                raised[piece, foot] = envelope(deep, round(_RAISE_TIME * rate))
        soles[..., 2] += np.where(standing, 0.0, raised)[:, :, None]
        moved = np.flatnonzero(raised.max(axis=1) > 1e-6)
        qpos[moved] = solve_poses(
            on_root.select(moved), goal[moved], qpos[moved], iterations=_STEPS
        )
        out = slow(qpos)
    _lift(out, prepared.depth(out) - _SUNK, rate, pieces)
    return out


def _lift(qpos: Array, depth: Array, rate_hz: float, pieces: Sequence[slice]) -> Index:
    """Lift roots (T, 7 + J), in place, smoothly by `depth` (T,) [m]; the moved frames."""
    rise = np.zeros(len(qpos))
    for piece in pieces:
        if depth[piece].max() > 0.0:
            sunk = np.maximum(depth[piece], 0.0)
            rise[piece] = envelope(sunk, round(_LIFT_TIME * rate_hz))
    qpos[:, 2] += rise
    return np.flatnonzero(rise > 1e-6)


def free_arms(
    qpos: Array, depth_of: Callable[[Array], Array], rate_hz: float, prepared: PreparedRobot
) -> Array:
    """Poses (T, 7 + J) whose arms move towards home where they collide with the robot.

    depth_of: self-collision depth (T,) [m] of poses. Arms are the limbs without feet; collisions of
    legs are not changed.
    """
    arms = prepared.arms
    depth = depth_of(qpos)
    hit = np.flatnonzero(depth > _TOUCH)
    if not len(hit):
        return qpos
    home = prepared.robot.home_joints
    shares = np.zeros((len(arms), len(qpos)))
    # frames of each arm with less depth if this arm is at home
    colliding = []
    for arm in arms:
        away = qpos[hit].copy()
        away[:, 7 + arm] = home[arm]
        colliding.append(hit[depth_of(away) < depth[hit] - 0.5 * _TOUCH])
    out = qpos.copy()
    for _ in range(_GIVE_WAYS):
        for arm, frames, share in zip(arms, colliding, shares, strict=True):
            if len(frames):
                more = np.zeros(len(qpos))
                more[frames] = share[frames] + 1.0 / _GIVE_WAYS
                wide = np.minimum(envelope(more, round(_GIVE_TIME * rate_hz)), 1.0)
                share[:] = np.maximum(share, wide)
                joints = qpos[:, 7 + arm]
                out[:, 7 + arm] = joints + share[:, None] * (home[arm] - joints)
        still = np.zeros(len(qpos), dtype=bool)
        still[hit] = depth_of(out[hit]) > _TOUCH
        colliding = [frames[still[frames]] for frames in colliding]
        if not still.any():
            break
    most = SPEED_SHARE * prepared.robot.velocity_limit / rate_hz
    for arm in arms:
        out[:, 7 + arm] = limit_speed(out[:, 7 + arm], most[arm])
    return out


def _with_soles(problem: Problem, prepared: PreparedRobot, markers: Index) -> Problem:
    """The problem of some markers and of the feet's contact points, each foot of `_FOOT_WEIGHT`."""
    points: Points = problem.points.select(markers) + prepared.soles
    soles = np.full(len(prepared.soles.body), _FOOT_WEIGHT / prepared.points_per_foot)
    weight = np.concatenate((problem.weight[markers], soles))
    return replace(problem, points=points, weight=weight)


def _concatenated(markers: Array, soles: Array) -> Array:
    """Goals (T, M + F K, 3) of markers (T, M, 3) and contact points (T, F, K, 3)."""
    return np.concatenate((markers, soles.reshape(len(soles), -1, 3)), axis=1)


def limit_speed(joints: Array, most: Array, keep: Bools | None = None) -> Array:
    """Joint angles (T, J) that change by at most `most` (J,) a frame, as near as possible.

    The mean of the lowest such curve above the angles and the highest below them, which has the
    least largest distance from the angles.

    keep: (T, J) angles to preserve, if they satisfy the limit themselves.
    """
    if not (np.abs(np.diff(joints, axis=0)) > most).any():
        return joints
    ramp = np.arange(len(joints))[:, None] * most
    if keep is not None:
        lower = _above(np.where(keep, joints, -np.inf), ramp)
        upper = -_above(np.where(keep, -joints, -np.inf), ramp)
        # the bounds cross where preserved angles exceed the limit: use the middle
        middle = 0.5 * (np.maximum(lower, -_FAR) + np.minimum(upper, _FAR))
        crossed = np.where(keep, joints, middle)
        joints = np.where(lower <= upper, np.clip(joints, lower, upper), crossed)
    return np.asarray(0.5 * (_above(joints, ramp) - _above(-joints, ramp)))


def _above(values: Array, ramp: Array) -> Array:
    """The lowest curves (T, J) above `values` that climb and fall no faster than `ramp` (T, J)."""
    forth = np.maximum.accumulate(values + ramp, axis=0) - ramp
    back = np.maximum.accumulate((values - ramp)[::-1], axis=0)[::-1] + ramp
    return np.asarray(np.maximum(forth, back))
