"""Figures of the quality of a robot's motion.

Shapes: T frames, F feet, K contact points a foot, J joints, M markers. World frame, Z up, floor z =
0, or the motion's ground, SI units.

    rms_marker_m, max_marker_m  distance of the robot's markers from the recording's, at its size
                                (people: its proportions) with offsets: RMS, largest [m]
    stance_lost_share           share of the recording's stances (feet times frames) in which the
                                robot's foot is too high to stand; these are not contacts
    near_floor_mps              mean horizontal speed of contact points within NEAR of z = 0 [m/s]
    foot_slide_mps              mean horizontal speed of the contact points of standing feet [m/s]
    foot_slide_share            share of their steps from frame to frame faster than SLIDING
                                (neither, nor float_m, where no foot ever stands)
    penetration_m               greatest depth of a contact point below the floor [m]
    penetration_p99_m           99th percentile over frames of the deepest contact point's depth [m]
    float_m                     99th percentile of the height of standing feet's contact points [m]
    body_penetration_m          greatest depth below the floor of anything but the feet [m]
    limit_violations            number of (frame, joint) pairs beyond the position limits
    velocity_violations         number of (frame, joint) pairs beyond the velocity limits
    self_collision_share        share of frames with parts deeper than TOUCHING in each other
    jerk_rms                    root mean square of the joints' third derivatives [rad/s^3]
    leg_orientation_deg         median angle between the robot's thighs and shanks and the person's

A motion without markers, legs or contacts has no figures of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from mocap_data.arrays import Array, Bools
from mocap_data.motion import ReferenceMotion
from npmp.robots import Robot
from npmp.robots.self_collision import SelfCollision
from retarget.ground import stance
from retarget.kinematics import Tree, forward, tree_of

# [m/s] a standing foot that is faster slides; at 50 Hz it is 1 mm a frame
SLIDING = 0.05
# [m] lower contact points are at the floor
NEAR = 0.005
# [m] shallower self-collisions are inaccuracies of the shapes
TOUCHING = 0.001
# share of the legs' length; feet higher than this above the floor do not stand
OFF_FLOOR = 0.04
# figures that only motions with standing or low feet have
_OF_FLOOR = ("foot_slide_mps", "foot_slide_share", "near_floor_mps", "float_m")
# tolerance of limits, for joints at their bounds
_TOLERANCE = 1e-9

# figure of frames of a motion that was laid over other ground, see `retarget.over_ground`
FOOT_ERROR = "foot_error_m"

# bad values of each figure
BAD = {
    "rms_marker_m": 0.05,
    "max_marker_m": 0.25,
    "foot_slide_mps": 0.1,
    "penetration_p99_m": 0.01,
    "float_m": 0.01,
    "body_penetration_m": 0.02,
    "limit_violations": 1.0,
    "velocity_violations": 1.0,
    "self_collision_share": 0.05,
    "leg_orientation_deg": 15.0,
    "stance_lost_share": 0.2,
}


class QualityMeter:
    """The figures of a robot's motions. Not to be shared between threads."""

    def __init__(self, robot: Robot) -> None:
        self.robot = robot
        self._tree = tree_of(robot.model(visuals=False))
        self._feet = [robot.body_names.index(name) for name in robot.foot_bodies]
        self._collision = SelfCollision(robot)
        home = forward(self._tree, robot.home_qpos[None])[0][0]
        # [m] feet higher over the floor do not stand
        self._off_floor = OFF_FLOOR * leg_length(robot, self._tree)
        # [m] across all bodies in the home pose
        self.size_m = float(np.linalg.norm(np.ptp(home, axis=0)))

    def feet(self, motion: ReferenceMotion) -> Array:
        """Centres (T, F, K, 3) [m] of the feet's contact spheres, heights above the ground."""
        position, rotation = forward(self._tree, motion.qpos)
        turned = np.einsum("tfij,fkj->tfki", rotation[:, self._feet], self.robot.foot_points)
        feet = position[:, self._feet, None] + turned
        feet[..., 2] -= motion.ground_at(feet[..., 0], self.robot.foot_radius)
        return np.asarray(feet)

    def contacts(self, motion: ReferenceMotion) -> Bools:
        """The stances (T, F): the motion's contacts, else by speed and height."""
        if motion.contacts is not None:
            return motion.contacts
        feet = self.feet(motion)
        # a single frame has no speed
        if len(feet) < 2:
            return np.zeros(feet.shape[:2], dtype=bool)
        low = feet[..., 2].min(axis=2) - self.robot.foot_radius < self._off_floor
        return np.asarray(stance(feet.mean(axis=2), motion.rate_hz) & low)

    def figures(self, motion: ReferenceMotion) -> dict[str, float]:
        """All figures of a motion."""
        robot = self.robot
        rate = motion.rate_hz
        joints = motion.qpos[:, 7:]
        feet = self.feet(motion)
        standing = self.contacts(motion)
        slides = slide_speeds(feet, standing, rate)
        # (T, F, K)
        clearance = feet[..., 2] - robot.foot_radius
        low = slide_speeds(feet, clearance < NEAR, rate)
        depth = np.maximum(0.0, -clearance.min(axis=(1, 2)))
        floating = np.maximum(0.0, clearance[standing])
        of_stances = {"float_m": float(np.percentile(floating, 99))} if floating.size else {}
        if slides.size:
            of_stances["foot_slide_mps"] = float(slides.mean())
            of_stances["foot_slide_share"] = float((slides > SLIDING).mean())
        if low.size:
            of_stances["near_floor_mps"] = float(low.mean())
        self_depth, below = self._collision.depths(motion.qpos, motion.ground)
        beyond = beyond_positions(joints, robot.joint_lower, robot.joint_upper)
        fast = beyond_speed(motion.qvel[:, 6:], robot.velocity_limit)
        return {
            **frame_figures(motion),
            **of_stances,
            "penetration_m": float(depth.max()),
            "penetration_p99_m": float(np.percentile(depth, 99)),
            "body_penetration_m": float(below.max()),
            "limit_violations": float(beyond.sum()),
            "velocity_violations": float(fast.sum()),
            "self_collision_share": float((self_depth > TOUCHING).mean()),
            "jerk_rms": jerk_rms(joints, rate),
        }

    def measured(self, motion: ReferenceMotion) -> ReferenceMotion:
        """The motion with its figures computed anew; those of unknown markers stay."""
        rest = {key: value for key, value in motion.quality.items() if key not in _OF_FLOOR}
        return dataclasses.replace(motion, quality={**rest, **self.figures(motion)})


