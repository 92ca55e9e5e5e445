"""Generated dog gaits with exact foot contacts, for demonstrations and tests.

A trunk travels along a circle (or a line) at constant speed and yaw rate while four legs step by a
fixed pattern, a closed formula of time:

- A foothold is the leg's neutral position under the trunk in the middle of the stance, so a foot in
stance does not move.
- A swing leads to the next foothold along s(u) = 10 u^3 - 15 u^4 + 6 u^5 and lifts by
  64 u^3 (1 - u)^3 times the clearance: velocity and acceleration vanish at both ends.
- Knees, hocks, elbows and wrists follow by planar inverse kinematics.

The proportions are those of a large dog, near the size of ANYmal; names are those of the dog
recordings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array, unit
from mocap_data.clip import Clip
from mocap_data.errors import InputError, check_available
from mocap_data.readers.common import DOG_NAMES, DOG_PARENTS

# forwards and to the left [m/s]
Velocity = tuple[float, float]
LICENCE = "Apache-2.0 (generated)"


@dataclass(frozen=True)
class Gait:
    """A stepping pattern."""

    # time from one touchdown of a foot to its next [s]
    stride_s: float
    # share of the stride that a foot is on the ground
    duty: float
    # per leg the time of its touchdown as a share of the stride
    touchdown: dict[str, float]
    # default speed [m/s]
    speed_mps: float
    # default yaw rate [rad/s]
    turn_rate: float
    # greatest height of a paw [m]
    clearance_m: float
    # half the trunk's vertical travel, twice per stride [m]
    bob_m: float
    # half its sideways travel, once per stride [m]
    sway_m: float


# The four-beat lateral sequence: each fore foot a quarter stride after the hind foot of its side.
_WALK = {"LeftHind": 0.0, "LeftFore": 0.25, "RightHind": 0.5, "RightFore": 0.75}
_TROT = {"LeftHind": 0.0, "RightFore": 0.0, "RightHind": 0.5, "LeftFore": 0.5}
_PACE = {"LeftHind": 0.0, "LeftFore": 0.0, "RightHind": 0.5, "RightFore": 0.5}

GAITS = {
    "walk": Gait(1.0, 0.65, _WALK, 0.5, 0.0, clearance_m=0.07, bob_m=0.005, sway_m=0.012),
    "trot": Gait(0.6, 0.52, _TROT, 0.9, 0.0, clearance_m=0.07, bob_m=0.006, sway_m=0.0),
    "turn": Gait(1.0, 0.65, _WALK, 0.45, 0.5, clearance_m=0.07, bob_m=0.005, sway_m=0.012),
    "pace": Gait(0.6, 0.55, _PACE, 0.8, 0.0, clearance_m=0.06, bob_m=0.005, sway_m=0.02),
    "stand": Gait(1.0, 0.65, _WALK, 0.0, 0.0, clearance_m=0.0, bob_m=0.0, sway_m=0.0),
}

# keypoints fixed in the trunk: [m] from its centre on the ground, X forward, Y left, Z up
_TRUNK = {
    "Hips": (-0.22, 0.0, 0.56),
    "Spine": (-0.22, 0.0, 0.56),
    "Spine1": (0.0, 0.0, 0.50),
    "Neck": (0.25, 0.0, 0.55),
    "Head": (0.38, 0.0, 0.66),
    "Head_end": (0.50, 0.0, 0.76),
    "LeftShoulder": (0.22, 0.05, 0.52),
    "LeftArm": (0.28, 0.10, 0.48),
    "RightShoulder": (0.22, -0.05, 0.52),
    "RightArm": (0.28, -0.10, 0.48),
    "LeftUpLeg": (-0.28, 0.10, 0.48),
    "RightUpLeg": (-0.28, -0.10, 0.48),
    "Tail": (-0.30, 0.0, 0.55),
    "Tail1": (-0.40, 0.0, 0.50),
    "Tail1_end": (-0.48, 0.0, 0.46),
}


@dataclass(frozen=True)
class _Leg:
    """One leg of the dog."""

    # from hip (or shoulder) to paw
    keypoints: tuple[str, str, str, str]
    # the paw in the middle of a stance, in the trunk's frame [m]
    neutral: tuple[float, float]
    # lengths of the three segments, top to bottom [m]
    lengths: tuple[float, float, float]
    # +1 where the middle joint points forward (knee), -1 backward (elbow)
    bend: float
    # backward angle of the lowest segment to the line from paw to hip [rad]
    lean: float = 0.35


def _leg(side: str, end: str) -> _Leg:
    y = 0.115 if side == "Left" else -0.115
    if end == "Fore":
        names = (f"{side}Arm", f"{side}ForeArm", f"{side}Hand", f"{side}Hand_end")
        return _Leg(names, (0.28, y), (0.21, 0.24, 0.12), bend=-1.0)
    names = (f"{side}UpLeg", f"{side}Leg", f"{side}Foot", f"{side}Foot_end")
    return _Leg(names, (-0.28, y), (0.22, 0.24, 0.13), bend=1.0)


LEGS = {side + end: _leg(side, end) for side in ("Left", "Right") for end in ("Fore", "Hind")}


def dog_gait(
    gait: str = "walk",
    *,
    speed_mps: float | None = None,
    lateral_mps: float = 0.0,
    turn_rate: float | None = None,
    stride_s: float | None = None,
    duration_s: float = 10.0,
    rate_hz: float = 60.0,
    name: str | None = None,
) -> Clip:
    """The 27 keypoints `DOG_NAMES` of a dog in full motion from the origin; paws at z = 0.

    gait: "walk", "trot", "pace", "stand", or "turn" (a walk along a circle).
    speed_mps: [m/s], negative is backward; turn_rate: [rad/s], positive to the left; stride_s: [s];
      None: the gait's. lateral_mps: [m/s], positive to the left. duration_s, rate_hz: T =
      duration_s * rate_hz frames.

    Raises:
      InputError: an unknown gait, a rate or duration that is not positive, or a speed beyond the
        legs' length.
    """
    check_available("gait", [gait], GAITS)
    pattern = GAITS[gait] if stride_s is None else replace(GAITS[gait], stride_s=stride_s)
    speed = pattern.speed_mps if speed_mps is None else float(speed_mps)
    turn = pattern.turn_rate if turn_rate is None else float(turn_rate)
    if not all(map(math.isfinite, (speed, lateral_mps, turn))):
        raise InputError(f"speed_mps={speed}, turn_rate={turn}: must be finite")
    positive = {"rate_hz": rate_hz, "duration_s": duration_s, "stride_s": pattern.stride_s}
    for label, value in positive.items():
        if not (math.isfinite(value) and value > 0.0):
            raise InputError(f"{label}={value}: must be above 0")
    time = np.arange(max(1, round(duration_s * rate_hz))) / rate_hz  # (T,) [s]

    velocity = (speed, lateral_mps)
    trunk = _trunk_motion(time, pattern, velocity, turn)
    heading = _heading(time, turn)
    points = {
        name: trunk + rotations.rotate(heading, np.array(position))
        for name, position in _TRUNK.items()
    }
    forward = rotations.rotate(heading, np.array([1.0, 0.0, 0.0]))
    for leg_name, leg in LEGS.items():
        paw = _paw_motion(time, pattern, pattern.touchdown[leg_name], leg, velocity, turn)
        top, middle, low, end = leg.keypoints
        points[middle], points[low] = _bend_leg(points[top], paw, forward, leg, speed)
        points[end] = paw
    return Clip(
        np.stack([points[key] for key in DOG_NAMES], axis=1),
        DOG_NAMES,
        rate_hz,
        source=f"generated: {gait} at {speed:g} m/s, {turn:g} rad/s",
        licence=LICENCE,
        name=f"synthetic_{gait}" if name is None else name,
        parents=DOG_PARENTS,
    )


def demo_clips() -> list[Clip]:
    """The embedded default data set: walk, trot, left turn and right turn, 34 s in all."""
    turn = GAITS["turn"].turn_rate
    return [
        dog_gait("walk", duration_s=10.0),
        dog_gait("trot", duration_s=8.0),
        dog_gait("turn", turn_rate=turn, duration_s=8.0, name="synthetic_turn_left"),
        dog_gait("turn", turn_rate=-turn, duration_s=8.0, name="synthetic_turn_right"),
    ]


def gait_clips() -> list[Clip]:
    """Gaits for a skill module: walk, trot and pace from 0.2 to 2.5 m/s, backwards, sideways,
    curves, turns on the spot, and standing; 7 s each."""
    commands: list[tuple[str, float, float, float]] = [("stand", 0.0, 0.0, 0.0)]
    speeds = {"walk": (-0.4, -0.2, 0.2, 0.4, 0.6, 0.8), "trot": (-0.6, 0.5, 1.0, 1.5, 2.0, 2.5)}
    for gait, gait_speeds in (speeds | {"pace": (0.6, 1.0, 1.5)}).items():
        commands += [(gait, speed, 0.0, 0.0) for speed in gait_speeds]
    for sign in (-1.0, 1.0):
        commands += [("walk", 0.0, sign * side, 0.0) for side in (0.15, 0.3)]
        commands += [("walk", 0.0, 0.0, sign * turn) for turn in (0.5, 1.0)]
        commands += [("walk", 0.4, 0.0, sign * 0.5), ("trot", 1.0, 0.0, sign * 0.8)]
    clips = []
    for gait, speed, side, turn in commands:
        pattern = GAITS[gait]
        # a dog's strides get shorter as it gets faster
        stride = pattern.stride_s / math.sqrt(max(1.0, abs(speed) / (pattern.speed_mps or 1.0)))
        name = f"{gait}_{speed:g}_{side:g}_{turn:g}"
        rest: dict[str, Any] = {"stride_s": stride, "duration_s": 7.0, "name": name}
        clips.append(dog_gait(gait, speed_mps=speed, lateral_mps=side, turn_rate=turn, **rest))
    return clips


def _path(time: Array, velocity: Velocity, turn: float) -> Array:
    """Positions (..., 3) [m] on the trunk's path, an arc from the origin with z = 0."""
    angle = turn * time  # [rad]
    # t sin(a) / a and t (1 - cos a) / a, written with sinc to hold for a turn rate of 0 as well
    along = time * np.sinc(angle / np.pi)
    aside = time * (angle / 2.0) * np.sinc(angle / (2.0 * np.pi)) ** 2
    forward, left = velocity
    x = forward * along - left * aside
    y = forward * aside + left * along
    return np.stack([x, y, np.zeros_like(x)], axis=-1)


