"""Gradient clipping, optimizer steps and averaged weights."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from npmp.core.host_waits import is_asynchronous

# limit on one robot's gradient norm over the median of all [D]
MAX_RATIO = 5.0


class NonFiniteGradient(RuntimeError):
    """A gradient is infinite or NaN; the weights are unchanged."""


def clip_gradients(weights: Iterable[Tensor], max_norm: float = math.inf) -> Tensor:
    """Clip the total norm of the gradients, in place; returns the norm before.

    Raises:
      NonFiniteGradient: the gradients are unchanged.
    """
    weights = list(weights)
    norm = nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    if not torch.isfinite(norm):
        raise NonFiniteGradient("a gradient is not finite")
    nn.utils.clip_grads_with_norm_(weights, max_norm, norm)
    return norm


def bounded_gradient(values: Tensor) -> Tensor:
    """Identity on values (B, ...) of B robots; in the backward pass each robot's gradient norm is
    limited to `MAX_RATIO` times the median of the finite, non-zero ones.

    Robots that fall in imagination have by far the largest gradients, which would dominate the sum.
    """
    if not values.requires_grad:
        return values
    output = values.view_as(values)
    output.register_hook(_limit_to_median)
    return output


def _limit_to_median(gradient: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(gradient.flatten(1), dim=-1)
    valid = norms.isfinite() & (norms > 0.0)
    median = norms.masked_fill(~valid, torch.nan).nanmedian()
    scale = torch.where(valid, (MAX_RATIO * median / norms).clamp(max=1.0), 0.0)
    scale = scale.view(-1, *[1] * (gradient.dim() - 1))
    return torch.where(scale > 0.0, gradient * scale, 0.0)


def descend(loss: Tensor, optimizer: torch.optim.Optimizer, max_norm: float) -> Tensor:
    """One step of the optimizer with a clipped gradient; returns the norm before clipping.

    Skipped if the norm is not finite; on an asynchronous device, where asking would wait, the
    gradient is then zero.
    """
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    norm = nn.utils.clip_grad_norm_(weights, max_norm)
    if is_asynchronous(norm.device):
        for weight in weights:
            if weight.grad is not None:
                weight.grad = torch.where(norm.isfinite(), weight.grad, 0.0)
        optimizer.step()
    elif math.isfinite(norm):
        optimizer.step()
    return norm


@torch.no_grad()
def move_average(average: nn.Module, current: nn.Module, decay: float, updates: int) -> None:
    """Exponential moving average of parameters, in place; updates: made so far.

    The decay grows with `updates`, to average over a ninth of them at most: with a fixed one the
    average of a short run lags behind.
    """
    weight = 1.0 - min(decay, (1.0 + updates) / (10.0 + updates))
    for averaged, parameter in zip(average.parameters(), current.parameters(), strict=True):
        averaged.lerp_(parameter, weight)
