"""Contact points of the feet: spheres, or soles of four points."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp.robots.model import posed
from npmp.robots.proposal.draft import Draft, pairs, rounded, short
from npmp.robots.proposal.shapes import is_round, sole_geoms, surface_of

# [m] radius of the spheres at the corners of a flat sole
_SOLE_RADIUS = 0.005
# [m] above the lowest point within which a shape touches the ground
_BAND = 0.005
# [m] within which a right foot becomes the exact image of the left one
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
    at_origin = all(np.linalg.norm(centre) < 3 * radius for centre in centres)
    if at_origin and np.ptp(centres, axis=0).max() < 1e-4 and len(set(bodies)) == len(bodies):
        draft.note("feet", f"{on}: {spheres}")
        offset = rounded(np.mean(centres, axis=0))
        return {"bodies": bodies, "radius": short(radius), "offset": offset}
    body_names = {model.body(i).name for i in range(model.nbody)}
    feet = [_foot_name(body, body_names) for body in bodies]
    draft.note("feet", f"{', '.join(feet)}: {spheres} at the ends of {on}")
    at = {
        foot: {"body": body, "position": rounded(centre)}
        for foot, body, centre in zip(feet, bodies, centres, strict=True)
    }
    return {"bodies": feet, "radius": short(radius), "offset": [0.0, 0.0, 0.0], "at": at}


def _foot_name(body: str, body_names: set[str]) -> str:
    """ "FL_calf" -> "FL_foot", "LF_SHANK" -> "LF_FOOT"; else BODY_foot."""
    for old in ("calf", "shank", "lower_leg", "lower", "shin", "tibia"):
        for spell in (str.lower, str.upper, str.capitalize):
            name = body.replace(spell(old), spell("foot"))
            if spell(old) in body and name not in body_names:
                return name
    return f"{body}_foot"


def _ground(draft: Draft, pose: mujoco.MjData, geoms: list[int]) -> tuple[Array, Array, float]:
    """Corners (2,), (2,) of the box around the contact area, and its lowest height [m]."""
    surfaces = [surface_of(draft.model, pose, g) for g in geoms]
    points = np.concatenate([surface - [0, 0, r] for surface, r in surfaces])
    touching = points[points[:, 2] < points[:, 2].min() + _BAND]
    wide = [s + [d, 0, -r] for s, r in surfaces if r > 0 for d in (-r, r)]
    ground = np.concatenate([touching, *wide])[:, :2]
    return ground.min(axis=0), ground.max(axis=0), float(points[:, 2].min())


def _rounded_feet(
    draft: Draft, pose: mujoco.MjData, soles: list[tuple[int, list[int]]]
) -> dict[str, Any]:
    """Spheres at the ends of legs without an ankle, which roll over their ends: a cap of height h
    and half-width a has r = (a^2 + h^2) / 2h."""
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
    reason = "legs have no ankle; the sphere fits the lowest 5 mm at home"
    draft.reasons["feet.points"] = reason
    draft.note("feet", f"{', '.join(points)}: spheres of {1e3 * radius:.0f} mm", reason)
    return {
        "bodies": list(points),
        "radius": radius,
        "offset": rounded(np.mean(list(points.values()), axis=(0, 1))),
        "points": points,
    }


def _flat_feet(
    draft: Draft, pose: mujoco.MjData, soles: list[tuple[int, list[int]]]
) -> dict[str, Any]:
    """Four points of each sole: the corners of its contact area."""
    corners: dict[str, Array] = {}
    sizes: list[Array] = []
    for body, geoms in soles:
        lower, upper, bottom = _ground(draft, pose, geoms)
        low = lower + _SOLE_RADIUS
        high = upper - _SOLE_RADIUS
        z = bottom + _SOLE_RADIUS
        sizes.append(1e3 * (high - low))
        world = np.array([[x, y, z] for x in (low[0], high[0]) for y in (low[1], high[1])])
        # to 0.1 mm, as level as the searched pose
        corners[draft.model.body(body).name] = np.round(_local(pose, body, world), 4)
    bodies = list(corners)
    if len(bodies) < len(soles):
        raise InputError(f"{draft.mjcf}: two legs end in the same body '{bodies[0]}'")
    middles = np.array([points.mean(axis=0) for points in corners.values()])
    length, width = sizes[0]
    apart = 1e3 * np.ptp(middles, axis=0).max()
    reason = "soles are flat; points are the corners of the contact area at home"
    if apart > 2.0:
        reason += f"; the feet's middles differ by {apart:.0f} mm, the offset is the mean"
    draft.reasons["feet.points"] = reason
    draft.note("feet", f"{', '.join(bodies)}: soles of {length:.0f} x {width:.0f} mm", reason)
    return {
        "bodies": bodies,
        "radius": _SOLE_RADIUS,
        "offset": rounded(middles.mean(axis=0)),
        "points": {body: [rounded(p) for p in points] for body, points in corners.items()},
    }


def match_soles(draft: Draft) -> None:
    """Make right feet exact images of left ones where they nearly are."""
    feet = draft.content["feet"]
    for left, right in pairs(draft.legs):
        left_foot = feet["bodies"][left]
        right_foot = feet["bodies"][right]
        if "points" in feet:
            images = [
                draft.in_base(left_foot, point) * [1, -1, 1] for point in feet["points"][left_foot]
            ]
            points = [draft.in_base(right_foot, point) for point in feet["points"][right_foot]]
            distances = np.linalg.norm(np.subtract(np.array(images)[:, None], points), axis=-1)
            if distances.min(axis=1).max() < _ALIKE:
                feet["points"][right_foot] = [draft.in_body(right_foot, image) for image in images]
        elif "at" in feet:
            entry = feet["at"][right_foot]
            image = draft.in_base(left_foot, [0.0, 0.0, 0.0]) * [1, -1, 1]
            if np.linalg.norm(image - draft.in_base(right_foot, [0.0, 0.0, 0.0])) < _ALIKE:
                entry["position"] = draft.in_body(entry["body"], image)
