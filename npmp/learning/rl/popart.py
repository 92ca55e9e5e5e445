"""PopArt: normalized value targets, with outputs preserved when the statistics change.

van Hasselt et al. 2016, "Learning values across many orders of magnitude"; per objective as per
task in Hessel et al. 2019. Legend: K objectives, F features of the last layer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

MIN_STD = 1e-4
MAX_STD = 1e6


class PopArtStats(NamedTuple):
    """Running mean and variance of the returns, each [K], and the number of updates, a scalar."""

    mean: Tensor
    variance: Tensor
    num_updates: Tensor


def initial_stats(num_objectives: int, device: torch.device) -> PopArtStats:
    """Mean 0, std 1."""
    zeros = torch.zeros(num_objectives, device=device)
    return PopArtStats(zeros, torch.ones_like(zeros), torch.zeros((), device=device))


def std(stats: PopArtStats) -> Tensor:
    """Standard deviation [K], clamped."""
    return stats.variance.sqrt().clamp(MIN_STD, MAX_STD)


def normalize(stats: PopArtStats, values: Tensor) -> Tensor:
    """[..., K] in reward units -> normalized."""
    return (values - stats.mean) / std(stats)


def unnormalize(stats: PopArtStats, values: Tensor) -> Tensor:
    """[..., K] normalized -> reward units: mean + std * values."""
    return values * std(stats) + stats.mean


def update_stats(stats: PopArtStats, returns: Tensor, step_size: float) -> PopArtStats:
    """Move the moments towards those of `returns` [..., K].

    Step size step_size / (1 - (1 - step_size)^i) at the i-th update, which removes the bias of the
    initial moments.
    """
    # double: at the first update 1 - rate is a rounding error, multiplied by a large squared mean
    samples = returns.double().flatten(0, -2)
    mean = samples.mean(0)
    variance = samples.var(0, correction=0)
    num_updates = stats.num_updates.double() + 1
    rate = (step_size / -torch.expm1(num_updates * math.log1p(-step_size))).clamp_max(1.0)
    shift = mean - stats.mean
    moved = (
        stats.mean + rate * shift,
        # without the cancellation of E[x^2] - E[x]^2
        (1.0 - rate) * stats.variance + rate * variance + rate * (1.0 - rate) * shift.square(),
        num_updates,
    )
    return PopArtStats(*(new.to(old.dtype) for new, old in zip(moved, stats, strict=True)))


def rescale_head(
    weight: Tensor, bias: Tensor, old: PopArtStats, new: PopArtStats
) -> tuple[Tensor, Tensor]:
    """Weight [K, F] and bias [K] that preserve the values in reward units from `old` to `new`."""
    ratio = std(old) / std(new)
    return weight * ratio.unsqueeze(-1), (bias * std(old) + old.mean - new.mean) / std(new)
