"""The state-conditioned prior of ControlVAE (Yao et al. 2022, arXiv 2210.06063).

    p(z_t | s_t) = N(mu(s_t), sigma^2 I)

mu is a network, learned with the encoder, which outputs the deviation from it; sigma is fixed. s_t
is the true state without height, which depends on the terrain.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from npmp.core import ranges
from npmp.core.gaussian import Gaussian
from npmp.envs.features import true_state
from npmp.envs.state import RobotState
from npmp.skills.normalizer import Normalizer
from npmp.skills.prior import Prior


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


class ControlVAEPrior(Prior):
    """An MLP from the robot's state to the mean of the latent."""

    name = "control_vae"
    config_type = ControlVAEConfig
    # latents are independent, conditioned on the states
    alpha = 0.0
    home: Tensor

    def __init__(self, latent_dim: int, config: ControlVAEConfig, home: Tensor):
        super().__init__(latent_dim)
        self.std = config.std
        self.register_buffer("home", home.clone(), persistent=False)
        width = 12 + 3 * len(home)
        self.scale = Normalizer(width)
        head = nn.Linear(config.hidden, latent_dim)
        nn.init.normal_(head.weight, std=0.01 / config.hidden**0.5)
        nn.init.zeros_(head.bias)
        self.net = nn.Sequential(
            nn.Linear(width, config.hidden),
            nn.ELU(),
            nn.Linear(config.hidden, config.hidden),
            nn.ELU(),
            head,
        )

    def observe(self, state: RobotState, task: Tensor) -> Tensor:
        return true_state(state, self.home)[..., 1:]

    def fit(self, observed: Tensor) -> None:
        self.scale.fit(observed, 0.1)

    def step(self, z_before: Tensor, observed: Tensor) -> Gaussian:
        mean = self.net(self.scale(observed))
        return Gaussian(mean, torch.full_like(mean, self.std))
