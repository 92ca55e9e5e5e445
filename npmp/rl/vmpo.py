"""V-MPO and MO-V-MPO: losses as pure functions of tensors.

V-MPO: Song et al. 2020 (arXiv 1909.12238). Several objectives: Abdolmaleki et al. 2020 (arXiv
2005.07513), whose V-MPO form robot-NPMP (Bohez et al. 2022) uses.

Legend: T steps, B environments, K objectives, N = number of valid steps. Leading axes are written
[T, B], but every function is indifferent to their order and number. `valid` [T, B] is false for
steps that must not count.

    advantages  A  [T, B, K]   G - V, no gradient
    selected       [T, B, K]   the N/2 valid steps of the largest advantages, by objective
    weights     psi[T, B, K]   softmax of A_k / eta_k over the selected steps; sums to 1 for each k
    temperature eta[K]         dual of KL(psi_k || uniform over the selected) <= eps_k
    alpha          scalars     duals of the KL between target and online policy, for mean and std
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

DUAL_FLOOR = 1e-8  # V-MPO paper: duals are kept at or above this

# Stands for "not selected" in a log-sum-exp. Finite, so that an empty selection has no NaN in its
# gradient; below any A / eta that can matter (|A| <= 1e20 at eta = 1e-8 in float32).
_NOT_SELECTED = -1e30


def dual(raw: Tensor) -> Tensor:
    """Unconstrained parameter -> dual variable, softplus(raw) + 1e-8: positive and smooth at any
    raw."""
    return torch.nn.functional.softplus(raw) + DUAL_FLOOR


def raw_dual(value: float) -> float:
    """The parameter whose `dual` is `value`. Raises ValueError for a value at or below the floor."""
    if not value > DUAL_FLOOR:
        raise ValueError(f"a dual variable must be larger than {DUAL_FLOOR}, got {value}")
    shifted = value - DUAL_FLOOR
    # The inverse of log(1 + exp(x)), stable for large values.
    return shifted + math.log(-math.expm1(-shifted))


def top_half(advantages: Tensor, valid: Tensor) -> Tensor:
    """Select, for each objective, the floor(N/2) valid steps of the largest advantages, at least
    one if any is valid.

    Invalid steps leave BEFORE the half is counted, whatever their advantage. Of equal advantages at
    the edge the earlier ones are taken, so the number is exact. Returns bool [T, B, K].
    """
    _check_advantages(advantages, valid)
    flat = advantages.detach().flatten(0, -2)  # [T B, K]
    ok = valid.flatten().unsqueeze(-1).expand_as(flat)
    order = torch.where(ok, flat, torch.full_like(flat, -torch.inf)).argsort(
        stable=True, dim=0, descending=True
    )
    place = torch.arange(flat.shape[0], device=flat.device).unsqueeze(-1).expand_as(order)
    rank = torch.empty_like(order).scatter_(0, order, place)
    half = (valid.sum() // 2).clamp_min(1)
    return ((rank < half) & ok).reshape(advantages.shape)


def policy_weights(advantages: Tensor, selected: Tensor, temperature: Tensor) -> Tensor:
    """psi_k = exp(A_k / eta_k) / sum over the selected of the same, 0 elsewhere; [T, B, K], no
    gradient."""
    scaled = _scaled(advantages.detach(), selected, temperature.detach())
    flat = scaled.flatten(0, -2)
    weights = torch.softmax(flat, 0).reshape(advantages.shape)
    return torch.where(selected, weights, torch.zeros_like(weights))


def temperature_loss(
    advantages: Tensor, selected: Tensor, temperature: Tensor, epsilon: Tensor
) -> Tensor:
    """eta_k eps_k + eta_k log(1/M sum over the M selected of exp(A_k / eta_k)), [K]; M = N/2
    (V-MPO).

    The same selection as in the weights. Gradient to `temperature` [K] only. 0 where nothing is
    selected.
    """
    flat = _scaled(advantages.detach(), selected, temperature).flatten(0, -2)
    count = selected.flatten(0, -2).sum(0)
    log_mean = torch.logsumexp(flat, 0) - count.clamp_min(1).to(flat.dtype).log()
    return torch.where(count > 0, temperature * (epsilon + log_mean), torch.zeros_like(temperature))


def policy_loss(weights: Tensor, log_probs: Tensor) -> Tensor:
    """-sum over steps of (sum_k psi_k) log pi(a|s), a scalar; weights [T, B, K], log_probs [T, B].

    A SUM: the psi_k of each objective already average. It adds up over shards of one batch; where
    devices share the normalization of psi and AVERAGE their gradients, multiply by the number of
    devices.
    """
    total = weights.sum(-1)
    if total.shape != log_probs.shape:
        raise ValueError(f"log_probs must be {list(total.shape)}, got {list(log_probs.shape)}")
    counts = total > 0  # a selection, so that a step without weight cannot spread a NaN
    return -torch.where(counts, total * log_probs, torch.zeros_like(log_probs)).sum()


def kl_constraint_loss(kl: Tensor, alpha: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Lagrangian of a KL bound, its two players apart (V-MPO).

    Args:
        kl: scalar, mean KL with gradient to the online policy. alpha: scalar dual. epsilon: the
          bound.
    Returns:
        alpha (eps - KL), gradient to alpha only: the dual grows while the bound is broken;
        alpha KL, gradient to the policy only: the penalty.
    """
    return alpha * (epsilon - kl.detach()), alpha.detach() * kl


