"""Mirrored motions of a robot.

A robot with mirror planes gets more motions out of each recording: ANYmal's mirrors are left-right
and front-back, so three more, of which two walk backwards (Bohez et al. 2022, arXiv 2203.17138).
The mirror plane goes through the world's origin, so that a floor at z = 0 stays where it is.
Everything is exact: `npmp.robots.symmetry` has the maps.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from mocap_data.errors import InputError, unknown
from mocap_data.motion import ReferenceMotion
from npmp.robots import Robot
from npmp.robots.symmetry import Symmetry

JOIN = "+"  # between the mirrors of a combination


def combinations(robot: Robot) -> tuple[str, ...]:
    """All mirrors of a robot and their products: "left_right", "front_back",
    "left_right+front_back"."""
    names = tuple(robot.symmetries)
    return tuple(
        JOIN.join(chosen)
        for count in range(1, len(names) + 1)
        for chosen in itertools.combinations(names, count)
    )


def suffix(mirrors: str) -> str:
    """How a mirrored motion's name ends: the initials of each mirror, "_lr", "_fb", "_lrfb"."""
    parts = [part for part in mirrors.split(JOIN) if part]
    return (
        "_" + "".join(word[0] for part in parts for word in part.split("_") if word)
        if parts
        else ""
    )


def mirror(
    motion: ReferenceMotion, robot: Robot, mirrors: str, *, name: str | None = None
) -> ReferenceMotion:
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
