"""Legs and arms: chains of hinges, by the positions of their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import mujoco
import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp.robots.check import sides
from npmp.robots.model import hinges_to
from npmp.robots.proposal.draft import Draft, LimbChain
from npmp.robots.proposal.shapes import lowest, sole_geoms, surface_of, welded

# share of the robot's height, from the lowest point, within which feet end
_LOW = 0.12
_ORDER = ("LF", "RF", "LH", "RH", "L", "R")


def find_limbs(draft: Draft, pose: mujoco.MjData) -> None:
    """Write legs and arms to the draft: chains of at least two hinges that end in a leaf.

    The lowest are legs, the outermost others on both sides arms. Welded bodies are one.
    """
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
        raise InputError(f"{draft.mjcf}: no chain of two hinges, expected two or four legs")
    bottom = {b: min(lowest(model, pose, c) for c in welded(model, b)) for b in chains}
    # the lowest of all leaves of one hinge is the limb's end
    ends: dict[tuple[int, ...], int] = {}
    for b in sorted(chains, key=lambda b: bottom[b]):
        ends.setdefault(tuple(chains[b]), b)
    bottom = {b: bottom[b] for b in sorted(ends.values())}
    top = max(pose.xpos[1:, 2].max(), *pose.geom_xpos[:, 2], 0.0)
    height = top - min(bottom.values())
    feet = [b for b in bottom if bottom[b] < min(bottom.values()) + _LOW * height]
    names = ", ".join(model.body(b).name for b in feet)
    if len(feet) < 2:
        hint = "expected legs that end equally low; is Z up, does the robot stand at zero joints?"
        raise InputError(f"{draft.mjcf}: fewer than two feet ({names}); {hint}")
    if len(feet) not in (2, 4):
        hint = "expected two or four; write the robot.yaml of other robots by hand"
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
    """(L, 3) the limbs' first anchors; their ends, if they all begin on the middle line."""
    anchors = np.array([draft.anchor(limb.joints[0]) for limb in limbs])
    if np.ptp(anchors[:, 1]) < 1e-3:
        return np.array([draft.origin(limb.body) for limb in limbs])
    return anchors


def _sided(draft: Draft, limbs: list[LimbChain]) -> list[LimbChain]:
    """The limbs with sides by their beginnings (left: y above the mean, front: x above it), left
    before right, front before hind."""
    four = len(limbs) == 4
    anchors = _beginnings(draft, limbs)
    ahead, left = (anchors > anchors.mean(axis=0))[:, :2].T
    labels = [
        ("L" if y else "R") + (("F" if x else "H") if four else "")
        for x, y in zip(ahead, left, strict=True)
    ]
    if len(set(labels)) < len(limbs):
        ends = ", ".join(limb.body for limb in limbs)
        raise InputError(f"{draft.mjcf}: legs must be left and right of the base's X axis: {ends}")
    sided = [replace(limb, side=side) for limb, side in zip(limbs, labels, strict=True)]
    return sorted(sided, key=lambda limb: _ORDER.index(limb.side))


def _arms(draft: Draft, chains: dict[int, list[int]]) -> list[LimbChain]:
    """The longest chain on each side, without the hinges that all chains share (a waist)."""
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
    """Note last joints without limits whose axes pass through the middle of the contact area."""
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
        reason = (
            "these joints have no limits and turn the feet about their middles; they become ankles,"
            " as wheels cannot roll"
        )
        draft.note("wheels?", ", ".join(wheels), reason)


def check_forward(draft: Draft) -> None:
    """Compare the forward direction of the legs' names and beginnings with the base's X axis."""
    beginnings = _beginnings(draft, draft.legs)
    offsets = beginnings - beginnings.mean(axis=0)
    named_sides = np.array([sides(limb.body) for limb in draft.legs])
    if not named_sides.any():
        draft.note(
            "axes",
            "X forward, Y left",
            "the feet's names have no sides; check that the head faces X",
        )
        return
    ahead, left = (named_sides.T @ offsets)[:, :2]
    # forward is left turned by -90 degrees
    heading = ahead if named_sides[:, 0].any() else np.array([left[1], -left[0]])
    heading = heading / max(float(np.linalg.norm(heading)), 1e-9)
    if heading[0] > 0.9:
        draft.note("axes", "X forward, Y left, according to the feet's names")
        return
    x, y = heading
    axis = ("+X", "-X", "+Y", "-Y")[int(np.argmax([x, -x, y, -y]))]
    if axis == "+X":
        listed = ", ".join(
            f"{limb.body} {'left' if offset[1] > 0 else 'right'}"
            for limb, offset in zip(draft.legs, offsets, strict=True)
        )
        raise InputError(
            f"{draft.mjcf}: the legs' names do not match their sides (X forward, Y left): {listed}"
        )
    raise InputError(
        f"{draft.mjcf}: by the names of its legs the robot faces {axis} of its base frame, expected"
        " +X; turn the children of the root body in the model"
    )
