"""Gradients that are numbers, and no longer than allowed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class NonFiniteGradient(RuntimeError):
    """A gradient is infinite or no number; the weights are as they were before its step."""


def clip_gradients(weights: Iterable[Tensor], limit: float | None = None) -> Tensor:
    """Shorten the gradients of all weights together to the limit, in place; None leaves them as long as they are.

    Returns: their norm before.

    Raises:
      NonFiniteGradient: with no gradient changed.
    """
    weights = list(weights)
    norm = nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    if not torch.isfinite(norm):
        raise NonFiniteGradient("a gradient is not finite")
    if limit is not None:
        nn.utils.clip_grads_with_norm_(weights, limit, norm)
    return norm
