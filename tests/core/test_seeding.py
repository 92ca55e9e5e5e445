"""Weights from a seed, with the caller's generator left alone."""

from __future__ import annotations

import torch

from npmp.core.seeding import seeded


def test_weights_are_those_of_manual_seed_and_the_callers_draws_go_on() -> None:
    torch.manual_seed(3)
    expected = torch.nn.Linear(4, 5).weight
    torch.manual_seed(11)
    draws = torch.rand(2), torch.rand(2)
    torch.manual_seed(11)
    first = torch.rand(2)
    with seeded(3):
        weight = torch.nn.Linear(4, 5).weight
    assert torch.equal(weight, expected)
    assert torch.equal(first, draws[0]) and torch.equal(torch.rand(2), draws[1])
