"""Legs and arms: chains of hinges, by where they end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import mujoco
import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp.robots import check as contract
from npmp.robots.model import hinges_to
from npmp.robots.proposal.draft import Draft, LimbChain
from npmp.robots.proposal.shapes import lowest, sole_geoms, surface_of, welded

# share of the robot's height within which feet are from the lowest
_LOW = 0.12
_ORDER = ("LF", "RF", "LH", "RH", "L", "R")


def find_limbs(draft: Draft, pose: mujoco.MjData) -> None:
    """Chains of at least two hinges that end in a leaf; the lowest are legs, the outermost others
    on both sides arms. What is welded to a body is a part of it."""
    model = draft.model
    parents = set(model.body_parentid[2:].tolist())
    jointed = [b for b in range(2, model.nbody) if model.body_jntnum[b]]
    carriers = {int(model.body_weldid[model.body_parentid[b]]) for b in jointed}
    chains = {
        b: hinges_to(model, b)
        for b in range(2, model.nbody)
        if b not in parents and int(model.body_weldid[b]) not in carriers
    }
    chains = {b: joints for b, joints in chains.items() if len(joints) >= 2}
    if not chains:
        raise InputError(f"{draft.mjcf}: no chain of two hinges or more, so no legs")
    bottom = {b: min(lowest(model, pose, c) for c in welded(model, b)) for b in chains}
    # of all bodies that hang on one hinge, the lowest is the limb's end
    ends: dict[tuple[int, ...], int] = {}
    for b in sorted(chains, key=lambda b: bottom[b]):
        ends.setdefault(tuple(chains[b]), b)
    bottom = {b: bottom[b] for b in sorted(ends.values())}
    top = max(pose.xpos[1:, 2].max(), *pose.geom_xpos[:, 2], 0.0)
    height = top - min(bottom.values())
    feet = [b for b in bottom if bottom[b] < min(bottom.values()) + _LOW * height]
    names = ", ".join(model.body(b).name for b in feet)
    if len(feet) < 2:
        hint = "expected legs that end equally low; is Z up, and does it stand, at zero joints?"
        raise InputError(f"{draft.mjcf}: fewer than two feet found ({names}); {hint}")
    if len(feet) not in (2, 4):
        hint = "robots on two or four can be proposed, others written by hand"
        raise InputError(f"{draft.mjcf}: {len(feet)} legs ({names}); {hint}")
    shared = set.intersection(*(set(chains[b]) for b in feet))
    legs = [_limb(model, b, [j for j in chains[b] if j not in shared]) for b in feet]
    draft.legs = _sided(draft, legs)
    used = {j for limb in legs for j in limb.joints}
    others = {b: chains[b] for b in bottom if len(chains[b]) > 2 and not used & set(chains[b])}
    draft.arms = _arms(draft, others) if len(legs) == 2 else []
    names = ", ".join(f"{limb.side} {limb.body}" for limb in draft.legs)
    draft.note("legs", f"{len(legs)} of {len(legs[0].joints)} joints: {names}")
    if draft.arms:
        draft.note("arms", ", ".join(f"{limb.side} {limb.body}" for limb in draft.arms))
    _note_wheels(draft, pose)


def _limb(model: mujoco.MjModel, leaf: int, joints: Sequence[int], side: str = "") -> LimbChain:
    first = model.jnt_bodyid[joints[0] + 1]
    trunk = model.body(model.body_parentid[first]).name
    return LimbChain(model.body(leaf).name, tuple(joints), trunk, side)


def _beginnings(draft: Draft, limbs: Sequence[LimbChain]) -> Array:
    """(L, 3) where limbs begin; where they end, if they all begin on the middle line."""
    anchors = np.array([draft.anchor(limb.joints[0]) for limb in limbs])
    if np.ptp(anchors[:, 1]) < 1e-3:
        return np.array([draft.origin(limb.body) for limb in limbs])
    return anchors


def _sided(draft: Draft, limbs: list[LimbChain]) -> list[LimbChain]:
    """With sides by where the limbs begin: left y > 0, front x > the middle. Left before right,
    front before hind."""
    four = len(limbs) == 4
    anchors = _beginnings(draft, limbs)
    ahead, left = (anchors > anchors.mean(axis=0))[:, :2].T
    sides = [
        ("L" if y else "R") + (("F" if x else "H") if four else "")
        for x, y in zip(ahead, left, strict=True)
    ]
    if len(set(sides)) < len(limbs):
        ends = ", ".join(limb.body for limb in limbs)
        raise InputError(
            f"{draft.mjcf}: legs do not lie left and right of the base's X axis: {ends}"
        )
    sided = [replace(limb, side=side) for limb, side in zip(limbs, sides, strict=True)]
    return sorted(sided, key=lambda limb: _ORDER.index(limb.side))


def _arms(draft: Draft, chains: dict[int, list[int]]) -> list[LimbChain]:
    """The longest chain on each side, without the hinges that all chains share: a waist's."""
    shared = set.intersection(*map(set, chains.values())) if len(chains) > 1 else set()
    best: dict[str, tuple[float, LimbChain]] = {}
    for leaf, chain in chains.items():
        joints = [j for j in chain if j not in shared]
        y = float(draft.zero.xpos[leaf][1])
        if not joints or abs(y) < 1e-2:
            continue
        limb = _limb(draft.model, leaf, joints, "L" if y > 0 else "R")
        length = float(np.linalg.norm(draft.zero.xpos[leaf] - draft.anchor(joints[0])))
        if limb.side not in best or length > best[limb.side][0]:
            best[limb.side] = length, limb
    return [best["L"][1], best["R"][1]] if len(best) == 2 else []


