"""The model that films are drawn of: the robot as it looks, on a floor, in light; no physics."""

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
EYE = "stage_eye"
AROUND_M = 9.0  # of rough ground around the robot's way
SHADOW_PIXELS = 2048
REACH_M = 3.5  # the length by which MuJoCo measures the nearest and farthest that is drawn
SHADOWED_M = 2.2  # around what is looked at, where shadows fall
# of a robot of glass: how opaque it is, and its colliding shapes
SEEN_THROUGH = 0.35
COLLIDING = (0.95, 0.45, 0.05, 0.30)
SKY = (0.80, 0.86, 0.93), (0.96, 0.97, 0.98)  # above and at the horizon
TILES = (0.82, 0.84, 0.86), (0.73, 0.76, 0.80)


def stage(
    robot: Robot,
    size: tuple[int, int],
    distance: float,
    ground: np.ndarray | None,
    ground_m: float,
    where: np.ndarray,
    mount: Mount | None = None,
    glass: bool = False,
) -> mujoco.MjModel:
    """The robot on its stage, for pictures of size (width, height) from a distance [m].

    ground: (n, n) heights of one period of rough ground and ground_m their distance [m], as
    `ReplayClip` has them; where (T, 2): the robot's way [m], around which it is laid.
    mount: of a camera on the robot, named `EYE`.
    glass: the robot is translucent, and its colliding shapes are drawn.
    """
    spec = robot.spec()
    floor = _tiled(spec)
    low = 0.0
    if ground is not None:
        low = float(ground.min()) - 0.01
        _lay(spec, ground, ground_m, where, floor)
    plane = mujoco.mjtGeom.mjGEOM_PLANE
    spec.worldbody.add_geom(
        name="stage_floor", type=plane, size=[0, 0, 0.05], pos=[0, 0, low], **floor
    )
    _light(spec)
    if mount is not None:
        down = np.radians(mount.pitch)
        spec.worldbody.first_body().add_camera(
            name=EYE,
            pos=mount.place,
            fovy=mount.fovy,
            # to the right, and up, in the picture
            xyaxes=[0.0, -1.0, 0.0, np.sin(down), 0.0, np.cos(down)],
        )
    model = spec.compile()
    look = model.vis
    depth = model.vis.map
    look.global_.offwidth, look.global_.offheight = size
    look.headlight.ambient[:] = 0.40
    look.headlight.diffuse[:] = 0.18
    look.headlight.specular[:] = 0.0
    look.quality.shadowsize = SHADOW_PIXELS
    model.stat.extent = REACH_M
    depth.znear = 0.02
    depth.zfar = 40.0
    depth.shadowclip = SHADOWED_M / REACH_M
    look.rgba.fog[:] = (*SKY[1], 1.0)
    # fog, as far tiles flicker
    depth.fogstart = 1.3 * distance / REACH_M
    depth.fogend = (4.0 * distance + 8.0) / REACH_M
    visible = set(drawn_geoms(model))
    for geom in range(model.ngeom):
        if model.geom_bodyid[geom]:
            model.geom_group[geom] = ROBOT_GROUP if geom in visible else HIDDEN_GROUP
    if glass:
        _see_through(model)
    return model


def _see_through(model: mujoco.MjModel) -> None:
    """Make the robot translucent, its colliding shapes in `COLLIDING`."""
    for geom in range(model.ngeom):
        if not model.geom_bodyid[geom]:
            continue
        material = int(model.geom_matid[geom])
        colour = model.geom_rgba[geom] if material < 0 else model.mat_rgba[material]
        model.geom_matid[geom] = -1
        model.geom_rgba[geom] = [*colour[:3], SEEN_THROUGH]
        if model.geom_contype[geom] or model.geom_conaffinity[geom]:
            model.geom_group[geom] = ROBOT_GROUP
            model.geom_rgba[geom] = COLLIDING


def _light(spec: mujoco.MjSpec) -> None:
    # a steep light: a flatter one leaves specks at the edge of where shadows fall
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


def _tiled(spec: mujoco.MjSpec) -> dict[str, Any]:
    """Add sky and tiles; returns the settings of a geom that is a floor of them."""
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


def _lay(
    spec: mujoco.MjSpec,
    ground: np.ndarray,
    ground_m: float,
    where: np.ndarray,
    floor: dict[str, Any],
) -> None:
    """Rough ground around a way, as a height field."""
    low = np.floor((where.min(axis=0) - AROUND_M) / ground_m)
    high = np.ceil((where.max(axis=0) + AROUND_M) / ground_m)
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
