"""Eyes: a small network that makes depths of a colour picture, so that what plans by depths needs
no depth camera (modular perception, as in Mueller et al. 2018)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from npmp import artifact

FINER = 4  # pixels of a picture along each side of a depth's
DILATIONS = (1, 2, 4, 1, 2)


@dataclass(frozen=True)
class EyesContract:
    """What eyes are for: the camera (`CameraConfig`, as plain values) whose depths they make."""

    camera: dict[str, Any]
    channels: int = 48
    training: dict[str, Any] = field(default_factory=dict)


class Eyes(nn.Module):
    """Convolutions of a picture, each channel about its mean, and of where its pixels are."""

    place: Tensor

    def __init__(self, contract: EyesContract):
        super().__init__()
        self.contract, c = contract, contract.channels
        columns, rows = contract.camera["size"]
        self.near = float(contract.camera["range_m"][0])
        self.into = nn.Conv2d(6, c // 2, 5, 2, 2)
        self.coarser = nn.Conv2d(c // 2, c, 3, 2, 1)
        self.around = nn.ModuleList(nn.Conv2d(c, c, 3, 1, d, d) for d in DILATIONS)
        self.out = nn.Conv2d(c, 1, 1)
        sides = [torch.linspace(-1.0, 1.0, FINER * k) for k in (rows, columns)]
        up, across = torch.meshgrid(*sides, indexing="ij")
        place = torch.stack((up, across, torch.ones_like(up)))[None]
        self.register_buffer("place", place, persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Pictures (B, rows, columns, 3) in [0, 1], from the top left -> depths (B, pixels) [m]."""
        x = pictures.movedim(-1, 1)
        mean, spread = x.mean((1, 2, 3), keepdim=True), x.std((1, 2, 3), keepdim=True)
        x = torch.cat(((x - mean) / (spread + 0.02), self.place.expand(len(x), -1, -1, -1)), 1)
        x = torch.relu(self.coarser(torch.relu(self.into(x))))
        for layer in self.around:
            x = x + torch.relu(layer(x))
        return self.near * torch.exp(nn.functional.softplus(self.out(x))).flatten(1)

    def save(self, folder: str | Path) -> None:
        """Write `eyes.json` and `eyes.safetensors`. Raises OSError where that fails."""
        artifact.write(
            Path(folder), "eyes", "npmp.eyes", 1, asdict(self.contract), self.state_dict()
        )

    @staticmethod
    def load(folder: str | Path) -> Eyes:
        """Those of a folder. Raises InputError as `artifact.load`."""
        given = "eyes", "eyes", "npmp.eyes", 1, EyesContract, Eyes
        return artifact.load(Path(folder), *given).requires_grad_(False)
