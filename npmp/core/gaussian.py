"""Diagonal Gaussians: samples, log-density, entropy and KL divergence."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


def kl_per_dimension(distance: Tensor, ratio: Tensor) -> Tensor:
    """KL[ N(m, s^2) || N(m', s'^2) ] = 1/2 (r + d - 1 - log r) of each dimension [nats].

    Args:
      distance: d = (m - m')^2 / s'^2. ratio: r = s^2 / s'^2.
    """
    return 0.5 * (ratio + distance - 1.0 - ratio.log())


class Gaussian(NamedTuple):
    """N(mean, diag(std^2)); both (..., d). Results of shape (...) are sums over dimensions."""

    mean: Tensor
    std: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """mean + std noise, (..., d); noise: standard normal, or zero for the mean."""
        return self.mean + self.std * noise

    def sample_detached(self, generator: torch.Generator) -> Tensor:
        """A sample (..., d) without gradient."""
        mean = self.mean
        noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
        return self.sample(noise).detach()

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density at a value (..., d), (...)."""
        scaled = (value - self.mean) / self.std
        return (-0.5 * scaled.square() - self.std.log() - 0.5 * math.log(2.0 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        """Differential entropy, (...) [nats]."""
        return (self.std.log() + 0.5 * math.log(2.0 * math.pi * math.e)).sum(-1)

    def kl(self, other: Gaussian) -> Tensor:
        """KL[ self || other ], (...) [nats]."""
        distance = ((self.mean - other.mean) / other.std).square()
        return kl_per_dimension(distance, (self.std / other.std).square()).sum(-1)

    def decoupled_kl(self, other: Gaussian) -> tuple[Tensor, Tensor]:
        """KL[ self || other ] with one parameter of `other` moved at a time (Abdolmaleki et al.
        2018, "Relative entropy regularized policy iteration"; V-MPO, Song et al. 2020).

        Returns: the mean term, with this variance; the covariance term, with this mean.
        """
        return self.kl(Gaussian(other.mean, self.std)), self.kl(Gaussian(self.mean, other.std))

    def cross_entropy(self, other: Gaussian) -> Tensor:
        """Expectation of -log `other` under this distribution, without its constant, (...) [nats].
        A std of 0 makes the mean a sample."""
        square = self.std.square() + (self.mean - other.mean).square()
        return (square / (2.0 * other.std.square()) + other.std.log()).sum(-1)

    def where(self, mask: Tensor, other: Gaussian) -> Gaussian:
        """This distribution where mask (...) bool is true, `other` elsewhere."""
        mask = mask.unsqueeze(-1)
        mean = torch.where(mask, self.mean, other.mean)
        return Gaussian(mean, torch.where(mask, self.std, other.std))