def value_loss(predictions: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
    """1/2 (V - G)^2 of [T, B, K] predictions and targets: mean over valid steps, sum over
    objectives."""
    errors = 0.5 * (predictions - targets.detach()).square().sum(-1)
    return masked_mean(errors, valid)


def masked_mean(values: Tensor, valid: Tensor) -> Tensor:
    """Mean of `values` [T, B] over the valid steps; 0 if there is none."""
    if values.shape != valid.shape:
        raise ValueError(
            f"values {list(values.shape)} and valid {list(valid.shape)} must have one shape"
        )
    return torch.where(valid, values, torch.zeros_like(values)).sum() / valid.sum().clamp_min(1)


def weight_kl(weights: Tensor, selected: Tensor) -> Tensor:
    """KL(psi_k || uniform over the selected) [K]: what the temperature steers towards eps_k."""
    flat = weights.flatten(0, -2)
    count = selected.flatten(0, -2).sum(0).clamp_min(1).to(flat.dtype)
    return torch.special.xlogy(flat, flat).sum(0) + count.log() * (flat.sum(0) > 0)


def _scaled(advantages: Tensor, selected: Tensor, temperature: Tensor) -> Tensor:
    """A_k / eta_k where selected, a very negative number elsewhere; selection comes before the
    division."""
    if selected.shape != advantages.shape or selected.dtype != torch.bool:
        raise ValueError(
            f"selected must be bool {list(advantages.shape)}, got {selected.dtype} {list(selected.shape)}"
        )
    if temperature.shape != advantages.shape[-1:]:
        raise ValueError(
            f"temperature must hold one number for each of {advantages.shape[-1]} objectives, "
            f"got {list(temperature.shape)}"
        )
    safe = torch.where(selected, advantages, torch.zeros_like(advantages))
    return torch.where(selected, safe / temperature, torch.full_like(safe, _NOT_SELECTED))


def _check_advantages(advantages: Tensor, valid: Tensor) -> None:
    if advantages.dim() < 2:
        raise ValueError(f"advantages must be [T, B, K], got {list(advantages.shape)}")
    if valid.shape != advantages.shape[:-1] or valid.dtype != torch.bool:
        raise ValueError(
            f"valid must be bool {list(advantages.shape[:-1])}, got {valid.dtype} {list(valid.shape)}"
        )
