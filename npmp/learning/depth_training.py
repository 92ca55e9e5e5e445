"""Train a camera's depth network on rendered rooms with randomized appearance.

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
# least distance of the body from walls, slightly less than planners keep [m]
BODY_M = 0.35
# least distance of the camera from walls [m]
CAMERA_M = 0.1
NUM_EXAMPLES = 12
NEAR_M = 2.5  # depths that a planner needs first


@dataclass(frozen=True)
class DepthTrainingConfig:
    """Raises ValueError for values out of range."""

    robot: str = "anymal_b"
    # a camera's name or YAML file
    camera: str = "stereo"
    # images of the data set, rendered once
    pictures: int = 100_000
    # floor plans of the data set
    houses: int = 256
    updates: int = 16_000
    seed: int = 0
    out: str = "runs/eyes"

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "pictures", "houses", "updates")
        ranges.not_negative(self, "seed")


class Samples(NamedTuple):
    """Image pairs, k of now and k of a moment before, with depths."""

    images: Tensor  # (k, 2, rows, columns, 3) bytes
    moved: Tensor  # (k, 3) [m], the earlier root position minus the present one
    rotations: Tensor  # (k, 2, 3, 3) of the roots
    depths: Tensor  # (k, pixels) [m], now


class Scenes:
    """Images and depths from random poses in rooms.

    Poses are at least `BODY_M` from walls, their height (std 3 cm) and tilt (std 0.06 rad) random.
    The earlier image is from a pose that the robot walked or turned away from.
    """

    def __init__(self, config: CameraConfig, robot: Robot, floor_plans: int, seed: int):
        self.generator = torch.Generator().manual_seed(seed)
        cpu = torch.device("cpu")
        self.terrain = Terrain(TerrainConfig("rooms", fields=floor_plans, seed=seed))
        self.height = float(robot.home_qpos[2])
        self.fine = finer(config, cpu)
        self.camera = DepthCamera(config)
        self.camera.allocate(1, 1.0, cpu)

    def _roots(self, xy: Tensor, yaw: Tensor) -> tuple[Tensor, Tensor]:
        """Root positions (k, 3) and rotations (k, 3, 3) at positions (k, 2) with yaws (k,)."""
        noise = torch.randn(3, len(xy), generator=self.generator)
        floor = self.terrain.heights.min()
        height = floor + self.height - 0.01 + 0.03 * noise[0]
        lean = torch.stack((noise[1], noise[2], torch.zeros(len(xy))), -1)
        rotation = geometry.yaw_matrix(yaw) @ geometry.exp_so3(0.06 * lean)
        return torch.cat((xy, height[:, None]), -1), rotation

    def _is_free(self, position: Tensor, rotation: Tensor) -> Tensor:
        """Whether robot and camera are clear of walls, (k,)."""
        angle = torch.arange(0.0, 2.0 * math.pi, math.pi / 6.0)
        ring = torch.stack((angle.cos(), angle.sin()), -1)
        camera = (position + rotation @ self.camera.position)[:, None, :2]
        points = torch.cat((position[:, None, :2] + BODY_M * ring, camera + CAMERA_M * ring), 1)
        return self.terrain.height_at(points).amax(-1) < self.terrain.heights.min() + 0.1

    def poses(self, n: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Positions (k, 3) and rotations (k, 3, 3) of at most n robots, now and before; equal at an
        episode's start."""
        field = torch.randint(0, len(self.terrain.corner), (n,), generator=self.generator)
        uniform = torch.rand(7, n, generator=self.generator)
        xy = self.terrain.corner[field] + PERIOD_M * uniform[:2].T
        yaw = 2.0 * math.pi * uniform[2]
        turns = uniform[3] < 0.3
        normal = torch.randn(2, n, generator=self.generator)
        distance = torch.where(turns, 0.15 * uniform[4], 0.2 + 0.45 * uniform[4])
        direction = yaw + math.pi + 0.4 * normal[0]
        turned = torch.where(turns, uniform[5] - 0.5, 0.0)
        xy_before = xy + distance[:, None] * torch.stack((direction.cos(), direction.sin()), -1)
        now = self._roots(xy, yaw)
        before = self._roots(
            xy_before, yaw + 2.6 * turned + torch.where(turns, 0.0, 0.3 * normal[1])
        )
        free = self._is_free(*now) & self._is_free(*before)
        starts = uniform[6] < 0.1
        position_before = before[0].where(~starts[:, None], now[0])
        rotation_before = before[1].where(~starts[:, None, None], now[1])
        return (now[0][free], now[1][free]), (position_before[free], rotation_before[free])

    def sample(self, n: int) -> Samples:
        """At least n image pairs."""
        batches: list[Samples] = []
        while sum(len(part.depths) for part in batches) < n:
            now, before = self.poses(min(768, 4 * n))
            depths = self.camera.images(*now, self.terrain.height_at)
            appearance = torch.rand(len(depths), APPEARANCE_SIZE, generator=self.generator)
            pair = [
                render_images(self.fine, *pose, self.terrain, appearance, self.generator)
                for pose in (now, before)
            ]
            brightness = 0.05 * torch.randn(len(depths), 1, 1, 1, generator=self.generator)
            pair[1] = (brightness.exp() * pair[1]).clamp(max=1.0)
            images = (255.0 * torch.stack(pair, 1)).round().byte()
            rotations = torch.stack((now[1], before[1]), 1)
            batches.append(Samples(images, before[0] - now[0], rotations, depths))
        return Samples(*(torch.cat(parts) for parts in zip(*batches, strict=True)))

    def inputs(self, samples: Samples) -> tuple[Tensor, Tensor, Tensor]:
        """The depth network's inputs."""
        images = samples.images / 255.0
        rotations = samples.rotations
        level = level_of(self.fine, rotations[:, 0, 2], self.height)
        now = View(images[:, 0], torch.zeros_like(samples.moved), rotations[:, 0])
        before = View(images[:, 1], samples.moved, rotations[:, 1])
        return now.image, level, compared(self.fine, now, before, level)


