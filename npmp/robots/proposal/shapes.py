"""Shapes as hulls of spheres: how low a body reaches, and with what."""

from __future__ import annotations

import mujoco
import numpy as np

from mocap_data.errors import InputError
from npmp.robots.fields import FloatArray
from npmp.robots.proposal.draft import Draft, Limb


def welded(model: mujoco.MjModel, body: int) -> list[int]:
    """The body and those it is welded to, up to the joint that moves it."""
    found = [body]
    while not model.body_jntnum[body] and model.body_parentid[body] > 1:
        body = int(model.body_parentid[body])
        found.append(body)
    return found


def shapes_of(model: mujoco.MjModel, body: int) -> list[int]:
    start = model.body_geomadr[body]
    own = range(start, start + model.body_geomnum[body])
    return [g for g in own if model.geom_contype[g] or model.geom_conaffinity[g]]


def surface_of(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> tuple[FloatArray, float]:
    """Points (n, 3) [m] in the world and a radius: the shape is the hull of spheres there."""
    kind, size = model.geom_type[geom], model.geom_size[geom]
    types = mujoco.mjtGeom
    radius = 0.0
    if kind == types.mjGEOM_SPHERE:
        local, radius = np.zeros((1, 3)), float(size[0])
    elif kind == types.mjGEOM_CAPSULE:
        local, radius = np.array([[0, 0, -size[1]], [0, 0, size[1]]]), float(size[0])
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
        start, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
        local = np.array(model.mesh_vert[start : start + count], dtype=np.float64)
    else:
        local = np.zeros((1, 3))
    return data.geom_xpos[geom] + local @ data.geom_xmat[geom].reshape(3, 3).T, radius


def lowest(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> tuple[float, int]:
    """Height [m] of a body's lowest colliding point and its geom; its origin's and -1 where nothing
    collides."""
    surfaces = [(*surface_of(model, data, g), g) for g in shapes_of(model, body)]
    found = [(float(points[:, 2].min() - radius), g) for points, radius, g in surfaces]
    return min(found, default=(float(data.xpos[body][2]), -1))


def top(model: mujoco.MjModel, data: mujoco.MjData) -> float:
    return float(
        max(
            data.xpos[1:, 2].max(),
            max((data.geom_xpos[g][2] for g in range(model.ngeom)), default=0.0),
        )
    )


def sole_geoms(model: mujoco.MjModel, pose: mujoco.MjData, limb: Limb) -> tuple[int, list[int]]:
    """The foot's body and its shapes that reach the ground (within 5 mm of its lowest point)."""
    bodies = welded(model, model.body(limb.body).id)
    heights = {b: lowest(model, pose, b) for b in bodies}
    body = min(bodies, key=lambda b: heights[b][0] if heights[b][1] >= 0 else np.inf)
    low, geom = heights[body]
    if geom < 0:
        raise InputError(f"foot '{limb.body}' has no shape that collides; give the model one there")
    reach = {
        g: float(points[:, 2].min() - r)
        for g in shapes_of(model, body)
        for points, r in [surface_of(model, pose, g)]
    }
    return body, [g for g in reach if reach[g] < low + 0.005]


def is_round(model: mujoco.MjModel, geom: int) -> bool:
    return int(model.geom_type[geom]) in (
        int(mujoco.mjtGeom.mjGEOM_SPHERE),
        int(mujoco.mjtGeom.mjGEOM_CAPSULE),
    )


def end_of_leg(draft: Draft, pose: mujoco.MjData, limb: Limb) -> FloatArray:
    """(3,) where a leg meets the ground: the middle of what is lowest [m]."""
    geoms = sole_geoms(draft.model, pose, limb)[1]
    points = np.concatenate([surface_of(draft.model, pose, g)[0] for g in geoms])
    return np.array([*points[:, :2].mean(axis=0), points[:, 2].min()])
