"""The recording and the robot side by side in 3-D, to scrub through in a browser: recordings for viser's own player.

viser (`pip install 'npmp[viewer]'`) writes what happens in a scene to a stream of messages, and its web client, one
HTML page that needs no network, plays that. The report holds the client once and a recording per clip.

The world glides under the robot, so that it stays in view however far it walks. Shapes: T frames, M keypoints, B
bodies, F feet. World frame, Z up, metres.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt
from scipy.ndimage import uniform_filter1d

from experiments.report.replay import moving_bodies
from mocap_data import rotations
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from npmp.robots import Robot
from retarget.kinematics import forward, tree_of

HOW_TO_GET = "pip install 'npmp[viewer]'"
FRAMES_PER_S = 25.0
MAX_SECONDS = 20.0  # of a clip; a second of a robot and its animal costs some 15 kB
MAX_FACES = 60_000  # of all that a robot shows; meshes beyond it are drawn as their convex hulls
_STEP = 1.0 / 8192  # [m] and of quaternions: a tenth of a millimetre; round numbers compress to half
_HIDDEN = -50.0  # [m] where the disc under a swinging foot waits, below the opaque floor

KEYPOINT, BONE, TARGET, STANCE = (213, 94, 0), (120, 128, 138), (213, 94, 0), (0, 158, 115)
FLOOR, LINES, METRES = (236, 239, 243), (218, 223, 229), (184, 192, 202)

FloatArray = npt.NDArray[np.float64]
Mesh = tuple[FloatArray, npt.NDArray[np.int64]]  # vertices (V, 3) [m], faces (F, 3)


@dataclass(frozen=True)
class Take:
    """One clip to watch: a motion of the robot and what it was made from.

    source: the keypoints of its whole recording; None where the motion is all there is.
    contacts: (T, F) when feet stand, or None. feet: (T, F, 3) [m] the middle of their soles.
    scale, slower: the factors on the recording's lengths and on its time that it was retargeted with.
    """

    title: str
    motion: ReferenceMotion
    source: Clip | None = None
    contacts: npt.NDArray[np.bool_] | None = None
    feet: FloatArray | None = None
    scale: float = 1.0
    slower: float = 1.0


def installed() -> bool:
    """Whether viser is there."""
    return importlib.util.find_spec("viser") is not None


@lru_cache(maxsize=1)
def client() -> str:
    """viser's web client: an HTML page that plays `window.__VISER_EMBED_DATA__`."""
    import viser

    return (Path(viser.__file__).parent / "client" / "build" / "index.html").read_text(encoding="utf-8")


def record(robot: Robot, takes: Sequence[Take]) -> list[bytes]:
    """A recording for viser's player of each take, in order.

    Raises InputError when viser is missing, OSError when it may not open the local port that it needs to record.
    """
    if not installed():
        raise InputError(f"the 3-D replay needs viser: {HOW_TO_GET}")
    import viser

    with contextlib.redirect_stdout(io.StringIO()):  # it greets
        server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
    try:
        out = []
        for take in takes:
            server.scene.reset()
            out.append(_record(server, robot, take))
        return out
    finally:
        with contextlib.redirect_stdout(io.StringIO()):
            server.stop()


