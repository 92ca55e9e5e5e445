"""Parts of names that swap left and right, or front and hind, checked against the geometry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mocap_data.errors import InputError
from npmp.robots import check as checks
from npmp.robots.proposal.draft import Draft, short
from npmp.robots.robot import build
from npmp.robots.symmetry import swapped


def _spelled(words: str, *spellings: str) -> tuple[tuple[str, str], ...]:
    """ "LF-RF LH-RH" as pairs, in these spellings: "upper", "lower", "capitalize"."""
    split = [word.split("-") for word in words.split()]
    return tuple((getattr(a, s)(), getattr(b, s)()) for s in spellings for a, b in split)


_SIDES = (
    *_spelled("LF-RF LH-RH FL-FR RL-RR HL-HR BL-BR", "upper"),
    *_spelled("left-right", "capitalize", "upper", "lower"),
    *_spelled("lf-rf lh-rh fl-fr rl-rr hl-hr bl-br", "lower"),
    *_spelled("L-R", "upper", "lower"),
)
_ENDS = (
    *_spelled("LF-LH RF-RH FL-RL FR-RR FL-HL FR-HR FL-BL FR-BR", "upper"),
    *_spelled("lf-lh rf-rh fl-rl fr-rr fl-hl fr-hr", "lower"),
    *_spelled("front-hind front-rear front-back", "lower", "capitalize"),
)
# [m] to try, in this order; None: exactly
_TOLERANCES = (None, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2)


def find_mirrors(draft: Draft, where: Path) -> None:
    """Write the mirrors left_right and front_back that hold."""
    table = draft.content["symmetries"] = {}
    if swap := _swaps(draft, _SIDES):
        if problem := _tried(draft, where, "left_right", {"normal": "y", "swap": swap}):
            draft.note("left_right", "none", problem)
            del table["left_right"]
    else:
        reason = "no names that differ by left and right only: motions cannot be mirrored"
        draft.note("left_right", "none", reason)
    swap = _swaps(draft, _ENDS) if draft.quadruped else []
    if swap and _tried(draft, where, "front_back", {"normal": "x", "swap": swap}):
        draft.note("front_back", "none: front and back are not mirror images")
        del table["front_back"]


def _tried(draft: Draft, where: Path, name: str, entry: dict[str, object]) -> str:
    """Write a mirror with the smallest tolerance with which it holds. Returns the problem at the
    largest, or ""."""
    swap: Sequence[Sequence[str]] = entry["swap"]  # type: ignore[assignment]
    for tolerance in _TOLERANCES:
        draft.content["symmetries"][name] = entry | ({"tolerance": tolerance} if tolerance else {})
        if name == "front_back" and "joints.home" in draft.reasons:
            _even_home(draft, where, name)
        if problem := _mirror_problem(draft, where, name):
            continue
        near = ", exactly"
        if tolerance:
            near = f", within {1e3 * tolerance:g} mm only"
            reason = f"the model is symmetric to within {1e3 * tolerance:g} mm only"
            draft.reasons[f"symmetries.{name}"] = reason
        draft.note(name, ", ".join(f"{a} <-> {b}" for a, b in swap) + near)
        return ""
    return problem


def _mirror_problem(draft: Draft, where: Path, name: str) -> str:
    """The problem of a mirror, or ""."""
    try:
        robot = build(draft.robot_yaml(), where)
        air = checks.model_of(robot, floor=False)
        check = checks.mirrors(robot, air, robot.symmetries[name])
        return "" if check.passed else check.detail
    except InputError as error:
        return str(error).removeprefix(f"{where}: ")


def _even_home(draft: Draft, where: Path, name: str) -> None:
    """Make a searched home its own image, within limits, where the robot is its own image."""
    try:
        robot = build(draft.robot_yaml(), where)
    except InputError:
        return
    model = robot.model(visuals=False)
    symmetry = robot.symmetries[name]
    if checks.mirror_error(robot, model, symmetry, [robot.home_qpos]) > 1e-3:
        return
    home = 0.5 * (robot.home_joints + symmetry.mirror_joints(robot.home_joints))
    images = np.sort(symmetry.mirror_joints([robot.joint_lower, robot.joint_upper]), axis=0)
    lower = np.minimum(images[0], robot.joint_lower)
    upper = np.maximum(images[1], robot.joint_upper)
    wider = (lower < robot.joint_lower - 1e-6) | (upper > robot.joint_upper + 1e-6)
    if np.any(np.isfinite(draft.ranges()[0]) & wider):
        # the model's own limits are not mirror images
        return
    rows = zip(draft.content["joints"].values(), home, lower, upper, strict=True)
    for row, joint, low, high in rows:
        row |= {"home": round(float(joint), 4), "lower": short(low), "upper": short(high)}


def _swaps(draft: Draft, words: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Parts of names to swap such that every image exists."""
    bodies = [draft.model.body(i).name for i in range(1, draft.model.nbody)]
    names = [*draft.joint_names, *bodies, *draft.content["feet"].get("at", {})]
    swaps: list[list[str]] = []
    done: set[str] = set()
    for left, right in words:
        # "left_*", "*_left", "*_left_*", "left-*", "LeftHip"
        long = (left, f"*{left}") if len(left) > 2 else ()
        for form in (f"{left}_", f"*_{left}", f"*_{left}_*", f"{left}-", *long):
            other = form.replace(left, right)
            images = {n: swapped(n, form, other) for n in names if n not in done}
            images = {name: image for name, image in images.items() if image is not None}
            if images and set(images.values()) <= set(names):
                swaps.append([form, other])
                done |= set(images) | {str(image) for image in images.values()}
    return swaps
