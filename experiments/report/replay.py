"""Packing motions for the page's 3-D replay: what the bodies look like, and where they are in each frame.

The page draws without a physics engine, so the poses are worked out here: MuJoCo's kinematics for each kept frame, then
the poses of the moving bodies (welded ones, like feet, ride with their parent) as 16-bit integers: positions scaled to
the clip's bounding box (0.5 mm over 30 m), unit quaternions to [-1, 1] (3e-5). At 25 frames/s a robot of 13 moving
bodies costs 4.5 kB a second, its ghost the same again. A recording's keypoints and the soles of standing feet are
packed like positions.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt
from scipy.spatial import ConvexHull, QhullError

from mocap_data.errors import InputError

FRAMES_PER_S = 25.0
BUDGET_BYTES = 3_600_000
FACES = 160  # about so many of a mesh's convex hull are drawn
# Beyond this a position [m] is a diverged simulation, and would spoil the scale of all frames.
FAR_M = 1e4

FloatArray = npt.NDArray[np.float64]
_KINDS = {
    int(mujoco.mjtGeom.mjGEOM_SPHERE): "sphere",
    int(mujoco.mjtGeom.mjGEOM_CAPSULE): "capsule",
    int(mujoco.mjtGeom.mjGEOM_CYLINDER): "cylinder",
    int(mujoco.mjtGeom.mjGEOM_BOX): "box",
    int(mujoco.mjtGeom.mjGEOM_ELLIPSOID): "box",
    int(mujoco.mjtGeom.mjGEOM_MESH): "mesh",
}


@dataclass(frozen=True)
class ReplayClip:
    """One thing to watch.

    Attributes:
        qpos: (T, nq) the robot; reference: (T, nq) its ghost, or None.
        rate_hz: frames per second of both.
        tracked_frames: frames until the robot was lost, None when it never was.
        command, achieved: (T, 3) forward and lateral velocity [m/s] and yaw rate [rad/s], drawn as arrows, or None.
        keypoints: (T, M, 3) [m] of the recording, where the robot is; bones: (N, 2) pairs of them to draw rods between.
        feet: (T, F, 3) [m] the middle of the soles; contacts: (T, F) when they stand; sole_m: the
          radius [m] of the discs under them.
    """

    name: str
    qpos: npt.ArrayLike
    rate_hz: float
    reference: npt.ArrayLike | None = None
    tracked_frames: int | None = None
    command: npt.ArrayLike | None = None
    achieved: npt.ArrayLike | None = None
    keypoints: npt.NDArray[np.float64] | None = None
    bones: npt.NDArray[np.int64] | None = None
    feet: npt.NDArray[np.float64] | None = None
    contacts: npt.NDArray[np.bool_] | None = None
    sole_m: float = 0.05


def moving_bodies(model: mujoco.MjModel) -> list[int]:
    """Ids of the bodies that move on their own: not the world, not welded to a parent."""
    return [b for b in range(1, model.nbody) if model.body_weldid[b] == b]


def shapes(model: mujoco.MjModel, foot_bodies: Sequence[str] = ()) -> list[dict[str, Any]]:
    """What to draw: primitives in the frames of `moving_bodies`.

    The visual geoms (groups 0 to 2) where a body has some, else its collision geoms; meshes as their convex hulls,
    ellipsoids as their boxes. Each is {b: index into moving_bodies, t: kind, s: sizes [m], p: position [m],
    q: quaternion (w, x, y, z), c: colour class}; a mesh has v: corners [m] and f: faces of three corners.
    """
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    index = {body: i for i, body in enumerate(moving_bodies(model))}
    feet = {mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name): i for i, name in enumerate(foot_bodies)}
    drawable = [g for g in range(model.ngeom) if int(model.geom_type[g]) in _KINDS and _alpha(model, g) > 0]
    visual = {int(model.geom_bodyid[g]) for g in drawable if model.geom_group[g] <= 2}
    out: list[dict[str, Any]] = []
    for g in drawable:
        body = int(model.geom_bodyid[g])
        frame = int(model.body_weldid[body])
        if (body in visual and model.geom_group[g] > 2) or frame not in index:
            continue
        depth, walk = 0, frame
        while walk > 0:
            walk, depth = int(model.body_parentid[walk]), depth + 1
        colour = f"foot{feet[body] % 4}" if body in feet else "base" if depth <= 1 else f"link{min(depth - 2, 2)}"
        out.append({"b": index[frame], "c": colour, **_shape(model, data, g, frame)})
    return out


def _alpha(model: mujoco.MjModel, geom: int) -> float:
    material = int(model.geom_matid[geom])
    return float(model.mat_rgba[material, 3] if material >= 0 else model.geom_rgba[geom, 3])


def _shape(model: mujoco.MjModel, data: mujoco.MjData, geom: int, frame: int) -> dict[str, Any]:
    """A geom's kind, size and pose in the frame of a body."""
    quat, inverse, local_q, local_p = np.empty(4), np.empty(4), np.empty(4), np.empty(3)
    mujoco.mju_mat2Quat(quat, data.geom_xmat[geom])
    kind, size, position = _KINDS[int(model.geom_type[geom])], model.geom_size[geom], np.array(data.geom_xpos[geom])
    corners: dict[str, Any] = {}
    if kind == "mesh":
        position = position + data.geom_xmat[geom].reshape(3, 3) @ model.geom_aabb[geom, :3]
        kind, size, corners = "box", model.geom_aabb[geom, 3:], _hull(model, geom)
    mujoco.mju_negQuat(inverse, data.xquat[frame])
    mujoco.mju_mulQuat(local_q, inverse, quat)
    mujoco.mju_rotVecQuat(local_p, position - data.xpos[frame], inverse)
    return {
        "t": "mesh" if corners else kind,
        "s": [round(float(v), 4) for v in size],
        "p": [round(float(v), 4) for v in local_p],
        "q": [round(float(v), 5) for v in local_q],
        **corners,
    }


