"""Selecting and concatenating rollouts."""

from __future__ import annotations

import torch

from npmp.core.tree import leaves
from npmp.learning.rl import Rollout


def test_concatenate_inverts_select() -> None:
    torch.manual_seed(0)
    t, b = 3, 5
    flags = {name: torch.rand(t, b) < 0.3 for name in ("resets", "terminated", "truncated")}
    whole = Rollout(
        observations={"seen": torch.randn(t, b, 2)},
        actions=torch.randn(t, b, 4),
        behaviour_log_prob=torch.randn(t, b),
        initial_state=(torch.randn(b, 6), torch.randn(b, 7)),
        rewards=torch.randn(t, b, 2),
        critic_observations=torch.randn(t, b, 8),
        next_observations=torch.randn(t, b, 8),
        **flags,
    )
    parts = [whole.select(torch.tensor(chosen)) for chosen in ([0, 1], [2], [3, 4])]
    for one, other in zip(leaves(whole), leaves(Rollout.concatenate(parts)), strict=True):
        assert torch.equal(one, other)
    part = whole.select(torch.tensor([4, 2]))
    assert part.num_steps == 6 and torch.equal(part.rewards, whole.rewards[:, [4, 2]])
    assert torch.equal(part.initial_state[1], whole.initial_state[1][[4, 2]])
