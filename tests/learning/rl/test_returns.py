"""Returns by hand, with failures and time-outs in the middle of the unroll."""

from __future__ import annotations

import pytest
import torch

from npmp.learning.rl.returns import lambda_returns

# One environment, T = 5, gamma = 1/2.
#   t              0    1    2    3    4
#   reward         1    2    4    8   16
#   V(successor)  10   20   30   40   50
REWARDS = torch.tensor([1.0, 2, 4, 8, 16]).reshape(5, 1, 1)
NEXT = torch.tensor([10.0, 20, 30, 40, 50]).reshape(5, 1, 1)
NEVER = torch.zeros(5, 1, dtype=torch.bool)


def _at(t: int) -> torch.Tensor:
    flags = NEVER.clone()
    flags[t] = True
    return flags


def _flat(returns: torch.Tensor) -> list[float]:
    return returns[:, 0, 0].tolist()


def test_truncation_in_the_middle_is_bootstrapped() -> None:
    # Cut at t = 2: G2 = 4 + 30/2 = 19; G1 = 2 + 19/2 = 11.5; G0 = 1 + 11.5/2 = 6.75
    # The end of the unroll: G4 = 16 + 50/2 = 41; G3 = 8 + 41/2 = 28.5
    assert _flat(lambda_returns(REWARDS, NEXT, NEVER, _at(2), 0.5)) == [6.75, 11.5, 19, 28.5, 41]


def test_termination_in_the_middle_is_not_bootstrapped() -> None:
    # G2 = 4; G1 = 2 + 4/2 = 4; G0 = 1 + 4/2 = 3; the rest as before
    assert _flat(lambda_returns(REWARDS, NEXT, _at(2), NEVER, 0.5)) == [3, 4, 4, 28.5, 41]


def test_lambda_by_hand() -> None:
    # lambda 1/2, cut at t = 2: G2 = 19; G1 = 2 + (20/2 + 19/2)/2 = 11.75; G0 = 1 + (10/2 +
    # 11.75/2)/2 = 6.4375 G4 = 41; G3 = 8 + (40/2 + 41/2)/2 = 28.25
    expected = [6.4375, 11.75, 19, 28.25, 41]
    assert _flat(lambda_returns(REWARDS, NEXT, NEVER, _at(2), 0.5, 0.5)) == expected


def _random(seed: int, num_objectives: int = 3):
    g = torch.Generator().manual_seed(seed)
    shape = (12, 6, num_objectives)
    rewards, values = (torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(2))
    terminated, truncated = (torch.rand(shape[:2], generator=g) < 0.15 for _ in range(2))
    return rewards, values, terminated, truncated


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_they_equal_their_definition(lambda_: float) -> None:
    """G_t as the mean of all m-step returns with weights (1 - lambda) lambda^(m - 1), the longest
    one taking the rest."""
    rewards, values, terminated, truncated = _random(0)
    returns = lambda_returns(rewards, values, terminated, truncated, 0.9, lambda_)
    expected = torch.zeros_like(rewards)
    for t in range(12):
        for b in range(6):
            gained, weight = torch.zeros(3, dtype=torch.float64), 1.0
            for m in range(12 - t):
                gained = gained + 0.9**m * rewards[t + m, b]
                after = 0.0 if terminated[t + m, b] else 0.9 ** (m + 1) * values[t + m, b]
                last = m == 11 - t or bool(terminated[t + m, b] | truncated[t + m, b])
                expected[t, b] += weight * (1.0 if last else 1.0 - lambda_) * (gained + after)
                weight *= lambda_
                if last:
                    break
    torch.testing.assert_close(returns, expected)


def test_the_value_after_a_failure_may_be_anything() -> None:
    values = NEXT.clone()
    values[2] = torch.nan
    assert _flat(lambda_returns(REWARDS, values, _at(2), NEVER, 0.5)) == [3, 4, 4, 28.5, 41]
