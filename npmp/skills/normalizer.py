"""Fixed scaling of the networks' inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Normalizer(nn.Module):
    """Fixed affine scaling of features, (x - mean) / std, saved with the network."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    def fit(self, samples: Tensor, floor: float | Tensor) -> None:
        """Set mean and standard deviation from samples (N, size). A std of at least `floor` bounds
        the scale of features that hardly vary in the samples."""
        self.mean.copy_(samples.mean(0))
        self.std.copy_(torch.maximum(samples.std(0), torch.as_tensor(floor, dtype=samples.dtype)))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., size) -> (..., size)."""
        return (x - self.mean) / self.std
