"""Warnings of misread recordings (units, axes, rate, sides) and of poses beyond a robot's reach."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.clip_checks import better_unit, clip_warnings, size_of
from mocap_data.errors import counted
from mocap_data.motion import ReferenceMotion
from mocap_data.step_checks import rate_warning, sliding_warning
from retarget.limb_detection import UP, forward_votes
from retarget.quality import BAD, QualityMeter
from retarget.skeletons import Skeleton, is_person, marker_positions

# [m] a walking dog has 2 cm; a sitting or lying one, which no robot can follow, 10 cm
HIGH_RMS = 0.05
# [m] beyond any correctly read pose; a dog with the wrong axis up has 15 cm
MISREAD_RMS = 0.12
# [m] a person's height, and a dog's at the shoulder; the usual ones
PERSON = (1.0, 2.3)
DOG = (0.2, 1.2)
MOST_PERSONS = (1.4, 2.1)
MOST_DOGS = (0.3, 0.8)
# thigh and shank in a person's height [R: Drillis and Contini 1966]
LEGS_SHARE = 0.491
# greatest difference of left and right [limb lengths]; greatest height of a standing foot [body
# sizes]
ALIKE = 0.12
ON_FLOOR = 0.15
# beginning of the warning of a misread recording
WRONG = "looks wrong"
# in warnings of a misread recording
_MISREAD = ("units?", "axis?", "rate?", "mirrored?", "treadmill?", "degrees?", "another floor?")

_LIMBS = {
    True: (("_hip", "_knee", "_foot"), ("_shoulder", "_elbow", "_hand")),
    False: (("H_hip", "H_foot"), ("F_shoulder", "F_foot")),
}


def is_misread(warnings: Sequence[str]) -> bool:
    """Whether a clip's warnings are of wrong units or axes."""
    hints = ("units?", "upside down", "up or down", "mirrored?")
    return any(hint in warning for warning in warnings for hint in hints)


def recording_warnings(clip: Clip, skeleton: Skeleton | None) -> list[str]:
    """The warnings of a clip's keypoints and of their skeleton; None: only of the keypoints."""
    warnings = clip_warnings(clip)
    # with another size or axis the body adds no information
    if skeleton is None or any("units?" in warning or "axis?" in warning for warning in warnings):
        return warnings
    of_body = body_warnings(clip, skeleton)
    if any("units?" in warning for warning in of_body):
        return of_body
    return warnings + of_body + [f"guess: {guess}" for guess in skeleton.guesses]


def body_warnings(clip: Clip, skeleton: Skeleton) -> list[str]:
    """The warnings of a person or a dog: its size, left and right swapped, limbs of two lengths,
    feet that never come down."""
    names = list(skeleton.markers)
    at = dict(zip(names, marker_positions(clip, skeleton, names).transpose(1, 0, 2), strict=True))
    person = is_person(skeleton)
    limbs = _LIMBS[person]
    if not all(side + end in at for limb in limbs for end in limb for side in "LR"):
        return []
    floor = float(np.percentile(clip.positions[..., 2].min(axis=1), 5))
    lengths = [[_length(at, side, limb) for side in "LR"] for limb in limbs]
    if size := _body_size_warning(at, floor, lengths[0], person):
        return [size]
    warnings = ["left and right are swapped (mirrored?)"] if _swapped(at, person) else []
    for limb, (left, right) in zip(limbs, lengths, strict=True):
        # an animal's limbs have only their ends, whose distance changes with the pose
        if person and abs(left - right) > ALIKE * max(left, right):
            ends = f"{limb[0][1:].strip('_')} to {limb[-1][1:].strip('_')}"
            warnings.append(
                f"is {left:.3g} m from left {ends}, {right:.3g} m from right (skeleton=)"
            )
    above = {
        side + limb[-1]: float(np.percentile(at[side + limb[-1]][:, 2], 10)) - floor
        for limb in limbs[: 1 if person else 2]
        for side in "LR"
    }
    high = [name for name, height in above.items() if height > ON_FLOOR * size_of(clip)]
    if high:
        least = min(above[name] for name in high)
        warnings.append(f"has {', '.join(high)} at least {least:.2g} m above the floor (skeleton=)")
    return warnings


def _length(at: Mapping[str, Array], side: str, limb: Sequence[str]) -> float:
    """[m] from the start of a limb to its end, along its joints; median over frames."""
    bones = np.diff(np.stack([at[side + joint] for joint in limb]), axis=0)
    return float(np.median(np.linalg.norm(bones, axis=-1).sum(axis=0)))


