"""Colour images of rooms of random appearance (Tobin et al. 2017), and a camera whose depths a
network estimates from them.

Where a ray of the depth camera ends there is floor, or a wall that faces along x or y; each has two
colours in a pattern, light from one side and from everywhere, and is darker towards the corners.
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
from npmp.envs.camera import AT_ONCE, CameraConfig, DepthCamera, recorded
from npmp.envs.depth_network import FINER, SHARES, UNSURE, DepthNetwork
from npmp.envs.state import RobotState
from npmp.sim.terrain import Terrain

FLOOR, WALL, SKY = range(3)
FAR_M = 6.0  # of what is painted; beyond is sky
GROUT = 0.12  # of a tile's side
BASE_M = 0.25  # at least, between where two images were taken that are compared
REACH_M = 4.0  # at most, a level floor's depth at which they are
_EDGE_M = 0.05  # a cell of the ground: how wide a wall's face is there
# an appearance: numbers of each robot, uniform from the first to the second
APPEARANCE: dict[str, tuple[tuple[int, ...], float, float]] = {
    "colors": ((3, 2, 3), 0.0, 1.0),  # two of each surface
    "contrast": ((3,), 0.0, 1.0),  # between these
    "mixed": ((3,), 0.0, 1.0),  # below 0.8: with a pattern
    "pattern": ((3,), 0.0, 5.0),
    "waves": ((3, 2), math.log(0.7), math.log(40.0)),  # logarithms of [rad/m]
    "turn": ((3,), -math.pi, math.pi),  # below 0: level
    "band": ((), -0.8, 0.8),  # up to there walls have their colours the other way round [m]
    "strong": ((), 0.0, 1.0),  # as far as this
    "bearing": ((), 0.0, 2.0 * math.pi),  # of the light
    "height": ((), 0.3, 1.4),  # likewise [rad]
    "ambient": ((), 0.25, 0.8),  # share of the light that is everywhere
    "shadows": ((2, 3), -3.0, 3.0),  # two waves [rad/m]
    "dark": ((), 0.0, 0.8),  # how much darker these are
    "edges": ((), 0.0, 4.0),  # how sharp: a logarithm
    "corners": ((), 0.0, 0.7),  # how much darker they are
    "haze": ((), 0.0, 0.12),  # [1/m]
    "tint": ((3,), 0.7, 1.3),
    "exposure": ((1,), 0.6, 1.4),
    "gamma": ((), 0.7, 1.5),
    "blur": ((), 0.0, 1.0),  # share of it that is a mean of 3 x 3 pixels
    "noise": ((), 0.0, 0.03),
}
APPEARANCE_SIZE = sum(math.prod(shape) for shape, *_ in APPEARANCE.values())


class Appearances(SimpleNamespace):
    """Appearances of n floor plans, one of each robot: attributes (n, *shape) named in
    `APPEARANCE`."""

    def __init__(self, uniform: Tensor):
        """uniform: (n, APPEARANCE_SIZE) in [0, 1)."""
        super().__init__()
        parts = uniform.split([math.prod(shape) for shape, *_ in APPEARANCE.values()], -1)
        for part, (name, (shape, low, high)) in zip(parts, APPEARANCE.items(), strict=True):
            setattr(self, name, low + (high - low) * part.unflatten(-1, shape or (1,)))
            if not shape:
                setattr(self, name, getattr(self, name)[:, 0])

    def paint(self, point: Tensor, ray: Tensor, depth: Tensor, terrain: Terrain) -> Tensor:
        """Colours (n, k, 3) in [0, 1] of places (n, k, 3) [m] where rays (n, k, 3) end after depths
        (n, k) [m]."""
        x, y, z = point.unbind(-1)
        up = z - terrain.heights.min()
        # a face that the ray met along x: there the ground was lower before
        back = _EDGE_M * torch.diag_embed(ray[..., :2].sign())
        before_x, before_y = terrain.height_at(point[..., None, :2] - back).unbind(-1)
        along_x = before_x < before_y
        wall = up > 0.03
        sky = depth >= 0.99 * FAR_M
        surface = torch.where(sky, SKY, torch.where(wall, WALL, FLOOR))

        rows = torch.arange(len(surface), device=surface.device).unsqueeze(-1)

        def own(values: Tensor) -> Tensor:
            return values[rows, surface]

        across = torch.where(wall & along_x, y, x)
        share = own(self.contrast * (self.mixed < 0.8)) * _pattern(
            own(self.pattern).long(),
            across,
            torch.where(wall, up, y),
            own(self.waves.exp()),
            own(self.turn.clamp(min=0.0)),
        )
        below = wall & (up < self.band[:, None])
        share = torch.where(below, (share - self.strong[:, None]).abs(), share)
        first, second = own(self.colors).unbind(-2)
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
    """In [0, 1]: checks, waves, tiles, clouds or specks."""
    one = waves[..., 0] * (across * turn.cos() + up * turn.sin())
    other = waves[..., 1] * (up * turn.cos() - across * turn.sin())
    checks = torch.sign(torch.sin(one) * torch.sin(other))
    grout = (torch.sin(one / 2).abs() < GROUT) | (torch.sin(other / 2).abs() < GROUT)
    clouds = torch.sin(one + 2.0 * torch.sin(0.7 * other))
    clouds = clouds * torch.cos(other + 1.5 * torch.sin(1.3 * one))
    kinds = torch.stack(
        (checks, torch.sin(one), 2.0 * grout - 1.0, clouds, 2.0 * (clouds > 0.8) - 1.0)
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
    """Images (k, rows, columns, 3) in [0, 1] of a camera as `finer` makes them, on roots at (k,
    3), turned by (k, 3, 3), with appearances of (k, APPEARANCE_SIZE) in [0, 1)."""
    colours = []
    columns, rows = fine.config.size
    for where, turned, numbers in zip(
        *(part.split(AT_ONCE) for part in (position, rotation, uniform)), strict=True
    ):
        depth = fine.depths(where, turned, terrain.height_at)
        ray = fine.rays @ turned.mT
        eye = where + turned @ fine.place
        point = eye[:, None] + depth[..., None] * ray
        colours.append(Appearances(numbers).paint(point, ray, depth, terrain))
    appearances = Appearances(uniform)
    image = torch.cat(colours).unflatten(1, (rows, columns)).movedim(-1, 1)
    soft = nn.functional.avg_pool2d(image, 3, 1, 1, count_include_pad=False)
    image = torch.lerp(image, soft, appearances.blur[:, None, None, None]).movedim(1, -1)
    noise = torch.randn(image.shape, generator=generator, device=image.device)
    return (image + appearances.noise[:, None, None, None] * noise).clamp(0.0, 1.0)


def finer(config: CameraConfig, device: torch.device) -> DepthCamera:
    """The camera whose every pixel is one of a image, and which sees farther."""
    columns, rows = (FINER * side for side in config.size)
    camera = DepthCamera(replace(config, size=(columns, rows), range_m=(0.05, FAR_M)))
    camera.allocate(1, 1.0, device)
    return camera


def level_of(fine: DepthCamera, up: Tensor, height: float) -> Tensor:
    """One over the depth at which pixels would see a level floor, (B, rows, columns) [1/m], 0 above
    the horizon. up: in the root frame, (B, 3). height: of the root [m]."""
    columns, rows = fine.config.size
    eye = (height + up @ fine.place).clamp(min=0.05)  # a robot that falls has it in the floor
    down = -up @ fine.rays.T / eye.unsqueeze(-1)
    return down.clamp(min=0.0).unflatten(1, (rows, columns))


class View(NamedTuple):
    """What robots see, and from where."""

    image: Tensor  # (k, rows, columns, 3) in [0, 1]
    position: Tensor  # of the roots, (k, 3) [m]
    rotation: Tensor  # (k, 3, 3)


def compared(fine: DepthCamera, now: View, earlier: View, level: Tensor) -> Tensor:
    """How far the colours of an earlier image differ from one of now where each pixel would see
    the same at `SHARES` of a level floor's depth, -1 where it was out of sight, and last how far
    the eye has moved (k, S + 1, rows, columns) [m]; below `BASE_M` all -1 and 0. Roots are taken
    for equally high, as what a robot knows of its height is that of its home pose.

    level: (k, rows, columns), as `level_of` has it.
    """
    along, right, down = torch.tensor(fine.axes, dtype=torch.float32, device=level.device)
    half = [math.tan(math.radians(fov / 2.0)) for fov in fine.config.fov_deg]
    moved = (now.position - earlier.position) * torch.tensor([1.0, 1.0, 0.0], device=level.device)
    eye = now.rotation @ fine.place + moved
    apart = torch.linalg.vector_norm((eye - earlier.rotation @ fine.place)[:, :2], dim=-1)
    floor = fine.rays @ now.rotation.mT / level.clamp(min=1.0 / REACH_M).flatten(1)[..., None]
    image = earlier.image.movedim(-1, 1)
    differences = []
    for share in SHARES:
        ray = (eye[:, None] + share * floor) @ earlier.rotation - fine.place
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
    """A camera in rooms whose images a network makes depths of, each beside an earlier one from
    `BASE_M` away or farther. Imagined robots are told depths with the noise that the settings
    say."""

    saved: ClassVar[Mapping[str, str]] = {
        **DepthCamera.saved,
        "eye.looks": "appearances",
        "eye.views": "views",
        "eye.poses": "poses",
    }
    appearances: Tensor  # (n, APPEARANCE_SIZE), another one in each episode
    views: Tensor  # (n, 2, rows, columns, 3) earlier images, bytes, the latest last
    poses: Tensor  # (n, 2, 12) of the root where they were taken; NaN before the first

    def __init__(self, config: CameraConfig, height: float):
        """height: of the root of a robot that stands [m].

        Raises:
          InputError: for a network of another camera or height.
        """
        super().__init__(config)
        self.network = DepthNetwork.load(config.network)
        mine = recorded(config)
        camera = self.network.contract.camera
        if abs(height - (stood := self.network.contract.height_m)) > 0.05:
            raise InputError(
                f"'{config.network}' is for a root {stood:.2f} m above the floor, this robot's is"
                f" at {height:.2f} m: train one by python -m npmp.learning.depth_training"
                " robot=..."
            )
        names = ("size", "fov_deg", "place_m", "pitch_deg", "range_m")
        if other := [name for name in names if mine[name] != camera[name]]:
            raise InputError(
                f"'{config.network}' is for a camera with "
                + ", ".join(f"{name} {camera[name]}, not {mine[name]}" for name in other)
            )

    def allocate(self, n: int, dt: float, device: torch.device) -> None:
        """As `DepthCamera.allocate`. Raises InputError where MuJoCo is to draw and cannot."""
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
        """The images of robots ids (k,) now."""
        state = RobotState.unpack(self.env.state.pack()[ids])
        where = (state.root_pos, state.root_rot)
        ground = self.env.ground
        if self.floor_plans is not None:
            image = self.floor_plans.images(*where, ground.terrain, ground.field[ids])
        else:
            args = self.fine, *where, ground.terrain, self.appearances[ids], self.env.generator
            image = render_images(*args)
        return View(image, *where)

    def _beside(self, now: View, ids: Tensor) -> View:
        """The images of robots ids (k,) before the camera moved by `BASE_M`, or of the start. Keeps
        what they see now where the eye is `BASE_M` or farther from where the last was kept."""
        views = self.views[ids]
        poses = self.poses[ids]
        pose = torch.cat((now.position, now.rotation.flatten(1)), -1)
        image = (255.0 * now.image).round().byte()
        cameras = [
            (at[:, :3] + at[:, 3:].view(-1, 3, 3) @ self.place)[:, :2] for at in (pose, poses[:, 1])
        ]
        first = poses[:, 1, 0].isnan()
        new = first | (torch.linalg.vector_norm(cameras[0] - cameras[1], dim=-1) >= BASE_M)
        views[first], poses[first] = image[first, None], pose[first, None]
        views[new] = torch.stack((views[new, 1], image[new]), 1)
        poses[new] = torch.stack((poses[new, 1], pose[new]), 1)
        self.views = self.views.index_copy(0, ids, views)
        self.poses = self.poses.index_copy(0, ids, poses)
        at, turned = poses[:, 0].split((3, 9), -1)
        return View(views[:, 0] / 255.0, at, turned.view(-1, 3, 3))

    @torch.no_grad()
    def _true(self, ids: Tensor) -> Tensor:
        now = self.view(ids)
        level = level_of(self.fine, now.rotation[:, 2], self.network.contract.height_m)
        before = compared(self.fine, now, self._beside(now, ids), level)
        depth, spread = self.network(now.image, level, before)
        return torch.where(spread < UNSURE, depth, self.config.range_m[1])
