"""PopArt: values learned in normalized units, outputs preserved when the units change.

van Hasselt et al. 2016 ("Learning values across many orders of magnitude"); per objective as per
task in Hessel et al. 2019. Legend: K objectives, F features of the last layer. A value in reward
units is mean + std
* normalized.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class PopArtStats(NamedTuple):
    """Running mean and variance of the returns, each [K], and the number of updates, a scalar."""

    mean: Tensor
    variance: Tensor
    num_updates: Tensor


def initial_stats(num_objectives: int) -> PopArtStats:
    """Mean 0 and std 1: normalized values are values until the first update."""
    return PopArtStats(torch.zeros(num_objectives), torch.ones(num_objectives), torch.zeros(()))


def std(stats: PopArtStats, lower: float = 1e-4, upper: float = 1e6) -> Tensor:
    """Standard deviation [K], kept in [lower, upper]."""
    return stats.variance.sqrt().clamp(lower, upper)


def normalize(stats: PopArtStats, values: Tensor) -> Tensor:
    """[..., K] in reward units -> normalized."""
    return (values - stats.mean) / std(stats)


def unnormalize(stats: PopArtStats, values: Tensor) -> Tensor:
    """[..., K] normalized -> reward units."""
    return values * std(stats) + stats.mean


def update_stats(
    stats: PopArtStats, returns: Tensor, valid: Tensor, step_size: float
) -> PopArtStats:
    """Move the moments towards those of `returns` [..., K], over the entries where `valid` [...] is
    true.

    The step is step_size / (1 - (1 - step_size)^i) at the i-th update: the first batch replaces the
    initial moments and no start value lingers. Without a valid entry the statistics stay as they
    are.
    """
    if valid.shape != returns.shape[:-1]:
        raise ValueError(
            f"valid {list(valid.shape)} must be the leading shape of returns {list(returns.shape)}"
        )
    mask = valid.unsqueeze(-1)
    total = valid.sum()

    def average(x: Tensor) -> Tensor:
        return torch.where(mask, x, torch.zeros_like(x)).flatten(0, -2).sum(0) / total.clamp_min(1)

    # Double precision: at the first update (1 - rate) is a rounding error that the square of a
    # large mean multiplies.
    samples = returns.double()
    mean = average(samples)
    variance = average((samples - mean).square())
    num_updates = stats.num_updates.double() + 1
    rate = (step_size / -torch.expm1(num_updates * math.log1p(-step_size))).clamp_max(1.0)
    shift = mean - stats.mean
    moved = PopArtStats(
        stats.mean + rate * shift,
        # The same as moving the second moment at this rate, without the loss of digits of E[x^2] -
        # E[x]^2.
        (1.0 - rate) * stats.variance + rate * variance + rate * (1.0 - rate) * shift.square(),
        num_updates,
    )
    return PopArtStats(
        *(
            torch.where(total > 0, new.to(old.dtype), old)
            for new, old in zip(moved, stats, strict=True)
        )
    )


def rescale_head(
    weight: Tensor, bias: Tensor, old: PopArtStats, new: PopArtStats
) -> tuple[Tensor, Tensor]:
    """The last layer [K, F], [K] that gives, in reward units, under `new` what it gave under `old`."""
    ratio = std(old) / std(new)
    return weight * ratio.unsqueeze(-1), (bias * std(old) + old.mean - new.mean) / std(new)
