"""Eyes for a camera: a network learns depths of pictures of rooms whose looks are drawn by chance.

python -m npmp.training.seeing camera=stereo robot=anymal_b out=runs/eyes
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from npmp import geometry, ranges, robots
from npmp.envs.camera import AT_ONCE, CameraConfig, DepthCamera, camera_of
from npmp.envs.pictures import DrawnLooks, Looks, frame
from npmp.nets.eyes import Eyes, EyesContract
from npmp.robots import Robot
from npmp.settings import as_plain, from_mapping
from npmp.sim.terrain import Terrain, TerrainConfig

BATCH, LR = 64, 2e-3
NEAR_M = 2.5  # what a planner needs to know at once


@dataclass(frozen=True)
class SeeingConfig:
    """Raises ValueError for values out of range."""

    robot: str = "anymal_b"
    # a camera's name or YAML file
    camera: str = "stereo"
    # that are drawn once, and of houses
    pictures: int = 60_000
    houses: int = 64
    updates: int = 8_000
    seed: int = 0
    out: str = "runs/eyes"

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "pictures", "houses", "updates")
        ranges.not_negative(self, "seed")


class Scenes:
    """Pictures and depths from where a robot may be in rooms: about the places to start from, at
    its height to 3 cm, upright to 0.06 rad."""

    def __init__(self, config: CameraConfig, robot: Robot, houses: int, seed: int):
        self.generator, here = torch.Generator().manual_seed(seed), torch.device("cpu")
        self.terrain = Terrain(TerrainConfig("rooms", fields=houses, seed=seed))
        self.height = float(robot.home_qpos[2])
        self.drawn = DrawnLooks(config, 1, self.generator, here)
        self.camera = DepthCamera(config)
        self.camera.bind(1, 1.0, here)

    def poses(self, n: int) -> tuple[Tensor, Tensor]:
        """Roots at (k, 3), turned by (k, 3, 3), of at most n robots, none of them in a wall."""
        places = self.terrain.places.flatten(0, 1)
        which = torch.randint(0, len(places), (n,), generator=self.generator)
        around = torch.randn(5, n, generator=self.generator)
        flat = places[which] + 0.3 * around[:2].T
        height = self.terrain.heights.min() + self.height + 0.03 * around[2]
        yaw = 2.0 * math.pi * torch.rand(n, generator=self.generator)
        lean = geometry.exp_so3(0.06 * torch.stack((around[3], around[4], torch.zeros(n)), -1))
        free = self.terrain.height_at(flat) < self.terrain.heights.min() + 0.1
        position = torch.cat((flat, height[:, None]), -1)
        return position[free], (geometry.yaw_matrix(yaw) @ lean)[free]

    def draw(self, n: int) -> tuple[Tensor, Tensor]:
        """At least n pictures (k, rows, columns, 3), bytes, and their depths (k, pixels) [m]."""
        pictures, depths = list[Tensor](), list[Tensor]()
        while sum(map(len, pictures)) < n:
            position, rotation = self.poses(512)
            looks = Looks(len(position), self.generator, position.device)
            pairs = zip(position.split(AT_ONCE), rotation.split(AT_ONCE), strict=True)
            height = self.terrain.height_at
            depth = torch.cat([self.camera.depths(*pair, height) for pair in pairs])
            free = depth.amax(-1) > 0.5  # else the camera is in a wall
            seen = self.drawn.seen(position[free], rotation[free], self.terrain, looks.of(free))
            pictures.append((255.0 * seen).byte())
            depths.append(depth[free])
        return torch.cat(pictures), torch.cat(depths)


def loss_of(made: Tensor, true: Tensor) -> Tensor:
    """The mean absolute difference of the depths' logarithms."""
    return (made.log() - true.log()).abs().mean()


@torch.no_grad()
def judge(eyes: Eyes, pictures: Tensor, depths: Tensor) -> dict[str, float]:
    """The mean error of depths below `NEAR_M` [m]; which share of these is off by 0.2 m."""
    made = torch.cat([eyes(some.float() / 255.0) for some in pictures.split(256)])
    off = (made - depths).abs()[depths < NEAR_M]
    return {"error_m": off.mean().item(), "off_by_20_cm": (off > 0.2).float().mean().item()}


def learn(config: SeeingConfig, say: Callable[[str], object] = print) -> Eyes:
    """Draw pictures, learn, judge by houses and looks that were not among them, and save to
    `config.out`. Raises InputError for a camera or robot that there is not."""
    camera, robot = camera_of(config.camera), robots.load(config.robot)
    scenes = Scenes(camera, robot, config.houses, config.seed)
    other = Scenes(camera, robot, 16, config.seed + 1000).draw(min(1500, config.pictures))
    pictures, depths = scenes.draw(config.pictures)
    torch.manual_seed(config.seed)
    eyes = Eyes(EyesContract(as_plain(frame(camera)), training={"seed": config.seed}))
    optimizer = torch.optim.Adam(eyes.parameters(), LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.updates)
    columns = camera.size[0]
    for update in range(1, config.updates + 1):
        chosen = torch.randint(0, len(pictures), (BATCH,), generator=scenes.generator)
        picture, depth = pictures[chosen].float() / 255.0, depths[chosen]
        if update % 2 and not camera.place_m[1]:  # seen in a mirror
            picture, depth = picture.flip(2), depth.unflatten(1, (-1, columns)).flip(2).flatten(1)
        loss = loss_of(eyes(picture), depth)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(eyes.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if update % 500 == 0 or update == config.updates:
            found = judge(eyes, *other)
            shown = "  ".join(f"{name} {value:.3f}" for name, value in found.items())
            say(f"{update}/{config.updates}  loss {loss.item():.3f}  {shown}")
    eyes.contract.training.update(found)
    eyes.save(config.out)
    return eyes


def main() -> None:
    """Settings as NAME=VALUE."""
    given = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    numbers = {name: int(value) if value.isdecimal() else value for name, value in given.items()}
    learn(from_mapping(SeeingConfig, numbers, at="settings"))


if __name__ == "__main__":
    main()
