"""Which keypoints of a recorded skeleton make up which marker of a robot.

A marker's position is a weighted mean of named keypoints. A skeleton fits a clip when the clip has all the
keypoints it names; further keypoints are ignored. To retarget another animal, add an entry to `SKELETONS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError

QUADRUPED_MARKERS = (
    "base", "LF_shoulder", "RF_shoulder", "LH_hip", "RH_hip", "LF_foot", "RF_foot", "LH_foot", "RH_foot",
)  # fmt: skip


@dataclass(frozen=True)
class Skeleton:
    """`markers[name]` maps keypoint names to weights that sum to 1."""

    name: str
    markers: Mapping[str, Mapping[str, float]]

    @property
    def keypoints(self) -> tuple[str, ...]:
        """All keypoints that the skeleton needs, each once, in order of first use."""
        return tuple(dict.fromkeys(key for weights in self.markers.values() for key in weights))


def _mid_blade(side: str) -> dict[str, float]:
    return {f"{side}Shoulder": 0.5, f"{side}Arm": 0.5}


# The dog of Zhang et al. 2018 (27 keypoints). A dog's shoulder blade glides on its ribs, so that the
# shoulder joint (LeftArm) swings with the leg while the blade's upper end (LeftShoulder) stays with the
# spine; a robot's leg hangs from a rigid trunk. Their middle serves
# best: it is about as wide as the hips, which front-back symmetric offsets ask for (measured on a minute of
# walking: RMS marker error 2.3 cm with the joint alone, 1.7 cm with the middle). The trunk's centre is
# the mean of shoulders and hips, not a spine
# joint: the spine's arching would otherwise lift and drop the robot's rigid trunk. The ends of the paws
# touch the floor.
DOG = Skeleton(
    "dog",
    {
        "base": {
            "LeftShoulder": 0.125, "LeftArm": 0.125, "RightShoulder": 0.125, "RightArm": 0.125,
            "LeftUpLeg": 0.25, "RightUpLeg": 0.25,
        },
        "LF_shoulder": _mid_blade("Left"),
        "RF_shoulder": _mid_blade("Right"),
        "LH_hip": {"LeftUpLeg": 1.0},
        "RH_hip": {"RightUpLeg": 1.0},
        "LF_foot": {"LeftHand_end": 1.0},
        "RF_foot": {"RightHand_end": 1.0},
        "LH_foot": {"LeftFoot_end": 1.0},
        "RH_foot": {"RightFoot_end": 1.0},
    },
)  # fmt: skip

# Keypoints that already carry the markers' names.
MARKERS = Skeleton("markers", {name: {name: 1.0} for name in QUADRUPED_MARKERS})

SKELETONS: tuple[Skeleton, ...] = (DOG, MARKERS)


def skeleton_of(clip: Clip) -> Skeleton:
    """The first known skeleton that fits the clip.

    Raises InputError naming the keypoints that the closest skeleton misses and those that the clip has.
    """
    missing = {s.name: [key for key in s.keypoints if key not in clip.names] for s in SKELETONS}
    for skeleton in SKELETONS:
        if not missing[skeleton.name]:
            return skeleton
    closest = min(missing, key=lambda name: len(missing[name]))
    raise InputError(
        f"clip {clip.name!r} fits no known skeleton ({', '.join(missing)}); '{closest}' needs "
        f"{', '.join(missing[closest])}; the clip has {', '.join(clip.names)}"
    )


def marker_positions(clip: Clip, skeleton: Skeleton, names: Sequence[str]) -> Array:
    """Positions (T, M, 3) [m] of the markers `names` in the clip.

    Raises InputError for a marker that the skeleton does not have.
    """
    weights = np.zeros((len(names), len(clip.names)))
    for row, name in enumerate(names):
        if name not in skeleton.markers:
            raise InputError(
                f"skeleton '{skeleton.name}' has no marker '{name}'; it has {', '.join(skeleton.markers)}"
            )
        for key, weight in skeleton.markers[name].items():
            weights[row, clip.index(key)] = weight
    return np.einsum("mk,tkc->tmc", weights, clip.positions, optimize=True)