def _hull(model: mujoco.MjModel, geom: int) -> dict[str, Any]:
    """A mesh's convex hull, corners (about its box's middle) and faces; of a fine mesh the hull of those corners that
    are outermost in some evenly spread direction. Empty for one that is flat."""
    which = int(model.geom_dataid[geom])
    first, count = int(model.mesh_vertadr[which]), int(model.mesh_vertnum[which])
    vertices = np.asarray(model.mesh_vert[first : first + count], dtype=np.float64) - model.geom_aabb[geom, :3]
    turn = np.arange(FACES // 2) + 0.5  # Fibonacci's lattice on the sphere
    height, angle = 1.0 - 2.0 * turn / len(turn), np.pi * (1.0 + 5.0**0.5) * turn
    flat = np.sqrt(1.0 - height**2)
    directions = np.stack((flat * np.cos(angle), flat * np.sin(angle), height), axis=1)
    outer = vertices[np.unique((directions @ vertices.T).argmax(axis=1))]
    try:
        hull = ConvexHull(outer)
    except (QhullError, ValueError):
        return {}
    place = {int(v): i for i, v in enumerate(hull.vertices)}
    faces = [[place[int(v)] for v in face] for face in hull.simplices]
    return {"v": [[round(float(x), 4) for x in outer[v]] for v in hull.vertices], "f": faces}


def body_poses(model: mujoco.MjModel, qpos: npt.ArrayLike) -> FloatArray:
    """World poses (T, moving bodies, 7: position [m], quaternion w x y z) of the given qpos (T, nq), without sign
    jumps.

    A frame with a value that is not finite, or farther off than `FAR_M`, takes the last good frame's pose (the first
    good one's at the start). Raises InputError when no frame is good or the model is another one.
    """
    q = np.asarray(qpos, dtype=np.float64)
    if q.ndim != 2 or q.shape[1] != model.nq:
        raise InputError(f"replay: qpos has shape {q.shape}, the robot's model expects (T, {model.nq})")
    good = np.isfinite(q).all(axis=1) & (np.abs(np.where(np.isfinite(q), q, 0.0)) < FAR_M).all(axis=1)
    if not good.any():
        raise InputError("replay: no frame of qpos is finite")
    source = np.maximum.accumulate(np.where(good, np.arange(len(q)), -1))
    source = np.where(source < 0, int(np.argmax(good)), source)
    data = mujoco.MjData(model)
    bodies = moving_bodies(model)
    out = np.empty((len(q), len(bodies), 7))
    for t, frame in enumerate(source):
        data.qpos[:] = q[frame]
        mujoco.mj_kinematics(model, data)
        out[t, :, :3] = data.xpos[bodies]
        out[t, :, 3:] = data.xquat[bodies]
    # q and -q are one rotation; the page interpolates, so neighbours must be on the same side.
    flip = np.cumprod(np.where((out[1:, :, 3:] * out[:-1, :, 3:]).sum(-1) < 0, -1.0, 1.0), axis=0)
    out[1:, :, 3:] *= flip[..., None]
    return out


def frame_choice(frames: int, rate_hz: float, fps: float) -> tuple[npt.NDArray[np.int64], float]:
    """Which of `frames` at `rate_hz` to keep for about `fps`, evenly spaced, and the exact rate kept: never above
    `rate_hz`."""
    step = max(1, round(rate_hz / fps))
    return np.arange(0, frames, step), rate_hz / step


def _pack(values: FloatArray, low: FloatArray | float, high: FloatArray | float) -> npt.NDArray[np.uint16]:
    return np.round((values - low) / (np.asarray(high) - low) * 65535).clip(0, 65535).astype("<u2")


def _text(packed: npt.NDArray[np.uint16]) -> str:
    return base64.b64encode(packed.tobytes()).decode("ascii")


def _pack_clip(model: mujoco.MjModel, clip: ReplayClip, keep: npt.NDArray[np.int64], fps: float) -> dict[str, Any]:
    q = np.asarray(clip.qpos, dtype=np.float64)
    layers = [body_poses(model, q[keep])]
    if clip.reference is not None:
        reference = np.asarray(clip.reference, dtype=np.float64)
        if len(reference) != len(q):
            raise InputError(
                f"replay, clip {clip.name!r}: the reference has {len(reference)} frames, the robot {len(q)}"
            )
        if np.isfinite(reference[keep]).all(axis=1).any():
            layers.append(body_poses(model, reference[keep]))
    poses = np.stack(layers, axis=1)  # (frames, layers, bodies, 7)
    places = [poses[..., :3], *(value[keep] for value in (clip.keypoints, clip.feet) if value is not None)]
    every = np.concatenate([value.reshape(-1, 3) for value in places])
    low = np.floor(every.min(axis=0) * 100) / 100
    high = np.maximum(np.ceil(every.max(axis=0) * 100) / 100, low + 0.01)
    packed = np.concatenate([_pack(poses[..., :3], low, high), _pack(poses[..., 3:], -1.0, 1.0)], axis=-1)
    out: dict[str, Any] = {
        "name": clip.name, "fps": round(fps, 6), "frames": len(keep), "layers": len(layers), "poses": _text(packed),
        "low": [round(float(v), 3) for v in low], "high": [round(float(v), 3) for v in high],
    }  # fmt: skip
    if clip.tracked_frames is not None and clip.tracked_frames < len(q):
        out["lost"] = round(clip.tracked_frames / clip.rate_hz, 4)
    if clip.command is not None and clip.achieved is not None:
        both = np.concatenate([np.asarray(clip.command)[keep], np.asarray(clip.achieved)[keep]], axis=1)
        out["velocity"] = [round(float(v), 3) if np.isfinite(v) else 0.0 for v in both.reshape(-1)]
    if clip.keypoints is not None:
        out["points"] = _text(_pack(clip.keypoints[keep], low, high))
        out["bones"] = [] if clip.bones is None else clip.bones.tolist()
    if clip.feet is not None and clip.contacts is not None:
        out["feet"], out["sole"] = _text(_pack(clip.feet[keep], low, high)), round(clip.sole_m, 4)
        out["stands"] = clip.contacts[keep].astype(int).reshape(-1).tolist()
    return out


def pack(
    model: mujoco.MjModel,
    clips: Sequence[ReplayClip],
    foot_bodies: Sequence[str] = (),
    budget_bytes: int = BUDGET_BYTES,
) -> tuple[dict[str, Any], list[str]]:
    """Everything the page's replay needs, ready for JSON, and remarks on what was left out.

    When all clips at 25 frames/s are over the budget, first the frame rate is halved, then each clip is cut to the same
    length. A clip without a finite frame is left out with a remark. The clips keep their order.
    """
    bodies = len(moving_bodies(model))
    chosen, remarks = _within_budget(clips, bodies, budget_bytes)
    packed = []
    for clip, (keep, kept_fps) in zip(clips, chosen, strict=True):
        try:
            packed.append(_pack_clip(model, clip, keep, kept_fps))
        except InputError as error:
            if np.asarray(clip.qpos).shape[1:] != (model.nq,):
                raise
            remarks.append(f"{clip.name} is not in the replay: {error}.")
    return {"shapes": shapes(model, foot_bodies), "bodies": bodies, "clips": packed}, remarks


def _within_budget(
    clips: Sequence[ReplayClip], bodies: int, budget_bytes: int
) -> tuple[list[tuple[npt.NDArray[np.int64], float]], list[str]]:
    """The frames to keep of each clip and their rate, and what to say of it."""
    each = [
        14 * bodies * (1 if clip.reference is None else 2)
        + sum(6 * value.shape[1] for value in (clip.keypoints, clip.feet) if value is not None)
        for clip in clips
    ]

    def choice(fps: float) -> list[tuple[npt.NDArray[np.int64], float]]:
        return [frame_choice(len(np.asarray(c.qpos)), c.rate_hz, fps) for c in clips]

    def cost(seconds: float) -> int:
        return sum(b * min(len(k), max(1, int(seconds * f))) for b, (k, f) in zip(each, chosen, strict=True))

    chosen, remarks = choice(FRAMES_PER_S), []
    if cost(1e9) > budget_bytes:
        chosen = choice(FRAMES_PER_S / 2)
        remarks.append(f"Long recordings: the replay keeps {FRAMES_PER_S / 2:g} frames per second.")
    if cost(1e9) > budget_bytes:
        seconds = max(len(k) / f for k, f in chosen)
        while seconds > 1 and cost(seconds) > budget_bytes:
            seconds *= 0.9
        chosen = [(k[: max(1, int(seconds * f))], f) for k, f in chosen]
        remarks.append(f"Long recordings: the replay keeps the first {seconds:.0f} s of each clip.")
    return chosen, remarks
