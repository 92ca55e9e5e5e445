"""Averaged weights: what is judged and kept of a policy that learns."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def follow(average: nn.Module, current: nn.Module, decay: float, done: int) -> None:
    """Move averaged parameters towards the current ones, after `done` updates.

    The average is over a ninth of the updates so far at most: a fixed one trails by hundreds of
    updates, and short runs have no more than that.
    """
    share = 1.0 - min(decay, (1.0 + done) / (10.0 + done))
    for kept, now in zip(average.parameters(), current.parameters(), strict=True):
        kept.lerp_(now, share)
