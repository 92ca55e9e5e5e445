"""Diagonal Gaussians: log-density, entropy, KL and its mean and covariance terms.

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


def sample(mean: Tensor, std: Tensor, generator: torch.Generator) -> Tensor:
    """A sample of N(mean, diag(std^2)), without gradient."""
    noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
    return (mean + std * noise).detach()


def kl(old_mean: Tensor, old_std: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """KL(N(m', s') || N(m, s))."""
    ratio = (old_std / std).square()
    return 0.5 * (((old_mean - mean) / std).square() + ratio - 1.0 - ratio.log()).sum(-1)


def decoupled_kl(
    target_mean: Tensor, target_std: Tensor, mean: Tensor, std: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and covariance terms of KL(target || online) (Abdolmaleki et al. 2018, "Relative entropy
    regularized policy iteration"; V-MPO, Song et al. 2020).

    Returns: KL(N(m', s') || N(m, s')), with the target's variance; KL(N(m', s') || N(m', s)), with
      the target's mean.
    """
    mean_term = kl(target_mean, target_std, mean, target_std)
    covariance_term = kl(target_mean, target_std, target_mean, std)
    return mean_term, covariance_term
