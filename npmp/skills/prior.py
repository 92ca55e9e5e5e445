"""The AR(1) Gaussian prior over latent commands (robot-NPMP, eq. 3, 5 and 6).

    p(z_t | z_{t-1}) = N(alpha z_{t-1}, (1 - alpha^2) I)

Its stationary distribution is N(0, I) for every alpha in [0, 1). The encoder predicts a deviation
from it,

    q(z_t | z_{t-1}, x_t) = N(alpha z_{t-1} + mu, diag(sigma^2)),

so that mu = 0, sigma = sqrt(1 - alpha^2) is the prior itself.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Latent(NamedTuple):
    """A Gaussian of latents, N(mean, diag(std^2)); both (..., d)."""

    mean: Tensor
    std: Tensor


class Habit(NamedTuple):
    """What a policy is held to beside the AR(1) prior (`npmp.learning.world_model.behavior`)."""

    latent: Latent
    # (...) its share of the KL
    weight: Tensor


def prior_std(alpha: float) -> float:
    """Standard deviation of a step of the prior: sqrt(1 - alpha^2), 0.3122 for alpha = 0.95.

    Raises:
      ValueError: unless 0 <= alpha < 1.
    """
    if not 0.0 <= alpha < 1.0:
        raise ValueError(f"alpha must lie in [0, 1), got {alpha}")
    return math.sqrt(1.0 - alpha * alpha)


def sample_posterior(
    z_prev: Tensor, mu: Tensor, sigma: Tensor, alpha: float, noise: Tensor
) -> Tensor:
    """z_t of the encoder, eq. 3, reparameterized: alpha z_{t-1} + mu + sigma noise, noise ~ N(0,
    I); all (..., d).

    mu = 0 and sigma = sqrt(1 - alpha^2) give a step of the prior, eq. 5.
    """
    return alpha * z_prev + mu + sigma * noise


def where_free(latent: Latent, free: Tensor, z_prev: Tensor, alpha: float) -> Latent:
    """The prior's own step where `free` (..., 1) bool holds, the given one elsewhere."""
    std = latent.std.masked_fill(free, prior_std(alpha))
    return Latent(torch.where(free, alpha * z_prev, latent.mean), std)


def kl_to_prior(mean: Tensor, std: Tensor, z_prev: Tensor, alpha: float) -> Tensor:
    """KL[ N(mean, std^2) || N(alpha z_prev, (1 - alpha^2) I) ], one step of eq. 6 given the sampled
    z_{t-1}; all (..., d) -> (...), summed over the latent dimensions [nats].

    mean: the full mean of q, alpha z_{t-1} + mu for the encoder.
    """
    return kl_of_deviation(mean - alpha * z_prev, std, alpha)


def kl_of_deviation(mu: Tensor, std: Tensor, alpha: float) -> Tensor:
    """The same KL from the deviation mu = mean - alpha z_{t-1}, without which the previous latent
    drops out. -> (...)."""
    return kl_per_dimension(mu, std, alpha).sum(-1)


def kl_per_dimension(mu: Tensor, std: Tensor, alpha: float) -> Tensor:
    """The same KL before the sum over latent dimensions. -> (..., d)."""
    variance = prior_std(alpha) ** 2
    ratio = std.square() / variance
    return 0.5 * (ratio + mu.square() / variance - 1.0 - ratio.log())


def kl_between(latent: Latent, other: Latent) -> Tensor:
    """KL[ N(m_1, s_1^2) || N(m_2, s_2^2) ], summed over the latent dimensions, (...) [nats]."""
    ratio = (latent.std / other.std).square()
    square = ((latent.mean - other.mean) / other.std).square()
    return 0.5 * (ratio + square - 1.0 - ratio.log()).sum(-1)


def divergence(latent: Latent, z_prev: Tensor, alpha: float, habit: Habit | None = None) -> Tensor:
    """KL of a policy's latents to what it is held to, (...) [nats].

    w KL(q || habit) + (1 - w) KL(q || AR(1))
    """
    general = kl_to_prior(latent.mean, latent.std, z_prev, alpha)
    if habit is None:
        return general
    return habit.weight * kl_between(latent, habit.latent) + (1.0 - habit.weight) * general


def cross_entropy(shown: Latent, latent: Latent) -> Tensor:
    """E over `shown` of -log `latent`, without its constant, summed over dimensions [nats]. A
    `shown` of std 0 is a sample."""
    square = shown.std.square() + (shown.mean - latent.mean).square()
    return (square / (2.0 * latent.std.square()) + latent.std.log()).sum(-1)