def _record(server: Any, robot: Robot, take: Take) -> bytes:
    motion = take.motion
    step = max(1, round(motion.rate_hz / FRAMES_PER_S))
    keep = np.arange(0, min(motion.num_frames, math.ceil(MAX_SECONDS * motion.rate_hz)), step)
    root = motion.qpos[keep, :3]
    size = 1.6 * float(np.median(root[:, 2])) if len(root) else 1.0  # about the robot's height
    animal = None if take.source is None else keypoints_of(take, keep)
    model = robot.model()
    scene = server.scene
    scene.set_up_direction("+z")
    scene.configure_environment_map(hdri=None)
    scene.add_light_hemisphere("/sky", sky_color=(255, 255, 255), ground_color=(170, 175, 182), intensity=2.2)
    world = scene.add_frame("/world", show_axes=False)
    scene.add_grid(
        "/world/floor", infinite_grid=True, cell_size=0.25, section_size=1.0, plane_color=FLOOR, plane_opacity=1.0,
        cell_color=LINES, section_color=METRES, shadow_opacity=0.25, fade_distance=40.0,
    )  # fmt: skip
    bodies = _add_robot(scene, model)
    # Seen from the robot's front right, on the whole; the recording is to the left of the robot in that view, whichever
    # way the robot turns meanwhile.
    azimuth = _heading(motion, keep) - math.radians(42)
    leftwards = np.array([math.sin(azimuth), -math.cos(azimuth), 0.0])
    beside, centre = np.zeros(3), root.copy()
    moving: list[tuple[Any, FloatArray]] = []  # handles with their places (T', 3)
    turning: list[tuple[Any, FloatArray]] = []  # handles with their quaternions (T', 4)
    if animal is not None and take.source is not None:
        tall = float(np.median(np.ptp(animal[..., 2], axis=1)))
        beside = leftwards * (0.65 * size + 0.75 * max(size, tall))
        centre += 0.5 * beside
        radius = 0.03 * max(tall, 0.5 * size)
        moving += _add_spheres(scene, "/world/recording", animal + beside, radius, KEYPOINT)
        moving += _add_spheres(scene, "/world/recording_on_robot", animal, 0.6 * radius, TARGET, shadow=False)
        for number, (start, stop) in enumerate(bones(take.source)):
            along = animal[:, stop] - animal[:, start]
            rod = _add_rod(scene, f"/world/bones/{number}", float(np.linalg.norm(along, axis=1).mean()), 0.4 * radius)
            moving.append((rod, 0.5 * (animal[:, start] + animal[:, stop]) + beside))
            turning.append((rod, pointing(along)))
    if take.contacts is not None and take.feet is not None:
        feet = take.feet[keep].copy()
        feet[..., 2] = np.where(take.contacts[keep], 0.003, _HIDDEN)
        sole = np.linalg.norm(robot.foot_points - robot.foot_points.mean(axis=1, keepdims=True), axis=2).max()
        moving += _add_discs(scene, feet, max(0.04, 1.3 * robot.foot_radius, 1.2 * float(sole)), STANCE)
    glide = _smooth(centre[:, :2], FRAMES_PER_S)
    middle = np.array([0.0, 0.0, 0.4 * size])
    away = 1.7 * size + 0.8 * float(np.linalg.norm(beside))
    server.initial_camera.position = middle + away * np.array([math.cos(azimuth), math.sin(azimuth), 0.42])
    server.initial_camera.look_at = middle
    server.initial_camera.fov = math.radians(42)

    serializer = server.get_scene_serializer()
    place, turn = forward(tree_of(model), motion.qpos[keep])
    quat = rotations.make_continuous(rotations.from_matrix(turn))
    for frame in range(len(keep)):
        world.position = (*_round(-glide[frame]).tolist(), 0.0)
        for body, handle in bodies:
            handle.position = tuple(_round(place[frame, body]).tolist())
            handle.wxyz = tuple(_round(quat[frame, body]).tolist())
        for handle, places in moving:
            handle.position = tuple(_round(places[frame]).tolist())
        for handle, turns in turning:
            handle.wxyz = tuple(_round(turns[frame]).tolist())
        serializer.insert_sleep(step / motion.rate_hz)
    return bytes(serializer.serialize())


def _round(values: FloatArray) -> npt.NDArray[np.float32]:
    return (np.round(values / _STEP) * _STEP).astype(np.float32)


def _smooth(path: FloatArray, rate_hz: float) -> FloatArray:
    """A path (T, 2) without the sway of single steps."""
    return np.asarray(uniform_filter1d(path, max(1, round(1.5 * rate_hz)), axis=0, mode="nearest"))


def _heading(motion: ReferenceMotion, keep: npt.NDArray[np.int64]) -> float:
    """Where the robot faces on the whole [rad]."""
    forward = rotations.to_matrix(motion.qpos[keep, 3:7])[:, :2, 0].mean(axis=0)
    return math.atan2(forward[1], forward[0])


# ---- the recording
# --------------------------------------------------------------------------------------------------------


def keypoints_of(take: Take, keep: npt.NDArray[np.int64]) -> FloatArray:
    """The recording's keypoints (T', M, 3) [m] at the motion's frames `keep`: on the floor, as large as the robot
    walks, and where the robot is."""
    motion, clip = take.motion, take.source
    assert clip is not None
    at = np.clip((motion.start_s + keep / motion.rate_hz) / take.slower * clip.rate_hz, 0, clip.num_frames - 1)
    below = np.minimum(np.floor(at).astype(np.int64), max(clip.num_frames - 2, 0))
    share = (at - below)[:, None, None]
    above = np.minimum(below + 1, clip.num_frames - 1)
    points = (1.0 - share) * clip.positions[below] + share * clip.positions[above]
    points = points - [0.0, 0.0, float(np.percentile(clip.positions[..., 2].min(axis=1), 5))]
    points = points * take.scale
    middle = points[..., :2].mean(axis=1)
    points[..., :2] += (motion.qpos[keep, :2] - middle).mean(axis=0)
    return np.asarray(points)


