"""Eyes for a camera: a network learns depths of pictures of rooms whose looks are drawn by chance.

python -m npmp.learning.depth_training camera=stereo robot=anymal_b out=runs/eyes
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.distributions import Laplace

from mocap_data.errors import InputError
from npmp import robots
from npmp.core import geometry, ranges
from npmp.core.devices import has_native_bfloat16
from npmp.core.settings import from_mapping
from npmp.envs.camera import CameraConfig, DepthCamera, camera_of, recorded
from npmp.envs.depth_network import FINER, UNSURE, DepthNetwork, DepthNetworkContract
from npmp.envs.images import APPEARANCE_SIZE, View, compared, finer, level_of, render_images
from npmp.robots import Robot
from npmp.sim.terrain import PERIOD_M, Terrain, TerrainConfig

BATCH = 64
LR = 1e-3
# a little nearer to walls than planners let robots get
BODY_M = 0.35
EYE_M = 0.1
SHOWN = 12  # examples
NEAR_M = 2.5  # what a planner needs to know at once


@dataclass(frozen=True)
class SeeingConfig:
    """Raises ValueError for values out of range."""

    robot: str = "anymal_b"
    # a camera's name or YAML file
    camera: str = "stereo"
    # that are drawn once, and of houses
    pictures: int = 100_000
    houses: int = 256
    updates: int = 16_000
    seed: int = 0
    out: str = "runs/eyes"

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "pictures", "houses", "updates")
        ranges.not_negative(self, "seed")


class Drawn(NamedTuple):
    """What `Scenes.draw` gives."""

    pictures: Tensor  # (k, 2, rows, columns, 3), bytes: of now, and an earlier one
    moved: Tensor  # where the root was then, from where it is, (k, 3) [m]
    rotations: Tensor  # of the roots, (k, 2, 3, 3)
    depths: Tensor  # of now (k, pixels) [m]


class Scenes:
    """Pictures and depths from where a robot may be in rooms: `BODY_M` from everything or farther,
    1 cm below its height to 3 cm, upright to 0.06 rad; each with one from where it came walking or
    turning."""

    def __init__(self, config: CameraConfig, robot: Robot, houses: int, seed: int):
        self.generator = torch.Generator().manual_seed(seed)
        here = torch.device("cpu")
        self.terrain = Terrain(TerrainConfig("rooms", fields=houses, seed=seed))
        self.height = float(robot.home_qpos[2])
        self.fine = finer(config, here)
        self.camera = DepthCamera(config)
        self.camera.allocate(1, 1.0, here)

    def _stand(self, flat: Tensor, yaw: Tensor) -> tuple[Tensor, Tensor]:
        """Roots at (k, 3), turned by (k, 3, 3), of robots at places (k, 2) that face yaws (k,)."""
        off = torch.randn(3, len(flat), generator=self.generator)
        floor = self.terrain.heights.min()
        height = floor + self.height - 0.01 + 0.03 * off[0]
        lean = geometry.exp_so3(0.06 * torch.stack((off[1], off[2], torch.zeros(len(flat))), -1))
        return torch.cat((flat, height[:, None]), -1), geometry.yaw_matrix(yaw) @ lean

    def _free(self, position: Tensor, rotation: Tensor) -> Tensor:
        """Whether robot and camera are in no wall, (k,)."""
        angle = torch.arange(0.0, 2.0 * math.pi, math.pi / 6.0)
        ring = torch.stack((angle.cos(), angle.sin()), -1)
        eye = (position + rotation @ self.camera.place)[:, None, :2]
        near = torch.cat((position[:, None, :2] + BODY_M * ring, eye + EYE_M * ring), 1)
        return self.terrain.height_at(near).amax(-1) < self.terrain.heights.min() + 0.1

    def poses(self, n: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Roots at (k, 3), turned by (k, 3, 3), of at most n robots, and earlier ones; the same
        where nothing was before."""
        field = torch.randint(0, len(self.terrain.corner), (n,), generator=self.generator)
        share = torch.rand(7, n, generator=self.generator)
        flat = self.terrain.corner[field] + PERIOD_M * share[:2].T
        yaw = 2.0 * math.pi * share[2]
        turns = share[3] < 0.3
        off = torch.randn(2, n, generator=self.generator)
        back = torch.where(turns, 0.15 * share[4], 0.2 + 0.45 * share[4])
        way = yaw + math.pi + 0.4 * off[0]
        turned = torch.where(turns, share[5] - 0.5, 0.0)
        before = flat + back[:, None] * torch.stack((way.cos(), way.sin()), -1)
        now = self._stand(flat, yaw)
        then = self._stand(before, yaw + 2.6 * turned + torch.where(turns, 0.0, 0.3 * off[1]))
        free = self._free(*now) & self._free(*then)
        starts = share[6] < 0.1
        at = then[0].where(~starts[:, None], now[0])
        turned = then[1].where(~starts[:, None, None], now[1])
        return (now[0][free], now[1][free]), (at[free], turned[free])

    def draw(self, n: int) -> Drawn:
        """At least n pictures."""
        batches = list[Drawn]()
        while sum(len(part.depths) for part in batches) < n:
            now, then = self.poses(min(768, 4 * n))
            depth = self.camera.images(*now, self.terrain.height_at)
            looks = torch.rand(len(depth), APPEARANCE_SIZE, generator=self.generator)
            seen = [
                render_images(self.fine, *where, self.terrain, looks, self.generator)
                for where in (now, then)
            ]
            brighter = 0.05 * torch.randn(len(depth), 1, 1, 1, generator=self.generator)
            seen[1] = (brighter.exp() * seen[1]).clamp(max=1.0)
            pictures = (255.0 * torch.stack(seen, 1)).round().byte()
            rotations = torch.stack((now[1], then[1]), 1)
            batches.append(Drawn(pictures, then[0] - now[0], rotations, depth))
        return Drawn(*(torch.cat(parts) for parts in zip(*batches, strict=True)))

    def given(self, some: Drawn) -> tuple[Tensor, Tensor, Tensor]:
        """What eyes are given of it (`DepthNetwork.forward`)."""
        pictures = some.pictures / 255.0
        turned = some.rotations
        level = level_of(self.fine, turned[:, 0, 2], self.height)
        now = View(pictures[:, 0], torch.zeros_like(some.moved), turned[:, 0])
        earlier = View(pictures[:, 1], some.moved, turned[:, 1])
        return now.image, level, compared(self.fine, now, earlier, level)


