"""Draw a session with viser, and report drags and clicks of the mouse."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
from collections.abc import Callable
from typing import Any
from unittest import mock

import mujoco
import numpy as np
import trimesh
import viser
from numpy.typing import NDArray
from websockets.asyncio import server as serving

from npmp.robots import Robot
from npmp.sim.terrain import PERIOD_M
from npmp.view.play.modes import Floats, Markers
from npmp.view.play.session import Session, Snapshot
from npmp.view.robot_shapes import COLOURS, moving_bodies, shapes

# share of the distance to the robot that the view moves per step
FOLLOW = 0.1
# distance of the robot from the view that counts as a reset [m]
JUMP_M = 1.0
GHOST = (90, 140, 220)
BALL = (240, 140, 40)
TARGET = (210, 50, 50)
PUSH = (220, 40, 40)
MAP = (60, 110, 200)
FOOTHOLD = (240, 140, 40)
GROUND = (176, 178, 172)
SKIN = (245, 242, 236)
SKY = (255, 255, 255)
WALL = (201, 192, 178)
# side of the blocks of walls that fade if they hide the robot [m]
BLOCK_M = 0.5
# opacity of a wall that hides the robot
FADED = 0.15
# margin around the robot's centre [m]
MARGIN_M = 0.35
# height of the point that must be visible above the floor [m]
AIM_M = 0.25

# called with an event of the mouse and its arguments in the world [m]: "push" (body, point, drag),
# "release" (), "floor" (x, y)
OnPointer = Callable[[str, Any], None]


class Scene:
    """One robot on its ground, shared by all viewers; the view follows the robot."""

    def __init__(self, robot: Robot, on_pointer: OnPointer):
        """Start viser's server on a free local port. on_pointer: called in viser's thread."""
        # viser does not check origins; only our server, which sends none, may connect. Malformed
        # requests are not logged
        silent = logging.Logger("viser", logging.CRITICAL + 1)
        restricted = functools.partial(serving.serve, origins=[None], logger=silent)
        with _quiet(), mock.patch.object(serving, "serve", restricted):
            self.server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
        # no public tunnel
        self.server.request_share_url = lambda *_, **__: None  # type: ignore[method-assign]
        self.port: int = self.server.get_port()
        self._on_pointer = on_pointer
        self.centre = np.zeros(3)
        self._home = float(robot.home_qpos[2])
        scene = self.server.scene
        gui = self.server.gui
        gui.configure_theme(show_logo=False, show_share_button=False, control_layout="floating")
        # without a GPU viser's environment map delays the first frame by 3 s
        scene.configure_environment_map(None)
        scene.add_light_hemisphere("/sky", sky_color=SKY, ground_color=GROUND, intensity=2.5)
        scene.set_up_direction("+z")
        self._world = scene.add_frame("/world", show_axes=False)
        self._grid = scene.add_grid(
            "/world/floor",
            infinite_grid=True,
            cell_size=0.5,
            section_size=1.0,
            fade_distance=25.0,
            cell_color=(205, 207, 204),
            section_color=(170, 173, 170),
            plane_color=(236, 237, 234),
            plane_opacity=1.0,
        )
        self._robot, self._ghosts = self._bodies(robot, robot.model(visuals=True))
        self._ghost = scene.add_frame("/world/ghost", show_axes=False, visible=False)
        sphere = trimesh.creation.icosphere(subdivisions=3, radius=1.0)
        eighths = np.sign(sphere.triangles_center).prod(-1) > 0
        patches = [
            _painted(trimesh.Trimesh(sphere.vertices, sphere.faces[part]), colour)
            for part, colour in ((eighths, BALL), (~eighths, SKIN))
        ]
        self._ball = scene.add_glb("/world/ball", _glb(patches), visible=False)
        flat: Any = {"radius": 0.22, "height": 0.012}
        arrow: Any = {"shaft_radius": 0.018, "head_radius": 0.05, "head_length": 0.12}
        self._target = scene.add_cylinder("/world/target", color=TARGET, visible=False, **flat)
        ends = np.zeros((1, 2, 3))
        self._arrow = scene.add_arrows("/world/push", ends, PUSH, visible=False, **arrow)
        none = np.zeros((1, 3), np.float32)
        self._map = scene.add_point_cloud(
            "/world/map", none, MAP, point_size=0.012, precision="float32", visible=False
        )
        small: Any = {"radius": 0.03, "height": 0.006}
        self._footholds = [
            scene.add_cylinder(f"/world/foothold/{i}", color=FOOTHOLD, visible=False, **small)
            for i in range(len(robot.foot_bodies))
        ]
        self._ground: list[Any] = []  # meshes of one period
        # blocks of walls among them
        self._walls: list[Any] = []
        # (B, 2, 3) boxes of the walls relative to the corner [m]
        self._boxes = np.zeros((0, 2, 3))
        # (B, 4) whether each wall hides the robot, by tile
        self._hides = np.zeros((0, 4), dtype=bool)
        self._corner = np.zeros(2)
        self._floor = 0.0
        self._listen()

    def _bodies(
        self, robot: Robot, model: mujoco.MjModel
    ) -> tuple[list[tuple[int, Any]], list[tuple[int, Any]]]:
        """Handles of the meshes of moving bodies with their indices among the robot's bodies, of
        the robot and of its ghost."""
        body_shapes = shapes(model, robot.foot_bodies)
        names = list(robot.body_names)
        solid = []
        ghost = []
        for i, body in enumerate(moving_bodies(model)):
            parts = [_mesh(shape) for shape in body_shapes if shape["b"] == i]
            if not parts:
                continue
            index = names.index(model.body(body).name)
            plain = [trimesh.Trimesh(part.vertices, part.faces, process=False) for part in parts]
            mesh = trimesh.util.concatenate(plain)
            assert isinstance(mesh, trimesh.Trimesh)  # for the type checker
            handle = self.server.scene.add_glb(f"/world/robot/{index}", _glb(parts))
            solid.append((index, handle))
            name = f"/world/ghost/{index}"
            ghost_handle = self.server.scene.add_mesh_simple(
                name, mesh.vertices, mesh.faces, color=GHOST, opacity=0.35, cast_shadow=False
            )
            ghost.append((index, ghost_handle))
            self._pushable(handle, names[index])
        return solid, ghost

    def _pushable(self, handle: Any, body: str) -> None:
        @handle.on_drag("left")
        async def _(event: viser.SceneNodeDragEvent[Any]) -> None:
            start = np.array(event.start_position)
            end = np.array(event.end_position)
            if event.phase == "end":
                self._on_pointer("release", ())
            else:
                self._on_pointer("push", (body, start + self.centre, end - start))

    def _listen(self) -> None:
        def on_floor(origin: Floats, direction: Floats) -> tuple[float, float] | None:
            """The intersection of a ray with the floor in the world [m]."""
            if direction[2] > -1e-3:
                return None
            point = origin + self.centre - direction * (origin[2] / direction[2])
            return float(point[0]), float(point[1])

        @self._target.on_drag("left")
        async def _(event: viser.SceneNodeDragEvent[Any]) -> None:
            eye = np.array(event.client.camera.position)
            if (point := on_floor(eye, np.array(event.end_position) - eye)) is not None:
                self._on_pointer("floor", point)

        @self.server.scene.on_click()
        def _(event: viser.SceneClickEvent) -> None:
            point = on_floor(np.array(event.ray_origin), np.array(event.ray_direction))
            if point is not None:
                self._on_pointer("floor", point)

    # --- drawing

    def ground(self, session: Session) -> None:
        """Draw the ground of the current mode."""
        for part in self._ground:
            part.remove()
        self._ground = []
        self._walls = []
        self._boxes = np.zeros((0, 2, 3))
        self._hides = np.zeros((0, 4), dtype=bool)
        ground = session.mode.ground
        self._grid.visible = ground is None
        self._floor = 0.0 if ground is None else float(ground[0].min())
        if ground is None:
            return
        heights = ground[0]
        self._corner = np.array(ground[1])
        n = len(heights)
        across = np.linspace(0.0, PERIOD_M, n)
        x, y = np.meshgrid(across, across)
        vertices = np.stack((x, y, heights), -1).reshape(-1, 3).astype(np.float32)
        row, column = (part.ravel() for part in np.mgrid[: n - 1, : n - 1])
        low = row * n + column
        corners = (low, low + 1, low + n + 1), (low, low + n + 1, low + n)
        faces = np.concatenate([np.stack(each, -1) for each in corners])
        if session.mode.has_rooms:
            self._add_rooms(vertices, faces)
        else:
            self._ground.append(self._period(-1, vertices, faces))
        self._hides = np.zeros((len(self._walls), 4), dtype=bool)
        self._tiles: tuple[int, int] | None = None

    def _add_rooms(self, vertices: NDArray[Any], faces: NDArray[Any]) -> None:
        """Add the level floor, as two triangles, and the walls by blocks."""
        ends = np.array([0.0, PERIOD_M])
        floor = np.array([(x, y, self._floor) for y in ends for x in ends], np.float32)
        self._ground.append(self._period(-1, floor, np.array([(0, 1, 3), (0, 3, 2)])))
        corner = vertices[faces]
        is_wall = corner[..., 2].max(1) > self._floor + 0.01
        cell = (corner.mean(1)[:, :2] / BLOCK_M).astype(int)
        blocks = np.where(is_wall, cell[:, 0] * round(PERIOD_M / BLOCK_M) + cell[:, 1], -1)
        for block in np.unique(blocks[is_wall]):
            used, part = np.unique(faces[blocks == block], return_inverse=True)
            mesh = self._period(int(block), vertices[used], part.reshape(-1, 3))
            self._ground.append(mesh)
            self._walls.append(mesh)
            box = np.stack((vertices[used].min(0), vertices[used].max(0)))[None]
            self._boxes = np.concatenate((self._boxes, box))

    def _period(self, block: int, vertices: NDArray[Any], faces: NDArray[Any]) -> Any:
        """A mesh of the ground in four tiles. block: of walls, -1: floor."""
        level = np.tile([1.0, 0.0, 0.0, 0.0], (4, 1))
        tiles = np.zeros((4, 3))
        options: Any = {"flat_shading": True, "cast_shadow": False, "lod": "off"}
        options["batched_colors"] = GROUND if block < 0 else WALL
        if block >= 0:
            options["batched_opacities"] = np.ones(4)
        return self.server.scene.add_batched_meshes_simple(
            f"/world/ground/{block}", vertices, faces, level, tiles, **options
        )

    def draw(self, snapshot: Snapshot) -> None:
        root = snapshot.bodies[0, :3]
        aim = np.array([root[0], root[1], root[2] - self._home if self._ground else 0.0])
        far = np.linalg.norm(aim - self.centre) > JUMP_M
        self.centre = aim if far else self.centre + FOLLOW * (aim - self.centre)
        with self.server.atomic():
            self._world.position = -self.centre
            _pose(self._robot, snapshot.bodies)
            self._ghost.visible = snapshot.ghost is not None
            if snapshot.ghost is not None:
                _pose(self._ghosts, snapshot.ghost)
            self._ball.visible = snapshot.ball is not None
            self._target.visible = snapshot.target is not None
            self._arrow.visible = snapshot.push is not None
            if snapshot.ball is not None:
                self._ball.position = snapshot.ball[0][:3]
                self._ball.wxyz = snapshot.ball[0][3:]
                if self._ball.scale != snapshot.ball[1]:
                    self._ball.scale = snapshot.ball[1]
            if snapshot.target is not None:
                self._target.position = (*snapshot.target, self._floor + 0.006)
            if snapshot.push is not None:
                point, force = snapshot.push
                ends = np.stack((point, point + force / 100.0))[None]
                self._arrow.points = ends.astype(np.float32)
            if self._ground:
                self._move_tiles(root)
                self._fade_walls(root)
            self._draw_markers(snapshot.markers)

    def _draw_markers(self, markers: Markers | None) -> None:
        """Draw what the policy knows of the ground."""
        ground = np.zeros((0, 3)) if markers is None else markers.ground
        footholds = np.zeros((0, 3)) if markers is None else markers.footholds
        self._map.visible = len(ground) > 0
        if len(ground):
            self._map.points = ground.astype(np.float32)
        for i, disc in enumerate(self._footholds):
            disc.visible = i < len(footholds)
            if disc.visible:
                disc.position = footholds[i]

    def _move_tiles(self, root: Floats) -> None:
        """Place the four tiles around the robot."""
        x, y = (int(v) for v in np.floor((root[:2] - self._corner) / PERIOD_M - 0.5))
        if self._tiles != (x, y):
            self._tiles = x, y
            cells = np.array([(x + i, y + j) for i in (0, 1) for j in (0, 1)])
            self._tile_positions = np.pad(self._corner + PERIOD_M * cells, ((0, 0), (0, 1)))
            for part in self._ground:
                part.batched_positions = self._tile_positions.astype(np.float32)

    def _fade_walls(self, root: Floats) -> None:
        """Make walls between a viewer and the robot translucent."""
        views = [
            np.array(client.camera.position) + self.centre
            for client in self.server.get_clients().values()
        ]
        aim = np.array([root[0], root[1], self._floor + AIM_M])
        margin = np.array([MARGIN_M, MARGIN_M, 0.0])
        # (B, 4, 3)
        low, high = (self._boxes[:, None, end] + self._tile_positions for end in (0, 1))
        hides = np.zeros_like(self._hides)
        for view in views:
            hides |= between(view, aim, low - margin, high + margin)
        for i in np.flatnonzero((hides != self._hides).any(1)):
            self._walls[i].batched_opacities = np.where(hides[i], FADED, 1.0).astype(np.float32)
        self._hides = hides

    def close(self) -> None:
        with _quiet():
            self.server.stop()


def between(start: Floats, end: Floats, low: Floats, high: Floats) -> NDArray[np.bool_]:
    """Whether the line from start to end (3,) intersects boxes from low to high (..., 3) [m]."""
    direction = np.where(np.abs(end - start) < 1e-9, 1e-9, end - start)
    shares = np.stack(((low - start) / direction, (high - start) / direction))
    enters = shares.min(0).max(-1)
    leaves = shares.max(0).min(-1)
    return np.asarray((enters <= leaves) & (leaves >= 0.0) & (enters <= 1.0))


def _quiet() -> contextlib.redirect_stdout[io.StringIO]:
    """Suppress viser's messages, which name its own address."""
    return contextlib.redirect_stdout(io.StringIO())


