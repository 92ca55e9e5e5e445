"""PopArt: preserved outputs, moments by hand, numerical accuracy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from npmp.learning.rl import popart

CPU = torch.device("cpu")


def test_outputs_are_preserved_when_the_statistics_move() -> None:
    torch.manual_seed(0)
    head = nn.Linear(7, 3).double()
    features = torch.randn(20, 7).double()
    stats = popart.PopArtStats(*(x.double() for x in popart.initial_stats(3, CPU)))
    before = popart.unnormalize(stats, head(features))
    for scale in (1.0, 300.0, 0.01):  # objectives of very different size, moving together
        returns = scale * torch.tensor([1.0, 10, 100]).double() * (torch.randn(50, 3) + 2)
        new = popart.update_stats(stats, returns, 0.3)
        assert not torch.allclose(new.mean, stats.mean)
        weight, bias = popart.rescale_head(head.weight, head.bias, stats, new)
        with torch.no_grad():
            head.weight.copy_(weight)
            head.bias.copy_(bias)
        stats = new
        torch.testing.assert_close(popart.unnormalize(stats, head(features)), before)


def test_first_update_takes_the_batch_and_later_ones_step() -> None:
    # Batch 1: 1, 3 -> mean 2, E[x^2] 5. Step 1/2, corrected: rate (1/2) / (1 - 1/2) = 1: the batch
    # itself, var 5 - 4 = 1. Batch 2: 8, 8 -> mean 8, E[x^2] 64. Rate (1/2) / (1 - 1/4) = 2/3: mean
    # 6, E[x^2] 133/3, var 44.333 - 36 = 8.333.
    stats = popart.update_stats(popart.initial_stats(1, CPU), torch.tensor([[1.0], [3.0]]), 0.5)
    assert stats.mean.item() == pytest.approx(2) and stats.variance.item() == pytest.approx(1)
    stats = popart.update_stats(stats, torch.tensor([[8.0], [8.0]]), 0.5)
    assert stats.mean.item() == pytest.approx(6) and stats.variance.item() == pytest.approx(25 / 3)
    assert popart.std(stats).item() == pytest.approx((25 / 3) ** 0.5)


def test_small_spread_on_a_large_mean_keeps_its_digits() -> None:
    g = torch.Generator().manual_seed(0)
    stats = popart.initial_stats(1, CPU)
    for _ in range(200):
        stats = popart.update_stats(stats, 1000 + 0.1 * torch.randn(500, 1, generator=g), 0.01)
    assert popart.std(stats).item() == pytest.approx(0.1, rel=0.05)