def _body_size_warning(
    at: Mapping[str, Array], floor: float, legs: Sequence[float], person: bool
) -> str:
    """The warning of an implausible height; "" for none."""
    if person:
        height = float(np.mean(legs)) / LEGS_SHARE
        valid = PERSON
        usual = MOST_PERSONS
        message = f"is a person of {height:.2g} m"
    else:
        shoulders = 0.5 * (at["LF_shoulder"] + at["RF_shoulder"])[:, 2]
        height = float(np.percentile(shoulders, 90)) - floor
        valid = DOG
        usual = MOST_DOGS
        message = f"is {height:.2g} m high at the shoulder, an animal of four legs"
    is_valid = valid[0] <= height <= valid[1]
    return "" if is_valid else f"{message} (units? {better_unit(height, *usual)})"


def _swapped(at: Mapping[str, Array], person: bool) -> bool:
    """Whether knees and toes of a person point backwards, or a dog's left is on its right."""
    if person:
        ends = ("_hip", "_knee", "_foot", "_toe" if "L_toe" in at and "R_toe" in at else "_foot")
        legs = [np.stack([at[side + end] for end in ends], axis=1) for side in "LR"]
        across = at["L_hip"] - at["R_hip"] + at["L_shoulder"] - at["R_shoulder"]
        trunk = at["L_shoulder"] + at["R_shoulder"] - at["L_hip"] - at["R_hip"]
        # a lying person faces up or down
        stands = trunk[:, 2] > 0.6 * np.linalg.norm(trunk, axis=-1)
        if not stands.any():
            return False
        return forward_votes(across[stands], [leg[stands] for leg in legs]) < -0.02
    across = at["LF_shoulder"] - at["RF_shoulder"] + at["LH_hip"] - at["RH_hip"]
    ahead = at["LF_shoulder"] + at["RF_shoulder"] - at["LH_hip"] - at["RH_hip"]
    return float(np.einsum("tc,tc->t", across, np.cross(UP, ahead)).mean()) < 0.0


def motion_warnings(
    motion: ReferenceMotion, meter: QualityMeter, assumed: Collection[str] = ()
) -> list[str]:
    """The warnings of an imported robot motion: the first problem of pose and feet, and its rate.

    meter: of the robot. assumed: as of `RobotMotion`.
    """
    feet = meter.feet(motion).mean(axis=2)
    root = motion.qpos[:, :3]
    sliding = sliding_warning(feet, root, motion.rate_hz, meter.size_m)
    warnings = [root_warning(motion.qpos) or sliding or _off_floor(motion)]
    if "rate_hz" in assumed:
        warnings.append(rate_warning(motion.rate_hz, motion.source))
    return [warning for warning in warnings if warning]


def stance_warning(motion: ReferenceMotion) -> str:
    """The warning of feet that move near the floor but never stand, by the motion's figures."""
    near = motion.quality.get("near_floor_mps", 0.0)
    if motion.contacts is None or motion.contacts.any() or near < BAD["foot_slide_mps"]:
        return ""
    return f"no foot stands: near the floor they move at {near:.2g} m/s (a treadmill?)"


def _off_floor(motion: ReferenceMotion) -> str:
    if motion.contacts is None or motion.contacts.any():
        return ""
    return "has no foot on the floor in any frame (another floor? units of the root?)"


def root_warning(qpos: Array) -> str:
    """The warning of a root (T, 7 + J) more than 60 degrees from upright most of the time; "" for
    none."""
    hint = "check the quaternion's order, the root frame and the axis"
    message = f"its root lies or is upside down most of the time ({hint})"
    return message if np.median(rotations.rotate(qpos[:, 3:7], UP)[:, 2]) < 0.5 else ""


def retargeting_warning(
    motion: ReferenceMotion, warnings: Sequence[str], *, cleaned: bool = False
) -> str:
    """The warning of a misread recording ("looks wrong: ...") or of a difficult motion; "" for
    none.

    warnings: of its recording; errors and limits that follow from them are not repeated.
    cleaned: difficult stretches are dropped, and listed separately.
    """
    error = motion.quality.get("rms_marker_m", 0.0)
    violations = violations_of(motion)
    far = error > MISREAD_RMS
    # the body may really lie: the axis is right if the markers fit
    reasons = [warning for warning in warnings if far or not warning.startswith("lies")]
    if any(hint in reason for reason in reasons for hint in _MISREAD):
        return f"{WRONG}: {'; '.join(reasons)}"
    if far:
        reasons.insert(0, f"RMS {100 * error:.3g} cm (units? scale=; axis? up=)")
        return f"{WRONG}: {'; '.join(reasons)}"
    if error > HIGH_RMS and not cleaned:
        hint = "sitting or lying? else units, scale=, or axis, up="
        reasons.insert(0, f"RMS {100 * error:.3g} cm ({hint})")
    if violations > 0 and not cleaned:
        count = counted(round(violations), "limit violation")
        reasons.append(f"{count} (too fast for the robot? else rate, source_rate_hz=)")
    return f"suspicious: {'; '.join(reasons)}" if reasons else ""


def violations_of(motion: ReferenceMotion) -> float:
    """Frames and joints beyond position or velocity limits."""
    quality = motion.quality
    return quality.get("limit_violations", 0.0) + quality.get("velocity_violations", 0.0)
