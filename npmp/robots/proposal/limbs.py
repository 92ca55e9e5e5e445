"""Legs and arms: chains of hinges, by where they end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import mujoco
import numpy as np

from mocap_data.errors import InputError
from npmp.robots import check as contract
from npmp.robots.fields import FloatArray
from npmp.robots.proposal.draft import Draft, Limb, anchor_of
from npmp.robots.proposal.shapes import lowest, top, welded

_LOW = 0.12  # share of the robot's height within which feet are from the lowest


def find_limbs(draft: Draft, pose: mujoco.MjData) -> None:
    """Chains of at least two hinges that end in a leaf; the lowest are legs, the outermost others
    on both sides arms."""
    model = draft.model
    parents = set(model.body_parentid[2:].tolist())
    leaves = [b for b in range(2, model.nbody) if b not in parents]
    chains = {b: _hinges_to(model, b) for b in leaves}
    chains = {b: joints for b, joints in chains.items() if len(joints) >= 2}
    if not chains:
        raise InputError(f"{draft.mjcf}: no chain of two hinges or more, so no legs")
    bottom = {b: min(lowest(model, pose, c)[0] for c in welded(model, b)) for b in chains}
    # of all bodies that hang on one hinge, the lowest is the limb's end
    ends: dict[tuple[int, ...], int] = {}
    for b in sorted(chains, key=lambda b: bottom[b]):
        ends.setdefault(tuple(chains[b]), b)
    chains = {b: chains[b] for b in sorted(ends.values())}
    bottom = {b: bottom[b] for b in chains}
    reach = max(top(model, pose), 0.0) - min(bottom.values())
    feet = [b for b in chains if bottom[b] < min(bottom.values()) + _LOW * reach]
    if len(feet) < 2:
        hint = "expected legs that end equally low; is Z up, and does it stand, at zero joints?"
        found = ", ".join(model.body(b).name for b in feet) or "none"
        raise InputError(f"{draft.mjcf}: fewer than two feet found ({found}); {hint}")
    if len(feet) not in (2, 4):
        names = ", ".join(model.body(b).name for b in feet)
        hint = "robots on two or four can be proposed, others written by hand"
        raise InputError(f"{draft.mjcf}: {len(feet)} legs ({names}); {hint}")
    shared = set.intersection(*(set(chains[b]) for b in feet))
    legs = [_limb_to(model, b, [j for j in chains[b] if j not in shared]) for b in feet]
    draft.legs = _sided(draft, legs, four=len(legs) == 4)
    used = {j for limb in legs for j in limb.joints}
    others = [
        b for b in chains if b not in feet and not used & set(chains[b]) and len(chains[b]) >= 3
    ]
    draft.arms = _arms(draft, others) if len(legs) == 2 else []
    names = ", ".join(f"{limb.side} {limb.body}" for limb in draft.legs)
    draft.note("legs", f"{len(legs)} of {len(legs[0].joints)} joints: {names}")
    if draft.arms:
        draft.note("arms", ", ".join(f"{limb.side} {limb.body}" for limb in draft.arms))


def _hinges_to(model: mujoco.MjModel, body: int) -> list[int]:
    """Hinge indices on the way from the root to a body, outwards."""
    joints: list[int] = []
    while body > 1:
        start = model.body_jntadr[body]
        joints = [*range(start - 1, start - 1 + model.body_jntnum[body])] * bool(
            model.body_jntnum[body]
        ) + joints
        body = model.body_parentid[body]
    return joints


def _limb_to(model: mujoco.MjModel, leaf: int, joints: Sequence[int]) -> Limb:
    first = model.jnt_bodyid[joints[0] + 1]
    return Limb(model.body(leaf).name, tuple(joints), model.body(model.body_parentid[first]).name)


def _sided(draft: Draft, limbs: list[Limb], *, four: bool) -> list[Limb]:
    """With sides by where the limbs begin: left y > 0, front x > the middle. Left before right,
    front before hind."""
    anchors = np.array([anchor_of(draft, limb.joints[0]) for limb in limbs])
    if four and np.ptp(anchors[:, 1]) < 1e-3:  # hips on the middle line: the ends tell
        anchors = np.array([draft.zero.body(limb.body).xpos for limb in limbs])
    middle = anchors.mean(axis=0)
    sided = []
    for limb, anchor in zip(limbs, anchors, strict=True):
        side = "L" if anchor[1] > middle[1] else "R"
        if four:
            side += "F" if anchor[0] > middle[0] else "H"
        sided.append(replace(limb, side=side))
    order = ("LF", "RF", "LH", "RH", "L", "R")
    if len({limb.side for limb in sided}) < len(sided) and len(sided) in (2, 4):
        ends = ", ".join(f"{limb.body} {limb.side}" for limb in sided)
        raise InputError(
            f"{draft.mjcf}: legs do not lie left and right of the base's X axis: {ends}"
        )
    return sorted(sided, key=lambda limb: order.index(limb.side))


def _arms(draft: Draft, leaves: list[int]) -> list[Limb]:
    """The longest chain on each side."""
    limbs = [_limb_to(draft.model, b, _hinges_to(draft.model, b)) for b in leaves]
    shared = set.intersection(*(set(limb.joints) for limb in limbs)) if len(limbs) > 1 else set()
    limbs = [
        _limb_to(
            draft.model, draft.model.body(limb.body).id, [j for j in limb.joints if j not in shared]
        )
        for limb in limbs
    ]
    best: dict[str, Limb] = {}
    for limb in limbs:
        y = float(draft.zero.body(limb.body).xpos[1])
        if abs(y) < 1e-2 or not limb.joints:
            continue
        side = "L" if y > 0 else "R"
        length = float(
            np.linalg.norm(draft.zero.body(limb.body).xpos - anchor_of(draft, limb.joints[0]))
        )
        held = best.get(side)
        if held is None or length > np.linalg.norm(
            draft.zero.body(held.body).xpos - anchor_of(draft, held.joints[0])
        ):
            best[side] = replace(limb, side=side)
    return [best["L"], best["R"]] if len(best) == 2 else []


def check_forward(draft: Draft) -> None:
    """Hold the names' idea of forward against the base's X axis, by where the legs begin: feet may
    be anywhere."""
    ends = {limb.body: anchor_of(draft, limb.joints[0]) for limb in draft.legs}
    if np.ptp([end[1] for end in ends.values()]) < 1e-3:  # hips on the middle line
        ends = {limb.body: np.array(draft.zero.body(limb.body).xpos) for limb in draft.legs}
    told = {limb.body: contract.sides(limb.body) for limb in draft.legs}
    middle = np.mean(list(ends.values()), axis=0)
    arms = [
        side * (ends[body] - middle) for body, sides in told.items() for side in (sides[0],) if side
    ]
    lefts = [
        side * (ends[body] - middle) for body, sides in told.items() for side in (sides[1],) if side
    ]
    if not lefts and not arms:
        draft.note("axes", "X forward, Y left", "names of feet do not tell; look where the head is")
        return
    heading = np.mean(arms, axis=0)[:2] if arms else _quarter(np.mean(lefts, axis=0)[:2])
    heading = heading / max(float(np.linalg.norm(heading)), 1e-9)
    if heading[0] > 0.9:
        draft.note("axes", "X forward, Y left: as the names of the feet say")
        return
    axis = ("+X", "-X", "+Y", "-Y")[
        int(np.argmax([heading[0], -heading[0], heading[1], -heading[1]]))
    ]
    if axis == "+X":
        places = ", ".join(
            f"{body} {'left' if end[1] > middle[1] else 'right'}" for body, end in ends.items()
        )
        raise InputError(
            f"{draft.mjcf}: the names of the legs do not fit where they begin (X forward, Y left): {places}"
        )
    raise InputError(
        f"{draft.mjcf}: by the names of its legs the robot faces {axis} of its base frame; X is expected. "
        "Turn the children of the root body in the model"
    )


def _quarter(left: FloatArray) -> FloatArray:
    """Forward where left is known: turned by -90 degrees."""
    return np.array([left[1], -left[0]])
