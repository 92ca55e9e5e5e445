"""Returns by hand, with failures and time-outs in the middle of the unroll."""

from __future__ import annotations

import torch

from npmp.rl.returns import bootstrapped_returns

# One environment, T = 5, gamma = 1/2.
#   t              0    1    2    3    4
#   reward         1    2    4    8   16
#   V(successor)  10   20   30   40   50
REWARDS = torch.tensor([1.0, 2, 4, 8, 16]).reshape(5, 1, 1)
NEXT = torch.tensor([10.0, 20, 30, 40, 50]).reshape(5, 1, 1)
NEVER = torch.zeros(5, 1, dtype=torch.bool)


CUT = [6.75, 11.5, 19, 28.5, 41]


def _at(t: int) -> torch.Tensor:
    flags = NEVER.clone()
    flags[t] = True
    return flags


def _flat(returns: torch.Tensor) -> list[float]:
    return returns[:, 0, 0].tolist()


def test_truncation_in_the_middle_is_bootstrapped() -> None:
    # Cut at t = 2: G2 = 4 + 30/2 = 19; G1 = 2 + 19/2 = 11.5; G0 = 1 + 11.5/2 = 6.75
    # The end of the unroll: G4 = 16 + 50/2 = 41; G3 = 8 + 41/2 = 28.5
    assert _flat(bootstrapped_returns(REWARDS, NEXT, NEVER, _at(2), 0.5)) == [
        6.75,
        11.5,
        19,
        28.5,
        41,
    ]


def test_termination_in_the_middle_is_not_bootstrapped() -> None:
    # G2 = 4; G1 = 2 + 4/2 = 4; G0 = 1 + 4/2 = 3; the rest as before
    assert _flat(bootstrapped_returns(REWARDS, NEXT, _at(2), NEVER, 0.5)) == [3, 4, 4, 28.5, 41]


def _random(seed: int, num_objectives: int = 3):
    g = torch.Generator().manual_seed(seed)
    shape = (12, 6, num_objectives)
    rewards, values = (torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(2))
    terminated, truncated = (torch.rand(shape[:2], generator=g) < 0.15 for _ in range(2))
    return rewards, values, terminated, truncated


def test_they_equal_their_definition() -> None:
    """The discounted sum of rewards to the end of the episode or unroll, and the value there."""
    rewards, values, terminated, truncated = _random(0)
    found = bootstrapped_returns(rewards, values, terminated, truncated, 0.9)
    expected = torch.zeros_like(rewards)
    for t in range(12):
        for b in range(6):
            for m in range(12 - t):
                expected[t, b] += 0.9**m * rewards[t + m, b]
                if m == 11 - t or bool(terminated[t + m, b] | truncated[t + m, b]):
                    if not terminated[t + m, b]:
                        expected[t, b] += 0.9 ** (m + 1) * values[t + m, b]
                    break
    torch.testing.assert_close(found, expected)


def test_the_value_after_a_failure_may_be_anything() -> None:
    values = NEXT.clone()
    values[2] = torch.nan
    assert _flat(bootstrapped_returns(REWARDS, values, _at(2), NEVER, 0.5)) == [3, 4, 4, 28.5, 41]
