"""People to OP3 by joint angles, the way of Bohez et al. 2022 (arXiv 2203.17138).

A recording is a motion of dm_control's CMUHumanoid (see `people`). From there [P]:

- **trunk**: the whole upper body is one rigid body with the orientation of the uppermost spine
  frame (thorax), so what the spine does goes into the hips;
- **hips**: yaw, roll, pitch match the thigh's orientation relative to that trunk (`hip_angles`);
- **knees**: copied; thigh and knee axis match, so the shanks point where the person's do;
- **ankles**: pitch and roll such that the sole's normal is the person's (the humanoid's ankle has
  pitch and yaw, the robot's pitch and roll);
- **arms**: OP3's elbow bends about an axis across the pitch axis, so copied angles would point
  anywhere. Shoulder and elbow put the hand in the person's direction from the shoulder, upper arm
  and forearm as near to theirs as one plane allows (`arm_angles`);
- **head**: looks ahead; **translation**: scaled by the ratio of leg lengths, **time** unchanged.

Then the robot's own body counts: bounds; arms and legs moved outwards where parts would touch;
soles level and still while the person's stand, and the drives' speed (`trajectory_optimization`).
Shapes: T frames, J joints, two sides (left, right). World frame, Z up, metres, radians.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import numpy as np
from scipy.ndimage import gaussian_filter1d

from mocap_data import rotations
from mocap_data.arrays import Array, Bools
from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from npmp.robots import Robot
from retarget import ground, kinematics, legs
from retarget.options import SPEED_SHARE, require
from retarget.people import SIDES, Person, stances, swings
from retarget.pose_sequence import smooth_root
from retarget.prepared_robot import PreparedRobot
from retarget.quality import QualityMeter
from retarget.resampling import frame_times, nearest, resample_qpos
from retarget.self_collision import SelfCollision
from retarget.targets import low_pass
from retarget.trajectory_optimization import Track, held_points, optimize

# The humanoid's frames have x to the left, y up and z forward (feet: x left, y backward, z up); the
# robot's x forward, y left and z up. Columns: the robot's axes in the humanoid's.
_UPRIGHT = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
_FOOT = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
# [s] standard deviation of the window that the floor's height is smoothed with
_FLOOR_TIME = 0.15
# of the legs, of the arms, and the axis (0, 1, 2) that each turns about
_LEG_AXES = {"hip_yaw": 2, "hip_roll": 0, "hip_pitch": 1, "knee": 1, "ank_pitch": 1, "ank_roll": 0}
_ARM_AXES = {"sho_pitch": 1, "sho_roll": 0, "el": 0}
# [m] that a swinging foot's sole has at least over the floor; gears have play
_SWING_HEIGHT = 0.008
# [rad] limbs move so much further apart than they need to
_CLEARANCE = 0.01
# of moving limbs apart and optimizing
_ROUNDS = 5
# [s] within which legs and arms go apart
_APART_TIME = 0.4
# [rad] tried for legs, for arms
_ANGLES = (np.arange(0.01, 0.21, 0.01), np.arange(0.05, 1.25, 0.05))


@dataclass(frozen=True)
class JointOptions:
    """How to map joints.

    Raises:
      InputError: for a value out of range.
    """

    # frames per second of the result; None: the robot's control rate
    rate_hz: float | None = None
    # factor on the recording's duration; people's knees pass 7 to 11 rad/s, OP3's servos turn 4.8
    time_scale: float = 1.0
    # low-pass of root and joints before all else; None: none
    cutoff_hz: float | None = 8.0

    def __post_init__(self) -> None:
        require(self, "rate_hz", "time_scale", "cutoff_hz", positive=True)


# --- angles ---


def hip_angles(thigh: Array) -> Array:
    """Turns (T, 3) [rad] that make up thighs in the trunk's frame (T, 3, 3): Rz(a) Rx(b) Ry(c).

    a and c are continuous in time; |b| <= pi/2, where the leg points sideways.
    """
    roll = np.arcsin(np.clip(thigh[:, 2, 1], -1.0, 1.0))
    yaw = np.unwrap(np.arctan2(-thigh[:, 0, 1], thigh[:, 1, 1]))
    pitch = np.unwrap(np.arctan2(-thigh[:, 2, 0], thigh[:, 2, 2]))
    return np.stack((yaw, roll, pitch), axis=-1)


def ankle_angles(normal: Array) -> Array:
    """Turns (T, 2) [rad] about y, then x of the sole with normals (T, 3) in the shank's frame."""
    roll = -np.arcsin(np.clip(normal[:, 1], -1.0, 1.0))
    pitch = np.unwrap(np.arctan2(normal[:, 0], normal[:, 2]))
    return np.stack((pitch, roll), axis=-1)