def leg_length(robot: Robot, tree: Tree) -> float:
    """Mean height [m] of the legs' first joints in the home pose."""
    home = forward(tree, robot.home_qpos[None])[0][0]
    feet = [robot.body_names.index(name) for name in robot.foot_bodies]
    return float(np.mean([home[tree.chain(foot)[-1], 2] for foot in feet]))


def frame_figures(motion: ReferenceMotion) -> dict[str, float]:
    """The figures aggregated from the motion's figures of frames."""
    frames = motion.frame_quality
    figures = {}
    if "marker_rms_m" in frames:
        figures["rms_marker_m"] = float(np.sqrt(np.square(frames["marker_rms_m"]).mean()))
    if "marker_max_m" in frames:
        figures["max_marker_m"] = float(frames["marker_max_m"].max())
    if "stances_lost" in frames and motion.contacts is not None:
        lost = float(frames["stances_lost"].sum())
        figures["stance_lost_share"] = lost / max(lost + float(motion.contacts.sum()), 1.0)
    if "leg_orientation_rad" in frames:
        figures["leg_orientation_deg"] = float(np.degrees(np.median(frames["leg_orientation_rad"])))
    return figures


def overall_rms(motions: Sequence[ReferenceMotion]) -> float:
    """The root mean square marker error [m] over all frames of motions that have one, or NaN."""
    valid = [m for m in motions if "rms_marker_m" in m.quality]
    if not valid:
        return float("nan")
    squares = [m.quality["rms_marker_m"] ** 2 for m in valid]
    return float(np.sqrt(np.average(squares, weights=[m.num_frames for m in valid])))


def slide_speeds(feet: Array, standing: Bools, rate_hz: float) -> Array:
    """Horizontal speeds (N,) [m/s] of contact points (T, F, ..., 3) that are `standing`.

    One for each step of a point between frames in both of which it stands, (T, F) or (T, F, ...).
    """
    speed = np.linalg.norm(np.diff(feet[..., :2], axis=0), axis=-1) * rate_hz
    return np.asarray(speed[standing[1:] & standing[:-1]]).reshape(-1)


def beyond_positions(joints: Array, lower: Array, upper: Array) -> Bools:
    """The joints (T, J) [rad] beyond their limits (J,)."""
    return (joints < lower - _TOLERANCE) | (joints > upper + _TOLERANCE)


def beyond_speed(velocities: Array, limit: Array) -> Bools:
    """The joint velocities (T, J) [rad/s] beyond their limits (J,)."""
    return np.asarray(np.abs(velocities) > limit + _TOLERANCE)


def jerk_rms(joints: Array, rate_hz: float) -> float:
    """Root mean square [rad/s^3] of third differences of joints (T, J); 0 for fewer frames."""
    if len(joints) < 4 or not joints.shape[1]:
        return 0.0
    return float(np.sqrt(np.square(np.diff(joints, n=3, axis=0)).mean()) * rate_hz**3)


def trouble(quality: Mapping[str, float]) -> float:
    """The largest ratio of a motion's figures to those of `BAD`; 1 and more is bad.

    Without a standing foot the feet's speed near the floor counts as sliding.
    """
    near = quality.get("near_floor_mps", 0.0)
    slides = {"foot_slide_mps": near} if "foot_slide_mps" not in quality else {}
    figures = {**quality, **slides}
    return max(figures.get(key, 0.0) / bad for key, bad in BAD.items())