def _heading(time: Array, turn: float) -> Array:
    """The trunk's yaw as quaternions, (..., 4)."""
    return rotations.from_axis_angle(np.array([0.0, 0.0, 1.0]), turn * time)


def _trunk_motion(time: Array, pattern: Gait, velocity: Velocity, turn: float) -> Array:
    """The trunk's centre on its path with bob and sway, (T, 3) [m]; z relative to its height."""
    phase = 2.0 * np.pi * time / pattern.stride_s  # [rad], per stride
    # lowest in the middle of the stance of each diagonal pair (trot) or hind foot (walk)
    bob = -pattern.bob_m * np.cos(2.0 * (phase - np.pi * pattern.duty))
    # furthest right at the mean mid-swing of the two left legs
    left = [pattern.touchdown["LeftHind"], pattern.touchdown["LeftFore"]]
    mid_swing = sum(left) / 2.0 - (1.0 - pattern.duty) / 2.0
    sway = -pattern.sway_m * np.cos(phase - 2.0 * np.pi * mid_swing)
    local = np.stack([np.zeros_like(time), sway, bob], axis=-1)
    return _path(time, velocity, turn) + rotations.rotate(_heading(time, turn), local)


def _paw_motion(
    time: Array, pattern: Gait, touchdown: float, leg: _Leg, velocity: Velocity, turn: float
) -> Array:
    """The paw in the world, (T, 3) [m]."""
    phase = time / pattern.stride_s - touchdown
    stride = np.floor(phase)  # the foothold that this stride begins with
    start = _foothold(stride, pattern, touchdown, leg, velocity, turn)
    target = _foothold(stride + 1.0, pattern, touchdown, leg, velocity, turn)
    # 0 in stance
    u = np.clip((phase - stride - pattern.duty) / (1.0 - pattern.duty), 0.0, 1.0)[:, None]
    share = u**3 * (10.0 - 15.0 * u + 6.0 * u**2)
    paw = start + share * (target - start)
    paw[:, 2:] = pattern.clearance_m * 64.0 * (u * (1.0 - u)) ** 3
    return paw