def arm_angles(
    upper: Array, fore: Array, side: float, lengths: tuple[float, float] = (1.0, 1.0)
) -> Array:
    """Turns (T, 3) [rad] about y, x (shoulder) and x (elbow) of an arm that is sideways at zero.

    upper, fore: (T, 3) unit vectors in the trunk's frame. side: +1 for the left arm, which
    stretches along +y, -1 for the right. lengths: of upper arm and forearm.

    The arm lies in a plane through the y axis: the first turn puts the hand into it, the others
    turn upper arm and forearm within it towards theirs.
    """
    hand = lengths[0] * upper + lengths[1] * fore
    # of straight down turned about y
    pitch = np.unwrap(np.arctan2(-hand[:, 0], -hand[:, 2]))
    down = np.stack((-np.sin(pitch), np.zeros(len(pitch)), -np.cos(pitch)), axis=-1)
    lowered = [np.arctan2((d * down).sum(axis=1), side * d[:, 1]) for d in (upper, fore)]
    lowered = [np.where(angle < -0.5 * np.pi, angle + 2.0 * np.pi, angle) for angle in lowered]
    # a turn about x carries +y towards +z: lowering is -a on the left, +a on the right
    return np.stack((pitch, -side * lowered[0], -side * (lowered[1] - lowered[0])), axis=-1)


# --- the robot ---


