"""Mirrored motions of a robot, and mirrored recordings of an animal or a person.

A robot with mirror planes gets more motions out of each recording: ANYmal's mirrors are left-right and front-back, so
three more, of which two walk backwards (Bohez et al. 2022, arXiv 2203.17138). The mirror plane goes through the
world's origin, so that a floor at z = 0 stays where it is. Everything is exact: `npmp.robots.symmetry` has the maps.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mocap_data.clip import Clip
from mocap_data.errors import InputError, unknown
from mocap_data.motion import ReferenceMotion
from npmp.robots import Robot
from npmp.robots.symmetry import Symmetry

JOIN = "+"  # between the mirrors of a combination
_X, _Y = np.array([-1.0, 1.0, 1.0]), np.array([1.0, -1.0, 1.0])

# Of markers named as the quadrupeds' are: the front-back mirror makes fore legs of hind legs. All at once, the
# first pair that fits a name's beginning counts.
FRONT_BACK_MARKERS = (
    ("LF_shoulder", "LH_hip"), ("RF_shoulder", "RH_hip"), ("LF_", "LH_"), ("RF_", "RH_"),
)  # fmt: skip


def combinations(robot: Robot) -> tuple[str, ...]:
    """All mirrors of a robot and their products: "left_right", "front_back", "left_right+front_back"."""
    names = tuple(robot.symmetries)
    return tuple(
        JOIN.join(chosen) for count in range(1, len(names) + 1) for chosen in itertools.combinations(names, count)
    )


def suffix(mirrors: str) -> str:
    """How a mirrored motion's name ends: the initials of each mirror, "_lr", "_fb", "_lrfb"."""
    parts = [part for part in mirrors.split(JOIN) if part]
    return "_" + "".join(word[0] for part in parts for word in part.split("_") if word) if parts else ""


def mirror(motion: ReferenceMotion, robot: Robot, mirrors: str, *, name: str | None = None) -> ReferenceMotion:
    """The motion seen in the mirror `mirrors`, one of the robot's or several joined by "+".

    Figures, times and the split stay: they are the same.
    name: of the result; by default the motion's with the mirrors' initials behind it.

    Raises:
      InputError: for a mirror that the robot does not have, or a motion that is not of this robot.
    """
    chosen = _symmetries(robot, mirrors)
    if motion.qpos.shape[1] != 7 + len(robot.joint_names):
        raise InputError(
            f"motion {motion.name!r} has {motion.qpos.shape[1] - 7} joints, "
            f"robot '{robot.name}' has {len(robot.joint_names)}"
        )
    qpos, contacts = motion.qpos, motion.contacts
    for symmetry in chosen:
        qpos = symmetry.mirror_qpos(qpos)
        contacts = None if contacts is None else contacts[:, symmetry.foot_permutation]
    return replace(
        motion,
        name=motion.name + suffix(mirrors) if name is None else name,
        qpos=qpos,
        contacts=contacts,
        mirror=_product(robot, motion.mirror, mirrors),
    )


def mirror_clip(clip: Clip, pairs: Sequence[tuple[str, str]] | None = None, *, normal: str = "y") -> Clip:
    """A recording seen in a mirror through the world's origin: places reflected, names of the two sides swapped.

    pairs: how names of one side become the other's: (beginning, beginning), the first that fits counts. By default
        left and right as `sides` finds them in the names.
    normal: "y" or "x", the axis across the mirror; "x" is the front-back mirror of markers, with
        pairs=FRONT_BACK_MARKERS.

    Raises:
      InputError: for a keypoint whose partner the clip does not have.
    """
    if normal not in ("x", "y"):
        raise InputError(f"normal={normal!r} is no horizontal axis; there are: x, y")
    partners = sides(clip.names) if pairs is None else _partners(clip.names, pairs)
    columns = [clip.index(partners[name]) for name in clip.names]
    return replace(clip, positions=clip.positions[:, columns] * (_Y if normal == "y" else _X))


def sides(names: Sequence[str]) -> dict[str, str]:
    """Each name's partner on the other side, itself for one in the middle.

    Sides are said by a beginning "Left"/"Right", "left"/"right", "L_"/"R_", "l_"/"r_", "LF_"/"RF_", "LH_"/"RH_" or,
    where the other side exists, a plain "l"/"r" (CMU's "lfemur").

    Raises:
      InputError: where a partner is missing.
    """
    known = set(names)
    begins = (("Left", "Right"), ("left", "right"), ("L_", "R_"), ("l_", "r_"), ("LF_", "RF_"), ("LH_", "RH_"))
    partners = _partners(names, begins)
    for a, b in (("l", "r"), ("r", "l")):
        for name in names:
            image = b + name[1:]
            if partners[name] == name and name.startswith(a) and image in known:  # "root" has no "loot"
                partners[name] = image
    return partners


def _partners(names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    found = {}
    for name in names:
        found[name] = name
        for one, other in itertools.chain.from_iterable(((a, b), (b, a)) for a, b in pairs):
            if name.startswith(one):
                found[name] = other + name[len(one) :]
                break
        if found[name] not in names:
            raise unknown(f"keypoint (the mirror image of {name})", found[name], names)
    return found


def _symmetries(robot: Robot, mirrors: str) -> list[Symmetry]:
    available: Mapping[str, Symmetry] = robot.symmetries
    names = mirrors.split(JOIN)
    for name in names:
        if name not in available:
            raise unknown(f"mirror of robot '{robot.name}'", name, tuple(available))
    if len(set(names)) < len(names):
        raise InputError(f"mirrors {mirrors!r} name one of them twice")
    return [available[name] for name in names]


def _product(robot: Robot, first: str, second: str) -> str:
    """Two combinations one after the other, as one: a mirror that is in both cancels."""
    odd = set(filter(None, first.split(JOIN))) ^ set(filter(None, second.split(JOIN)))
    return JOIN.join(name for name in robot.symmetries if name in odd)
