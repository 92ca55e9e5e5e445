"""Colour pictures of rooms, of looks that are drawn by chance (Tobin et al. 2017), and a camera
whose depths a network makes of them.

Where a ray of the depth camera ends there is floor, or a wall that faces along x or y; each has two
colours in a pattern, light from one side and from everywhere, and is darker towards the corners.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.envs.camera import AT_ONCE, CameraConfig, DepthCamera
from npmp.envs.state import RobotState
from npmp.nets.eyes import FINER, Eyes
from npmp.settings import as_plain
from npmp.sim.terrain import Terrain

FLOOR, WALL, SKY = range(3)
FAR_M = 6.0  # of what is painted; beyond is sky
GROUT = 0.12  # of a tile's side
_EDGE_M = 0.05  # a cell of the ground: how wide a wall's face is there


class Looks:
    """How n houses look, one to each robot; all numbers are drawn uniformly, waves by their
    logarithm."""

    def __init__(self, n: int, generator: torch.Generator, device: torch.device):
        def drawn(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
            share = torch.rand(n, *shape, generator=generator, device=device)
            return low + (high - low) * share

        self.colors = drawn(3, 2, 3)  # of each surface
        self.contrast = drawn(3) * (drawn(3) < 0.8)
        self.pattern = (4.0 * drawn(3)).long()
        self.waves = torch.exp(drawn(3, 2, low=math.log(2.0), high=math.log(40.0)))  # [rad/m]
        self.turn = drawn(3, high=math.pi)
        bearing, height = drawn(high=2.0 * math.pi), drawn(low=0.3, high=1.4)
        flat = height.cos()
        self.light = torch.stack((bearing.cos() * flat, bearing.sin() * flat, height.sin()), -1)
        self.ambient = drawn(low=0.25, high=0.8)
        self.corners = drawn(high=0.7)
        self.haze = drawn(high=0.12)  # [1/m]
        self.gain = drawn(3, low=0.7, high=1.3) * drawn(1, low=0.6, high=1.4)
        self.gamma = drawn(low=0.7, high=1.5)
        self.noise = drawn(high=0.03)

    def of(self, ids: Tensor | slice) -> Looks:
        """Those of some robots."""
        chosen = object.__new__(Looks)
        chosen.__dict__ = {name: values[ids] for name, values in self.__dict__.items()}
        return chosen

    def put(self, ids: Tensor, other: Looks) -> None:
        """Give robots ids (k,) other looks."""
        for name, values in other.__dict__.items():
            setattr(self, name, getattr(self, name).index_copy(0, ids, values))

    def paint(self, point: Tensor, ray: Tensor, depth: Tensor, terrain: Terrain) -> Tensor:
        """Colours (n, k, 3) in [0, 1] of places (n, k, 3) [m] where rays (n, k, 3) end after depths
        (n, k) [m]."""
        x, y, z = point.unbind(-1)
        up = z - terrain.heights.min()
        before = torch.stack((x - _EDGE_M * ray[..., 0].sign(), y), -1)
        along_x = terrain.height_at(before) < z - 0.02  # a face that the ray met along x
        wall, sky = up > 0.03, depth >= 0.99 * FAR_M
        surface = torch.where(sky, SKY, torch.where(wall, WALL, FLOOR))

        def own(values: Tensor) -> Tensor:
            return values.gather(
                1,
                surface.view(*surface.shape, *[1] * (values.dim() - 2)).expand(
                    *surface.shape, *values.shape[2:]
                ),
            )

        across = torch.where(wall & along_x, y, x)
        share = own(self.contrast) * _pattern(
            own(self.pattern), across, torch.where(wall, up, y), own(self.waves), own(self.turn)
        )
        first, second = own(self.colors).unbind(-2)
        faces = torch.where(along_x, ray[..., 0].sign(), ray[..., 1].sign())
        light = self.light[:, None]
        from_side = -faces * torch.where(along_x, light[..., 0], light[..., 1])
        lit = torch.where(wall, from_side, light[..., 2]).clamp(min=0.0)
        shade = torch.lerp(lit, torch.ones_like(lit), self.ambient[:, None])
        shade = shade * (1.0 - self.corners[:, None] * torch.exp(-up.abs() / 0.1))
        color = torch.lerp(first, second, share[..., None])
        color = torch.where(sky[..., None], color, color * shade[..., None])
        clear = torch.exp(-self.haze[:, None] * depth)[..., None]
        color = torch.lerp(self.colors[:, None, SKY, 0], color, clear)
        return (color * self.gain[:, None]).clamp(1e-4, 1.0) ** self.gamma[:, None, None]


def _pattern(kind: Tensor, across: Tensor, up: Tensor, waves: Tensor, turn: Tensor) -> Tensor:
    """In [0, 1]: checks, waves, tiles or clouds."""
    one = waves[..., 0] * (across * turn.cos() + up * turn.sin())
    other = waves[..., 1] * (up * turn.cos() - across * turn.sin())
    checks = torch.sign(torch.sin(one) * torch.sin(other))
    grout = (torch.sin(one / 2).abs() < GROUT) | (torch.sin(other / 2).abs() < GROUT)
    clouds = torch.sin(one + 2.0 * torch.sin(0.7 * other))
    clouds = clouds * torch.cos(other + 1.5 * torch.sin(1.3 * one))
    kinds = torch.stack((checks, torch.sin(one), 2.0 * grout - 1.0, clouds))
    return 0.5 + 0.5 * kinds.gather(0, kind[None])[0]


class Painter(Protocol):
    """What draws pictures."""

    def begin(self, env: Any, ids: Tensor) -> None:
        """Robots ids (k,) begin an episode."""

    def pictures(self, env: Any, ids: Tensor) -> Tensor:
        """What robots ids (k,) see now, (k, rows, columns, 3) in [0, 1]."""


class DrawnLooks:
    """Pictures by `Looks`, other ones in each episode."""

    def __init__(
        self, config: CameraConfig, n: int, generator: torch.Generator, device: torch.device
    ):
        self.fine = finer(config, device)
        self.generator, self.device = generator, device
        self.looks = Looks(n, generator, device)

    def begin(self, env: Any, ids: Tensor) -> None:
        self.looks.put(ids, Looks(len(ids), self.generator, self.device))

    def pictures(self, env: Any, ids: Tensor) -> Tensor:
        state = RobotState.unpack(env.state.pack()[ids])
        return self.seen(state.root_pos, state.root_rot, env.ground.terrain, self.looks.of(ids))

    def seen(self, position: Tensor, rotation: Tensor, terrain: Terrain, looks: Looks) -> Tensor:
        """Pictures from roots at (k, 3), turned by (k, 3, 3), (k, rows, columns, 3)."""
        found, (columns, rows) = [], self.fine.config.size
        for begin in range(0, len(position), AT_ONCE):
            some = slice(begin, begin + AT_ONCE)
            where, turned = position[some], rotation[some]
            depth = self.fine.depths(where, turned, terrain.height_at)
            ray, eye = self.fine.rays @ turned.mT, where + turned @ self.fine.place
            point = eye[:, None] + depth[..., None] * ray
            found.append(looks.of(some).paint(point, ray, depth, terrain))
        picture = torch.cat(found)
        draw = torch.randn(picture.shape, generator=self.generator, device=self.device)
        noisy = picture + looks.noise[:, None, None] * draw
        return noisy.clamp(0.0, 1.0).unflatten(1, (rows, columns))


def finer(config: CameraConfig, device: torch.device) -> DepthCamera:
    """The camera whose every pixel is one of a picture, and which sees farther."""
    columns, rows = (FINER * side for side in config.size)
    camera = DepthCamera(replace(config, size=(columns, rows), range_m=(0.05, FAR_M)))
    camera.bind(1, 1.0, device)
    return camera


class PictureCamera(DepthCamera):
    """A camera in rooms whose pictures a network makes depths of. Imagined robots are told depths
    with the noise that the settings say."""

    painter: Painter

    def __init__(self, config: CameraConfig):
        """Raises InputError for eyes of another camera."""
        super().__init__(config)
        self.eyes = Eyes.load(Path(config.eyes))
        mine, known = as_plain(frame(config)), self.eyes.contract.camera
        if other := {name: value for name, value in known.items() if mine[name] != value}:
            raise InputError(
                f"'{config.eyes}' are eyes of a camera with {other}, not "
                f"{ {name: mine[name] for name in other} }"
            )

    def begin(self, env: Any, ids: Tensor, generator: torch.Generator) -> None:
        if not hasattr(self, "painter"):
            self.eyes = self.eyes.to(env.device)
            self.painter = self._painter(env)
        self.painter.begin(env, ids)
        super().begin(env, ids, generator)

    def _painter(self, env: Any) -> Painter:
        if self.config.look == "drawn":
            return DrawnLooks(self.config, env.num_envs, env.generator, env.device)
        from npmp.render.houses import MujocoHouses

        return MujocoHouses(self.config)

    @torch.no_grad()
    def _true(self, env: Any, ids: Tensor) -> Tensor:
        return self.eyes(self.painter.pictures(env, ids))


def frame(config: CameraConfig) -> dict[str, Any]:
    """What eyes depend on."""
    names = ("size", "fov_deg", "place_m", "pitch_deg", "range_m")
    return {name: getattr(config, name) for name in names}


def camera_for(config: CameraConfig) -> DepthCamera:
    """The camera that settings say."""
    return PictureCamera(config) if config.eyes else DepthCamera(config)
