"""A motion of flat ground laid over other ground, at its own pace.

footfalls  each stance is moved along x until it is on level ground, then up to it
swings     the recorded path, lifted over the highest ground on its way
root       moved with the feet and pitched along them, both low-passed; lowered where a leg is too
           short
poses      the recorded joints, changed until the feet are at their places

On level ground the result is the motion itself. Shapes: T frames, F feet, J joints. World, Z up,
metres.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
from scipy.ndimage import maximum_filter1d, uniform_filter1d

from mocap_data import rotations
from mocap_data.arrays import Array, Bools
from mocap_data.errors import InputError
from mocap_data.ground_profile import GroundProfile
from mocap_data.motion import ReferenceMotion
from retarget.ground import fade, runs
from retarget.inverse_kinematics import solve_poses
from retarget.prepared_robot import PreparedRobot
from retarget.quality import FOOT_ERROR
from retarget.targets import low_pass

# [m] level ground around the sole of a standing foot
_EDGE_M = 0.02
# [m] longest displacement of a footfall along x, half of the widest gap and a foot's margin; and
# the step of its search
_MOST_M = 0.25
_STEP_M = 0.0025
# [m] ground within it is level
_LEVEL_M = 0.001
# [m] height of a swinging foot over the ground, where this is uneven
_CLEARANCE_M = 0.025
# share of a swing in which a foot gains and loses this height
_RAMP = 0.25
# weights of the frames in the smoothed lift of a swing
_SMOOTH = np.array([1.0, 2.0, 3.0, 2.0, 1.0]) / 9.0
# [Hz] low-pass of the root's displacement and pitch
_ROOT_HZ = 1.0
# [m] height of a foot above its place for which the root is not lowered
_SHORT_M = 0.003
# [s] half of the time over which the root is lowered and raised
_LOWERING_S = 0.3
# a leg that is still too short afterwards stays so, and cleaning drops its frames
_LOWERINGS = 2
# weight of the feet against the recorded joints
_FOOT_WEIGHT = 100.0


def over_ground(
    motion: ReferenceMotion, ground: GroundProfile, prepared: PreparedRobot
) -> ReferenceMotion:
    """The motion over `ground`; its figures of quality are not computed anew.

    The figure of frames `FOOT_ERROR` is the largest distance of a foot from its place, or, where it
    stands, from the ground [m]. Places out of reach are not reached, and there can be a stance
    without level ground near it.

    Raises:
      InputError: a robot with soles, a motion without contacts, or one over other ground already.
    """
    if prepared.points_per_foot > 1:
        raise InputError(f"robot {prepared.robot.name!r} has soles; uneven ground needs round feet")
    if motion.contacts is None or motion.ground is not None:
        raise InputError(f"motion {motion.name!r}: expected one on flat ground with its contacts")
    radius = prepared.robot.foot_radius
    feet = prepared.soles_at(motion.qpos)[:, :, 0]
    goal, heights = foot_places(feet, motion.contacts, ground, radius)

    start = _moved_root(motion, goal - feet, heights, prepared)
    problem = replace(
        prepared.problem(prepared.layout.initial()),
        points=prepared.soles,
        stand=motion.qpos[:, 7:],
        weight=np.full(len(prepared.soles.body), _FOOT_WEIGHT),
        hold_root=True,
    )
    qpos = solve_poses(problem, goal, start)
    feet = prepared.soles_at(qpos)[:, :, 0]
    for _ in range(_LOWERINGS):
        short = (feet - goal)[..., 2].max(axis=1) - _SHORT_M
        if short.max() <= 0.0:
            break
        start[:, 2] -= _smooth_maximum(short, round(_LOWERING_S * motion.rate_hz))
        qpos = solve_poses(problem, goal, start)
        feet = prepared.soles_at(qpos)[:, :, 0]
    clearance = feet[..., 2] - radius - ground.height_at(feet[..., 0], radius)
    off = np.linalg.norm(feet - goal, axis=-1)
    off = np.maximum(off, np.where(motion.contacts, np.abs(clearance), -clearance))
    figures = {**motion.frame_quality, FOOT_ERROR: off.max(axis=1)}
    return replace(motion, qpos=qpos, ground=ground, frame_quality=figures)


def _smooth_maximum(values: Array, frames: int) -> Array:
    """A smooth curve (T,) above 0 and values (T,): the mean over `frames` of their maximum over
    `frames`."""
    highest = maximum_filter1d(np.maximum(values, 0.0), frames | 1)
    return np.asarray(uniform_filter1d(highest, frames | 1))


def foot_places(
    feet: Array, standing: Bools, ground: GroundProfile, radius: float
) -> tuple[Array, Array]:
    """Places (T, F, 3) of feet (T, F, 3) of flat ground, and the height (T, F) of the ground that
    each foot stands on, blended in its swings.

    feet: centres of spheres of `radius` [m]. standing: (T, F).
    """
    places = feet.copy()
    heights = np.empty(standing.shape)
    # feet that never stand follow the others, so they come last
    for foot in np.argsort(~standing.any(axis=0), kind="stable"):
        stands = standing[:, foot]
        stances = runs(stands)
        shift = np.zeros((len(feet), 2))
        for start, stop in stances:
            x = feet[start:stop, foot, 0]
            shift[start:stop, 0] = _to_level(x, ground, radius + _EDGE_M)
            middle = x.mean(keepdims=True) + shift[start, 0]
            shift[start:stop, 1] = ground.height_at(middle, radius)
        if stances:
            shift = fade(shift, stances)
        elif standing.any():
            shift[:, 1] = heights[:, standing.any(axis=0)].mean(axis=1)
        else:
            shift[:, 1] = ground.height_at(feet[:, foot, 0], radius)
        heights[:, foot] = shift[:, 1]
        places[:, foot, 0] += shift[:, 0]
        lift = shift[:, 1].copy()
        under = ground.height_at(places[:, foot, 0], radius)
        for swing in _swings(stances, len(feet)):
            height = feet[swing, foot, 2] - radius
            lift[swing] = _lift(under[swing], height, lift[swing], stands[swing])
        places[:, foot, 2] += lift
    return places, heights


def _to_level(x: Array, ground: GroundProfile, margin: float) -> float:
    """The shortest displacement [m] after which the ground is level within `margin` [m] of x (N,);
    0 where none is short enough."""
    steps = np.arange(0.0, _MOST_M + 0.5 * _STEP_M, _STEP_M)
    shifts = np.stack((steps, -steps), axis=1).ravel()
    across = np.arange(x.min() - margin, x.max() + margin + _STEP_M, _STEP_M)
    heights = ground.height_at(shifts[:, None] + across)
    level = np.ptp(heights, axis=1) < _LEVEL_M
    return float(shifts[level.argmax()])


def _swings(stances: list[tuple[int, int]], frames: int) -> Iterator[slice]:
    """The frames between stances, with the last frame of one and the first of the next, and those
    before the first stance and after the last."""
    edges = [(0, 0), *stances, (frames, frames)]
    for (_, leave), (land, _) in pairwise(edges):
        if land > leave:
            yield slice(max(leave - 1, 0), land + 1)


def _lift(under: Array, height: Array, blended: Array, standing: Bools) -> Array:
    """What lifts a swinging foot over the ground, (N,) [m]: the lowest concave curve, smoothed.

    Args:
      under: (N,) height of the ground under it. height: (N,) of the foot over flat ground. blended:
        (N,) height of the ground, blended from the stance before to that after. standing: (N,).
    """
    if np.ptp(under) < _LEVEL_M and np.ptp(blended) < _LEVEL_M:
        return blended
    count = len(under)
    share = np.linspace(0.0, 1.0, count)
    ramp = np.minimum(np.minimum(share, 1.0 - share) / _RAMP, 1.0)
    touching = under - height
    needed = touching + _CLEARANCE_M * ramp
    # the heights of the stances, or, at the ends of a motion, of the ground under a foot in the air
    in_air = np.maximum(blended, touching + np.clip(height, 0.0, _CLEARANCE_M))
    ends = np.where(standing, blended, in_air)[[0, -1]]
    # the smoothed curve begins and ends there
    flat = min(len(_SMOOTH) // 2, (count - 1) // 3)
    needed[: flat + 1] = ends[0]
    needed[count - flat - 1 :] = ends[1]
    curve = _concave_bound(needed)
    padded = np.pad(curve, len(_SMOOTH) // 2, "edge")
    smooth = np.maximum(np.convolve(padded, _SMOOTH, "valid"), touching)
    smooth[[0, -1]] = ends
    return np.asarray(smooth)


def _concave_bound(values: Array) -> Array:
    """The lowest concave curve (N,) above `values` (N,)."""
    hull: list[int] = []
    for i, value in enumerate(values):
        while len(hull) > 1:
            a, b = hull[-2:]
            if (values[b] - values[a]) * (i - a) > (value - values[a]) * (b - a):
                break
            hull.pop()
        hull.append(i)
    return np.interp(np.arange(len(values)), hull, values[hull])


def _moved_root(
    motion: ReferenceMotion, moved: Array, heights: Array, prepared: PreparedRobot
) -> Array:
    """Poses (T, 7 + J) with the root moved and pitched.

    moved: (T, F, 3) displacements of the feet. heights: (T, F) of the ground under them.
    """
    along = prepared.home_soles[:, 0, 0]
    along = along - along.mean()
    slope = heights @ along / (along @ along)
    mean = np.stack((moved[..., 0].mean(axis=1), heights.mean(axis=1), slope), axis=1)
    x, z, slope = low_pass(mean, motion.rate_hz, _ROOT_HZ).T
    qpos = motion.qpos.copy()
    qpos[:, 0] += x
    qpos[:, 2] += z
    yaw = rotations.yaw(qpos[:, 3:7])
    left = np.stack((-np.sin(yaw), np.cos(yaw), np.zeros_like(yaw)), axis=1)
    pitch = rotations.exp(-np.arctan(slope)[:, None] * left)
    qpos[:, 3:7] = rotations.normalize(rotations.multiply(pitch, qpos[:, 3:7]))
    return qpos
