"""The state-conditioned prior of ControlVAE (Yao et al. 2022, arXiv 2210.06063).

    p(z_t | s_t) = N(mu(s_t), sigma^2 I)

mu is a network, learned with the encoder, which outputs the deviation from it; sigma is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from npmp.core import ranges
from npmp.core.gaussian import Gaussian
from npmp.skills.prior import StatePrior


@dataclass(frozen=True)
class ControlVAEConfig:
    """Settings of the prior. Raises ValueError out of range."""

    # sigma, of each latent dimension [ControlVAE]
    std: float = 0.3
    # units of each of two layers [D]
    hidden: int = 256

    def __post_init__(self) -> None:
        ranges.above_zero(self, "std")
        ranges.at_least_one(self, "hidden")
        ranges.at_most(self, ranges.MAX_WIDTH, "hidden")


class ControlVAEPrior(StatePrior):
    """An MLP from the robot's state to the mean of the latent."""

    name = "control_vae"
    config_type = ControlVAEConfig

    def __init__(self, latent_dim: int, config: ControlVAEConfig, home: Tensor):
        super().__init__(latent_dim, home, hidden=config.hidden, outputs=latent_dim)
        self.std = config.std

    def step(self, z_before: Tensor, observed: Tensor) -> Gaussian:
        mean = self.net(self.scale(observed))
        return Gaussian(mean, torch.full_like(mean, self.std))
