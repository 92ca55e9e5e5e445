"""V-MPO and MO-V-MPO: losses as pure functions of tensors.

V-MPO: Song et al. 2020 (arXiv 1909.12238). Several objectives: Abdolmaleki et al. 2020 (arXiv
2005.07513), whose V-MPO form robot-NPMP (Bohez et al. 2022) uses.

Legend: T steps, B environments, K objectives, N = T B steps. Leading axes are written [T, B], but
all functions work with any number and order of them.

    advantages  A  [T, B, K]   G - V, no gradient
    selected       [T, B, K]   the N/2 steps with the largest advantages, per objective
    weights     psi[T, B, K]   softmax of A_k / eta_k over the selected steps; sums to 1 for each k
    temperature eta[K]         dual of KL(psi_k || uniform over the selected) <= eps_k
    alpha          scalars     duals of the KL between target and online policy, for mean and std
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

DUAL_FLOOR = 1e-8  # lower bound of dual variables [V-MPO]


def dual(raw: Tensor) -> Tensor:
    """Unconstrained parameter -> dual variable, softplus(raw) + 1e-8."""
    return nn.functional.softplus(raw) + DUAL_FLOOR


def raw_dual(value: float) -> float:
    """Inverse of `dual`. Raises ValueError for values at or below the floor."""
    if not value > DUAL_FLOOR:
        raise ValueError(f"a dual variable must be above {DUAL_FLOOR}, got {value}")
    shifted = value - DUAL_FLOOR
    # the inverse of log(1 + exp(x)), stable for large values
    return shifted + math.log(-math.expm1(-shifted))


def top_half(advantages: Tensor) -> Tensor:
    """Mask [T, B, K] of the floor(N/2) steps with the largest advantages per objective, at least 1.

    Ties select the earlier step, so the number is exact.
    """
    flat = advantages.detach().flatten(0, -2)
    order = flat.argsort(stable=True, dim=0, descending=True)
    selected = torch.zeros_like(flat, dtype=torch.bool)
    selected.scatter_(0, order[: max(1, len(flat) // 2)], True)
    return selected.reshape(advantages.shape)


def policy_weights(advantages: Tensor, selected: Tensor, temperature: Tensor) -> Tensor:
    """psi_k = exp(A_k / eta_k), normalized over the selected steps, 0 elsewhere; [T, B, K]."""
    scaled = _scaled(advantages.detach(), selected, temperature.detach())
    return torch.softmax(scaled.flatten(0, -2), 0).reshape(advantages.shape)


def temperature_loss(
    advantages: Tensor, selected: Tensor, temperature: Tensor, epsilon: Tensor
) -> Tensor:
    """eta_k eps_k + eta_k log(1/M sum over the M selected of exp(A_k / eta_k)), [K]; M = N/2.

    Gradient to `temperature` [K] only.
    """
    scaled = _scaled(advantages.detach(), selected, temperature).flatten(0, -2)
    count = selected.flatten(0, -2).sum(0)
    return temperature * (epsilon + torch.logsumexp(scaled, 0) - count.log())


def policy_loss(weights: Tensor, log_probs: Tensor) -> Tensor:
    """-sum over steps of (sum_k psi_k) log pi(a|s), a scalar; weights [T, B, K], log_probs [T, B].

    A sum, as the psi_k of each objective sum to 1.
    """
    return -(weights.sum(-1) * log_probs).sum()


def kl_constraint_loss(kl: Tensor, alpha: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Lagrangian of a KL bound, split into dual and primal loss (V-MPO).

    Args:
      kl: scalar, mean KL with gradient to the online policy. alpha: scalar dual. epsilon: the
        bound.

    Returns: alpha (eps - KL), with gradient to alpha only: alpha grows while the bound is violated;
      alpha KL, with gradient to the policy only.
    """
    return alpha * (epsilon - kl.detach()), alpha.detach() * kl


def value_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    """1/2 (V - G)^2 of [T, B, K] predictions and targets: mean over steps, sum over objectives."""
    return 0.5 * (predictions - targets.detach()).square().sum(-1).mean()


def weight_kl(weights: Tensor, selected: Tensor) -> Tensor:
    """KL(psi_k || uniform over the selected) [K], bounded by eps_k."""
    flat = weights.flatten(0, -2)
    return torch.special.xlogy(flat, flat).sum(0) + selected.flatten(0, -2).sum(0).log()


def _scaled(advantages: Tensor, selected: Tensor, temperature: Tensor) -> Tensor:
    """A_k / eta_k where selected, -inf elsewhere."""
    return torch.where(selected, advantages / temperature, -torch.inf)
