"""Initial weights from a seed of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's CPU generator starts from this seed; outside, nothing changes.

    Networks are built on the CPU and moved, so that the same seed gives the same weights on every
    device. What is drawn on a GPU inside is neither seeded nor restored.
    """
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        yield
