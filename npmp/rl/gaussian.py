"""Diagonal Gaussians: log-density, entropy, and the KL split into a mean and a covariance term.

Legend: A action dimensions; all arrays [..., A]; results [...], in nats, summed over A.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_prob(mean: Tensor, std: Tensor, actions: Tensor) -> Tensor:
    """log N(actions; mean, diag(std^2))."""
    scaled = (actions - mean) / std
    return (-0.5 * scaled.square() - std.log() - 0.5 * math.log(2.0 * math.pi)).sum(-1)


def entropy(std: Tensor) -> Tensor:
    """Differential entropy of N(., diag(std^2))."""
    return (std.log() + 0.5 * math.log(2.0 * math.pi * math.e)).sum(-1)


def sample(mean: Tensor, std: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A draw from N(mean, diag(std^2)), without gradient."""
    noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
    return (mean + std * noise).detach()


def decoupled_kl(
    target_mean: Tensor, target_std: Tensor, mean: Tensor, std: Tensor
) -> tuple[Tensor, Tensor]:
    """KL(target || online) with one parameter moved at a time (Abdolmaleki et al. 2018, "Relative
    entropy regularized policy iteration"; V-MPO, Song et al. 2020).

    Returns:
        KL(N(m', s') || N(m, s')): the mean term, with the target's variance;
        KL(N(m', s') || N(m', s)): the covariance term, with the target's mean.
    """
    target_variance = target_std.square()
    mean_term = 0.5 * ((target_mean - mean).square() / target_variance).sum(-1)
    std_term = (std.log() - target_std.log() + 0.5 * target_variance / std.square() - 0.5).sum(-1)
    return mean_term, std_term
