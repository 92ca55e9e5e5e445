"""What feet touch the ground with: spheres, or soles of four points."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp.robots.model import posed
from npmp.robots.proposal.draft import Draft, pairs, rounded, short
from npmp.robots.proposal.shapes import is_round, sole_geoms, surface_of

# [m] of the spheres that a flat sole is described by
_SOLE_RADIUS = 0.005
# [m] above the lowest point: what touches the ground
_BAND = 0.005
# [m] within which a right foot is made the exact image of the left one
_ALIKE = 0.005


def find_feet(draft: Draft, joints: Array) -> dict[str, Any]:
    """The `feet:` of robot.yaml: a sphere each, or soles of four points."""
    model = draft.model
    pose = posed(draft.model, joints)
    soles = [sole_geoms(model, pose, limb) for limb in draft.legs]
    if all(len(geoms) == 1 and is_round(model, geoms[0]) for _, geoms in soles):
        return _point_feet(draft, pose, soles)
    if all(len(draft.pitching(limb)) < 3 for limb in draft.legs):
        return _rounded_feet(draft, pose, soles)
    return _flat_feet(draft, pose, soles)


def _local(pose: mujoco.MjData, body: int, points: Array) -> Array:
    """Points (..., 3) of the world in a body's frame."""
    return np.asarray((points - pose.xpos[body]) @ pose.xmat[body].reshape(3, 3))


def _point_feet(
    draft: Draft, pose: mujoco.MjData, soles: list[tuple[int, list[int]]]
) -> dict[str, Any]:
    model = draft.model
    surfaces = [surface_of(model, pose, geom) for _, (geom,) in soles]
    centres = [
        _local(pose, body, points[np.argmin(points[:, 2])])
        for (body, _), (points, _) in zip(soles, surfaces, strict=True)
    ]
    radius = float(np.median([radius for _, radius in surfaces]))
    bodies = [model.body(body).name for body, _ in soles]
    on = ", ".join(bodies)
    spheres = f"spheres of {1e3 * radius:.0f} mm"
    of_their_own = all(np.linalg.norm(centre) < 3 * radius for centre in centres)
    if of_their_own and np.ptp(centres, axis=0).max() < 1e-4 and len(set(bodies)) == len(bodies):
        draft.note("feet", f"{on}: {spheres}")
        offset = rounded(np.mean(centres, axis=0))
        return {"bodies": bodies, "radius": short(radius), "offset": offset}
    taken = {model.body(i).name for i in range(model.nbody)}
    feet = [_foot_name(body, taken) for body in bodies]
    draft.note("feet", f"{', '.join(feet)}: {spheres} at the ends of {on}")
    at = {
        foot: {"body": body, "position": rounded(centre)}
        for foot, body, centre in zip(feet, bodies, centres, strict=True)
    }
    return {"bodies": feet, "radius": short(radius), "offset": [0.0, 0.0, 0.0], "at": at}


def _foot_name(body: str, taken: set[str]) -> str:
    """ "FL_calf" -> "FL_foot", "LF_SHANK" -> "LF_FOOT"; else the body's name and _foot."""
    for old in ("calf", "shank", "lower_leg", "lower", "shin", "tibia"):
        for spell in (str.lower, str.upper, str.capitalize):
            name = body.replace(spell(old), spell("foot"))
            if spell(old) in body and name not in taken:
                return name
    return f"{body}_foot"


def _ground(draft: Draft, pose: mujoco.MjData, geoms: list[int]) -> tuple[Array, Array, float]:
    """Corners (2,), (2,) of the box round what touches the ground, and its lowest height [m]."""
    surfaces = [surface_of(draft.model, pose, g) for g in geoms]
    points = np.concatenate([surface - [0, 0, r] for surface, r in surfaces])
    touching = points[points[:, 2] < points[:, 2].min() + _BAND]
    wide = [s + [d, 0, -r] for s, r in surfaces if r > 0 for d in (-r, r)]
    ground = np.concatenate([touching, *wide])[:, :2]
    return ground.min(axis=0), ground.max(axis=0), float(points[:, 2].min())