def bones(clip: Clip) -> npt.NDArray[np.int64]:
    """Pairs of keypoints (N, 2) to draw a line between: the skeleton where the clip has one, else the keypoints whose
    distances change least, as a tree."""
    if clip.parents is not None:
        pairs = [(parent, child) for child, parent in enumerate(clip.parents) if parent >= 0]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)
    chosen = clip.positions[np.linspace(0, clip.num_frames - 1, min(60, clip.num_frames)).round().astype(np.int64)]
    distance = np.linalg.norm(chosen[:, :, None] - chosen[:, None, :], axis=-1)
    cost = distance.std(axis=0) + 0.1 * distance.mean(axis=0)
    count = cost.shape[0]
    best, source = cost[0].copy(), np.zeros(count, dtype=np.int64)
    inside = np.zeros(count, dtype=bool)
    inside[0] = True
    pairs = []
    for _ in range(count - 1):  # Prim's tree
        near = int(np.argmin(np.where(inside, np.inf, best)))
        pairs.append((int(source[near]), near))
        inside[near] = True
        closer = cost[near] < best
        best, source = np.where(closer, cost[near], best), np.where(closer, near, source)
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def pointing(along: FloatArray) -> FloatArray:
    """Quaternions (T, 4) that turn the z axis into directions (T, 3)."""
    unit = along / np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    out = np.stack((1.0 + unit[:, 2], -unit[:, 1], unit[:, 0], np.zeros(len(unit))), axis=1)
    out[unit[:, 2] < -1.0 + 1e-9] = [0.0, 1.0, 0.0, 0.0]  # straight down: half a turn about x
    return np.asarray(rotations.make_continuous(out / np.linalg.norm(out, axis=1, keepdims=True)))


# Each sphere, rod and disc is a node of its own: viser's player moves nodes in step with each other, but lets the many
# instances of one node lag where drawing is slow.


def _add_spheres(
    scene: Any, name: str, places: FloatArray, radius: float, colour: tuple[int, int, int], *, shadow: bool = True
) -> list[tuple[Any, FloatArray]]:
    """A sphere for each of the places (T', M, 3), with where it goes."""
    import trimesh

    return _add_copies(scene, name, trimesh.creation.icosphere(subdivisions=1, radius=radius), places, colour, shadow)


def _add_discs(
    scene: Any, places: FloatArray, radius: float, colour: tuple[int, int, int]
) -> list[tuple[Any, FloatArray]]:
    """A disc for each of the places (T', F, 3). Not see-through: the floor might be drawn over it then."""
    import trimesh

    disc = trimesh.creation.cylinder(radius=radius, height=0.004, sections=24)
    return _add_copies(scene, "/world/standing_feet", disc, places, colour, shadow=False)


def _add_copies(
    scene: Any, name: str, mesh: Any, places: FloatArray, colour: tuple[int, int, int], shadow: bool
) -> list[tuple[Any, FloatArray]]:
    scene.add_frame(name, show_axes=False)
    vertices, faces = mesh.vertices.astype(np.float32), mesh.faces.astype(np.uint32)
    return [
        (scene.add_mesh_simple(f"{name}/{i}", vertices, faces, color=colour, cast_shadow=shadow), places[:, i])
        for i in range(places.shape[1])
    ]


def _add_rod(scene: Any, name: str, length: float, radius: float) -> Any:
    import trimesh

    mesh = trimesh.creation.cylinder(radius=radius, height=max(length, 1e-4), sections=8)
    return scene.add_mesh_simple(name, mesh.vertices.astype(np.float32), mesh.faces.astype(np.uint32), color=BONE)


# ---- the robot
# ------------------------------------------------------------------------------------------------------------


def _add_robot(scene: Any, model: mujoco.MjModel) -> list[tuple[int, Any]]:
    """The robot's bodies in the scene: (index without the world, handle of the frame that carries its shapes)."""
    frames = {}
    for body in moving_bodies(model):
        frames[body] = scene.add_frame(f"/world/robot/{body}", show_axes=False)
    for (body, colour), (vertices, faces) in sorted(robot_meshes(model).items()):
        red, green, blue, alpha = colour
        scene.add_mesh_simple(
            f"/world/robot/{body}/{red}_{green}_{blue}_{alpha}", vertices.astype(np.float32), faces.astype(np.uint32),
            color=(red, green, blue), opacity=None if alpha == 255 else alpha / 255.0, flat_shading=True,
        )  # fmt: skip
    return [(body - 1, handle) for body, handle in frames.items()]


