"""A small network that estimates depths from colour images, so that a planner needs no depth camera
(modular perception, as in Mueller et al. 2018)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from npmp.core import artifact

FINER = 4  # pixels of a image along each side of a depth's
UNSURE = 0.3  # scale of a logarithm's error: from here on a pixel knows nothing
GROUPS = 8  # that channels are normalized in
# of a level floor's depths, at which an earlier image is compared
SHARES = (1.0, 0.85, 0.7, 0.55, 0.42, 0.3)


@dataclass(frozen=True)
class DepthNetworkContract:
    """The camera of a depth network (`CameraConfig`, as plain values), and the height above a floor
    of the root of the robot that carries it [m]."""

    camera: dict[str, Any]
    height_m: float
    channels: int = 64
    training: dict[str, Any] = field(default_factory=dict)


class _Residual(nn.Module):
    """What a convolution adds to its input, normalized."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.conv = nn.Conv2d(channels, channels, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(torch.relu(self.norm(x)))


class DepthNetwork(nn.Module):
    """Convolutions of a image about its mean, of where its pixels are, of how far a level floor
    would be there, of which depths are multiples, and of how little an earlier image agrees at
    some of these (plane sweep, Collins 1996): at the depths' own resolution, and at half of it for
    what is around. Raises ValueError for channels that are no multiple of `GROUPS`."""

    place: Tensor

    def __init__(self, contract: DepthNetworkContract):
        super().__init__()
        self.contract = contract
        c = contract.channels
        columns, rows = contract.camera["size"]
        self.into = nn.Conv2d(8 + len(SHARES), c // 2, 5, 2, 2)
        self.coarse = nn.Conv2d(c // 2, c, 3, 2, 1)
        self.around = nn.Sequential(
            _Residual(c), nn.Conv2d(c, 2 * c, 3, 2, 1), *(_Residual(2 * c) for _ in range(4))
        )
        self.both = nn.Conv2d(3 * c, c, 3, 1, 1)
        self.out = nn.Sequential(_Residual(c), _Residual(c), nn.Conv2d(c, 2, 1))
        sides = [torch.linspace(-1.0, 1.0, FINER * k) for k in (rows, columns)]
        up, across = torch.meshgrid(*sides, indexing="ij")
        place = torch.stack((up, across, torch.ones_like(up)))[None]
        self.register_buffer("place", place, persistent=False)

    def forward(self, images: Tensor, level: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """
        Args:
          images: (B, rows, columns, 3) in [0, 1], from the top left.
          level: a level floor's nearness in each pixel (B, rows, columns) [1/m], 0 above the
            horizon.
          before: how far an earlier image differs (B, S + 1, rows, columns), as
            `npmp.envs.images.compared` has it.

        Returns:
          Depths (B, pixels) [m] and the scales of their logarithms' errors, by Laplace's
          distribution, (B, pixels).
        """
        x = images.movedim(-1, 1)
        far = 1.0 / self.contract.camera["range_m"][1]
        x = x - x.mean((1, 2, 3), keepdim=True)
        strong = x.std((1, 2, 3), keepdim=True) + 0.02
        other = before[:, :-1]
        base = before[:, -1:]
        other = torch.where(other < 0.0, other, other / strong)
        place = self.place.expand(len(x), -1, -1, -1)
        x = torch.cat((x / strong, level[:, None], place, other, base), 1)
        x = self.coarse(torch.relu(self.into(x)))
        around = nn.functional.interpolate(self.around(x), x.shape[-2:])
        log, spread = self.out(self.both(torch.cat((x, around), 1))).float().unbind(1)
        floor = nn.functional.avg_pool2d(level, FINER).clamp(min=far)
        return (torch.exp(log) / floor).flatten(1), torch.exp(spread).clamp(min=1e-3).flatten(1)

    def save(self, folder: str | Path) -> None:
        """Write `eyes.json` and `eyes.safetensors`. Raises OSError where that fails."""
        artifact.write(
            Path(folder), "eyes", "npmp.eyes", 3, asdict(self.contract), self.state_dict()
        )

    @staticmethod
    def load(folder: str | Path) -> DepthNetwork:
        """The network of a folder. Raises InputError as `artifact.load`."""
        args = "eyes", "eyes", "npmp.eyes", 3, DepthNetworkContract, DepthNetwork
        return artifact.load(Path(folder), *args).requires_grad_(False)