def loss_of(made: Tensor, spread: Tensor, true: Tensor) -> Tensor:
    """Minus the mean log-likelihood of the depths' logarithms, by Laplace's distribution about what
    is made, of scales `spread`."""
    return -Laplace(made.log(), spread).log_prob(true.log()).mean()


@torch.no_grad()
def judge(eyes: DepthNetwork, scenes: Scenes, drawn: Drawn) -> dict[str, float]:
    """How well eyes know depths below `NEAR_M`: their mean error [m]; the share that they are sure
    of; which share of these is off by 0.2 m."""
    some = (Drawn(*part) for part in zip(*(x.split(256) for x in drawn), strict=True))
    parts = [eyes(*scenes.given(part)) for part in some]
    estimated, spread = (torch.cat(part) for part in zip(*parts, strict=True))
    near = drawn.depths < NEAR_M
    off = (estimated - drawn.depths).abs()[near]
    sure = spread[near] < UNSURE
    return {
        "error_m": off.mean().item(),
        "sure": sure.float().mean().item(),
        "off_by_20_cm": ((off[sure] > 0.2).sum() / sure.sum().clamp(min=1)).item(),
    }


@torch.no_grad()
def sheet_of(eyes: DepthNetwork, scenes: Scenes, drawn: Drawn) -> Image.Image:
    """The first `SHOWN` pictures, earlier ones, the depths and those that eyes make, the nearer the
    brighter, without what they are not sure of."""
    some = Drawn(*(part[:SHOWN] for part in drawn))
    estimated, spread = eyes(*scenes.given(some))
    columns, rows = scenes.camera.config.size
    _, far = scenes.camera.config.range_m
    depths = torch.cat((some.depths, torch.where(spread < UNSURE, estimated, far)), -1)
    near = (255.0 * (1.0 - depths / far)).clamp(0.0, 255.0).byte().view(-1, 2, rows, columns, 1)
    near = near.expand(-1, -1, -1, -1, 3).repeat_interleave(FINER, 2).repeat_interleave(FINER, 3)
    sheet = torch.cat((some.pictures, near), 1).permute(0, 2, 1, 3, 4).flatten(0, 1)
    image = Image.fromarray(sheet.flatten(1, 2).numpy())
    return image.resize((2 * image.width, 2 * image.height), Image.Resampling.NEAREST)


def learn(config: SeeingConfig, say: Callable[[str], object] = print) -> DepthNetwork:
    """Draw pictures, learn, judge by houses and looks that were not among them, and save to
    `config.out`, with examples of these. Raises InputError for a camera or robot that there is
    not."""
    camera = camera_of(config.camera)
    robot = robots.load(config.robot)
    Path(config.out).mkdir(parents=True, exist_ok=True)
    scenes = Scenes(camera, robot, config.houses, config.seed)
    other = Scenes(camera, robot, 16, config.seed + 1000).draw(min(1500, config.pictures))
    drawn = scenes.draw(config.pictures)
    torch.manual_seed(config.seed)
    contract = DepthNetworkContract(recorded(camera), scenes.height, training={"seed": config.seed})
    eyes = DepthNetwork(contract)
    optimizer = torch.optim.Adam(eyes.parameters(), LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.updates)
    reduced = has_native_bfloat16()
    for update in range(1, config.updates + 1):
        chosen = torch.randint(0, len(drawn.depths), (BATCH,), generator=scenes.generator)
        some = Drawn(*(part[chosen] for part in drawn))
        inputs = list(scenes.given(some))
        depth = some.depths
        if update % 2 and not camera.place_m[1]:  # seen in a mirror
            inputs = [inputs[0].flip(2), inputs[1].flip(-1), inputs[2].flip(-1)]
            depth = depth.unflatten(1, (-1, camera.size[0])).flip(2).flatten(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=reduced):
            estimated, spread = eyes(*inputs)
        loss = loss_of(estimated, spread, depth)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(eyes.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if update % 500 == 0 or update == config.updates:
            figures = judge(eyes, scenes, other)
            text = "  ".join(f"{name} {value:.3f}" for name, value in figures.items())
            say(f"{update}/{config.updates}  loss {loss.item():.3f}  {text}")
    eyes.contract.training.update(figures)
    eyes.save(config.out)
    sheet_of(eyes, scenes, other).save(Path(config.out) / "examples.png")
    return eyes


def main() -> None:
    """Settings as NAME=VALUE."""
    args = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    numbers = {name: int(value) if value.isdecimal() else value for name, value in args.items()}
    try:
        learn(from_mapping(SeeingConfig, numbers, at="settings"))
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
