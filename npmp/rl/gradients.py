"""Gradients that are numbers, and no longer than allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from npmp import parallel


class NonFiniteGradient(RuntimeError):
    """A gradient is infinite or no number; the weights are as they were before its step."""


def clip_gradients(weights: Iterable[Tensor], limit: float | None = None) -> Tensor:
    """Shorten the gradients of all weights together to the limit, in place; None leaves them as
    long as they are.

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


def descend(
    loss: Tensor, module: nn.Module, limit: float, *optimizers: torch.optim.Optimizer
) -> float:
    """One step down a module's gradient (its mean over all learners), no longer than the limit;
    none where it is not finite: one bad batch must not poison the run. Returns the gradient's norm
    before."""
    module.zero_grad(set_to_none=True)
    loss.backward()
    parallel.average_gradients(module.parameters())
    norm = nn.utils.clip_grad_norm_(module.parameters(), limit).item()
    if math.isfinite(norm):
        for optimizer in optimizers:
            optimizer.step()
    return norm
