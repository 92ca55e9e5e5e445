"""What feet touch the ground with: spheres, or soles of four points."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from mocap_data.errors import InputError
from npmp.robots.adapt import posed
from npmp.robots.fields import FloatArray
from npmp.robots.proposal.draft import Draft, in_base, in_body, rounded, short
from npmp.robots.proposal.shapes import is_round, sole_geoms, surface_of

_SOLE_RADIUS = 0.005  # [m] of the spheres that a flat sole is described by


def find_feet(draft: Draft, joints: FloatArray) -> dict[str, Any]:
    """The `feet:` of robot.yaml: a sphere each, or soles of four points."""
    model, pose = draft.model, posed(draft.model, joints)
    soles = [sole_geoms(model, pose, limb) for limb in draft.legs]
    if all(len(geoms) == 1 and is_round(model, geoms[0]) for _, geoms in soles):
        return _point_feet(draft, pose, soles)
    return _flat_feet(draft, pose, soles)


def _point_feet(
    draft: Draft, pose: mujoco.MjData, soles: list[tuple[int, list[int]]]
) -> dict[str, Any]:
    model = draft.model
    centres, radii = [], []
    for body, (geom,) in soles:
        points, radius = surface_of(model, pose, geom)
        local = (points[np.argmin(points[:, 2])] - pose.xpos[body]) @ pose.xmat[body].reshape(3, 3)
        centres.append(local)
        radii.append(radius)
    radius = float(np.median(radii))
    bodies = [model.body(body).name for body, _ in soles]
    own_bodies = all(np.linalg.norm(centre) < 3 * radius for centre in centres)
    if own_bodies and np.ptp(centres, axis=0).max() < 1e-4 and len(set(bodies)) == len(bodies):
        draft.note("feet", f"{', '.join(bodies)}: spheres of {1e3 * radius:.0f} mm")
        return {
            "bodies": bodies,
            "radius": short(radius),
            "offset": rounded(np.mean(centres, axis=0)),
        }
    taken = {model.body(i).name for i in range(model.nbody)}
    feet = [_foot_name(body, taken) for body in bodies]
    on = ", ".join(bodies)
    draft.note("feet", f"{', '.join(feet)}: spheres of {1e3 * radius:.0f} mm at the ends of {on}")
    at = {
        foot: {"body": body, "position": rounded(c)}
        for foot, body, c in zip(feet, bodies, centres, strict=True)
    }
    return {"bodies": feet, "radius": short(radius), "offset": [0.0, 0.0, 0.0], "at": at}


def _foot_name(body: str, taken: set[str]) -> str:
    """ "FL_calf" -> "FL_foot", "LF_SHANK" -> "LF_FOOT"; else the body's name and _foot."""
    for old in ("calf", "shank", "lower_leg", "lower", "shin", "tibia"):
        for spell in (str.lower, str.upper, str.capitalize):
            if (
                spell(old) in body
                and (name := body.replace(spell(old), spell("foot"))) not in taken
            ):
                return name
    return f"{body}_foot"


def _flat_feet(
    draft: Draft, pose: mujoco.MjData, soles: list[tuple[int, list[int]]]
) -> dict[str, Any]:
    """Four points of each sole: the corners of what touches the ground."""
    model = draft.model
    corners: dict[str, list[FloatArray]] = {}
    for body, geoms in soles:
        surfaces = [surface_of(model, pose, g) for g in geoms]
        points = np.concatenate([surface - [0, 0, r] for surface, r in surfaces])
        touching = points[points[:, 2] < points[:, 2].min() + 0.005]
        spread = [(surface, r) for surface, r in surfaces if r > 0]
        reach = np.concatenate([touching, *(s + [d, 0, -r] for s, r in spread for d in (-r, r))])
        low, high = reach[:, :2].min(axis=0) + _SOLE_RADIUS, reach[:, :2].max(axis=0) - _SOLE_RADIUS
        z = float(points[:, 2].min()) + _SOLE_RADIUS
        world = np.array([[x, y, z] for x in (low[0], high[0]) for y in (low[1], high[1])])
        local = (world - pose.xpos[body]) @ pose.xmat[body].reshape(3, 3)
        # to 0.1 mm, as level as the pose that was searched
        corners[model.body(body).name] = list(np.round(local, 4))
    bodies = list(corners)
    if len(bodies) < len(soles):
        raise InputError(f"{draft.mjcf}: two legs end in the same body '{bodies[0]}'")
    middles = np.array([np.mean(points, axis=0) for points in corners.values()])
    offset = middles.mean(axis=0)
    size = 1e3 * np.ptp(next(iter(corners.values())), axis=0)
    why = "flat soles: corners of what touches the ground at home"
    if np.ptp(middles, axis=0).max() > 2e-3:
        why += f"; the feet's middles differ by {1e3 * np.ptp(middles, axis=0).max():.0f} mm, offset is their mean"
    draft.why["feet.points"] = why
    draft.note("feet", f"{', '.join(bodies)}: soles of {size[0]:.0f} x {size[1]:.0f} mm", why)
    return {
        "bodies": bodies,
        "radius": _SOLE_RADIUS,
        "offset": rounded(offset),
        "points": {body: [rounded(p) for p in points] for body, points in corners.items()},
    }


def match_soles(draft: Draft) -> None:
    """Make right feet the exact images of left ones where they are so within 5 mm: shapes are
    rounded, mirrors are not."""
    feet = draft.content["feet"]
    sides = {limb.side: foot for limb, foot in zip(draft.legs, feet["bodies"], strict=True)}
    for left, right in (("L", "R"), ("LF", "RF"), ("LH", "RH")):
        if left not in sides or right not in sides:
            continue
        a, b = sides[left], sides[right]
        if "points" in feet:
            images = [in_base(draft, a, point) * [1, -1, 1] for point in feet["points"][a]]
            own = [in_base(draft, b, point) for point in feet["points"][b]]
            if max(min(np.linalg.norm(image - point) for point in own) for image in images) < 0.005:
                feet["points"][b] = [in_body(draft, b, image) for image in images]
        elif "at" in feet:
            image = in_base(draft, a, [0.0, 0.0, 0.0]) * [1, -1, 1]
            if np.linalg.norm(image - in_base(draft, b, [0.0, 0.0, 0.0])) < 0.005:
                feet["at"][b]["position"] = in_body(draft, feet["at"][b]["body"], image)
