"""A small network that estimates depths from colour images, in place of a depth camera (modular
perception, as in Mueller et al. 2018)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from npmp.core import artifact

FINER = 4  # image pixels per depth pixel, along each side
UNSURE = 0.3  # scale of the log depth's error from which on a pixel has no reading
GROUPS = 8  # groups of the group norm
# shares of a level floor's depth at which an earlier image is compared
SHARES = (1.0, 0.85, 0.7, 0.55, 0.42, 0.3)


@dataclass(frozen=True)
class DepthNetworkContract:
    """A depth network's camera (`CameraConfig` as plain values), and the root height of its robot
    above the floor [m]."""

    camera: dict[str, Any]
    height_m: float
    channels: int = 64
    training: dict[str, Any] = field(default_factory=dict)


class _Residual(nn.Module):
    """Residual block: input plus convolution of the normalized input."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.conv = nn.Conv2d(channels, channels, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(torch.relu(self.norm(x)))


class DepthNetwork(nn.Module):
    """A convolutional network at the depths' resolution, with context at half of it.

    Inputs: the image minus its mean, pixel coordinates, the inverse depth of a level floor, and
    differences to an earlier image at some depths (plane sweep, Collins 1996). Depths are predicted
    as multiples of the level floor's. Raises ValueError unless channels are a multiple of `GROUPS`.
    """

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
          level: inverse depth of a level floor (B, rows, columns) [1/m], 0 above the horizon.
          before: differences to an earlier image (B, S + 1, rows, columns), from
            `npmp.envs.images.compared`.

        Returns:
          Depths (B, pixels) [m], and the Laplace scales of their logarithms (B, pixels).
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
        """Load a network's folder. Raises InputError as `artifact.load`."""
        args = "eyes", "eyes", "npmp.eyes", 3, DepthNetworkContract, DepthNetwork
        return artifact.load(Path(folder), *args).requires_grad_(False)
