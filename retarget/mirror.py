"""Mirrored motions of a robot.

ANYmal's mirrors are left-right and front-back: three more motions out of each recording, of which
two walk backwards (Bohez et al. 2022, arXiv 2203.17138). The mirror plane goes through the world's
origin; a floor at z = 0 stays. The maps are exact, of `npmp.robots.symmetry`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from mocap_data.errors import InputError, check_available
from mocap_data.motion import ReferenceMotion
from npmp.robots import Robot

# between the mirrors of a combination
JOIN = "+"


def combinations(robot: Robot) -> tuple[str, ...]:
    """All mirrors of a robot and their products: "left_right", "left_right+front_back", ..."""
    names = tuple(robot.symmetries)
    counts = range(1, len(names) + 1)
    return tuple(JOIN.join(some) for k in counts for some in itertools.combinations(names, k))


def suffix(mirrors: str) -> str:
    """The ending of a mirrored motion's name: the mirrors' initials, "_lr", "_fb", "_lrfb"."""
    initials = "".join(word[0] for word in mirrors.replace(JOIN, "_").split("_") if word)
    return f"_{initials}" if initials else ""


def mirror(
    motion: ReferenceMotion, robot: Robot, mirrors: str, *, name: str | None = None
) -> ReferenceMotion:
    """The motion reflected by `mirrors`, one of the robot's or several joined by "+".

    name: of the result; None: the motion's with the mirrors' initials. Figures and times stay.

    Raises:
      InputError: a mirror that the robot does not have, or a motion of another robot.
    """
    names = mirrors.split(JOIN)
    check_available(f"mirror of robot '{robot.name}'", names, robot.symmetries)
    if len(set(names)) < len(names):
        raise InputError(f"mirrors={mirrors}: expected each mirror once")
    joints = motion.qpos.shape[1] - 7
    expected = len(robot.joint_names)
    if joints != expected:
        raise InputError(
            f"motion {motion.name!r}: {joints} joints, robot {robot.name!r} has {expected}"
        )
    qpos = motion.qpos
    contacts = motion.contacts
    ground = motion.ground
    for each in names:
        if ground is not None and robot.symmetries[each].normal[0]:
            ground = ground.reversed()
        qpos = robot.symmetries[each].mirror_qpos(qpos)
        if contacts is not None:
            contacts = contacts[:, robot.symmetries[each].foot_permutation]
    # a mirror applied twice cancels
    applied = set(motion.mirror.split(JOIN)) ^ set(names)
    return replace(
        motion,
        name=motion.name + suffix(mirrors) if name is None else name,
        qpos=qpos,
        contacts=contacts,
        ground=ground,
        mirror=JOIN.join(each for each in robot.symmetries if each in applied),
    )
