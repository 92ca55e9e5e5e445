"""Returns over an unroll, with failure (termination) and time-out (truncation) kept apart.

Legend: T steps, B environments, K objectives.
  rewards      [T, B, K]  r_t, of the step from s_t to its successor
  next_values  [T, B, K]  V(s'_t), s'_t the TRUE successor of step t: at the end of an episode the
  last state reached,
                          before any reset
  terminated   [T, B]     bool, the step failed: nothing follows, the successor is worth 0
  truncated    [T, B]     bool, the step ended by the clock or the end of a clip: the successor is
  worth V(s'_t)
A step that is both is a termination. The last step of the unroll is bootstrapped from V(s'_{T-1})
as a truncation is.

n-step returns as in Mnih et al. 2016 (A3C) and V-MPO (Song et al. 2020); lambda-returns as in
Sutton and Barto 2018, section 12.1.
"""

from __future__ import annotations

import torch
from torch import Tensor


def n_step_returns(
    rewards: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float | Tensor,
    n: int | None = None,
) -> Tensor:
    """G_t = r_t + ... + gamma^(m-1) r_{t+m-1} + gamma^m V(s'_{t+m-1}), m = min(n, steps to the
    episode's or unroll's end).

    The last term is absent where step t+m-1 terminated. `gamma` is a number or one per objective
    [K]. `n` None takes all steps up to the end of the unroll. Returns [T, B, K]. Raises ValueError
    on shapes that do not fit or n < 1.
    """
    _check_shapes(rewards, next_values, terminated, truncated)
    if n is None or n >= rewards.shape[0]:
        return lambda_returns(rewards, next_values, terminated, truncated, gamma, 1.0)
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    one_step = _one_step_returns(rewards, next_values, terminated, gamma)
    ends = (terminated | truncated).unsqueeze(-1)
    returns = one_step
    # the m-step return of t is r_t + gamma times the (m-1)-step return of t + 1
    for _ in range(n - 1):
        longer = torch.where(ends[:-1], one_step[:-1], rewards[:-1] + gamma * returns[1:])
        returns = torch.cat([longer, one_step[-1:]])
    return returns


def lambda_returns(
    rewards: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float | Tensor,
    lambda_: float,
) -> Tensor:
    """G_t = r_t + gamma [(1 - lambda) V(s'_t) + lambda G_{t+1}], and r_t + gamma V(s'_t) where the
    episode ends.

    lambda 0 is the one-step return, lambda 1 the return to the end of the unroll. Shapes as in
    `n_step_returns`. Raises ValueError on shapes that do not fit or a lambda outside [0, 1].
    """
    _check_shapes(rewards, next_values, terminated, truncated)
    if not 0.0 <= lambda_ <= 1.0:
        raise ValueError(f"lambda must lie in [0, 1], got {lambda_}")
    one_step = _one_step_returns(rewards, next_values, terminated, gamma)
    ends = (terminated | truncated).unsqueeze(-1)
    following = one_step[-1]
    backwards = [following]
    for t in range(rewards.shape[0] - 2, -1, -1):
        mixed = (1.0 - lambda_) * next_values[t] + lambda_ * following
        following = torch.where(ends[t], one_step[t], rewards[t] + gamma * mixed)
        backwards.append(following)
    return torch.stack(backwards[::-1])


def _one_step_returns(
    rewards: Tensor, next_values: Tensor, terminated: Tensor, gamma: float | Tensor
) -> Tensor:
    """r_t + gamma V(s'_t), no value after a failure; a selection, so that a NaN there does no harm."""
    return rewards + gamma * torch.where(
        terminated.unsqueeze(-1), torch.zeros_like(next_values), next_values
    )


def _check_shapes(
    rewards: Tensor, next_values: Tensor, terminated: Tensor, truncated: Tensor
) -> None:
    if rewards.dim() != 3 or rewards.shape[0] == 0:
        raise ValueError(f"rewards must be [T, B, K] with T >= 1, got {list(rewards.shape)}")
    if next_values.shape != rewards.shape:
        raise ValueError(
            f"next_values {list(next_values.shape)} must be shaped as rewards {list(rewards.shape)}"
        )
    for name, flags in (("terminated", terminated), ("truncated", truncated)):
        if flags.shape != rewards.shape[:2] or flags.dtype != torch.bool:
            raise ValueError(
                f"{name} must be bool {list(rewards.shape[:2])}, got {flags.dtype} {list(flags.shape)}"
            )
