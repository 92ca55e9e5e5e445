"""Markers for motion capture: intersections of a limb's axes, knees, soles, hands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mocap_data.arrays import Array
from npmp.robots.proposal.draft import Draft, LimbChain, rounded
from npmp.robots.proposal.shapes import shapes_of, surface_of

Markers = dict[str, dict[str, Any]]
_SOURCES = {
    "base": "between the hips",
    "chest": "between the shoulders",
    "foot": "the foot",
    "knee": "on the knee's axis",
    "toe": "the sole's end",
    "heel": "the sole's end",
    "hand": "the arm's end",
    "elbow": "on the elbow's axis",
}


def place_markers(draft: Draft) -> None:
    feet = draft.content["feet"]
    first = 2 if draft.quadruped else 3
    hips = {limb.side: _meeting(draft, limb.joints[:first]) for limb in draft.legs}
    if draft.quadruped:
        # the root's frame is the base's
        on_root = {"base": np.mean(list(hips.values()), axis=0)}
        on_root |= {f"{s}_{'shoulder' if s[-1] == 'F' else 'hip'}": p for s, p in hips.items()}
        markers: Markers = {
            name: {"body": draft.root, "position": rounded(point)}
            for name, point in on_root.items()
        }
        for limb, foot in zip(draft.legs, feet["bodies"], strict=True):
            markers[f"{limb.side}_foot"] = {"body": foot, "position": list(feet["offset"])}
    else:
        markers = _of_a_person(draft, hips)
        _steady_root(draft, markers)
    for name in markers:
        source = _SOURCES.get(name.split("_")[-1], "where the limb's first axes intersect")
        draft.reasons[f"markers.{name}"] = source
        twin = markers.get(f"L{name.removeprefix('R')}") if name.startswith("R") else None
        if twin is not None:
            # exactly the image of its left counterpart, if within 1 cm
            image = draft.in_base(**twin) * [1, -1, 1]
            marker = markers[name]
            if np.linalg.norm(draft.in_base(**marker) - image) < 0.01:
                marker["position"] = draft.in_body(marker["body"], image)
    draft.content["markers"] = markers
    reason = "markers are where axes intersect; recordings are matched to these points"
    draft.note("markers", ", ".join(markers), reason)


def _of_a_person(draft: Draft, hips: dict[str, Array]) -> Markers:
    feet = draft.content["feet"]
    markers = Markers()
    shoulders = {limb.side: _meeting(draft, limb.joints[:3]) for limb in draft.arms}
    trunk = draft.arms[0].trunk if draft.arms else draft.root
    hip = np.mean(list(hips.values()), axis=0)
    chest = np.array([0.0, 0.0, 0.4 * float(hip[2] - draft.origin(draft.legs[0].body)[2])])
    if shoulders:
        chest = np.mean(list(shoulders.values()), axis=0)
    markers["chest"] = draft.on_body(trunk, chest)
    for side, point in shoulders.items():
        markers[f"{side}_shoulder"] = draft.on_body(trunk, point)
    for limb in draft.legs:
        markers[f"{limb.side}_hip"] = draft.on_body(limb.trunk, hips[limb.side])
    for limb, foot in zip(draft.legs, feet["bodies"], strict=True):
        start = hips[limb.side]
        ankle = _meeting(draft, limb.joints[-2:])
        markers[f"{limb.side}_knee"] = _on_middle_joint(draft, limb, start, ankle)
        markers[f"{limb.side}_foot"] = draft.on_body(foot, ankle)
        if "points" in feet:
            sole = np.array(feet["points"][foot])
            forward = draft.zero.body(foot).xmat.reshape(3, 3).T @ [1.0, 0.0, 0.0]
            order = np.argsort(sole @ forward)
            for name, ends in (("toe", order[-2:]), ("heel", order[:2])):
                middle = rounded(sole[ends].mean(axis=0))
                markers[f"{limb.side}_{name}"] = {"body": foot, "position": middle}
    for limb in draft.arms:
        start = shoulders[limb.side]
        geoms = shapes_of(draft.model, draft.model.body(limb.body).id)
        surfaces = [surface_of(draft.model, draft.zero, g)[0] for g in geoms]
        points = [draft.origin(limb.body), *(np.mean(surface, axis=0) for surface in surfaces)]
        # the point of the last body that is farthest from the limb's start
        hand = points[np.argmax(np.linalg.norm(np.subtract(points, start), axis=-1))]
        markers[f"{limb.side}_elbow"] = _on_middle_joint(draft, limb, start, hand)
        markers[f"{limb.side}_hand"] = draft.on_body(limb.body, hand)
    return markers


def _steady_root(draft: Draft, markers: Markers) -> None:
    """Give the root three markers that are not on a line, to which its pose is fitted: move the
    chest to it, then the hips, at their positions at zero joints."""
    for names in ((), ("chest",), ("L_hip", "R_hip")):
        for name in names:
            markers[name] = draft.on_body(draft.root, draft.in_base(**markers[name]))
        positions = [m["position"] for m in markers.values() if m["body"] == draft.root]
        points = np.array(positions).reshape(-1, 3)
        if len(points) and np.linalg.matrix_rank(points - points.mean(axis=0), tol=0.02) > 1:
            return


def _meeting(draft: Draft, joints: Sequence[int]) -> Array:
    """(3,) the point nearest to the axes of these hinges; the first anchor for parallel axes."""
    anchors = np.array([draft.anchor(j) for j in joints])
    axes = np.array([draft.axis(j) for j in joints])
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    matrix = across.sum(axis=0)
    if np.linalg.matrix_rank(matrix, tol=1e-3) < 3:
        return np.asarray(anchors[0])
    point = np.linalg.solve(matrix, np.einsum("jab,jb->a", across, anchors))
    missed = np.linalg.norm(np.einsum("jab,jb->ja", across, point - anchors), axis=-1).max()
    if missed > 0.05 * np.ptp(draft.zero.xpos[1:], axis=0).max() and len(joints) > 2:
        return _meeting(draft, joints[:-1])
    return np.asarray(point)


def _on_middle_joint(draft: Draft, limb: LimbChain, start: Array, end: Array) -> dict[str, Any]:
    """A marker on the axis of the hinge farthest from both ends of a limb (knee, elbow), nearest to
    the line from start to end."""

    def distance(joint: int) -> float:
        anchor = draft.anchor(joint)
        return float(min(np.linalg.norm(anchor - start), np.linalg.norm(anchor - end)))

    joint = max(limb.joints, key=distance)
    anchor = draft.anchor(joint)
    axis = draft.axis(joint)
    line = (end - start) / max(float(np.linalg.norm(end - start)), 1e-9)
    across = axis - (axis @ line) * line
    parallel = across @ across < 1e-6
    along = 0.0 if parallel else float(across @ (start - anchor)) / float(across @ across)
    body = draft.model.body(draft.model.jnt_bodyid[joint + 1]).name
    return draft.on_body(body, anchor + along * axis)
