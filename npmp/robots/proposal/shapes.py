"""Shapes as hulls of spheres: the lowest points of bodies."""

from __future__ import annotations

import mujoco
import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp.robots.proposal.draft import Draft, LimbChain

_ROUND = (int(mujoco.mjtGeom.mjGEOM_SPHERE), int(mujoco.mjtGeom.mjGEOM_CAPSULE))


def welded(model: mujoco.MjModel, body: int) -> list[int]:
    """The body and those it is welded to, up to the joint that moves it."""
    bodies = [body]
    while not model.body_jntnum[body] and model.body_parentid[body] > 1:
        body = int(model.body_parentid[body])
        bodies.append(body)
    return bodies


def shapes_of(model: mujoco.MjModel, body: int) -> list[int]:
    """A body's geoms that collide."""
    collides = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    return [int(g) for g in np.flatnonzero((model.geom_bodyid == body) & collides)]


def surface_of(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> tuple[Array, float]:
    """World points (n, 3) [m] and a radius [m] of spheres whose hull is the shape."""
    kind = model.geom_type[geom]
    size = model.geom_size[geom]
    types = mujoco.mjtGeom
    radius = float(size[0]) if kind in _ROUND else 0.0
    if kind == types.mjGEOM_CAPSULE:
        local = np.array([[0, 0, -size[1]], [0, 0, size[1]]])
    elif kind == types.mjGEOM_BOX:
        local = size * np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    elif kind == types.mjGEOM_CYLINDER:
        turn = np.linspace(0, 2 * np.pi, 16, endpoint=False)
        ring = size[0] * np.stack([np.cos(turn), np.sin(turn)], -1)
        local = np.concatenate([np.insert(ring, 2, z, axis=1) for z in (-size[1], size[1])])
    elif kind == types.mjGEOM_ELLIPSOID:
        rng = np.random.default_rng(0).normal(size=(200, 3))
        local = size * rng / np.linalg.norm(rng, axis=1, keepdims=True)
    elif kind == types.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        start = model.mesh_vertadr[mesh]
        count = model.mesh_vertnum[mesh]
        local = np.array(model.mesh_vert[start : start + count], dtype=np.float64)
    else:
        local = np.zeros((1, 3))
    return data.geom_xpos[geom] + local @ data.geom_xmat[geom].reshape(3, 3).T, radius


def bottom_of(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> float:
    """Height of a geom's lowest point [m]."""
    points, radius = surface_of(model, data, geom)
    return float(points[:, 2].min() - radius)


def lowest(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> float:
    """Height [m] of a body's lowest colliding point; of its origin without colliding shapes."""
    heights = [bottom_of(model, data, g) for g in shapes_of(model, body)]
    return min(heights, default=float(data.xpos[body][2]))


def sole_geoms(
    model: mujoco.MjModel, pose: mujoco.MjData, limb: LimbChain
) -> tuple[int, list[int]]:
    """A foot's body and its shapes within 5 mm of its lowest point."""
    bodies = [b for b in welded(model, model.body(limb.body).id) if shapes_of(model, b)]
    if not bodies:
        raise InputError(f"foot '{limb.body}' has no shape that collides; add one to the model")
    body = min(bodies, key=lambda b: lowest(model, pose, b))
    low = lowest(model, pose, body) + 0.005
    return body, [g for g in shapes_of(model, body) if bottom_of(model, pose, g) < low]


def is_round(model: mujoco.MjModel, geom: int) -> bool:
    return model.geom_type[geom] in _ROUND


def end_of_leg(draft: Draft, pose: mujoco.MjData, limb: LimbChain) -> Array:
    """(3,) [m] the middle of a leg's lowest shapes, at their lowest height."""
    geoms = sole_geoms(draft.model, pose, limb)[1]
    points = np.concatenate([surface_of(draft.model, pose, g)[0] for g in geoms])
    return np.array([*points[:, :2].mean(axis=0), points[:, 2].min()])
