"""Points for motion capture: where a limb's axes meet, knees, soles, hands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npmp.robots.fields import FloatArray
from npmp.robots.proposal.draft import Draft, Limb, anchor_of, axis_of, in_base, in_body, rounded
from npmp.robots.proposal.shapes import shapes_of, surface_of


def place_markers(draft: Draft, feet: dict[str, Any]) -> None:
    markers: dict[str, dict[str, Any]] = {}
    root = draft.model.body(1).name
    hips = {
        limb.side: _meeting(draft, limb.joints[: 2 if draft.quadruped else 3])
        for limb in draft.legs
    }
    if draft.quadruped:
        markers["base"] = {"body": root, "position": rounded(np.mean(list(hips.values()), axis=0))}
        for side, point in hips.items():
            markers[f"{side}_{'shoulder' if side.endswith('F') else 'hip'}"] = {
                "body": root,
                "position": rounded(point),
            }
        for limb, foot in zip(draft.legs, feet["bodies"], strict=True):
            markers[f"{limb.side}_foot"] = {"body": foot, "position": list(feet["offset"])}
    else:
        _person(draft, feet, hips, markers)
        _steady_root(draft, markers)
    for name in markers:
        draft.why[f"markers.{name}"] = _marker_source(name)
        _as_its_twin(draft, markers, name)
    draft.content["markers"] = markers
    draft.note(
        "markers", ", ".join(markers), "where axes meet; recordings are matched to these points"
    )


def _as_its_twin(draft: Draft, markers: dict[str, dict[str, Any]], name: str) -> None:
    """Put a right marker exactly where its left twin's image is, if it is there within a centimetre
    anyway."""
    twin = markers.get(f"L{name.removeprefix('R')}") if name.startswith("R") else None
    if twin is None:
        return
    image = in_base(draft, twin["body"], twin["position"]) * [1, -1, 1]
    own = markers[name]
    if np.linalg.norm(in_base(draft, own["body"], own["position"]) - image) < 0.01:
        own["position"] = in_body(draft, own["body"], image)


def _marker_source(name: str) -> str:
    part = name.split("_")[-1]
    said = {
        "base": "amid the hips", "chest": "amid the shoulders", "foot": "the foot", "knee": "on the knee's axis",
        "toe": "the sole's end", "heel": "the sole's end", "hand": "the arm's end", "elbow": "on the elbow's axis",
    }  # fmt: skip
    return said.get(part, "where the limb's first axes meet")


def _person(
    draft: Draft,
    feet: dict[str, Any],
    hips: dict[str, FloatArray],
    markers: dict[str, dict[str, Any]],
) -> None:
    """Markers of a robot on two legs; of any other number, hips and feet by number."""
    root = draft.model.body(1).name
    shoulders = {limb.side: _meeting(draft, limb.joints[:3]) for limb in draft.arms}
    trunk = draft.arms[0].trunk if draft.arms else root
    tall = float(
        np.mean(list(hips.values()), axis=0)[2] - draft.zero.body(draft.legs[0].body).xpos[2]
    )
    chest = (
        np.mean(list(shoulders.values()), axis=0) if shoulders else np.array([0.0, 0.0, 0.4 * tall])
    )
    markers["chest"] = {"body": trunk, "position": in_body(draft, trunk, chest)}
    for side, point in shoulders.items():
        markers[f"{side}_shoulder"] = {"body": trunk, "position": in_body(draft, trunk, point)}
    for limb in draft.legs:
        markers[f"{limb.side}_hip"] = {
            "body": limb.trunk,
            "position": in_body(draft, limb.trunk, hips[limb.side]),
        }
    for limb, foot in zip(draft.legs, feet["bodies"], strict=True):
        ankle = _meeting(draft, limb.joints[-2:])
        knee = _middle_joint(draft, limb, hips[limb.side], ankle)
        markers[f"{limb.side}_knee"] = _on_joint(draft, knee, hips[limb.side], ankle)
        markers[f"{limb.side}_foot"] = {"body": foot, "position": in_body(draft, foot, ankle)}
        if "points" in feet:
            sole = np.array(feet["points"][foot])
            forward = draft.zero.body(foot).xmat.reshape(3, 3).T @ [1.0, 0.0, 0.0]
            order = np.argsort(sole @ forward)
            markers[f"{limb.side}_toe"] = {
                "body": foot,
                "position": rounded(sole[order[-2:]].mean(axis=0)),
            }
            markers[f"{limb.side}_heel"] = {
                "body": foot,
                "position": rounded(sole[order[:2]].mean(axis=0)),
            }
    for limb in draft.arms:
        hand = _far_end(draft, limb, shoulders[limb.side])
        elbow = _middle_joint(draft, limb, shoulders[limb.side], hand)
        markers[f"{limb.side}_elbow"] = _on_joint(draft, elbow, shoulders[limb.side], hand)
        markers[f"{limb.side}_hand"] = {
            "body": limb.body,
            "position": in_body(draft, limb.body, hand),
        }


def _steady_root(draft: Draft, markers: dict[str, dict[str, Any]]) -> None:
    """Give the root three markers that are not on a line: its pose is fitted to them. Above or
    below a waist stand two.

    The chest first, then the hips, as they are at zero joints: with the waist straight nothing
    changes.
    """
    root = draft.model.body(1).name
    for names in ((), ("chest",), ("L_hip", "R_hip")):
        for name in names:
            place = in_base(draft, markers[name]["body"], markers[name]["position"])
            markers[name] = {"body": root, "position": in_body(draft, root, place)}
        points = np.array(
            [marker["position"] for marker in markers.values() if marker["body"] == root]
        ).reshape(-1, 3)
        if len(points) and np.linalg.matrix_rank(points - points.mean(axis=0), tol=0.02) > 1:
            return


def _meeting(draft: Draft, joints: Sequence[int]) -> FloatArray:
    """(3,) the point nearest to the axes of these hinges, in the base's frame at zero joints; on
    the first where they miss."""
    anchors = np.array([anchor_of(draft, j) for j in joints])
    axes = np.array([axis_of(draft, j) for j in joints])
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    matrix = across.sum(axis=0)
    if np.linalg.matrix_rank(matrix, tol=1e-3) < 3:  # parallel axes meet everywhere or nowhere
        return anchors[0]
    point = np.linalg.solve(matrix, np.einsum("jab,jb->a", across, anchors))
    missed = np.linalg.norm(np.einsum("jab,jb->ja", across, point - anchors), axis=-1).max()
    size = np.ptp(draft.zero.xpos[1:], axis=0).max()
    if missed > 0.05 * size and len(joints) > 2:
        return _meeting(draft, joints[:-1])
    return np.asarray(point)


def _middle_joint(draft: Draft, limb: Limb, start: FloatArray, end: FloatArray) -> int:
    """The hinge farthest from both ends of a limb: knee, elbow."""
    return max(
        limb.joints,
        key=lambda j: min(
            np.linalg.norm(anchor_of(draft, j) - start), np.linalg.norm(anchor_of(draft, j) - end)
        ),
    )


def _on_joint(draft: Draft, joint: int, start: FloatArray, end: FloatArray) -> dict[str, Any]:
    """A marker on a hinge's axis, where that passes nearest to the line from the limb's start to
    its end."""
    anchor, axis = anchor_of(draft, joint), axis_of(draft, joint)
    line = (end - start) / max(float(np.linalg.norm(end - start)), 1e-9)
    across = axis - (axis @ line) * line
    along = (
        0.0 if across @ across < 1e-6 else float(across @ (start - anchor)) / float(across @ across)
    )
    body = draft.model.body(draft.model.jnt_bodyid[joint + 1]).name
    return {"body": body, "position": in_body(draft, body, anchor + along * axis)}


def _far_end(draft: Draft, limb: Limb, start: FloatArray) -> FloatArray:
    """(3,) the point of the last body farthest from the limb's start, at zero joints [m]."""
    body = draft.model.body(limb.body).id
    points = [np.array(draft.zero.xpos[body])]
    points += [
        np.mean(surface_of(draft.model, draft.zero, g)[0], axis=0)
        for g in shapes_of(draft.model, body)
    ]
    return max(points, key=lambda p: float(np.linalg.norm(p - start)))
