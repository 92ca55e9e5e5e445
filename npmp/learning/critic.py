"""The critic of on-policy learning, which may know more than the policy."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from npmp.skills.normalizer import Normalizer


class Critic(nn.Module):
    """Values of K objectives from all that there is to know; no recurrence.

    Layers of the given widths, each with LayerNorm and ELU, and the linear `value_head`, which
    PopArt rescales.
    """

    def __init__(self, size: int, widths: Sequence[int], objectives: int):
        """size: of the input; widths: (1024, 1024, 1024) in the paper."""
        super().__init__()
        self.scale = Normalizer(size)
        layers: list[nn.Module] = []
        for width in widths:
            layers += [nn.Linear(size, width), nn.LayerNorm(width), nn.ELU()]
            size = width
        self.body = nn.Sequential(*layers)
        self.value_head = nn.Linear(size, objectives)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, observation: Tensor) -> Tensor:
        """(..., size) -> (..., K)."""
        return self.value_head(self.body(self.scale(observation)))
