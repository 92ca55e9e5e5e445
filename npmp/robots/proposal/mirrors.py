"""Parts of names that swap left and right, or front and hind, held against the geometry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mocap_data.errors import InputError
from npmp.robots import check as contract
from npmp.robots.proposal.draft import Draft, axis_of, content_of, model_range, short
from npmp.robots.robot import build
from npmp.robots.symmetry import swapped

_SIDES = (
    ("LF", "RF"), ("LH", "RH"), ("FL", "FR"), ("RL", "RR"), ("HL", "HR"), ("BL", "BR"), ("Left", "Right"),
    ("LEFT", "RIGHT"),
    ("left", "right"), ("lf", "rf"), ("lh", "rh"), ("fl", "fr"), ("rl", "rr"), ("hl", "hr"), ("bl", "br"), ("L", "R"),
    ("l", "r"),
)  # fmt: skip
_ENDS = (
    ("LF", "LH"), ("RF", "RH"), ("FL", "RL"), ("FR", "RR"), ("FL", "HL"), ("FR", "HR"), ("FL", "BL"), ("FR", "BR"),
    ("lf", "lh"), ("rf", "rh"), ("fl", "rl"), ("fr", "rr"), ("fl", "hl"), ("fr", "hr"),
    ("front", "hind"), ("front", "rear"), ("front", "back"), ("Front", "Hind"), ("Front", "Rear"), ("Front", "Back"),
)  # fmt: skip
_KEPT = 0.75  # share of a joint's range that must be left


def find_mirrors(draft: Draft, where: Path) -> None:
    """left_right, and front_back where that holds too: names that swap, held against the geometry."""
    for name, normal, pairs in (("left_right", "y", _SIDES), ("front_back", "x", _ENDS)):
        if name == "front_back" and not draft.quadruped:
            continue
        swap = _swaps(draft, pairs)
        if not swap:
            if name == "left_right":
                draft.note(
                    name,
                    "none",
                    "no names that differ by left and right only: motions cannot be mirrored",
                )
            continue
        problem = ""
        if name == "left_right":
            _narrow_limits(draft, swap)
        for tolerance in (None, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2):
            entry = {"normal": normal, "swap": swap} | (
                {} if tolerance is None else {"tolerance": tolerance}
            )
            draft.content["symmetries"][name] = entry
            if name == "front_back" and "joints.home" in draft.why:
                _even_home(draft, where, name)
            problem = _mirror_problem(draft, where, name)
            if not problem:
                break
        if problem:
            del draft.content["symmetries"][name]
            if name == "left_right":
                draft.note(name, "none", problem)
            else:
                draft.note(name, "none: the robot is no mirror of itself front to back")
            continue
        near = f", within {1e3 * tolerance:g} mm only" if tolerance else ", exactly"
        draft.note(name, ", ".join(f"{a} <-> {b}" for a, b in swap) + near)
        if tolerance:
            draft.why[f"symmetries.{name}"] = (
                f"the model is symmetric to within {1e3 * tolerance:g} mm only"
            )


def _even_home(draft: Draft, where: Path, name: str) -> None:
    """Make a home that was searched for its own image, where the robot is, within limits."""
    try:
        robot = build(content_of(draft), where)
    except InputError:
        return
    model, symmetry = robot.model(visuals=False), robot.symmetries[name]
    if contract.mirror_error(robot, model, symmetry, [robot.home_qpos]) > 1e-3:
        return
    home = 0.5 * (robot.home_joints + symmetry.mirror_joints(robot.home_joints))
    images = np.sort(symmetry.mirror_joints([robot.joint_lower, robot.joint_upper]), axis=0)
    lower, upper = (
        np.minimum(images[0], robot.joint_lower),
        np.maximum(images[1], robot.joint_upper),
    )
    real = np.isfinite(model_range(draft)[0])
    if np.any(real & ((lower < robot.joint_lower - 1e-6) | (upper > robot.joint_upper + 1e-6))):
        return  # the model's own limits are no mirror images
    for row, joint, low, high in zip(
        draft.content["joints"].values(), home, lower, upper, strict=True
    ):
        row |= {"home": round(float(joint), 4), "lower": short(low), "upper": short(high)}


def _narrow_limits(draft: Draft, swap: list[list[str]]) -> None:
    """Give joints whose limits are nearly their images' the narrower of both: robots are built so,
    motions need not be.

    Only where at least _KEPT of each range is left, and home is.
    """
    table = draft.content["joints"]
    index = {name: i for i, name in enumerate(draft.joint_names)}
    narrowed: dict[str, float] = {}  # pair -> what its ranges differ by [rad]
    for name in draft.joint_names:
        images = (_image(name, a, b) for a, b in swap)
        other = next((image for image in images if image is not None), name)
        if other not in index or index[other] < index[name]:
            continue
        axis = axis_of(draft, index[other]) * [-1, 1, -1]  # of the image
        sign = 1.0 if axis @ axis_of(draft, index[name]) > 0 else -1.0
        own, twin = table[name], table[other]
        there = sorted((sign * twin["lower"], sign * twin["upper"]))
        low, high = max(own["lower"], there[0]), min(own["upper"], there[1])
        widest = max(own["upper"] - own["lower"], there[1] - there[0])
        apart = max(abs(own["lower"] - there[0]), abs(own["upper"] - there[1]))
        homes = (own["home"], sign * twin["home"])
        if (
            apart < 1e-6
            or high - low < _KEPT * widest
            or not all(low <= home <= high for home in homes)
        ):
            continue
        lower, upper = sorted((sign * low, sign * high))
        own |= {"lower": short(low), "upper": short(high)}
        twin |= {"lower": short(lower), "upper": short(upper)}
        for row in {name, other}:
            draft.why[f"joints.{row}"] = (
                "limits: the narrower of left and right, so that motions can be mirrored"
            )
        narrowed[f"{name} and {other}" if other != name else name] = apart
    if narrowed:
        what = f"the narrower of left and right, which differ by up to {max(narrowed.values()):.2g} rad, for the mirror"
        draft.note("mirrored limits", "; ".join(narrowed), what)


def _image(name: str, left: str, right: str) -> str | None:
    return swapped(name, left, right) or swapped(name, right, left)


def _mirror_problem(draft: Draft, where: Path, name: str) -> str:
    """What is wrong with the mirror, or ""."""
    try:
        robot = build(content_of(draft), where)
        air = contract.model_of(robot, floor=False)
        clause = contract.mirrors(robot, air, robot.symmetries[name])
        return "" if clause.passed else clause.detail
    except InputError as error:
        return str(error).removeprefix(f"{where}: ")


def _swaps(draft: Draft, pairs: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Parts of names to swap, such that every image exists."""
    model = draft.model
    joints = draft.joint_names
    bodies = [model.body(i).name for i in range(1, model.nbody)] + list(
        draft.content["feet"].get("at", {})
    )
    names = [*joints, *bodies]
    found: list[list[str]] = []
    settled: set[str] = set()
    for left, right in pairs:
        for form in _forms(left):
            other = form.replace(left, right)
            touched = [
                name
                for name in names
                if name not in settled and swapped(name, form, other) is not None
            ]
            if touched and all(swapped(name, form, other) in names for name in touched):
                found.append([form, other])
                settled |= set(touched) | {str(swapped(name, form, other)) for name in touched}
    return found


def _forms(side: str) -> tuple[str, ...]:
    """Where a side's word may stand in a name: "left_*", "*_left", "*_left_*", "LeftHip"."""
    camel = (side,) if len(side) > 2 and side[0].isupper() else ()
    long = (f"{side}", f"*{side}") if len(side) > 2 else ()
    return (f"{side}_", f"*_{side}", f"*_{side}_*", f"{side}-", *camel, *long)
