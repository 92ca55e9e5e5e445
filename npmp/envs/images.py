"""Colour images of rooms of random appearance (Tobin et al. 2017), and a camera whose depths a
network estimates from them.

A ray of the depth camera ends on the floor, or on a wall that faces along x or y. Each surface has
a pattern of two colours, directional and ambient light, and is darker towards the corners.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from mocap_data.errors import InputError
from npmp.envs.camera import CHUNK, CameraConfig, DepthCamera, recorded
from npmp.envs.depth_network import FINER, SHARES, UNSURE, DepthNetwork
from npmp.envs.state import RobotState
from npmp.sim.terrain import Terrain

FLOOR, WALL, SKY = range(3)
FAR_M = 6.0  # farthest surface; beyond is sky
GROUT = 0.12  # width as a share of a tile's side
BASE_M = 0.25  # least distance between the cameras of two compared images
REACH_M = 4.0  # greatest depth of the level floor at which they are compared
_EDGE_M = 0.05  # width of a wall's face: one cell of the height field
# parameters of an appearance: (shape, low, high), uniform
APPEARANCE: dict[str, tuple[tuple[int, ...], float, float]] = {
    "colors": ((3, 2, 3), 0.0, 1.0),  # two of each surface
    "contrast": ((3,), 0.0, 1.0),  # between the two
    "mixed": ((3,), 0.0, 1.0),  # below 0.8: with a pattern
    "pattern": ((3,), 0.0, 5.0),
    "waves": ((3, 2), math.log(0.7), math.log(40.0)),  # logarithms of [rad/m]
    "turn": ((3,), -math.pi, math.pi),  # below 0: level
    "band": ((), -0.8, 0.8),  # height below which a wall's colours are swapped [m]
    "strong": ((), 0.0, 1.0),  # share of the swap
    "bearing": ((), 0.0, 2.0 * math.pi),  # of the light [rad]
    "height": ((), 0.3, 1.4),  # elevation of the light [rad]
    "ambient": ((), 0.25, 0.8),  # share of ambient light
    "shadows": ((2, 3), -3.0, 3.0),  # two waves [rad/m]
    "dark": ((), 0.0, 0.8),  # depth of the shadows
    "edges": ((), 0.0, 4.0),  # their sharpness, a logarithm
    "corners": ((), 0.0, 0.7),  # darkening towards corners
    "haze": ((), 0.0, 0.12),  # [1/m]
    "tint": ((3,), 0.7, 1.3),
    "exposure": ((1,), 0.6, 1.4),
    "gamma": ((), 0.7, 1.5),
    "blur": ((), 0.0, 1.0),  # weight of the mean of 3 x 3 pixels
    "noise": ((), 0.0, 0.03),
}
APPEARANCE_SIZE = sum(math.prod(shape) for shape, *_ in APPEARANCE.values())


class Appearances(SimpleNamespace):
    """Appearances of n robots' rooms: attributes (n, *shape) by the names of `APPEARANCE`."""

    def __init__(self, uniform: Tensor):
        """uniform: (n, APPEARANCE_SIZE) in [0, 1)."""
        super().__init__()
        parts = uniform.split([math.prod(shape) for shape, *_ in APPEARANCE.values()], -1)
        for part, (name, (shape, low, high)) in zip(parts, APPEARANCE.items(), strict=True):
            setattr(self, name, low + (high - low) * part.unflatten(-1, shape or (1,)))
            if not shape:
                setattr(self, name, getattr(self, name)[:, 0])

    def paint(self, point: Tensor, ray: Tensor, depth: Tensor, terrain: Terrain) -> Tensor:
        """Colours (n, k, 3) in [0, 1] at the ends (n, k, 3) [m] of rays (n, k, 3) of depths (n, k)
        [m]."""
        x, y, z = point.unbind(-1)
        up = z - terrain.heights.min()
        # a face along x: the ground one cell before, along x, is lower
        back = _EDGE_M * torch.diag_embed(ray[..., :2].sign())
        before_x, before_y = terrain.height_at(point[..., None, :2] - back).unbind(-1)
        along_x = before_x < before_y
        wall = up > 0.03
        sky = depth >= 0.99 * FAR_M
        surface = torch.where(sky, SKY, torch.where(wall, WALL, FLOOR))

        rows = torch.arange(len(surface), device=surface.device).unsqueeze(-1)

        def of_surface(values: Tensor) -> Tensor:
            return values[rows, surface]

        across = torch.where(wall & along_x, y, x)
        share = of_surface(self.contrast * (self.mixed < 0.8)) * _pattern(
            of_surface(self.pattern).long(),
            across,
            torch.where(wall, up, y),
            of_surface(self.waves.exp()),
            of_surface(self.turn.clamp(min=0.0)),
        )
        below = wall & (up < self.band[:, None])
        share = torch.where(below, (share - self.strong[:, None]).abs(), share)
        first, second = of_surface(self.colors).unbind(-2)
        faces = torch.where(along_x, ray[..., 0].sign(), ray[..., 1].sign())
        flat = self.height.cos()
        parts = self.bearing.cos() * flat, self.bearing.sin() * flat, self.height.sin()
        light = torch.stack(parts, -1)[:, None]
        from_side = -faces * torch.where(along_x, light[..., 0], light[..., 1])
        lit = torch.where(wall, from_side, light[..., 2]).clamp(min=0.0)
        shade = torch.lerp(lit, torch.ones_like(lit), self.ambient[:, None])
        shade = shade * (1.0 - self.corners[:, None] * torch.exp(-up.abs() / 0.1))
        waves = torch.sin(point @ self.shadows.mT + self.bearing[:, None, None]).sum(-1)
        shadow = torch.sigmoid(self.edges.exp()[:, None] * (waves - 0.5))
        shade = shade * (1.0 - self.dark[:, None] * shadow)
        color = torch.lerp(first, second, share[..., None])
        color = torch.where(sky[..., None], color, color * shade[..., None])
        clear = torch.exp(-self.haze[:, None] * depth)[..., None]
        color = torch.lerp(self.colors[:, None, SKY, 0], color, clear)
        color = (color * (self.tint * self.exposure)[:, None]).clamp(1e-4, 1.0)
        return color ** self.gamma[:, None, None]


