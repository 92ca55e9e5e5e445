"""Gradient steps that are finite and bounded, and averaged weights."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

# gradient of one robot over the median of all, at most [D]
LARGEST = 5.0


class NonFiniteGradient(RuntimeError):
    """A gradient is infinite or NaN; the weights are as they were before its step."""


def clip_gradients(weights: Iterable[Tensor], limit: float = math.inf) -> Tensor:
    """Shorten the gradients of all weights together to the limit, in place; their norm before.

    Raises:
      NonFiniteGradient: with no gradient changed.
    """
    weights = list(weights)
    norm = nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    if not torch.isfinite(norm):
        raise NonFiniteGradient("a gradient is not finite")
    nn.utils.clip_grads_with_norm_(weights, limit, norm)
    return norm


def bounded_gradient(values: Tensor) -> Tensor:
    """Values (B, ...) of B robots as they are; on its way back the gradient of each is shortened
    to `LARGEST` times the median of those that are neither zero nor infinite.

    Robots that fall in imagination have by far the largest. Clipped at the end only, the sum would
    be theirs alone.
    """
    if not values.requires_grad:
        return values
    passed = values.view_as(values)
    passed.register_hook(_shortened)
    return passed


def _shortened(gradient: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(gradient.flatten(1), dim=-1)
    counts = norms.isfinite() & (norms > 0.0)
    median = norms.masked_fill(~counts, torch.nan).nanmedian()
    share = torch.where(counts, (LARGEST * median / norms).clamp(max=1.0), 0.0)
    share = share.view(-1, *[1] * (gradient.dim() - 1))
    return torch.where(share > 0.0, gradient * share, 0.0)


def descend(loss: Tensor, optimizer: torch.optim.Optimizer, limit: float) -> float:
    """One optimizer step, the gradient no longer than the limit; the gradient's norm before.

    No step is made where the norm is not finite: one bad batch must not poison the run.
    """
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    norm = nn.utils.clip_grad_norm_(weights, limit).item()
    if math.isfinite(norm):
        optimizer.step()
    return norm


@torch.no_grad()
def move_average(average: nn.Module, current: nn.Module, decay: float, done: int) -> None:
    """Move averaged parameters towards the current ones, after `done` updates.

    The average is over a ninth of the updates so far at most: a fixed one trails by hundreds of
    updates, and short runs have no more than that.
    """
    share = 1.0 - min(decay, (1.0 + done) / (10.0 + done))
    for kept, now in zip(average.parameters(), current.parameters(), strict=True):
        kept.lerp_(now, share)
