"""A prior over discrete codes, by finite scalar quantization (FSQ; Mentzer et al. 2023, arXiv
2309.15505).

The decoder's input is the code of a latent z, in each dimension one of L levels:

    c(z) = round(h tanh z) / h,  h = (L - 1) / 2

Encoder, policies and this prior output Gaussians over z. A code's probability is that of its cell
(an ordered probit), for k from -h to h:

    P(c = k/h | c_{t-1}, s_t) = Phi((b_{k+1} - mu) / sigma) - Phi((b_k - mu) / sigma)
    b_k = atanh((k - 1/2) / h), the outermost are infinite

mu and sigma are a network of the previous code and the state, learned with the encoder. The KL is
that of the codes' distributions; the gradient of c ignores the rounding (straight-through).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from npmp.core import ranges
from npmp.core.gaussian import Gaussian
from npmp.skills.prior import StatePrior

# probabilities of all levels are computed at once
MAX_LEVELS = 255


@dataclass(frozen=True)
class FSQConfig:
    """Settings of the prior. Raises ValueError out of range."""

    # levels of each latent dimension, odd [D]; the paper has 5 to 8
    levels: int = 5
    # initial sigma, of each latent dimension [D]
    std: float = 0.3
    # units of each of two layers [D]
    hidden: int = 256

    def __post_init__(self) -> None:
        ranges.above_zero(self, "std")
        ranges.at_least_one(self, "levels", "hidden")
        ranges.at_most(self, MAX_LEVELS, "levels")
        ranges.at_most(self, ranges.MAX_WIDTH, "hidden")
        if self.levels < 3 or self.levels % 2 == 0:
            raise ValueError(f"levels={self.levels}: must be odd and at least 3")


def quantized(z: Tensor, levels: int) -> Tensor:
    """c(z), (..., d) in [-1, 1]; its gradient is that of tanh z."""
    half = 0.5 * (levels - 1)
    bounded = torch.tanh(z)
    # the difference is 0, with a gradient
    return (half * bounded).round() / half + (bounded - bounded.detach())


def edges(levels: int) -> list[float]:
    """The L - 1 latents b between the cells, increasing."""
    half = 0.5 * (levels - 1)
    return [math.atanh((k + 0.5) / half - 1.0) for k in range(levels - 1)]


def log_probabilities(latents: Gaussian, levels: int) -> Tensor:
    """Log-probability of each code of latents (..., d), by level (..., d, L) [nats]."""
    between = latents.mean.new_tensor(edges(levels))
    scaled = (between - latents.mean.unsqueeze(-1)) / latents.std.unsqueeze(-1)
    log_ndtr = torch.special.log_ndtr
    low = scaled[..., :-1]
    high = scaled[..., 1:]
    # Phi(b) - Phi(a) = Phi(-a) - Phi(-b), whichever is in the lower tail, where Phi is precise
    upper = low + high > 0.0
    larger = log_ndtr(torch.where(upper, -low, high))
    smaller = log_ndtr(torch.where(upper, -high, low))
    inner = larger + torch.log(-torch.expm1(smaller - larger))
    return torch.cat((log_ndtr(scaled[..., :1]), inner, log_ndtr(-scaled[..., -1:])), -1)


class FSQPrior(StatePrior):
    """An MLP from the previous code and the robot's state to the latent's mean and std."""

    name = "fsq"
    config_type = FSQConfig

    def __init__(self, latent_dim: int, config: FSQConfig, home: Tensor):
        super().__init__(
            latent_dim, home, hidden=config.hidden, inputs=latent_dim, outputs=2 * latent_dim
        )
        self.config = config
        self.std = config.std

    @classmethod
    def code(cls, z: Tensor, config: FSQConfig) -> Tensor:
        return quantized(z, config.levels)

    def step(self, z_before: Tensor, observed: Tensor) -> Gaussian:
        code = self.code(z_before, self.config)
        mean, raw = self.net(torch.cat((self.scale(observed), code), -1)).chunk(2, -1)
        # within a factor e^3 of its initial value, as the encoder's
        return Gaussian(mean, self.std * torch.exp(3.0 * torch.tanh(raw / 3.0)))

    def kl(self, distribution: Gaussian, z_before: Tensor, observed: Tensor) -> Tensor:
        """As `Prior.kl`, of codes."""
        return self._divergence(distribution, self.step(z_before, observed)).sum(-1)

    def kl_of_deviation(self, deviation: Gaussian, z_before: Tensor, observed: Tensor) -> Tensor:
        """As `Prior.kl_of_deviation`, of codes."""
        prior = self.step(z_before, observed)
        return self._divergence(Gaussian(prior.mean + deviation.mean, deviation.std), prior)

    def _divergence(self, latents: Gaussian, prior: Gaussian) -> Tensor:
        """KL[ code of latents || code of prior ] per dimension, (..., d) [nats]."""
        log_q = log_probabilities(latents, self.config.levels)
        log_p = log_probabilities(prior, self.config.levels)
        return (log_q.exp() * (log_q - log_p)).sum(-1)
