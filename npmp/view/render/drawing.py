"""Draw a film in another process: `python -m npmp.view.render.drawing FOLDER`.

It reads the files of `film.draw` and writes raw frames, RGB bytes, to its output. MUJOCO_GL names
the backend.
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
from npmp.view.render.stage import EYE, ROBOT_GROUP

CAPSULE, SPHERE, ARROW, CYLINDER = (
    getattr(mujoco.mjtGeom, f"mjGEOM_{name}") for name in ("CAPSULE", "SPHERE", "ARROW", "CYLINDER")
)
MAX_GEOMS = 5000
GHOST_SHARE = 0.42  # of the picture with the ghost in the one that is shown
# away from the camera, so that a robot that is where it should be hides its ghost
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
M_PER_MPS = 0.55  # of an arrow's length; of a yaw rate so many radians per rad/s
TURN_RADIUS_M = 0.40
TARGET_M = 0.16  # of the disc where the ball should be
STILL = 0.04  # m/s and rad/s: no arrow for less


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
        """One geom, None where the scene is full; turn (3, 3) to the world."""
        if self.scene.ngeom >= self.scene.maxgeom:
            return None
        geom = self.scene.geoms[self.scene.ngeom]
        colour = np.array(rgba, dtype=np.float32)
        matrix = (np.eye(3) if turn is None else turn).reshape(-1)
        place = np.asarray(at, dtype=np.float64)
        lengths = np.array(size, dtype=np.float64)
        mujoco.mjv_initGeom(geom, kind, lengths, place, matrix, colour)
        self.scene.ngeom += 1
        return geom

    def between(
        self, kind: int, width: float, start: FloatArray, end: FloatArray, rgba: Sequence[float]
    ) -> None:
        """A capsule, a line or an arrow from a point to another."""
        if np.linalg.norm(end - start) > 1e-6 and (geom := self.shape(kind, [0] * 3, start, rgba)):
            # an arrow is drawn half as long as it is made
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
        """Arrows above a robot of pose root (7,): where it goes, and an arc for how it turns."""
        heading = rotations.yaw(root[3:7])
        start = root[:3] + [0.0, 0.0, up]
        pace = np.hypot(velocity[0], velocity[1])
        if pace > STILL:
            way = heading + np.arctan2(velocity[1], velocity[0])
            end = start + M_PER_MPS * pace * np.array([np.cos(way), np.sin(way), 0.0])
            self.between(ARROW, 0.026, start, end, rgba)
        if abs(velocity[2]) > STILL:
            angles = heading + np.linspace(0.0, velocity[2] * M_PER_MPS * 1.6, 13)
            circle = np.stack((np.cos(angles), np.sin(angles), 0.0 * angles), axis=1)
            rim = start + TURN_RADIUS_M * circle
            for one, other in itertools.pairwise(rim[:-1]):
                self.between(CAPSULE, 0.012, one, other, rgba)
            across = np.array([-np.sin(angles[-2]), np.cos(angles[-2]), 0.0])
            tip = rim[-2] + 0.10 * np.sign(velocity[2]) * across
            self.between(ARROW, 0.022, rim[-2], tip, rgba)

    def ball(self, place: FloatArray, radius: float, turn: FloatArray) -> None:
        """A ball with a band, by which it is seen to roll; turn (4,)."""
        matrix = rotations.to_matrix(turn)
        self.shape(SPHERE, [radius] * 3, place, BALL)
        for axis in (0, 2):
            order = [axis, (axis + 1) % 3, (axis + 2) % 3]
            band = matrix[:, order[1:] + order[:1]]
            size = [1.004 * radius, 0.09 * radius, 0.0]
            self.shape(CYLINDER, size, place, STRIPE, band)

    def path(self, line: FloatArray) -> None:
        """A line (S, 2) on the floor."""
        flat = np.pad(line, ((0, 0), (0, 1)), constant_values=0.002)
        for start, end in itertools.pairwise(flat):
            self.between(CAPSULE, 0.012, start, end, PATH)


def rolled(way: FloatArray, radius: float) -> FloatArray:
    """Orientations (T, 4) of a ball that rolls along a way (T, 3)."""
    turns = [np.array([1.0, 0.0, 0.0, 0.0])]
    turn = np.array([1.0, 0.0, 0.0, 0.0])
    for x, y, _ in np.diff(way, axis=0):
        angle = np.hypot(x, y) / radius
        if angle > 1e-9:
            axis = np.array([-y, x, 0.0]) / (angle * radius)
            turn = rotations.multiply(rotations.from_axis_angle(axis, np.array(angle)), turn)
        turns.append(turn)
    return np.array(turns)


class Film:
    """Draws the frames of a shot, as `film.draw` left it in a folder."""

    def __init__(self, folder: Path):
        self.model = mujoco.MjModel.from_binary_path(str(folder / "model.mjb"))
        with np.load(folder / "shot.npz", allow_pickle=False) as file:
            self.given = inputs = {name: file[name] for name in file.files}
        self.data, self.ghost = mujoco.MjData(self.model), mujoco.MjData(self.model)
        self.camera = mujoco.MjvCamera()
        self.look = mujoco.MjvOption()
        self.camera.azimuth, self.camera.elevation, self.camera.distance = inputs["camera"]
        eye = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_CAMERA, EYE)
        if eye >= 0:
            self.camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
            self.camera.fixedcamid = eye
        self.look.geomgroup[:] = [group in (0, ROBOT_GROUP) for group in range(6)]
        self.look.geomgroup[ROBOT_GROUP] = bool(inputs["robot"])
        self.lights = [np.array(self.model.light_pos[i]) for i in range(self.model.nlight)]
        self.turns = rolled(inputs["ball"], float(inputs["ball_m"])) if "ball" in inputs else None
        width, height = (int(v) for v in inputs["size"])
        self.renderer = mujoco.Renderer(self.model, height, width, max_geom=MAX_GEOMS)
        self.scene, self.brush = self.renderer.scene, Brush(self.renderer.scene)

    def draw(self, t: int) -> FloatArray:
        """The picture (height, width, 3) of frame t."""
        inputs = self.given
        pose(self.model, self.data, inputs["qpos"][t])
        self.camera.lookat[:] = inputs["lookat"][t]
        self._compose(t)
        picture = np.asarray(self.renderer.render(), dtype=np.float64)
        if "ghost" not in inputs:
            return picture
        pose(self.model, self.ghost, inputs["ghost"][t])
        self._compose(t)
        first = self.scene.ngeom
        only = mujoco.MjvOption()
        dynamic = mujoco.mjtCatBit.mjCAT_DYNAMIC.value
        only.geomgroup[:] = [group == ROBOT_GROUP for group in range(6)]
        perturb = mujoco.MjvPerturb()
        mujoco.mjv_addGeoms(self.model, self.ghost, only, perturb, dynamic, self.scene)
        back = GHOST_BACK_M * Camera(inputs["lookat"], *inputs["camera"]).axes[2]
        for i in range(first, self.scene.ngeom):
            geom = self.scene.geoms[i]
            geom.rgba[:], geom.matid, geom.pos[:] = GHOST, -1, geom.pos + back
        return (1.0 - GHOST_SHARE) * picture + GHOST_SHARE * self.renderer.render()

    def _compose(self, t: int) -> None:
        """The scene of frame t, without the ghost."""
        inputs = self.given
        scene = self.scene
        brush = self.brush
        self.renderer.update_scene(self.data, self.camera, self.look)
        scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        scene.flags[mujoco.mjtRndFlag.mjRND_FOG] = 1
        around = np.array([*self.camera.lookat[:2], 0.0])
        # shadows fall around where directional lights stand, so these go along; the first of the
        # scene is the headlight
        for i, place in enumerate(self.lights, scene.nlight - len(self.lights)):
            scene.lights[i].pos = around + place
        if "figure" in inputs:
            brush.figure(inputs["figure"][t], inputs["bones"])
        if "path" in inputs:
            brush.path(inputs["path"])
        if self.turns is not None:
            brush.ball(inputs["ball"][t], float(inputs["ball_m"]), self.turns[t])
            spot = [*inputs["target"][t], 0.003]
            brush.shape(CYLINDER, [TARGET_M, 0.003, 0.0], spot, TARGET)
        arrows = ("command", COMMANDED, ARROW_UP_M), ("achieved", ACHIEVED, ARROW_UP_M - 0.07)
        for name, rgba, up in arrows:
            if name in inputs and inputs["robot"]:
                brush.velocity(inputs["qpos"][t], inputs[name][t], rgba, up)


def main(folder: Path, out: BinaryIO) -> None:
    film = Film(folder)
    with film.renderer:
        for t in range(len(film.given["qpos"])):
            out.write(np.ascontiguousarray(np.round(film.draw(t)).astype(np.uint8)).tobytes())
        out.flush()


def pose(model: mujoco.MjModel, data: mujoco.MjData, q: FloatArray) -> None:
    """All that drawing needs of a pose."""
    data.qpos[:] = q
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    mujoco.mj_camlight(model, data)


if __name__ == "__main__":
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what drivers print is no picture
    main(Path(sys.argv[1]), frames)
    frames.close()
    os._exit(0)  # some drivers fall over their own feet on the way out