def depth_loss(predicted: Tensor, spread: Tensor, true: Tensor) -> Tensor:
    """Negative mean log-likelihood of log depths, Laplace(log predicted, spread); (k, pixels)."""
    return -Laplace(predicted.log(), spread).log_prob(true.log()).mean()


@torch.no_grad()
def evaluate(network: DepthNetwork, scenes: Scenes, samples: Samples) -> dict[str, float]:
    """Metrics of depths below `NEAR_M`: mean error [m], share of certain pixels, and which share of
    these is off by more than 0.2 m."""
    batches = (Samples(*part) for part in zip(*(x.split(256) for x in samples), strict=True))
    outputs = [network(*scenes.inputs(batch)) for batch in batches]
    predicted, spread = (torch.cat(part) for part in zip(*outputs, strict=True))
    near = samples.depths < NEAR_M
    error = (predicted - samples.depths).abs()[near]
    sure = spread[near] < UNSURE
    return {
        "error_m": error.mean().item(),
        "sure": sure.float().mean().item(),
        "off_by_20_cm": ((error[sure] > 0.2).sum() / sure.sum().clamp(min=1)).item(),
    }


@torch.no_grad()
def contact_sheet(network: DepthNetwork, scenes: Scenes, samples: Samples) -> Image.Image:
    """`NUM_EXAMPLES` rows: image, earlier image, true depths, predicted depths without uncertain
    pixels; near is bright."""
    samples = Samples(*(part[:NUM_EXAMPLES] for part in samples))
    predicted, spread = network(*scenes.inputs(samples))
    columns, rows = scenes.camera.config.size
    _, far = scenes.camera.config.range_m
    depths = torch.cat((samples.depths, torch.where(spread < UNSURE, predicted, far)), -1)
    near = (255.0 * (1.0 - depths / far)).clamp(0.0, 255.0).byte().view(-1, 2, rows, columns, 1)
    near = near.expand(-1, -1, -1, -1, 3).repeat_interleave(FINER, 2).repeat_interleave(FINER, 3)
    sheet = torch.cat((samples.images, near), 1).permute(0, 2, 1, 3, 4).flatten(0, 1)
    image = Image.fromarray(sheet.flatten(1, 2).numpy())
    return image.resize((2 * image.width, 2 * image.height), Image.Resampling.NEAREST)


def train(config: DepthTrainingConfig, log: Callable[[str], object] = print) -> DepthNetwork:
    """Render a data set, train, evaluate on other rooms and appearances, and save to `config.out`
    with examples. Raises InputError for an unknown camera or robot."""
    camera = camera_of(config.camera)
    robot = robots.load(config.robot)
    Path(config.out).mkdir(parents=True, exist_ok=True)
    scenes = Scenes(camera, robot, config.houses, config.seed)
    test_set = Scenes(camera, robot, 16, config.seed + 1000).sample(min(1500, config.pictures))
    train_set = scenes.sample(config.pictures)
    torch.manual_seed(config.seed)
    contract = DepthNetworkContract(recorded(camera), scenes.height, training={"seed": config.seed})
    network = DepthNetwork(contract)
    optimizer = torch.optim.Adam(network.parameters(), LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.updates)
    bfloat16 = has_native_bfloat16()
    for update in range(1, config.updates + 1):
        ids = torch.randint(0, len(train_set.depths), (BATCH,), generator=scenes.generator)
        batch = Samples(*(part[ids] for part in train_set))
        inputs = list(scenes.inputs(batch))
        depths = batch.depths
        if update % 2 and not camera.place_m[1]:  # mirrored
            inputs = [inputs[0].flip(2), inputs[1].flip(-1), inputs[2].flip(-1)]
            depths = depths.unflatten(1, (-1, camera.size[0])).flip(2).flatten(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            predicted, spread = network(*inputs)
        loss = depth_loss(predicted, spread, depths)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if update % 500 == 0 or update == config.updates:
            metrics = evaluate(network, scenes, test_set)
            text = "  ".join(f"{name} {value:.3f}" for name, value in metrics.items())
            log(f"{update}/{config.updates}  loss {loss.item():.3f}  {text}")
    network.contract.training.update(metrics)
    network.save(config.out)
    contact_sheet(network, scenes, test_set).save(Path(config.out) / "examples.png")
    return network


def main() -> None:
    """Settings as NAME=VALUE."""
    args = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    settings = {name: int(value) if value.isdecimal() else value for name, value in args.items()}
    try:
        train(from_mapping(DepthTrainingConfig, settings, at="settings"))
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