def _pattern(kind: Tensor, across: Tensor, up: Tensor, waves: Tensor, turn: Tensor) -> Tensor:
    """Values in [0, 1] of checks, waves, tiles, clouds or specks."""
    wave = waves[..., 0] * (across * turn.cos() + up * turn.sin())
    cross_wave = waves[..., 1] * (up * turn.cos() - across * turn.sin())
    checks = torch.sign(torch.sin(wave) * torch.sin(cross_wave))
    grout = (torch.sin(wave / 2).abs() < GROUT) | (torch.sin(cross_wave / 2).abs() < GROUT)
    clouds = torch.sin(wave + 2.0 * torch.sin(0.7 * cross_wave))
    clouds = clouds * torch.cos(cross_wave + 1.5 * torch.sin(1.3 * wave))
    kinds = torch.stack(
        (checks, torch.sin(wave), 2.0 * grout - 1.0, clouds, 2.0 * (clouds > 0.8) - 1.0)
    )
    return 0.5 + 0.5 * kinds.gather(0, kind[None])[0]


def render_images(
    fine: DepthCamera,
    position: Tensor,
    rotation: Tensor,
    terrain: Terrain,
    uniform: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Images (k, rows, columns, 3) in [0, 1].

    Args:
      fine: from `finer`. position: (k, 3) of the roots [m]. rotation: (k, 3, 3).
      uniform: of the appearances, (k, APPEARANCE_SIZE) in [0, 1).
    """
    colours = []
    columns, rows = fine.config.size
    for where, turned, numbers in zip(
        *(part.split(CHUNK) for part in (position, rotation, uniform)), strict=True
    ):
        depth = fine.depths(where, turned, terrain.height_at)
        ray = fine.rays @ turned.mT
        origin = where + turned @ fine.position
        point = origin[:, None] + depth[..., None] * ray
        colours.append(Appearances(numbers).paint(point, ray, depth, terrain))
    appearances = Appearances(uniform)
    image = torch.cat(colours).unflatten(1, (rows, columns)).movedim(-1, 1)
    soft = nn.functional.avg_pool2d(image, 3, 1, 1, count_include_pad=False)
    image = torch.lerp(image, soft, appearances.blur[:, None, None, None]).movedim(1, -1)
    noise = torch.randn(image.shape, generator=generator, device=image.device)
    return (image + appearances.noise[:, None, None, None] * noise).clamp(0.0, 1.0)


def finer(config: CameraConfig, device: torch.device) -> DepthCamera:
    """The camera at an image's resolution, with a range up to `FAR_M`."""
    columns, rows = (FINER * side for side in config.size)
    camera = DepthCamera(replace(config, size=(columns, rows), range_m=(0.05, FAR_M)))
    camera.allocate(1, 1.0, device)
    return camera


def level_of(fine: DepthCamera, up: Tensor, height: float) -> Tensor:
    """Inverse depth of a level floor, (B, rows, columns) [1/m], 0 above the horizon.

    Args:
      up: the vertical in the root frame, (B, 3). height: of the root [m].
    """
    columns, rows = fine.config.size
    # a fallen robot's camera may be below the floor
    above = (height + up @ fine.position).clamp(min=0.05)
    down = -up @ fine.rays.T / above.unsqueeze(-1)
    return down.clamp(min=0.0).unflatten(1, (rows, columns))


class View(NamedTuple):
    """Images, and the root poses that they were taken from."""

    image: Tensor  # (k, rows, columns, 3) in [0, 1]
    position: Tensor  # of the roots, (k, 3) [m]
    rotation: Tensor  # of the roots, (k, 3, 3)


def compared(fine: DepthCamera, now: View, earlier: View, level: Tensor) -> Tensor:
    """Colour differences of an earlier image at `SHARES` of a level floor's depth, -1 out of view,
    and last the distance [m] between the cameras: (k, S + 1, rows, columns).

    Below a distance of `BASE_M` differences are -1 and the distance is 0. Both roots are assumed to
    have the same height.

    Args:
      level: (k, rows, columns) from `level_of`.
    """
    along, right, down = torch.tensor(fine.axes, dtype=torch.float32, device=level.device)
    half = [math.tan(math.radians(fov / 2.0)) for fov in fine.config.fov_deg]
    moved = (now.position - earlier.position) * torch.tensor([1.0, 1.0, 0.0], device=level.device)
    origin = now.rotation @ fine.position + moved
    apart = torch.linalg.vector_norm((origin - earlier.rotation @ fine.position)[:, :2], dim=-1)
    floor = fine.rays @ now.rotation.mT / level.clamp(min=1.0 / REACH_M).flatten(1)[..., None]
    image = earlier.image.movedim(-1, 1)
    differences = []
    for share in SHARES:
        ray = (origin[:, None] + share * floor) @ earlier.rotation - fine.position
        away = ray @ along
        at = torch.stack((ray @ right / half[0], ray @ down / half[1]), -1)
        at = at / away.clamp(min=0.05)[..., None]
        there = nn.functional.grid_sample(
            image, at.unflatten(1, level.shape[1:]), padding_mode="border", align_corners=False
        )
        off = (there.movedim(1, -1) - now.image).abs().mean(-1)
        inside = (away > 0.05) & (at.abs() < 1.0).all(-1)
        differences.append(torch.where(inside.view_as(off), off, -1.0))
    apart = apart.where(apart >= BASE_M, 0.0)[:, None, None, None]
    off = torch.where(apart > 0.0, torch.stack(differences, 1), -1.0)
    return torch.cat((off, apart.expand_as(off[:, :1])), 1)


class ImageCamera(DepthCamera):
    """A camera in rooms, from whose image and an earlier one a network estimates depths. Imagined
    robots get exact depths with the settings' noise."""

    saved: ClassVar[Mapping[str, str]] = {
        **DepthCamera.saved,
        "eye.looks": "appearances",
        "eye.views": "views",
        "eye.poses": "poses",
    }
    appearances: Tensor  # (n, APPEARANCE_SIZE), sampled at every reset
    views: Tensor  # (n, 2, rows, columns, 3) earlier images, uint8, the latest last
    poses: Tensor  # (n, 2, 12) their root poses; NaN before the first

    def __init__(self, config: CameraConfig, height: float):
        """height: of the standing robot's root [m].

        Raises:
          InputError: for a network of another camera or height.
        """
        super().__init__(config)
        self.network = DepthNetwork.load(config.network)
        requested = recorded(config)
        trained = self.network.contract.camera
        if abs(height - (trained_m := self.network.contract.height_m)) > 0.05:
            raise InputError(
                f"'{config.network}': trained with the root {trained_m:.2f} m above the floor, this"
                f" robot's is at {height:.2f} m; train a network by python -m"
                " npmp.learning.depth_training robot=..."
            )
        names = ("size", "fov_deg", "place_m", "pitch_deg", "range_m")
        if differing := [name for name in names if requested[name] != trained[name]]:
            raise InputError(
                f"'{config.network}': trained with another camera: "
                + ", ".join(f"{name} {trained[name]}, not {requested[name]}" for name in differing)
            )

    def allocate(self, n: int, dt: float, device: torch.device) -> None:
        """As `DepthCamera.allocate`. Raises InputError where MuJoCo cannot render."""
        super().allocate(n, dt, device)
        self.fine = finer(self.config, device)
        self.network = self.network.to(device)
        self.appearances = torch.zeros(n, APPEARANCE_SIZE, device=device)
        self.floor_plans = None
        columns, rows = self.fine.config.size
        self.views = torch.zeros(n, 2, rows, columns, 3, dtype=torch.uint8, device=device)
        self.poses = torch.full((n, 2, 12), math.nan, device=device)
        if self.config.renderer == "mujoco":
            from npmp.envs.floor_plans import FloorPlanRenderer

            self.floor_plans = FloorPlanRenderer(self.config, self.fine)

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        uniform = torch.rand(len(ids), APPEARANCE_SIZE, generator=generator, device=ids.device)
        self.appearances = self.appearances.index_copy(0, ids, uniform)
        self.poses = self.poses.index_fill(0, ids, math.nan)
        super().begin(ids, generator)

    def view(self, ids: Tensor) -> View:
        """The current images of robots ids (k,)."""
        state = RobotState.unpack(self.env.state.pack()[ids])
        where = (state.root_pos, state.root_rot)
        ground = self.env.ground
        if self.floor_plans is not None:
            image = self.floor_plans.images(*where, ground.terrain, ground.field[ids])
        else:
            args = self.fine, *where, ground.terrain, self.appearances[ids], self.env.generator
            image = render_images(*args)
        return View(image, *where)

    def _earlier(self, now: View, ids: Tensor) -> View:
        """The stored images of robots ids (k,) to compare with. Stores the current image where the
        camera is `BASE_M` or farther from the latest stored one."""
        views = self.views[ids]
        poses = self.poses[ids]
        pose = torch.cat((now.position, now.rotation.flatten(1)), -1)
        image = (255.0 * now.image).round().byte()
        cameras = [
            (at[:, :3] + at[:, 3:].view(-1, 3, 3) @ self.position)[:, :2]
            for at in (pose, poses[:, 1])
        ]
        first = poses[:, 1, 0].isnan()
        new = first | (torch.linalg.vector_norm(cameras[0] - cameras[1], dim=-1) >= BASE_M)
        views[first] = image[first, None]
        poses[first] = pose[first, None]
        views[new] = torch.stack((views[new, 1], image[new]), 1)
        poses[new] = torch.stack((poses[new, 1], pose[new]), 1)
        self.views = self.views.index_copy(0, ids, views)
        self.poses = self.poses.index_copy(0, ids, poses)
        at, turned = poses[:, 0].split((3, 9), -1)
        return View(views[:, 0] / 255.0, at, turned.view(-1, 3, 3))

    @torch.no_grad()
    def _exact(self, ids: Tensor) -> Tensor:
        now = self.view(ids)
        level = level_of(self.fine, now.rotation[:, 2], self.network.contract.height_m)
        before = compared(self.fine, now, self._earlier(now, ids), level)
        depth, spread = self.network(now.image, level, before)
        return torch.where(spread < UNSURE, depth, self.config.range_m[1])
