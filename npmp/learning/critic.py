"""The critic of on-policy learning, with privileged observations."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from npmp.skills.normalizer import Normalizer


class Critic(nn.Module):
    """A feed-forward network from privileged observations to the values of K objectives.

    Linear layers with LayerNorm and ELU, then the linear `value_head`, which PopArt rescales.
    """

    def __init__(self, size: int, widths: Sequence[int], objectives: int):
        """size: of the observation; widths: of the layers, (1024, 1024, 1024) in the paper."""
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
        """Values (..., K) of the K objectives, from observations (..., size)."""
        return self.value_head(self.body(self.scale(observation)))
