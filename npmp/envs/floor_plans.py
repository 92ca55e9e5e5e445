"""Images of rooms by MuJoCo's renderer, to test depth networks with materials, lights and shadows
that differ from training (`npmp.envs.images`)."""

from __future__ import annotations

import atexit
import os
from functools import cache
from typing import Any

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocap_data.errors import InputError
from npmp.envs.camera import CameraConfig, DepthCamera
from npmp.sim.rooms import WALL_M
from npmp.sim.terrain import Terrain

SIDE = 128  # size of a texture [pixels]
BUILTIN = mujoco.mjtBuiltin
MARK = mujoco.mjtMark
PATTERNS = (BUILTIN.mjBUILTIN_CHECKER, BUILTIN.mjBUILTIN_GRADIENT, BUILTIN.mjBUILTIN_FLAT)
MARKS = (MARK.mjMARK_NONE, MARK.mjMARK_RANDOM, MARK.mjMARK_EDGE)
PLANE = mujoco.mjtTexture.mjTEXTURE_2D
CUBE = mujoco.mjtTexture.mjTEXTURE_CUBE


@cache
def _window() -> Any:
    """One OpenGL context for all renderers: resources must be freed in the context that made
    them."""
    try:
        window = mujoco.GLContext(1, 1)
        window.make_current()
    except (AttributeError, mujoco.FatalError) as error:
        raise InputError(
            f"MUJOCO_GL={os.environ.get('MUJOCO_GL', '')} ({error}): a camera with renderer=mujoco"
            " renders in this process; start it as MUJOCO_GL=egl npmp ... (or osmesa)"
        ) from error
    atexit.register(window.free)
    return window


class FloorPlanRenderer:
    """Images of floor plans; field and terrain seed determine an appearance."""

    def __init__(self, config: CameraConfig, fine: DepthCamera):
        """fine: from `npmp.envs.images.finer`. Raises InputError where MuJoCo has no renderer."""
        self.config = config
        self.place = fine.place.cpu()
        self.size = fine.config.size
        self.floor_plans = dict[int, tuple[mujoco.MjModel, mujoco.MjData, Any, Any]]()
        along, right, down = fine.axes
        # OpenGL's camera in the root frame: x to the right, y up, looking along -z
        self.turned = np.stack((right, -down, -along), 1)
        _window()

    def images(
        self, position: Tensor, rotation: Tensor, terrain: Terrain, fields: Tensor
    ) -> Tensor:
        """Images (k, rows, columns, 3) in [0, 1] from roots at position (k, 3), rotation (k, 3, 3),
        in fields (k,)."""
        _window().make_current()
        pixels = np.empty((len(fields), self.size[1], self.size[0], 3), np.uint8)
        for i, field in enumerate(fields.tolist()):
            if field not in self.floor_plans:
                self.floor_plans[field] = self._build(terrain, field)
            turned = rotation[i].cpu()
            at = (position[i].cpu() + turned @ self.place).numpy().astype(float)
            at -= [*terrain.corner[field].tolist(), float(terrain.heights.min())]
            self._draw(pixels[i], self.floor_plans[field], at, turned.numpy().astype(float))
        return torch.from_numpy(pixels[:, ::-1].copy()).to(position) / 255.0

    def _draw(self, out: NDArray[np.uint8], plan: Any, at: Any, rotation: Any) -> None:
        """Render into `out`, bottom row first, as OpenGL does."""
        model, data, context, scene = plan
        model.cam_pos[0] = at
        mujoco.mju_mat2Quat(model.cam_quat[0], (rotation @ self.turned).ravel())
        mujoco.mj_kinematics(model, data)
        mujoco.mj_camlight(model, data)
        camera = mujoco.MjvCamera()
        camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        camera.fixedcamid = 0
        every = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(model, data, mujoco.MjvOption(), None, camera, every, scene)
        window = mujoco.MjrRect(0, 0, *self.size)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, context)
        mujoco.mjr_render(window, scene, context)
        mujoco.mjr_readPixels(out, None, window, context)

    def _build(self, terrain: Terrain, field: int) -> tuple[Any, Any, Any, Any]:
        heights = terrain.period(field)[:-1, :-1].cpu()
        stands = (heights > heights.min() + 0.5 * WALL_M).numpy()
        rng = np.random.default_rng((terrain.config.seed, field))
        spec = floor_plan(stands, terrain.cell, rng)
        spec.worldbody.add_camera(
            name="camera",
            resolution=self.size,
            focal_length=[1.0, 1.0],
            sensor_size=2.0 * np.tan(np.radians(self.config.fov_deg) / 2.0),
        )
        spec.visual.global_.offwidth, spec.visual.global_.offheight = self.size
        model = spec.compile()
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
        return model, data, context, mujoco.MjvScene(model, maxgeom=model.ngeom + 100)


def floor_plan(stands: NDArray[np.bool_], cell: float, rng: np.random.Generator) -> mujoco.MjSpec:
    """A floor, walls on occupied cells (rows by y, columns by x), random materials and lights."""
    spec = mujoco.MjSpec()
    side = cell * len(stands)
    for name, kind in (("floor", PLANE), ("wall", CUBE)):
        first, second = rng.uniform(0.1, 0.95, (2, 3))
        spec.add_texture(
            name=name,
            type=kind,
            width=SIDE,
            height=SIDE if kind == PLANE else 6 * SIDE,
            builtin=rng.choice(PATTERNS),
            rgb1=first,
            rgb2=second if rng.random() < 0.5 else 0.7 * first + 0.3 * second,
            mark=rng.choice(MARKS),
            markrgb=rng.uniform(0.0, 1.0, 3),
            random=0.02,
        )
        repeat = [int(rng.integers(1, 12))] * 2
        shine = rng.uniform(0.0, [0.5, 1.0])
        material = spec.add_material(
            name=name, texrepeat=repeat, specular=shine[0], shininess=shine[1]
        )
        material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = name
    world = spec.worldbody
    plane = mujoco.mjtGeom.mjGEOM_PLANE
    box = mujoco.mjtGeom.mjGEOM_BOX
    world.add_geom(type=plane, size=[2.0 * side, 2.0 * side, 1.0], material="floor")
    tall = WALL_M / 2.0
    for low, high in boxes(stands):
        size = 0.5 * cell * (high - low)[::-1]
        place = 0.5 * cell * (low + high - 1)[::-1]
        world.add_geom(type=box, size=[*size, tall], pos=[*place, tall], material="wall")
    for _ in range(rng.integers(1, 4)):
        world.add_light(
            pos=rng.uniform([0.0, 0.0, 2.0], [side, side, 3.5]),
            dir=[*rng.uniform(-0.5, 0.5, 2), -1.0],
            diffuse=[rng.uniform(0.3, 0.8)] * 3,
            castshadow=bool(rng.random() < 0.7),
        )
    spec.visual.quality.shadowsize = 512
    spec.visual.headlight.ambient = [rng.uniform(0.1, 0.4)] * 3
    spec.visual.headlight.diffuse = [rng.uniform(0.0, 0.5)] * 3
    return spec


def boxes(stands: NDArray[np.bool_]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Disjoint rectangles that cover the occupied cells: (first cell, cell after the last)."""
    left = stands.copy()
    rectangles = []
    while left.any():
        low = np.argwhere(left)[0]
        row, column = low
        right = column + int(np.argmin(np.append(left[row, column:], False)))
        whole = left[row:, column:right].all(1)
        high = np.array([row + int(np.argmin(np.append(whole, False))), right])
        left[row : high[0], column:right] = False
        rectangles.append((low, high))
    return rectangles
