"""Goals that are sampled at the start of an episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from npmp.envs.task import Goals


class UniformGoals(Goals):
    """Goals `target` (n, width) with entries uniform in [low, high), sampled at the start of an
    episode."""

    saved: ClassVar[Mapping[str, str]] = {"target": "target"}

    def __init__(self, low: float, high: float, width: int = 1):
        self.low = low
        self.high = high
        self.width = width

    def bind(self, env: Any) -> None:
        super().bind(env)
        self.target = torch.zeros(env.num_envs, self.width, device=env.device)

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        self.target = self.target.index_copy(0, ids, self.new_goals(self.target[ids], generator))

    def goal(self) -> Tensor:
        """`target`."""
        return self.target

    def new_goals(self, goal: Tensor, generator: torch.Generator) -> Tensor:
        """Sample goals, (B, width)."""
        uniform = torch.rand(goal.shape, generator=generator, device=goal.device)
        return self.low + (self.high - self.low) * uniform
