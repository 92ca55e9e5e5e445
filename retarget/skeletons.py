"""Which keypoints of a recorded skeleton make up which marker of a robot.

A marker's position is a weighted mean of named keypoints. A skeleton fits a clip when the clip has
all the keypoints it names. To retarget another animal, add an entry to `SKELETONS`; or give
keypoints the names of the robot's markers, which every robot takes as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from npmp.robots import check

QUADRUPED_MARKERS = check.QUADRUPED_MARKERS
HUMANOID_MARKERS = (
    *check.HUMANOID_MARKERS,
    *(f"{side}_{part}" for part in ("toe", "heel", "elbow", "hand") for side in "LR"),
)


@dataclass(frozen=True)
class Skeleton:
    """`markers[name]` maps keypoint names to weights that sum to 1."""

    name: str
    markers: Mapping[str, Mapping[str, float]]

    @property
    def keypoints(self) -> tuple[str, ...]:
        """All keypoints that the skeleton needs, each once, in order of first use."""
        return tuple(dict.fromkeys(key for weights in self.markers.values() for key in weights))


def _quadruped(
    name: str, sides: tuple[str, str], blade: Mapping[str, float], hip: str, fore: str, hind: str
) -> Skeleton:
    """A four-legged skeleton; patterns hold {} for the words of `sides`, left and right.

    A dog's shoulder blade glides on its ribs: the shoulder joint swings with the leg while the
    blade's upper end stays with the spine, as a robot's leg hangs from a rigid trunk (RMS marker
    error of five walks: 1.7 cm with the middle of the two, 1.5 cm with 0.8 of the blade's end). The
    trunk's centre is the mean of shoulders and hips, not a spine joint, which arches. fore, hind:
    the paws' ends, which touch the floor.
    """
    base: dict[str, float] = {}
    markers: dict[str, dict[str, float]] = {"base": base}
    for letter, side in zip("LR", sides, strict=True):
        shoulder = {key.format(side): share for key, share in blade.items()}
        base |= {key: 0.25 * share for key, share in shoulder.items()} | {hip.format(side): 0.25}
        markers[f"{letter}F_shoulder"] = shoulder
        markers[f"{letter}H_hip"] = {hip.format(side): 1.0}
        markers[f"{letter}F_foot"] = {fore.format(side): 1.0}
        markers[f"{letter}H_foot"] = {hind.format(side): 1.0}
    return Skeleton(name, {key: markers[key] for key in QUADRUPED_MARKERS})


def _humanoid(name: str, sides: tuple[str, str], chest: str, **parts: str) -> Skeleton:
    """A two-legged skeleton; patterns hold {} for the words of `sides`, left and right.

    The foot marker is the ankle, the toe marker the ball of the foot.
    """
    markers = {"chest": {chest: 1.0}}
    for part, pattern in parts.items():
        for letter, side in zip("LR", sides, strict=True):
            markers[f"{letter}_{part}"] = {pattern.format(side): 1.0}
    return Skeleton(name, {key: markers[key] for key in HUMANOID_MARKERS if key in markers})


# the dog of Zhang et al. 2018, 27 keypoints
DOG = _quadruped(
    "dog",
    ("Left", "Right"),
    blade={"{}Shoulder": 0.8, "{}Arm": 0.2},
    hip="{}UpLeg",
    fore="{}Hand_end",
    hind="{}Foot_end",
)
# the same dog as a character of DeepMimic's kind, without a point of the blade above the joint
DOG_CHARACTER = _quadruped(
    "dog_character",
    ("left", "right"),
    blade={"{}_shoulder": 1.0},
    hip="{}_upper_leg",
    fore="{}_finger",
    hind="{}_toe",
)
# CMU's people: bones of the ASF, keypoints at their ends
CMU = _humanoid(
    "cmu",
    ("l", "r"),
    "thorax",
    shoulder="{}clavicle",
    hip="{}hipjoint",
    knee="{}femur",
    foot="{}tibia",
    toe="{}foot",
    elbow="{}humerus",
    hand="{}wrist",
)
# the same people as joints of a BVH-like hierarchy, 38 keypoints at the bones' starts
CMU_JOINTS = _humanoid(
    "cmu_joints",
    ("Left", "Right"),
    "Neck",
    shoulder="{}Arm",
    hip="{}UpLeg",
    knee="{}Leg",
    foot="{}Foot",
    toe="{}ToeBase",
    elbow="{}ForeArm",
    hand="{}Hand",
)
# iClone's base character, on which some copies of the CMU set are
CC_BASE = _humanoid(
    "cc_base",
    ("L", "R"),
    "CC_Base_NeckTwist01",
    shoulder="CC_Base_{}_Upperarm",
    hip="CC_Base_{}_Thigh",
    knee="CC_Base_{}_Calf",
    foot="CC_Base_{}_Foot",
    toe="CC_Base_{}_ToeBase",
    elbow="CC_Base_{}_Forearm",
    hand="CC_Base_{}_Hand",
)
# DeepMimic's humanoid
DEEPMIMIC = _humanoid(
    "deepmimic",
    ("left", "right"),
    "neck",
    shoulder="{}_shoulder",
    hip="{}_hip",
    knee="{}_knee",
    foot="{}_ankle",
    toe="{}_toe",
    heel="{}_heel",
    elbow="{}_elbow",
    hand="{}_wrist",
)
SKELETONS: tuple[Skeleton, ...] = (DOG, CMU, CMU_JOINTS, CC_BASE, DEEPMIMIC, DOG_CHARACTER)


def skeleton_of(clip: Clip, markers: Sequence[str] = QUADRUPED_MARKERS) -> Skeleton:
    """The skeleton that fits the clip and a robot's `markers`: the markers' own names come first.

    Raises:
      InputError: naming the keypoints that the closest skeleton misses and those that the clip has,
        or the markers of a skeleton that fits the clip but not the robot.
    """
    by_marker = Skeleton("markers", {name: {name: 1.0} for name in markers})
    if markers and all(name in clip.names for name in markers):
        return by_marker
    known = (*SKELETONS, by_marker)
    missing = {s.name: [key for key in s.keypoints if key not in clip.names] for s in known}
    fitting = [s for s in known if not missing[s.name]]
    for skeleton in fitting:
        if set(skeleton.markers) & set(markers):
            return skeleton
    if fitting:
        has, robot_has = ", ".join(fitting[0].markers), ", ".join(markers) or "none"
        kind = f"of the kind '{fitting[0].name}', which has the markers {has}"
        raise InputError(f"clip {clip.name!r} is {kind}; the robot has {robot_has}")
    sharing = [s for s in known if set(s.markers) & set(markers)] or list(known)
    closest = min(sharing, key=lambda s: (len(missing[s.name]), len(s.keypoints)))
    shown = ", ".join(clip.names[:40]) + (", ..." if len(clip.names) > 40 else "")
    raise InputError(
        f"clip {clip.name!r} fits no known skeleton ({', '.join(missing)}); '{closest.name}' needs "
        f"{', '.join(missing[closest.name])}; the clip has {shown}"
    )


def marker_positions(clip: Clip, skeleton: Skeleton, names: Sequence[str]) -> Array:
    """Positions (T, M, 3) [m] of the markers `names` in the clip.

    Raises:
      InputError: for a marker that the skeleton does not have.
    """
    weights = np.zeros((len(names), len(clip.names)))
    for row, name in enumerate(names):
        if name not in skeleton.markers:
            has = f"it has {', '.join(skeleton.markers)}"
            raise InputError(f"skeleton '{skeleton.name}' has no marker '{name}'; {has}")
        for key, weight in skeleton.markers[name].items():
            weights[row, clip.index(key)] = weight
    used = np.flatnonzero(weights.any(axis=0))
    return np.einsum("mk,tkc->tmc", weights[:, used], clip.positions[:, used], optimize=True)