def _pose(handles: list[tuple[int, Any]], bodies: Floats) -> None:
    for index, handle in handles:
        handle.position = bodies[index, :3]
        handle.wxyz = bodies[index, 3:]


def _glb(parts: list[trimesh.Trimesh]) -> bytes:
    data = trimesh.Scene(parts).export(file_type="glb")
    assert isinstance(data, bytes)  # for the type checker
    return data


def _painted(mesh: trimesh.Trimesh, colour: tuple[int, int, int]) -> trimesh.Trimesh:
    """The mesh in one matte colour; vertex colours would be metallic, and black without an
    environment map."""
    linear = (np.array(colour) / 255.0) ** 2.2  # glTF's colours are linear
    material = trimesh.visual.material.PBRMaterial(
        baseColorFactor=(*linear, 1.0), metallicFactor=0.0, roughnessFactor=0.8
    )
    mesh.visual = trimesh.visual.TextureVisuals(material=material)
    return mesh


def _mesh(shape: dict[str, Any]) -> trimesh.Trimesh:
    """The mesh of a shape of `npmp.view.robot_shapes.shapes` in its body's frame."""
    size = shape["s"]
    kind = shape["t"]
    if kind == "mesh":
        mesh = trimesh.Trimesh(shape["v"], shape["f"])
    elif kind == "sphere":
        mesh = trimesh.creation.icosphere(subdivisions=2, radius=size[0])
    elif kind == "capsule":
        mesh = trimesh.creation.capsule(radius=size[0], height=2.0 * size[1], count=(12, 12))
    elif kind == "cylinder":
        mesh = trimesh.creation.cylinder(radius=size[0], height=2.0 * size[1], sections=20)
    else:
        mesh = trimesh.creation.box(extents=2.0 * np.array(size))
    if kind in ("box", "cylinder", "mesh"):
        mesh.unmerge_vertices()  # sharp edges
    mesh.apply_transform(trimesh.transformations.quaternion_matrix(shape["q"]))
    mesh.apply_translation(shape["p"])
    return _painted(mesh, COLOURS[shape["c"]])
