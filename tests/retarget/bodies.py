"""A person that walks, and what recordings do to skeletons: other names, bones more or fewer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np

from mocap_data.clip import Clip

# child: parent, of one side and of the middle
_SIDE = {
    "Shoulder": "Spine1",
    "Arm": "Shoulder",
    "ForeArm": "Arm",
    "Hand": "ForeArm",
    "Hand_end": "Hand",
    "UpLeg": "Hips",
    "Leg": "UpLeg",
    "Foot": "Leg",
    "ToeBase": "Foot",
    "ToeBase_end": "ToeBase",
}
_MIDDLE = {
    "Hips": "",
    "Spine": "Hips",
    "Spine1": "Spine",
    "Neck": "Spine1",
    "Head": "Neck",
    "Head_end": "Head",
}


def person(
    height: float = 1.7, speed: float = 1.2, seconds: float = 3.0, rate_hz: float = 60.0
) -> Clip:
    """A person that walks forwards along X, arms swinging against the legs: MotionBuilder's names,
    shares of its height [m]."""
    time = np.arange(round(seconds * rate_hz)) / rate_hz
    zero = np.zeros_like(time)

    def down(angle: np.ndarray, length: float) -> np.ndarray:
        """A bone that hangs, swung forwards by an angle [rad]."""
        return height * length * np.stack((np.sin(angle), zero, -np.cos(angle)), -1)

    def at(x: float, y: float, z: float) -> np.ndarray:
        return height * np.array([x, y, z])

    points = {
        name: np.zeros((len(time), 3)) + at(*place)
        for name, place in {
            "Hips": (0.0, 0.0, 0.53),
            "Spine": (0.0, 0.0, 0.6),
            "Spine1": (0.0, 0.0, 0.7),
            "Neck": (0.0, 0.0, 0.83),
            "Head": (0.01, 0.0, 0.88),
            "Head_end": (0.01, 0.0, 0.98),
        }.items()
    }
    for side, sign in (("Left", 1.0), ("Right", -1.0)):
        phase = 2.0 * math.pi * time * speed / (0.8 * height) + (0.0 if sign > 0.0 else math.pi)
        hip = 0.4 * np.sin(phase)
        bend = 0.1 + 0.5 * np.clip(np.cos(phase), 0.0, None)
        leg = {"UpLeg": points["Hips"] + at(0.0, sign * 0.055, -0.01)}
        leg["Leg"] = leg["UpLeg"] + down(hip, 0.245)
        leg["Foot"] = leg["Leg"] + down(hip - bend, 0.246)
        leg["ToeBase"] = leg["Foot"] + at(0.08, 0.0, -0.03)
        leg["ToeBase_end"] = leg["ToeBase"] + at(0.04, 0.0, 0.0)
        arm = {"Shoulder": points["Spine1"] + at(0.0, sign * 0.03, 0.1)}
        arm["Arm"] = arm["Shoulder"] + at(0.0, sign * 0.08, 0.0)
        arm["ForeArm"] = arm["Arm"] + down(-0.3 * np.sin(phase), 0.186)
        arm["Hand"] = arm["ForeArm"] + down(0.4 - 0.4 * np.sin(phase), 0.146)
        arm["Hand_end"] = arm["Hand"] + down(0.5 - 0.2 * np.sin(phase), 0.1)
        points |= {side + name: place for name, place in (leg | arm).items()}
    names = tuple(points)
    places = np.stack(list(points.values()), axis=1)
    places[..., 0] += speed * time[:, None]
    places[..., 2] -= places[..., 2].min(axis=1, keepdims=True)
    parents = dict(_MIDDLE)
    for side in ("Left", "Right"):
        parents |= {side + name: up if up in _MIDDLE else side + up for name, up in _SIDE.items()}
    indices = tuple(names.index(parents[name]) if parents[name] else -1 for name in names)
    return Clip(places, names, rate_hz, name="person", parents=indices)


def renamed(clip: Clip, change: Callable[[str], str]) -> Clip:
    """The clip with other names."""
    return dataclasses.replace(clip, names=tuple(change(name) for name in clip.names))


def numbered(clip: Clip) -> Clip:
    """The clip with names that say nothing: j00, j01, ..."""
    return dataclasses.replace(clip, names=tuple(f"j{i:02}" for i in range(len(clip.names))))


def grown(clip: Clip, added: Mapping[str, tuple[str, np.ndarray]], *, first: bool = False) -> Clip:
    """The clip with leaves more: name to (parent or "", offset (3,) or path (T, 3) without one)."""
    assert clip.parents is not None
    base = {"": np.zeros_like(clip.positions[:, 0])}
    base |= {name: clip.positions[:, i] for i, name in enumerate(clip.names)}
    new = np.stack([base[parent] + offset for parent, offset in added.values()], axis=1)
    parents = [clip.names[p] if p >= 0 else "" for p in clip.parents]
    extra = [parent for parent, _ in added.values()]
    if first:
        names = (*added, *clip.names)
        ups = [*extra, *parents]
        places = np.concatenate((new, clip.positions), axis=1)
    else:
        names = (*clip.names, *added)
        ups = [*parents, *extra]
        places = np.concatenate((clip.positions, new), axis=1)
    indices = tuple(names.index(up) if up else -1 for up in ups)
    return dataclasses.replace(clip, positions=places, names=names, parents=indices)


def split(clip: Clip, child: str, name: str, share: float = 0.5) -> Clip:
    """The clip with a joint more within the bone to a child: a twist bone, a vertebra."""
    assert clip.parents is not None
    i = clip.index(child)
    up = clip.parents[i]
    between = (1.0 - share) * clip.positions[:, up] + share * clip.positions[:, i]
    places = np.concatenate((clip.positions, between[:, None]), axis=1)
    parents = list(clip.parents)
    parents[i] = len(clip.names)
    return dataclasses.replace(
        clip, positions=places, names=(*clip.names, name), parents=(*parents, up)
    )


def without(clip: Clip, *ends: str) -> Clip:
    """The clip without keypoints of these endings."""
    return clip.select([name for name in clip.names if not name.endswith(ends)])


def mirrored(clip: Clip) -> Clip:
    """The clip seen in a mirror, its names as they were."""
    return dataclasses.replace(clip, positions=clip.positions * [1.0, -1.0, 1.0])


def shuffled(clip: Clip, seed: int = 0) -> Clip:
    """The clip with its keypoints in another order."""
    assert clip.parents is not None
    order = np.random.default_rng(seed).permutation(len(clip.names))
    parents = [clip.parents[i] for i in order]
    place = {int(old): new for new, old in enumerate(order)}
    return dataclasses.replace(
        clip,
        positions=clip.positions[:, order],
        names=tuple(clip.names[i] for i in order),
        parents=tuple(place[p] if p >= 0 else -1 for p in parents),
    )


# of each marker of Plug-in Gait: the joint that it moves with, and where it lies [m] on the left:
# ahead, outwards, up. The distance between LASI and RASI is 0.26 m.
_PLUG_IN_GAIT = {
    "FHD": ("Head", (0.09, 0.07, 0.05)),
    "BHD": ("Head", (-0.09, 0.07, 0.05)),
    "SHO": ("LeftArm", (0.0, 0.0, 0.05)),
    "UPA": ("LeftArm", (0.0, 0.05, -0.15)),
    "ELB": ("LeftForeArm", (0.0, 0.045, 0.0)),
    "FRM": ("LeftForeArm", (0.0, 0.04, -0.12)),
    "WRA": ("LeftHand", (0.03, 0.0, 0.0)),
    "WRB": ("LeftHand", (-0.03, 0.0, 0.0)),
    "FIN": ("LeftHand", (0.02, 0.02, -0.07)),
    "ASI": ("Hips", (0.05, 0.13, 0.06)),
    "PSI": ("Hips", (-0.13, 0.05, 0.08)),
    "THI": ("LeftUpLeg", (0.0, 0.08, -0.2)),
    "KNE": ("LeftLeg", (0.0, 0.055, 0.0)),
    "TIB": ("LeftLeg", (0.0, 0.05, -0.2)),
    "ANK": ("LeftFoot", (0.0, 0.043, 0.0)),
    "HEE": ("LeftFoot", (-0.06, 0.0, -0.03)),
    "TOE": ("LeftToeBase", (0.0, 0.0, 0.02)),
}
_PLUG_IN_GAIT_MIDDLE = {
    "C7": ("Neck", (-0.06, 0.0, 0.02)),
    "T10": ("Spine", (-0.1, 0.0, 0.05)),
    "CLAV": ("Neck", (0.07, 0.0, -0.03)),
    "STRN": ("Spine1", (0.11, 0.0, 0.0)),
    "RBAK": ("Spine1", (-0.1, -0.07, 0.03)),
}


def plug_in_gait(clip: Clip) -> Clip:
    """The surface markers of a person that walks along X, without bones."""
    places = {}
    for side, letter, sign in (("Left", "L", 1.0), ("Right", "R", -1.0)):
        for marker, (joint, offset) in _PLUG_IN_GAIT.items():
            at = clip.positions[:, clip.index(joint.replace("Left", side))]
            places[letter + marker] = at + np.array(offset) * [1.0, sign, 1.0]
    for marker, (joint, offset) in _PLUG_IN_GAIT_MIDDLE.items():
        places[marker] = clip.positions[:, clip.index(joint)] + np.array(offset)
    positions = np.stack(list(places.values()), axis=1)
    return Clip(positions, tuple(places), clip.rate_hz, name="gait")
