"""Drawing a model without MuJoCo: the shapes of its moving bodies, and their poses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt
from scipy.spatial import ConvexHull, QhullError

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import InputError

# approximate number of vertices of a mesh's convex hull
FACES = 160
# [m] a position beyond this is of a diverged simulation
FAR_M = 1e4
# red, green, blue of the colour classes on interactive pages
COLOURS = {
    "base": (58, 62, 70),
    "link0": (104, 110, 120),
    "link1": (140, 146, 156),
    "link2": (92, 98, 108),
    "foot0": (200, 80, 60),
    "foot1": (60, 120, 190),
    "foot2": (200, 150, 40),
    "foot3": (60, 150, 100),
}
_KINDS = {
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{kind.upper()}")): kind
    for kind in ("sphere", "capsule", "cylinder", "box", "mesh")
} | {int(mujoco.mjtGeom.mjGEOM_ELLIPSOID): "box"}


def moving_bodies(model: mujoco.MjModel) -> list[int]:
    """Ids of the bodies that are not welded to a parent, without the world."""
    return [b for b in range(1, model.nbody) if model.body_weldid[b] == b]


def shapes(model: mujoco.MjModel, foot_bodies: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The shapes of `drawn_geoms` in the frames of `moving_bodies`; meshes as their convex hulls,
    ellipsoids as their boxes.

    Returns: dicts of b: index into moving_bodies, t: kind, s: sizes [m], p: position [m], q:
    quaternion (w, x, y, z), c: colour class; for a mesh also v: corners [m] and f: faces of three
    corners.
    """
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    index = {body: i for i, body in enumerate(moving_bodies(model))}
    names = [model.body(b).name for b in range(model.nbody)]
    out: list[dict[str, Any]] = []
    for g in drawn_geoms(model):
        body = int(model.geom_bodyid[g])
        frame = int(model.body_weldid[body])
        if int(model.geom_type[g]) not in _KINDS or frame not in index:
            continue
        colour = _depth_class(model, frame)
        if names[body] in foot_bodies:
            colour = f"foot{list(foot_bodies).index(names[body]) % 4}"
        out.append({"b": index[frame], "c": colour} | _shape(model, data, g, frame))
    return out


def _depth_class(model: mujoco.MjModel, body: int) -> str:
    """ "base", or "link0" to "link2" by how many moving parents a body has."""
    depth = 0
    while body > 0:
        body = int(model.body_parentid[body])
        depth = depth + 1
    return "base" if depth <= 1 else f"link{min(depth - 2, 2)}"


def drawn_geoms(model: mujoco.MjModel) -> list[int]:
    """Ids of the opaque geoms to draw: of each body the visual ones (groups 0 to 2), else those
    that collide."""
    material = model.geom_matid
    own = model.geom_rgba[:, 3]
    alpha = own if not model.nmat else np.where(material >= 0, model.mat_rgba[material, 3], own)
    opaque = np.flatnonzero(alpha > 0).tolist()
    visual = {int(model.geom_bodyid[g]) for g in opaque if model.geom_group[g] <= 2}
    return [
        g for g in opaque if model.geom_group[g] <= 2 or int(model.geom_bodyid[g]) not in visual
    ]


def _shape(model: mujoco.MjModel, data: mujoco.MjData, geom: int, frame: int) -> dict[str, Any]:
    """A geom's kind, size and pose in the frame of a body."""
    kind = _KINDS[int(model.geom_type[geom])]
    size = model.geom_size[geom]
    position = np.array(data.geom_xpos[geom])
    corners: dict[str, Any] = {}
    if kind == "mesh":
        position = position + data.geom_xmat[geom].reshape(3, 3) @ model.geom_aabb[geom, :3]
        kind = "box"
        size = model.geom_aabb[geom, 3:]
        corners = _hull(model, geom)
    back = rotations.conjugate(data.xquat[frame])
    turn = rotations.multiply(back, rotations.from_matrix(data.geom_xmat[geom].reshape(3, 3)))
    position = rotations.rotate(back, position - data.xpos[frame])
    return {
        "t": "mesh" if corners else kind,
        "s": [round(float(v), 4) for v in size],
        "p": [round(float(v), 4) for v in position],
        "q": [round(float(v), 5) for v in turn],
        **corners,
    }


def _hull(model: mujoco.MjModel, geom: int) -> dict[str, Any]:
    """Corners (relative to its box's middle) and faces of a mesh's convex hull, from the outermost
    vertices in evenly spread directions. Empty for a flat mesh."""
    which = int(model.geom_dataid[geom])
    first = int(model.mesh_vertadr[which])
    count = int(model.mesh_vertnum[which])
    vertices = np.array(model.mesh_vert[first : first + count], dtype=np.float64)
    vertices -= model.geom_aabb[geom, :3]
    # Fibonacci's lattice on the sphere
    turn = np.arange(FACES // 2) + 0.5
    height = 1.0 - 2.0 * turn / len(turn)
    angle = np.pi * (1.0 + 5.0**0.5) * turn
    flat = np.sqrt(1.0 - height**2)
    directions = np.stack((flat * np.cos(angle), flat * np.sin(angle), height), axis=1)
    outer = vertices[np.unique((directions @ vertices.T).argmax(axis=1))]
    try:
        hull = ConvexHull(outer)
    except (QhullError, ValueError):
        return {}
    index = {int(v): i for i, v in enumerate(hull.vertices)}
    faces = [[index[int(v)] for v in face] for face in hull.simplices]
    return {"v": [[round(float(x), 4) for x in outer[v]] for v in hull.vertices], "f": faces}


def body_poses(model: mujoco.MjModel, qpos: npt.ArrayLike) -> Array:
    """World poses (T, moving bodies, 7: position [m], quaternion w x y z) of qpos (T, nq), without
    sign jumps.

    A frame with a value that is not finite or beyond `FAR_M` takes the last valid frame's pose, at
    the start the first valid one's.

    Raises:
      InputError: for qpos of another model, or without a valid frame.
    """
    q = np.asarray(qpos, dtype=np.float64)
    if q.ndim != 2 or q.shape[1] != model.nq:
        raise InputError(
            f"replay: qpos is {q.shape}, expected (T, {model.nq}); is it another robot's?"
        )
    # false for NaN
    valid = (np.abs(q) < FAR_M).all(axis=1)
    if not valid.any():
        raise InputError("replay: no frame of qpos is finite")
    source = np.maximum.accumulate(np.where(valid, np.arange(len(q)), -1))
    source = np.where(source < 0, int(np.argmax(valid)), source)
    data = mujoco.MjData(model)
    bodies = moving_bodies(model)
    out = np.empty((len(q), len(bodies), 7))
    for t, frame in enumerate(source):
        data.qpos[:] = q[frame]
        mujoco.mj_kinematics(model, data)
        out[t, :, :3] = data.xpos[bodies]
        out[t, :, 3:] = data.xquat[bodies]
    # q and -q are one rotation; viewers interpolate, so neighbours must have the same sign
    out[:, :, 3:] = rotations.make_continuous(out[:, :, 3:])
    return out
