"""Render a shot in another process: `python -m npmp.view.render.drawing FOLDER`.

It reads the files of `film.draw` and writes raw RGB frames to its standard output. MUJOCO_GL
selects the backend.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import mujoco
import numpy as np
import numpy.typing as npt

from mocap_data import rotations
from npmp.view.render.shot import ARROW_UP_M, Camera, FloatArray
from npmp.view.render.stage import ROBOT_CAMERA, ROBOT_GROUP

CAPSULE, SPHERE, ARROW, CYLINDER = (
    getattr(mujoco.mjtGeom, f"mjGEOM_{name}") for name in ("CAPSULE", "SPHERE", "ARROW", "CYLINDER")
)
MAX_GEOMS = 5000
# alpha of the translucent reference robot
GHOST_SHARE = 0.42
# shift of the ghost away from the camera, so that a coinciding robot hides it
GHOST_BACK_M = 0.05
COMMANDED = (0.95, 0.45, 0.05, 1.0)
ACHIEVED = (0.10, 0.42, 0.85, 1.0)
GHOST = (0.25, 0.60, 0.95, 1.0)
BONE = (0.93, 0.50, 0.14, 1.0)
KEYPOINT = (0.36, 0.20, 0.08, 1.0)
BALL = (0.96, 0.56, 0.10, 1.0)
STRIPE = (0.98, 0.97, 0.94, 1.0)
TARGET = (0.10, 0.65, 0.35, 1.0)
PATH = (0.10, 0.55, 0.65, 1.0)
# length of a velocity's arrow [m per m/s]
M_PER_MPS = 0.55
# radius of a yaw rate's arc [m]
TURN_RADIUS_M = 0.40
# radius of the disc at the ball's target [m]
TARGET_M = 0.16
# smallest velocity with an arrow [m/s], [rad/s]
MIN_VELOCITY = 0.04


class Brush:
    """Adds shapes to a scene."""

    def __init__(self, scene: mujoco.MjvScene):
        self.scene = scene

    def shape(
        self,
        kind: int,
        size: Sequence[float],
        at: npt.ArrayLike,
        rgba: Sequence[float],
        turn: FloatArray | None = None,
    ) -> mujoco.MjvGeom | None:
        """Add a geom; None if the scene is full. turn: (3, 3) to the world."""
        if self.scene.ngeom >= self.scene.maxgeom:
            return None
        geom = self.scene.geoms[self.scene.ngeom]
        colour = np.array(rgba, dtype=np.float32)
        matrix = (np.eye(3) if turn is None else turn).reshape(-1)
        position = np.asarray(at, dtype=np.float64)
        lengths = np.array(size, dtype=np.float64)
        mujoco.mjv_initGeom(geom, kind, lengths, position, matrix, colour)
        self.scene.ngeom += 1
        return geom

    def between(
        self, kind: int, width: float, start: FloatArray, end: FloatArray, rgba: Sequence[float]
    ) -> None:
        """Add a capsule or an arrow from a point to another."""
        if np.linalg.norm(end - start) > 1e-6 and (geom := self.shape(kind, [0] * 3, start, rgba)):
            # MuJoCo draws an arrow half as long
            length = 2.0 if kind == ARROW else 1.0
            mujoco.mjv_connector(geom, kind, width, start, start + length * (end - start))

    def figure(self, points: FloatArray, bones: npt.NDArray[np.int64]) -> None:
        """A stick figure: keypoints (M, 3), bones (N, 2)."""
        thick = 0.022 * float(np.ptp(points[:, 2]))
        for first, second in bones:
            self.between(CAPSULE, thick, points[first], points[second], BONE)
        for point in points:
            self.shape(SPHERE, [1.35 * thick] * 3, point, KEYPOINT)

    def velocity(
        self, root: FloatArray, velocity: FloatArray, rgba: Sequence[float], up: float
    ) -> None:
        """An arrow of the horizontal velocity and an arc of the yaw rate above a root of pose
        (7,)."""
        heading = rotations.yaw(root[3:7])
        start = root[:3] + [0.0, 0.0, up]
        speed = np.hypot(velocity[0], velocity[1])
        if speed > MIN_VELOCITY:
            direction = heading + np.arctan2(velocity[1], velocity[0])
            unit = np.array([np.cos(direction), np.sin(direction), 0.0])
            end = start + M_PER_MPS * speed * unit
            self.between(ARROW, 0.026, start, end, rgba)
        if abs(velocity[2]) > MIN_VELOCITY:
            angles = heading + np.linspace(0.0, velocity[2] * M_PER_MPS * 1.6, 13)
            circle = np.stack((np.cos(angles), np.sin(angles), 0.0 * angles), axis=1)
            rim = start + TURN_RADIUS_M * circle
            for one, other in itertools.pairwise(rim[:-1]):
                self.between(CAPSULE, 0.012, one, other, rgba)
            across = np.array([-np.sin(angles[-2]), np.cos(angles[-2]), 0.0])
            tip = rim[-2] + 0.10 * np.sign(velocity[2]) * across
            self.between(ARROW, 0.022, rim[-2], tip, rgba)

    def ball(self, position: FloatArray, radius: float, turn: FloatArray) -> None:
        """A ball with bands that show its rotation, a quaternion (4,)."""
        matrix = rotations.to_matrix(turn)
        self.shape(SPHERE, [radius] * 3, position, BALL)
        for axis in (0, 2):
            order = [axis, (axis + 1) % 3, (axis + 2) % 3]
            band = matrix[:, order[1:] + order[:1]]
            size = [1.004 * radius, 0.09 * radius, 0.0]
            self.shape(CYLINDER, size, position, STRIPE, band)

    def path(self, line: FloatArray) -> None:
        """A line (S, 2) on the floor."""
        flat = np.pad(line, ((0, 0), (0, 1)), constant_values=0.002)
        for start, end in itertools.pairwise(flat):
            self.between(CAPSULE, 0.012, start, end, PATH)


def rolling(positions: FloatArray, radius: float) -> FloatArray:
    """Orientations (T, 4) of a ball that rolls along positions (T, 3)."""
    turns = [np.array([1.0, 0.0, 0.0, 0.0])]
    turn = np.array([1.0, 0.0, 0.0, 0.0])
    for x, y, _ in np.diff(positions, axis=0):
        angle = np.hypot(x, y) / radius
        if angle > 1e-9:
            axis = np.array([-y, x, 0.0]) / (angle * radius)
            turn = rotations.multiply(rotations.from_axis_angle(axis, np.array(angle)), turn)
        turns.append(turn)
    return np.array(turns)


class Film:
    """Renders the frames of a shot from the folder of `film.draw`."""

    def __init__(self, folder: Path):
        self.model = mujoco.MjModel.from_binary_path(str(folder / "model.mjb"))
        with np.load(folder / "shot.npz", allow_pickle=False) as file:
            inputs = {name: file[name] for name in file.files}
        self.inputs = inputs
        self.data = mujoco.MjData(self.model)
        self.ghost = mujoco.MjData(self.model)
        self.camera = mujoco.MjvCamera()
        self.options = mujoco.MjvOption()
        self.camera.azimuth, self.camera.elevation, self.camera.distance = inputs["camera"]
        mounted = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_CAMERA, ROBOT_CAMERA)
        if mounted >= 0:
            self.camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
            self.camera.fixedcamid = mounted
        self.options.geomgroup[:] = [group in (0, ROBOT_GROUP) for group in range(6)]
        self.options.geomgroup[ROBOT_GROUP] = bool(inputs["robot"])
        self.lights = [np.array(self.model.light_pos[i]) for i in range(self.model.nlight)]
        self.turns = rolling(inputs["ball"], float(inputs["ball_m"])) if "ball" in inputs else None
        width, height = (int(v) for v in inputs["size"])
        self.renderer = mujoco.Renderer(self.model, height, width, max_geom=MAX_GEOMS)
        self.scene = self.renderer.scene
        self.brush = Brush(self.scene)

    def draw(self, t: int) -> FloatArray:
        """The image (height, width, 3) of frame t."""
        inputs = self.inputs
        pose(self.model, self.data, inputs["qpos"][t])
        self.camera.lookat[:] = inputs["lookat"][t]
        self._compose(t)
        picture = np.asarray(self.renderer.render(), dtype=np.float64)
        if "ghost" not in inputs:
            return picture
        pose(self.model, self.ghost, inputs["ghost"][t])
        self._compose(t)
        first = self.scene.ngeom
        ghost_only = mujoco.MjvOption()
        dynamic = mujoco.mjtCatBit.mjCAT_DYNAMIC.value
        ghost_only.geomgroup[:] = [group == ROBOT_GROUP for group in range(6)]
        perturb = mujoco.MjvPerturb()
        mujoco.mjv_addGeoms(self.model, self.ghost, ghost_only, perturb, dynamic, self.scene)
        back = GHOST_BACK_M * Camera(inputs["lookat"], *inputs["camera"]).axes[2]
        for i in range(first, self.scene.ngeom):
            geom = self.scene.geoms[i]
            geom.rgba[:] = GHOST
            geom.matid = -1
            geom.pos[:] = geom.pos + back
        return (1.0 - GHOST_SHARE) * picture + GHOST_SHARE * self.renderer.render()

    def _compose(self, t: int) -> None:
        """Set up the scene of frame t without the ghost."""
        inputs = self.inputs
        scene = self.scene
        brush = self.brush
        self.renderer.update_scene(self.data, self.camera, self.options)
        scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        scene.flags[mujoco.mjtRndFlag.mjRND_FOG] = 1
        around = np.array([*self.camera.lookat[:2], 0.0])
        # shadows are limited to the surroundings of directional lights, so these follow; the
        # scene's first light is the headlight
        for i, position in enumerate(self.lights, scene.nlight - len(self.lights)):
            scene.lights[i].pos = around + position
        if "figure" in inputs:
            brush.figure(inputs["figure"][t], inputs["bones"])
        if "path" in inputs:
            brush.path(inputs["path"])
        if self.turns is not None:
            brush.ball(inputs["ball"][t], float(inputs["ball_m"]), self.turns[t])
            target = [*inputs["target"][t], 0.003]
            brush.shape(CYLINDER, [TARGET_M, 0.003, 0.0], target, TARGET)
        arrows = ("command", COMMANDED, ARROW_UP_M), ("achieved", ACHIEVED, ARROW_UP_M - 0.07)
        for name, rgba, up in arrows:
            if name in inputs and inputs["robot"]:
                brush.velocity(inputs["qpos"][t], inputs[name][t], rgba, up)


def main(folder: Path, out: BinaryIO) -> None:
    film = Film(folder)
    with film.renderer:
        for t in range(len(film.inputs["qpos"])):
            out.write(np.ascontiguousarray(np.round(film.draw(t)).astype(np.uint8)).tobytes())
        out.flush()


def pose(model: mujoco.MjModel, data: mujoco.MjData, q: FloatArray) -> None:
    """The kinematics that rendering needs."""
    data.qpos[:] = q
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    mujoco.mj_camlight(model, data)


if __name__ == "__main__":
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # drivers may print to stdout
    main(Path(sys.argv[1]), frames)
    frames.close()
    os._exit(0)  # some drivers crash at exit
