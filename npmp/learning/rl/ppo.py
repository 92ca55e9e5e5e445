"""PPO: losses as pure functions of tensors (Schulman et al. 2017, arXiv 1707.06347).

Clipped values and the adaptive learning rate are those of legged_gym (Rudin et al. 2022) and
rsl_rl. Legend: [...] any leading axes.
"""

from __future__ import annotations

import torch
from torch import Tensor

CLIP = 0.2  # clip range of the probability ratio and of the change in value [Schulman et al. 2017]
RATE_STEP = 1.5  # the factor by which the learning rate adapts [rsl_rl]
RATES = (1e-5, 1e-2)  # its range [rsl_rl]


def surrogate_loss(log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor) -> Tensor:
    """Mean of max(-A r, -A clip(r, 1 - eps, 1 + eps)), r = pi(a|s) / pi_old(a|s); all [...]."""
    ratio = torch.exp(log_prob - old_log_prob)
    clipped = ratio.clamp(1.0 - CLIP, 1.0 + CLIP)
    return torch.maximum(-advantages * ratio, -advantages * clipped).mean()


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor) -> Tensor:
    """Mean of the larger squared error of V and V_old + clip(V - V_old, -eps, eps); all [...]."""
    clipped = old_values + (values - old_values).clamp(-CLIP, CLIP)
    return torch.maximum((values - returns).square(), (clipped - returns).square()).mean()


def adapted_rate(rate: float, kl: float, desired_kl: float) -> float:
    """The adapted learning rate at KL(old || new) [nats]: lower above twice the desired KL, higher
    below half of it."""
    if kl > 2.0 * desired_kl:
        return max(RATES[0], rate / RATE_STEP)
    if 0.0 < kl < 0.5 * desired_kl:
        return min(RATES[1], rate * RATE_STEP)
    return rate
