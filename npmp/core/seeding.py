"""Initial weights from a separate seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's CPU generator starts from this seed; outside, it is unchanged.

    Networks are built on the CPU and moved, so the same seed gives the same weights on every
    device. GPU generators are neither seeded nor restored.
    """
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        yield