def _foothold(
    stride: Array, pattern: Gait, touchdown: float, leg: _Leg, velocity: Velocity, turn: float
) -> Array:
    """The foothold (T, 3) [m] of the stance that begins stride number `stride` (T,)."""
    middle = (stride + touchdown + pattern.duty / 2.0) * pattern.stride_s  # [s]
    return _path(middle, velocity, turn) + rotations.rotate(
        _heading(middle, turn), np.array([*leg.neutral, 0.0])
    )


def _bend_leg(
    top: Array, paw: Array, forward: Array, leg: _Leg, speed: float
) -> tuple[Array, Array]:
    """The two keypoints between hip and paw, each (T, 3), in the plane of hip, paw and `forward`.

    The lowest segment leans back by a fixed angle; the other two close the triangle.
    """
    upper, lower, last = leg.lengths
    line = unit(top - paw)
    ahead = unit(forward - _dot(forward, line) * line)
    low = paw + last * (math.cos(leg.lean) * line - math.sin(leg.lean) * ahead)
    distance = np.linalg.norm(low - top, axis=-1, keepdims=True)
    if distance.max() >= upper + lower or distance.min() <= abs(upper - lower):
        raise InputError(
            f"speed_mps={speed:g}: footholds are {distance.max():.2f} m from the hips, legs are "
            f"{upper + lower:.2f} m long; go slower"
        )
    down = (low - top) / distance
    ahead = unit(forward - _dot(forward, down) * down)
    cosine = (upper**2 + distance**2 - lower**2) / (2.0 * upper * distance)
    middle = top + upper * (cosine * down + leg.bend * np.sqrt(1.0 - cosine**2) * ahead)
    return middle, low


def _dot(a: Array, b: Array) -> Array:
    return np.sum(a * b, axis=-1, keepdims=True)
