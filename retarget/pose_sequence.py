"""The poses' half of eq. 8 for a whole track, and what eq. 8 does not know: time, floors and speed
limits.

1. eq. 8, every frame for itself (`inverse_kinematics.solve_track`)
2. the root's path is smoothed
3. limbs are solved anew on that path, standing feet heavily weighted (`foot_locking.put_feet`)
4. joints that would turn faster than their drives can are slowed down (`limit_speed`)
5. flat feet are settled, all frames together (`trajectory_optimization.settle`): a slowed joint of
   the leg tilts its sole
Shapes: T frames, M markers, J joints, F feet with K contact points each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from retarget import foot_locking, ground, inverse_kinematics, kinematics, legs
from retarget.options import Options
from retarget.prepared_robot import PreparedRobot
from retarget.targets import Targets, low_pass
from retarget.trajectory_optimization import Track, settle

_SUNK = 0.002  # [m] feet that slow legs drag deeper are lifted
_RAISES = 4
_RAISE_TIME = 0.1  # [s] within which they are
_TOGETHER = 8192  # frames of soles settled together at most: 70 kB of memory each
_FAR = 1e6  # [rad] for no bound
_TOUCH = 0.0005  # [m] arms deeper in other parts give way
_GIVE_WAYS = 5  # steps in which they do
_GIVE_TIME = 0.25  # [s] within which they do
_ROUGH = (
    # [m or rad] a Gauss-Newton step this small leaves an error far below it; the root is smoothed
    # right after
    1e-4
)


def solve(
    goals: Sequence[Array],
    tracks: Sequence[Targets],
    theta: Array,
    prepared: PreparedRobot,
    options: Options,
) -> list[Array]:
    """Poses (T, 7 + J) of each track for its marker goals (T, M, 3), its targets with the offsets
    applied.

    The tracks, all of one rate, are solved together: one batch of frames.
    """
    robot, layout, rate = prepared.robot, prepared.layout, tracks[0].rate_hz
    edges = np.cumsum([0, *(len(goal) for goal in goals)])
    pieces = [slice(int(a), int(b)) for a, b in pairwise(edges)]
    goal = np.concatenate(goals)
    weight = prepared.weights(options.weights)
    problem = prepared.problem(theta, prepared.regularization(options), weight)
    others = np.flatnonzero(~layout.on_foot)
    starts = [piece.start for piece in pieces]
    together = _joined(problem, prepared, others, weight, options.foot_weight)
    if prepared.points_per_foot >= 3:
        qpos = inverse_kinematics.solve_track(
            problem, goal, iterations=options.iterations, tolerance=_ROUGH, starts=starts
        )
        soles = prepared.soles_at(qpos)
        for piece, track in zip(pieces, tracks, strict=True):
            standing = track.standing if options.lock_feet else np.zeros_like(track.standing)
            soles[piece] = foot_locking.stand_soles(
                soles[piece], standing, prepared.home_soles, robot.foot_radius
            )
        whole = _beside(goal[:, others], soles)
        qpos = inverse_kinematics.solve_poses(
            together, whole, qpos, iterations=options.iterations, tolerance=_ROUGH
        )
    else:
        columns = [foot[0] for foot in prepared.foot_markers]
        rise = robot.foot_radius - prepared.sole_height
        soles = np.repeat(
            (goal[:, columns] + [0.0, 0.0, rise])[:, :, None], prepared.points_per_foot, axis=2
        )
        whole = _beside(goal[:, others], soles)
        qpos = inverse_kinematics.solve_track(
            together, whole, iterations=options.iterations, tolerance=_ROUGH, starts=starts
        )
    # Eq. 8 knows no time: where the trunk's markers say little (its roll), the legs' regularizer
    # shakes it at every step. So the root's path is smoothed, and the limbs put their ends where
    # they belong on it.
    for piece in pieces:
        qpos[piece, :7] = smooth_root(qpos[piece, :7], rate, options.root_cutoff_hz)
    limbs = np.flatnonzero(~layout.on_foot & ~layout.on_trunk)
    held = replace(_joined(problem, prepared, limbs, weight, options.foot_weight), hold_root=True)
    limb_goal = _beside(goal[:, limbs], soles)
    qpos = foot_locking.put_feet(
        qpos, held, limb_goal, rate, prepared, pieces=pieces, iterations=options.iterations
    )
    most = np.full(len(robot.joint_names), np.inf)
    if options.joint_speed_share is not None:
        most = options.joint_speed_share * robot.velocity_limit / rate
        qpos = _slow_down(qpos, most, held, limb_goal, tracks, pieces, prepared)
    if prepared.points_per_foot >= 3 and options.lock_feet:
        return [
            _settled(qpos[piece], track.standing, most, prepared)
            for piece, track in zip(pieces, tracks, strict=True)
        ]
    return [qpos[piece] for piece in pieces]


def _settled(qpos: Array, standing: ground.Bools, most: Array, prepared: PreparedRobot) -> Array:
    """Poses (T, 7 + J) of a robot with soles that stand flat where `standing` (T, F) says so and
    its legs reach the floor."""
    stands = standing & prepared.on_floor(qpos)
    held = np.repeat(stands[..., None], prepared.points_per_foot, axis=2)
    if set(legs.LEG_MARKERS) <= set(prepared.robot.markers):
        points, vectors = legs.leg_points(prepared.robot), legs.SEGMENTS
    else:  # then the joints alone say where the legs point
        points, vectors = (
            kinematics.Points(np.zeros(0, dtype=np.intp), np.zeros((0, 3))),
            np.zeros((0, 2), dtype=np.intp),
        )
    free, edges = np.zeros(stands.shape), still_frames(qpos, _TOGETHER)
    parts = [slice(a, b) for a, b in pairwise(edges)]
    return np.concatenate(
        [
            settle(Track(prepared, qpos[p], stands[p], held[p], free[p], points, vectors, most))
            for p in parts
        ]
    )


def still_frames(qpos: Array, longest: int) -> list[int]:
    """Where to cut a motion (T, 7 + J) into parts of at most `longest` frames: [0, ..., T], where
    joints move least."""
    edges = [0]
    while len(qpos) - edges[-1] > longest:
        half = edges[-1] + longest // 2
        change = np.abs(np.diff(qpos[half : edges[-1] + longest, 7:], axis=0)).max(axis=1)
        edges.append(half + 1 + int(np.argmin(change)))
    return [*edges, len(qpos)]


def _slow_down(
    qpos: Array,
    most: Array,
    held: inverse_kinematics.Problem,
    goal: Array,
    tracks: Sequence[Targets],
    pieces: Sequence[slice],
    prepared: PreparedRobot,
) -> Array:
    """Poses (T, 7 + J) whose joints change by at most `most` (J,) [rad] a frame; those of standing
    legs stay if they can.

    held, goal: the limbs' problem and its targets (T, M, 3), contact points last. A leg that cannot
    be lifted as fast as the animal's would drag its foot through the floor; the foot is lifted
    further there, and slowed anew.
    """
    robot, rate = prepared.robot, tracks[0].rate_hz
    standing = np.concatenate([track.standing for track in tracks])
    keep: ground.Bools = np.any(standing[:, :, None] & prepared.carries, axis=1)

    def slowed(poses: Array) -> Array:
        out = poses.copy()
        for piece in pieces:
            out[piece, 7:] = limit_speed(poses[piece, 7:], most, keep[piece])
        out[:, 7:] = np.clip(out[:, 7:], robot.joint_lower, robot.joint_upper)  # against rounding
        return out

    out, goal = slowed(qpos), goal.copy()
    soles = goal[:, goal.shape[1] - len(prepared.soles.body) :].reshape(
        len(goal), -1, prepared.points_per_foot, 3
    )
    for _ in range(_RAISES):
        depth = robot.foot_radius - prepared.soles_at(out)[..., 2].min(axis=2)  # (T, F)
        if depth.max() <= _SUNK:
            break
        raised = np.zeros_like(depth)
        for piece in pieces:
            for foot in np.flatnonzero(depth[piece].max(axis=0) > _SUNK):
                deep = np.maximum(depth[piece, foot], 0.0)
                raised[piece, foot] = ground.envelope(deep, round(_RAISE_TIME * rate))
        soles[..., 2] += np.where(standing, 0.0, raised)[:, :, None]
        moved = np.flatnonzero(raised.max(axis=1) > 1e-6)
        qpos[moved] = inverse_kinematics.solve_poses(
            held.of(moved), goal[moved], qpos[moved], iterations=foot_locking.STEPS
        )
        out = slowed(qpos)
    foot_locking.lift(out, prepared.depth(out) - _SUNK, rate, pieces)
    return out


def free_arms(
    qpos: Array,
    depth_of: Callable[[Array], Array],
    rate_hz: float,
    prepared: PreparedRobot,
    most: Array | None,
) -> Array:
    """Poses (T, 7 + J) whose arms give way, towards home and smoothly, where they are in the
    robot's other parts.

    depth_of: how deep the robot is in itself (T,) [m] at poses. most: (J,) [rad] that joints may
    change by a frame. Arms are the limbs without feet; a person's hang closer to the body than a
    robot's can. Collisions of legs stay.
    """
    arms = prepared.arms
    if not arms:
        return qpos
    depth = depth_of(qpos)
    hit = np.flatnonzero(depth > _TOUCH)
    if not len(hit):
        return qpos
    home, shares = prepared.robot.home_joints, np.zeros((len(arms), len(qpos)))
    guilty = []
    for arm in arms:  # those that are free of the rest, or freer, with this arm at home
        away = qpos[hit].copy()
        away[:, 7 + arm] = home[arm]
        guilty.append(hit[depth_of(away) < depth[hit] - 0.5 * _TOUCH])
    out = qpos.copy()
    for _ in range(_GIVE_WAYS):
        for arm, frames, share in zip(arms, guilty, shares, strict=True):
            if len(frames):
                more = np.zeros(len(qpos))
                more[frames] = share[frames] + 1.0 / _GIVE_WAYS
                wide = np.minimum(ground.envelope(more, round(_GIVE_TIME * rate_hz)), 1.0)
                share[:] = np.maximum(share, wide)
                columns = 7 + arm
                out[:, columns] = qpos[:, columns] + share[:, None] * (home[arm] - qpos[:, columns])
        still = np.zeros(len(qpos), dtype=bool)
        still[hit] = depth_of(out[hit]) > _TOUCH
        guilty = [frames[still[frames]] for frames in guilty]
        if not still.any():
            break
    if most is not None:
        for arm in arms:
            out[:, 7 + arm] = limit_speed(out[:, 7 + arm], most[arm])
    return out


def _joined(
    problem: inverse_kinematics.Problem,
    prepared: PreparedRobot,
    markers: kinematics.Index,
    weight: Array,
    foot_weight: float,
) -> inverse_kinematics.Problem:
    """The problem of some markers, weighed as they are, and of the feet's contact points, each foot
    with `foot_weight`."""
    count = prepared.points_per_foot
    points = kinematics.Points(
        np.concatenate((problem.points.body[markers], prepared.soles.body)),
        np.concatenate((problem.points.local[markers], prepared.soles.local)),
    )
    soles = np.full(len(prepared.soles.body), foot_weight / count)
    return replace(problem, points=points, weight=np.concatenate((weight[markers], soles)))


def _beside(markers: Array, soles: Array) -> Array:
    """Goals (T, M + F K, 3) of markers (T, M, 3) and contact points (T, F, K, 3)."""
    return np.concatenate((markers, soles.reshape(len(soles), -1, 3)), axis=1)


def smooth_root(root: Array, rate_hz: float, cutoff_hz: float | None) -> Array:
    """Root positions and quaternions (T, 7), low-passed."""
    continuous = np.concatenate((root[:, :3], rotations.make_continuous(root[:, 3:7])), axis=1)
    out = low_pass(continuous, rate_hz, cutoff_hz)
    out[:, 3:7] = rotations.normalize(out[:, 3:7])
    return out


def limit_speed(joints: Array, most: Array, keep: ground.Bools | None = None) -> Array:
    """Joint angles (T, J) that change by at most `most` (J,) from frame to frame, as near to the
    given as can be.

    The mean of the lowest such curve above the angles and the highest below them: of all curves
    that slow, the one whose largest distance from the angles is least. It stays within the angles'
    range, so within their bounds, and is the angles themselves where they are slow enough.

    keep: (T, J) angles that stay, if they are slow enough among themselves: the others give way to
    them.
    """
    if not (np.abs(np.diff(joints, axis=0)) > most).any():
        return joints
    ramp = np.arange(len(joints))[:, None] * most
    if keep is not None:
        lower = _above(np.where(keep, joints, -np.inf), ramp)
        upper = -_above(np.where(keep, -joints, -np.inf), ramp)
        # Where those that stay are too fast among themselves the two cross, and the middle treats
        # them alike.
        middle = 0.5 * (np.maximum(lower, -_FAR) + np.minimum(upper, _FAR))
        joints = np.where(
            lower <= upper, np.clip(joints, lower, upper), np.where(keep, joints, middle)
        )
    return np.asarray(0.5 * (_above(joints, ramp) - _above(-joints, ramp)))


def _above(values: Array, ramp: Array) -> Array:
    """The lowest curves (T, J) nowhere below `values` that climb and fall no faster than `ramp` (T,
    J)."""
    forth = np.maximum.accumulate(values + ramp, axis=0) - ramp
    back = np.maximum.accumulate((values - ramp)[::-1], axis=0)[::-1] + ramp
    return np.asarray(np.maximum(forth, back))
