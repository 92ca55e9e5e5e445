"""The model for rendering: the robot's visual geoms on a floor in light, without physics."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from npmp.robots import Robot
from npmp.view.render.shot import Mount
from npmp.view.robot_shapes import drawn_geoms

FLOOR_GROUP = 0
ROBOT_GROUP = 2
HIDDEN_GROUP = 5
ROBOT_CAMERA = "stage_robot_camera"
# margin of rough ground around the robot's path [m]
MARGIN_M = 9.0
SHADOW_PIXELS = 2048
# `model.stat.extent`, the unit of near and far planes [m]
EXTENT_M = 3.5
# range of shadows around the point looked at [m]
SHADOW_M = 2.2
# opacity of a translucent robot, and colour of its collision shapes
GLASS_ALPHA = 0.35
COLLISION = (0.95, 0.45, 0.05, 0.30)
# above and at the horizon
SKY = (0.80, 0.86, 0.93), (0.96, 0.97, 0.98)
TILES = (0.82, 0.84, 0.86), (0.73, 0.76, 0.80)


def stage(
    robot: Robot,
    size: tuple[int, int],
    distance: float,
    ground: np.ndarray | None,
    ground_m: float,
    path: np.ndarray,
    mount: Mount | None = None,
    glass: bool = False,
) -> mujoco.MjModel:
    """The model for images of size (width, height) from a distance [m].

    Args:
      ground: (n, n) heights of one period of rough ground, with a spacing of ground_m [m], as in
        `ReplayClip`, for the surroundings of the robot's path (T, 2) [m].
      mount: of a camera named `ROBOT_CAMERA`.
      glass: the robot is translucent, and its collision shapes are drawn.
    """
    spec = robot.spec()
    floor = _add_tiles(spec)
    low = 0.0
    if ground is not None:
        low = float(ground.min()) - 0.01
        _add_ground(spec, ground, ground_m, path, floor)
    plane = mujoco.mjtGeom.mjGEOM_PLANE
    spec.worldbody.add_geom(
        name="stage_floor", type=plane, size=[0, 0, 0.05], pos=[0, 0, low], **floor
    )
    _add_lights(spec)
    if mount is not None:
        down = np.radians(mount.pitch)
        spec.worldbody.first_body().add_camera(
            name=ROBOT_CAMERA,
            pos=mount.position,
            fovy=mount.fovy,
            # right and up in the image
            xyaxes=[0.0, -1.0, 0.0, np.sin(down), 0.0, np.cos(down)],
        )
    model = spec.compile()
    visual = model.vis
    depth = model.vis.map
    visual.global_.offwidth, visual.global_.offheight = size
    visual.headlight.ambient[:] = 0.40
    visual.headlight.diffuse[:] = 0.18
    visual.headlight.specular[:] = 0.0
    visual.quality.shadowsize = SHADOW_PIXELS
    model.stat.extent = EXTENT_M
    depth.znear = 0.02
    depth.zfar = 40.0
    depth.shadowclip = SHADOW_M / EXTENT_M
    visual.rgba.fog[:] = (*SKY[1], 1.0)
    # hides far tiles, which flicker
    depth.fogstart = 1.3 * distance / EXTENT_M
    depth.fogend = (4.0 * distance + 8.0) / EXTENT_M
    visible = set(drawn_geoms(model))
    for geom in range(model.ngeom):
        if model.geom_bodyid[geom]:
            model.geom_group[geom] = ROBOT_GROUP if geom in visible else HIDDEN_GROUP
    if glass:
        _make_translucent(model)
    return model


def _make_translucent(model: mujoco.MjModel) -> None:
    """Make the robot translucent, with its collision shapes in `COLLISION`."""
    for geom in range(model.ngeom):
        if not model.geom_bodyid[geom]:
            continue
        material = int(model.geom_matid[geom])
        colour = model.geom_rgba[geom] if material < 0 else model.mat_rgba[material]
        model.geom_matid[geom] = -1
        model.geom_rgba[geom] = [*colour[:3], GLASS_ALPHA]
        if model.geom_contype[geom] or model.geom_conaffinity[geom]:
            model.geom_group[geom] = ROBOT_GROUP
            model.geom_rgba[geom] = COLLISION


def _add_lights(spec: mujoco.MjSpec) -> None:
    # steep, as a flat light causes artefacts at the edge of the shadows
    lights = (((-3.0, -4.2, 12.0), True, 0.54), ((1.5, 1.8, 2.2), False, 0.22))
    for position, shade, bright in lights:
        spec.worldbody.add_light(
            pos=position,
            dir=[-p for p in position],
            type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
            castshadow=shade,
            diffuse=[bright] * 3,
            specular=[0.25 * shade] * 3,
            ambient=[0.0] * 3,
        )


def _add_tiles(spec: mujoco.MjSpec) -> dict[str, Any]:
    """Add sky and tiles; returns the settings of a tiled geom."""
    kinds = mujoco.mjtTexture
    fills = mujoco.mjtBuiltin
    for name, kind, fill, colours, height in (
        ("stage_sky", kinds.mjTEXTURE_SKYBOX, fills.mjBUILTIN_GRADIENT, SKY, 1536),
        ("stage_tiles", kinds.mjTEXTURE_2D, fills.mjBUILTIN_CHECKER, TILES, 256),
    ):
        rgb: dict[str, Any] = {"rgb1": colours[0], "rgb2": colours[1]}
        spec.add_texture(name=name, type=kind, builtin=fill, width=256, height=height, **rgb)
    shine = {"specular": 0.05, "shininess": 0.1}
    material = spec.add_material(name="stage_tiles", texrepeat=[1, 1], texuniform=True, **shine)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "stage_tiles"
    return {"material": "stage_tiles", "group": FLOOR_GROUP, "contype": 0, "conaffinity": 0}


def _add_ground(
    spec: mujoco.MjSpec,
    ground: np.ndarray,
    ground_m: float,
    path: np.ndarray,
    floor: dict[str, Any],
) -> None:
    """Add rough ground around a path as a height field."""
    low = np.floor((path.min(axis=0) - MARGIN_M) / ground_m)
    high = np.ceil((path.max(axis=0) + MARGIN_M) / ground_m)
    columns, rows = (np.arange(int(low[k]), int(high[k]) + 1) for k in (0, 1))
    heights = ground[np.ix_(rows % len(ground), columns % len(ground))].astype(np.float64)
    bottom = heights.min()
    span = max(float(np.ptp(heights)), 1e-3)
    half = 0.5 * ground_m * np.array([len(columns) - 1, len(rows) - 1])
    middle = 0.5 * ground_m * np.array([columns[0] + columns[-1], rows[0] + rows[-1]])
    shares = ((heights - bottom) / span).ravel().tolist()
    size = [*half, span, 0.05]
    name = "stage_ground"
    kind = mujoco.mjtGeom.mjGEOM_HFIELD
    spec.add_hfield(name=name, nrow=len(rows), ncol=len(columns), size=size, userdata=shares)
    place = [*middle, float(bottom)]
    spec.worldbody.add_geom(name=name, type=kind, hfieldname=name, pos=place, **floor)