def robot_meshes(model: mujoco.MjModel) -> dict[tuple[int, tuple[int, int, int, int]], Mesh]:
    """What to draw of each moving body, one mesh for each of its colours, in the body's frame.

    Of a body the visual geoms (groups 0 to 2) where it has some, else its collision geoms.
    """
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    geoms = [g for g in range(model.ngeom) if _colour(model, g)[3] > 0 and model.geom_type[g] in _SHAPES]
    visual = {int(model.body_weldid[model.geom_bodyid[g]]) for g in geoms if model.geom_group[g] <= 2}
    shown = [g for g in geoms if model.geom_group[g] <= 2 or int(model.body_weldid[model.geom_bodyid[g]]) not in visual]
    heavy = sum(int(model.mesh_facenum[model.geom_dataid[g]]) for g in shown if _is_mesh(model, g)) > MAX_FACES
    parts: dict[tuple[int, tuple[int, int, int, int]], list[Mesh]] = {}
    for g in shown:
        body = int(model.body_weldid[model.geom_bodyid[g]])
        if body == 0:
            continue
        vertices, faces = _shape(model, g, hull=heavy)
        world = vertices @ data.geom_xmat[g].reshape(3, 3).T + data.geom_xpos[g]
        local = (world - data.xpos[body]) @ data.xmat[body].reshape(3, 3)
        parts.setdefault((body, _colour(model, g)), []).append((local, faces))
    return {key: _merged(meshes) for key, meshes in parts.items()}


def _merged(meshes: Sequence[Mesh]) -> Mesh:
    starts = np.cumsum([0, *(len(vertices) for vertices, _ in meshes)])
    vertices = np.concatenate([vertices for vertices, _ in meshes])
    return vertices, np.concatenate([faces + start for (_, faces), start in zip(meshes, starts, strict=False)])


def _colour(model: mujoco.MjModel, geom: int) -> tuple[int, int, int, int]:
    material = int(model.geom_matid[geom])
    rgba = model.mat_rgba[material] if material >= 0 else model.geom_rgba[geom]
    red, green, blue, alpha = (round(255 * float(v)) for v in np.clip(rgba, 0.0, 1.0))
    return red, green, blue, alpha


def _is_mesh(model: mujoco.MjModel, geom: int) -> bool:
    return bool(model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_MESH)


def _shape(model: mujoco.MjModel, geom: int, *, hull: bool) -> Mesh:
    """The surface of a geom in its own frame."""
    import trimesh

    make = _SHAPES[int(model.geom_type[geom])]
    mesh = make(trimesh, model, geom)
    if hull and _is_mesh(model, geom):
        mesh = mesh.convex_hull
    return np.asarray(mesh.vertices, dtype=np.float64), np.asarray(mesh.faces, dtype=np.int64)


def _sphere(trimesh: Any, model: mujoco.MjModel, geom: int) -> Any:
    return trimesh.creation.icosphere(subdivisions=2, radius=float(model.geom_size[geom, 0]))


def _capsule(trimesh: Any, model: mujoco.MjModel, geom: int) -> Any:
    radius, half = model.geom_size[geom, :2]
    mesh = trimesh.creation.capsule(height=2.0 * float(half), radius=float(radius), count=(14, 14))
    mesh.vertices -= mesh.bounds.mean(axis=0)
    return mesh


def _cylinder(trimesh: Any, model: mujoco.MjModel, geom: int) -> Any:
    radius, half = model.geom_size[geom, :2]
    return trimesh.creation.cylinder(radius=float(radius), height=2.0 * float(half), sections=24)


def _box(trimesh: Any, model: mujoco.MjModel, geom: int) -> Any:
    return trimesh.creation.box(2.0 * model.geom_size[geom])


def _ellipsoid(trimesh: Any, model: mujoco.MjModel, geom: int) -> Any:
    mesh = trimesh.creation.icosphere(subdivisions=2)
    mesh.vertices *= model.geom_size[geom]
    return mesh


def _mesh(trimesh: Any, model: mujoco.MjModel, geom: int) -> Any:
    which = int(model.geom_dataid[geom])
    first, count = int(model.mesh_vertadr[which]), int(model.mesh_vertnum[which])
    face, faces = int(model.mesh_faceadr[which]), int(model.mesh_facenum[which])
    return trimesh.Trimesh(model.mesh_vert[first : first + count], model.mesh_face[face : face + faces], process=False)


_SHAPES = {
    int(mujoco.mjtGeom.mjGEOM_SPHERE): _sphere,
    int(mujoco.mjtGeom.mjGEOM_CAPSULE): _capsule,
    int(mujoco.mjtGeom.mjGEOM_CYLINDER): _cylinder,
    int(mujoco.mjtGeom.mjGEOM_BOX): _box,
    int(mujoco.mjtGeom.mjGEOM_ELLIPSOID): _ellipsoid,
    int(mujoco.mjtGeom.mjGEOM_MESH): _mesh,
}