class Mapper:
    """OP3 made ready for mapping. Not to be shared between threads.

    Raises:
      InputError: for a robot without OP3's joints and axes.
    """

    def __init__(self, robot: Robot, options: JointOptions) -> None:
        self.robot, self.options = robot, options
        self.prepared = PreparedRobot.of(robot)
        self._meter, self._collision = QualityMeter(robot), SelfCollision(robot)
        # column of qpos, and +1 or -1: about the axis or against it
        self._column = {name: 7 + i for i, name in enumerate(robot.joint_names)}
        axes = (_LEG_AXES | _ARM_AXES).items()
        self._sign = {
            f"{side}_{joint}": self._axis_sign(f"{side}_{joint}", axis)
            for side in SIDES
            for joint, axis in axes
        }
        self.leg_points = legs.leg_points(robot)
        at_home = kinematics.forward(self.prepared.tree, robot.home_qpos[None])
        home = kinematics.positions_of(self.leg_points, *at_home).reshape(2, 3, 3)
        self.leg_length = _leg_length(home)
        # middle of the hips, in the trunk's frame
        self._hips = self.leg_points.local[[0, 3]].mean(axis=0)

    @property
    def provenance(self) -> dict[str, str]:
        """How a set of motions was made."""
        options = json.dumps(asdict(self.options))
        return {"method": "joint angles, arXiv 2203.17138", "options": options}

    def _axis_sign(self, name: str, axis: int) -> float:
        tree, robot = self.prepared.tree, f"robot '{self.robot.name}'"
        if name not in self._column:
            only = "the map of people's joints is for OP3"
            raise InputError(f"{robot} has no joint '{name}'; {only}")
        body = int(np.flatnonzero(tree.hinge == self._column[name] - 7)[0])
        turned = tree.fixed[body] + tree.cosine[body]
        value = float((turned @ tree.axis[body])[axis])
        if abs(abs(value) - 1.0) > 1e-6:
            about = f"does not turn about {'xyz'[axis]} as OP3's does"
            raise InputError(f"{robot}: joint '{name}' {about}")
        return math.copysign(1.0, value)

    def motion(self, person: Person) -> ReferenceMotion:
        """The person's recording as a motion of the robot.

        Its quality has the figures of `QualityMeter` and "leg_orientation_deg", the median over
        frames of the legs' orientation error (`retarget.legs`).

        Raises:
          InputError: for one that is too short.
        """
        options, robot = self.options, self.robot
        given_rate = person.rate_hz / options.time_scale
        rate = float(options.rate_hz or robot.control_rate_hz)
        if (person.num_frames - 1) / given_rate * rate < 2.0:
            raise InputError(f"{person.name!r} is too short for a motion at {rate:g} Hz")
        qpos = self.pose(person)
        qpos[:, 7:] = low_pass(qpos[:, 7:], person.rate_hz, options.cutoff_hz)
        qpos[:, :7] = smooth_root(qpos[:, :7], person.rate_hz)
        heel, ball = (nearest(part, given_rate, rate) for part in stances(person))
        standing = heel & ball
        qpos = resample_qpos(qpos, given_rate, rate)
        qpos[:, 7:] = np.clip(qpos[:, 7:], robot.joint_lower, robot.joint_upper)
        qpos[:, 2] -= self.floor(qpos, standing, rate)
        clearance = _SWING_HEIGHT * nearest(swings(person), given_rate, rate)
        held = held_points(robot, standing, heel, ball)
        motion = ReferenceMotion(
            name=person.name,
            qpos=self.tidy(qpos, standing, held, clearance, rate),
            rate_hz=rate,
            source=person.source,
            licence=person.licence,
            contacts=standing,
            recording=person.name,
        )
        error = self.leg_error(person, motion)
        degrees = float(np.degrees(np.median(error)))
        quality = {"body_scale": self.scale(person), "leg_orientation_deg": degrees}
        per_frame = {"leg_orientation_rad": error.mean(axis=(1, 2))}
        return self._meter.measured(replace(motion, quality=quality, frame_quality=per_frame))

    def leg_error(self, person: Person, motion: ReferenceMotion) -> Array:
        """(S, 2, 2) [rad] as `legs.orientation_error`, of the person against the motion."""
        points = person.legs()
        given_rate = person.rate_hz / self.options.time_scale
        times, frames = frame_times(len(points), given_rate, motion.rate_hz), np.arange(len(points))
        tracks = points.reshape(len(points), -1).T
        at = np.stack([np.interp(times, frames, track) for track in tracks], -1)
        wanted = legs.directions(at.reshape(-1, 2, 3, 3))
        found = legs.robot_directions(self.robot, self.prepared.tree, motion.qpos)
        return legs.orientation_error(wanted, found)

    def scale(self, person: Person) -> float:
        """The robot's leg length by the person's."""
        return self.leg_length / _leg_length(person.legs()[0])

    def pose(self, person: Person) -> Array:
        """Poses (T, 7 + J) at the person's rate: the angles alone, no bounds, no floor."""
        robot, position, rotation = self.robot, person.position, person.rotation
        trunk = rotation["thorax"] @ _UPRIGHT
        middle = person.legs()[:, :, 0].mean(axis=1)
        qpos = np.tile(robot.home_qpos, (person.num_frames, 1))
        qpos[:, :3] = self.scale(person) * middle - trunk @ self._hips
        qpos[:, 3:7] = rotations.make_continuous(rotations.from_matrix(trunk))
        back = trunk.transpose(0, 2, 1)
        for side, sign in zip(SIDES, (1.0, -1.0), strict=True):
            thigh = rotation[f"{side}femur"] @ _UPRIGHT
            shank = rotation[f"{side}tibia"] @ _UPRIGHT
            sole = (rotation[f"{side}foot"] @ _FOOT)[:, :, 2]
            bend = thigh.transpose(0, 2, 1) @ shank
            knee = np.unwrap(np.arctan2(bend[:, 0, 2], bend[:, 2, 2]))
            ankle = ankle_angles(np.einsum("tji,tj->ti", shank, sole))
            arm = [position[f"{side}{body}"] for body in ("humerus", "radius", "hand")]
            spans = [np.einsum("tji,tj->ti", trunk, b - a) for a, b in pairwise(arm)]
            a, b = (float(np.linalg.norm(span, axis=-1).mean()) for span in spans)
            upper, fore = (span / np.linalg.norm(span, axis=-1, keepdims=True) for span in spans)
            arms = arm_angles(upper, fore, sign, (a, b))
            turns = np.concatenate((hip_angles(back @ thigh), knee[:, None], ankle, arms), axis=1)
            for joint, turn in zip((*_LEG_AXES, *_ARM_AXES), turns.T, strict=True):
                name = f"{side}_{joint}"
                column = self._column[name]
                qpos[:, column] = _nearest_turn(self._sign[name] * turn, robot, column - 7)
        return qpos

    def floor(self, qpos: Array, standing: Bools, rate_hz: float) -> Array:
        """Height (T,) [m] of the floor under standing soles, smoothly from stance to stance.

        The median of their lowest points over each stance: a slope, a step or a drifting recording
        becomes a level floor.
        """
        # (T, F)
        lowest = self.prepared.soles_at(qpos)[..., 2].min(axis=2) - self.robot.foot_radius
        found = [
            (0.5 * (first + last - 1), float(np.median(lowest[first:last, foot])))
            for foot in range(standing.shape[1])
            for first, last in ground.runs(standing[:, foot])
        ]
        if not found:
            return np.full(len(qpos), np.percentile(lowest, 5))
        when, height = np.array(sorted(found)).T
        curve = np.interp(np.arange(len(qpos)), when, height)
        return np.asarray(gaussian_filter1d(curve, _FLOOR_TIME * rate_hz, mode="nearest"))

    def tidy(
        self, qpos: Array, standing: Bools, held: Bools, clearance: Array, rate_hz: float
    ) -> Array:
        """Poses (T, 7 + J) with standing feet held, joints slow enough, no self-collision."""
        most = SPEED_SHARE * self.robot.velocity_limit / rate_hz
        outward, optimized = self.needed(qpos, rate_hz), None
        for _ in range(_ROUNDS):
            given = self.apart(qpos, outward)
            points = self.leg_points, legs.SEGMENTS
            track = Track(self.prepared, given, standing, held, clearance, *points, most)
            optimized = optimize(track, optimized)
            more = self.needed(optimized, rate_hz)
            if not more.any():
                break
            outward = outward + more
        assert optimized is not None
        return optimized

    def apart(self, qpos: Array, outward: Array) -> Array:
        """Poses (T, 7 + J) with legs and arms turned outwards by (2, T) [rad], soles as before."""
        out = qpos.copy()
        leg, arm = outward
        for side, sign in zip(SIDES, (1.0, -1.0), strict=True):
            # a turn about +x carries a hanging leg towards +y, the left; the sole turns back
            for joint, angle in (("hip_roll", leg), ("ank_roll", -leg), ("sho_roll", arm)):
                name = f"{side}_{joint}"
                out[:, self._column[name]] += self._sign[name] * sign * angle
        out[:, 7:] = np.clip(out[:, 7:], self.robot.joint_lower, self.robot.joint_upper)
        return out

    def needed(self, qpos: Array, rate_hz: float) -> Array:
        """How much further (2, T) [rad] legs and arms must turn outwards, smooth in time.

        Legs are looked at with the arms stretched out sideways, arms with the legs apart.
        """
        stretched = qpos.copy()
        for side in SIDES:
            for joint in _ARM_AXES:
                stretched[:, self._column[f"{side}_{joint}"]] = 0.0
        need = np.zeros((2, len(qpos)))
        need[0] = self._least(stretched, 0, need)
        need[1] = self._least(qpos, 1, need)
        width = max(1, round(_APART_TIME * rate_hz))
        return np.stack([ground.envelope(row, width) if row.any() else row for row in need])

    def _least(self, qpos: Array, which: int, need: Array) -> Array:
        """(T,) [rad] the least of `_ANGLES` at which frames are free, plus the clearance.

        0 where they are free already, and where none frees them: it would be another motion.
        """
        out = np.zeros(len(qpos))
        outward = need.copy()
        todo = np.flatnonzero(self._collision.depth(self.apart(qpos, outward)) > 0.0)
        for angle in _ANGLES[which]:
            if not len(todo):
                break
            outward[which, todo] = angle
            free = self._collision.depth(self.apart(qpos[todo], outward[:, todo])) <= 0.0
            out[todo[free]] = angle + _CLEARANCE
            todo = todo[~free]
        return out


def _leg_length(legs_at: Array) -> float:
    """The mean length [m] of legs (2, 3, 3) of hip, knee and ankle."""
    return float(np.linalg.norm(np.diff(legs_at, axis=1), axis=-1).sum(axis=1).mean())


def _nearest_turn(angle: Array, robot: Robot, joint: int) -> Array:
    """Angles (T,) shifted by whole turns, so that most lie within the joint's bounds."""
    middle = 0.5 * (robot.joint_lower[joint] + robot.joint_upper[joint])
    turns = np.round((np.median(angle) - middle) / (2.0 * np.pi))
    return np.asarray(angle - 2.0 * np.pi * turns)