def _note_wheels(draft: Draft, pose: mujoco.MjData) -> None:
    """Last joints without limits whose axes pass through the middle of what touches the ground."""
    wheels = []
    for limb in draft.legs:
        last = limb.joints[-1]
        geoms = sole_geoms(draft.model, pose, limb)[1]
        middle = np.mean([pose.geom_xpos[g] for g in geoms], axis=0) - pose.xanchor[last + 1]
        axis = pose.xaxis[last + 1]
        apart = np.linalg.norm(middle - (middle @ axis) * axis)
        size = max(np.ptp(surface_of(draft.model, pose, g)[0], axis=0).max() for g in geoms)
        if np.isinf(draft.ranges()[0][last]) and apart < max(0.01, 0.1 * size):
            wheels.append(draft.joint_names[last])
    if wheels:
        why = "joints without limits about the feet's middles; taken for ankles: wheels cannot roll"
        draft.note("wheels?", ", ".join(wheels), why)


def check_forward(draft: Draft) -> None:
    """Hold the names' idea of forward against the base's X axis, by where the legs begin: feet may
    be anywhere."""
    places = _beginnings(draft, draft.legs)
    offsets = places - places.mean(axis=0)
    named_sides = np.array([contract.sides(limb.body) for limb in draft.legs])
    if not named_sides.any():
        draft.note("axes", "X forward, Y left", "names of feet do not tell; look where the head is")
        return
    ahead, left = (named_sides.T @ offsets)[:, :2]
    # forward is left, turned by -90 degrees
    heading = ahead if named_sides[:, 0].any() else np.array([left[1], -left[0]])
    heading = heading / max(float(np.linalg.norm(heading)), 1e-9)
    if heading[0] > 0.9:
        draft.note("axes", "X forward, Y left: as the names of the feet say")
        return
    x, y = heading
    axis = ("+X", "-X", "+Y", "-Y")[int(np.argmax([x, -x, y, -y]))]
    if axis == "+X":
        sides = ", ".join(
            f"{limb.body} {'left' if offset[1] > 0 else 'right'}"
            for limb, offset in zip(draft.legs, offsets, strict=True)
        )
        raise InputError(
            f"{draft.mjcf}: the names of the legs do not fit where they begin (X forward, Y left):"
            f" {sides}"
        )
    raise InputError(
        f"{draft.mjcf}: by the names of its legs the robot faces {axis} of its base frame; X is"
        " expected. Turn the children of the root body in the model"
    )