def _rounded_feet(
    draft: Draft, pose: mujoco.MjData, soles: list[tuple[int, list[int]]]
) -> dict[str, Any]:
    """Spheres at the ends of legs without an ankle, which touch the ground with any part of their
    end: r = (a^2 + h^2) / 2h of a cap of height h and half-width a."""
    ends = [_ground(draft, pose, geoms) for _, geoms in soles]
    half = float(np.mean([upper - lower for lower, upper, _ in ends])) / 2
    radius = max(short((half**2 + _BAND**2) / (2 * _BAND)), _SOLE_RADIUS)
    points: dict[str, list[list[float]]] = {}
    for (body, _), (lower, upper, bottom) in zip(soles, ends, strict=True):
        centre = np.array([*(lower + upper) / 2, bottom + radius])
        name = draft.model.body(body).name
        points[name] = [rounded(np.round(_local(pose, body, centre), 4))]
    if len(points) < len(soles):
        raise InputError(f"{draft.mjcf}: two legs end in the same body '{next(iter(points))}'")
    why = "legs without an ankle: the sphere that fits the lowest 5 mm at home"
    draft.why["feet.points"] = why
    draft.note("feet", f"{', '.join(points)}: spheres of {1e3 * radius:.0f} mm", why)
    return {
        "bodies": list(points),
        "radius": radius,
        "offset": rounded(np.mean(list(points.values()), axis=(0, 1))),
        "points": points,
    }


def _flat_feet(
    draft: Draft, pose: mujoco.MjData, soles: list[tuple[int, list[int]]]
) -> dict[str, Any]:
    """Four points of each sole: the corners of what touches the ground."""
    corners: dict[str, Array] = {}
    sizes: list[Array] = []
    for body, geoms in soles:
        lower, upper, bottom = _ground(draft, pose, geoms)
        x0, y0 = lower + _SOLE_RADIUS
        x1, y1 = upper - _SOLE_RADIUS
        z = bottom + _SOLE_RADIUS
        sizes.append(1e3 * np.array([x1 - x0, y1 - y0]))
        world = np.array([[x, y, z] for x in (x0, x1) for y in (y0, y1)])
        # to 0.1 mm, as level as the pose that was searched
        corners[draft.model.body(body).name] = np.round(_local(pose, body, world), 4)
    bodies = list(corners)
    if len(bodies) < len(soles):
        raise InputError(f"{draft.mjcf}: two legs end in the same body '{bodies[0]}'")
    middles = np.array([points.mean(axis=0) for points in corners.values()])
    length, width = sizes[0]
    apart = 1e3 * np.ptp(middles, axis=0).max()
    why = "flat soles: corners of what touches the ground at home"
    if apart > 2.0:
        why += f"; the feet's middles differ by {apart:.0f} mm, offset is their mean"
    draft.why["feet.points"] = why
    draft.note("feet", f"{', '.join(bodies)}: soles of {length:.0f} x {width:.0f} mm", why)
    return {
        "bodies": bodies,
        "radius": _SOLE_RADIUS,
        "offset": rounded(middles.mean(axis=0)),
        "points": {body: [rounded(p) for p in points] for body, points in corners.items()},
    }


def match_soles(draft: Draft) -> None:
    """Make right feet the exact images of left ones where they nearly are: shapes are rounded,
    mirrors are not."""
    feet = draft.content["feet"]
    for left, right in pairs(draft.legs):
        a, b = feet["bodies"][left], feet["bodies"][right]
        if "points" in feet:
            images = [draft.in_base(a, point) * [1, -1, 1] for point in feet["points"][a]]
            own = [draft.in_base(b, point) for point in feet["points"][b]]
            if max(min(np.linalg.norm(i - point) for point in own) for i in images) < _ALIKE:
                feet["points"][b] = [draft.in_body(b, image) for image in images]
        elif "at" in feet:
            image = draft.in_base(a, [0.0, 0.0, 0.0]) * [1, -1, 1]
            if np.linalg.norm(image - draft.in_base(b, [0.0, 0.0, 0.0])) < _ALIKE:
                feet["at"][b]["position"] = draft.in_body(feet["at"][b]["body"], image)
