"""Lambda returns over an unroll, with separate termination (failure) and truncation (time-out).

Legend: T steps, B environments, K objectives.
  rewards      [T, B, K]  r_t, of the step from s_t to its successor
  next_values  [T, B, K]  V(s'_t), s'_t the true successor: before any reset
  terminated   [T, B]     bool, failure: the successor has value 0
  truncated    [T, B]     bool, time-out or the clip's end: the successor has value V(s'_t)
A step that is both is a termination. The last step is bootstrapped like a truncation.
"""

from __future__ import annotations

import torch
from torch import Tensor


def lambda_returns(
    rewards: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lambda_: float = 1.0,
) -> Tensor:
    """G_t = r_t + gamma [(1 - lambda) V(s'_t) + lambda G_{t+1}], [T, B, K].

    At an episode's end r_t + gamma V(s'_t), or r_t if terminated. With lambda 1 it is the n-step
    return (A3C, Mnih et al. 2016); G_t - V(s_t) is the generalized advantage estimate (Schulman et
    al. 2016).
    """
    # where: ignores a NaN value after a termination
    one_step = rewards + gamma * torch.where(terminated.unsqueeze(-1), 0.0, next_values)
    ends = (terminated | truncated).unsqueeze(-1)
    following = one_step[-1]
    backwards = [following]
    for t in range(len(rewards) - 2, -1, -1):
        mixed = (1.0 - lambda_) * next_values[t] + lambda_ * following
        following = torch.where(ends[t], one_step[t], rewards[t] + gamma * mixed)
        backwards.append(following)
    return torch.stack(backwards[::-1])
