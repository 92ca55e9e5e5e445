"""Returns by hand, with failures and time-outs in the middle of the unroll."""

from __future__ import annotations

import pytest
import torch

from npmp.rl.returns import lambda_returns, n_step_returns

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


def test_truncation_in_the_middle_is_bootstrapped():
    # Cut at t = 2: G2 = 4 + 30/2 = 19; G1 = 2 + 19/2 = 11.5; G0 = 1 + 11.5/2 = 6.75
    # The end of the unroll: G4 = 16 + 50/2 = 41; G3 = 8 + 41/2 = 28.5
    assert _flat(n_step_returns(REWARDS, NEXT, NEVER, _at(2), 0.5)) == [6.75, 11.5, 19, 28.5, 41]


def test_termination_in_the_middle_is_not_bootstrapped():
    # G2 = 4; G1 = 2 + 4/2 = 4; G0 = 1 + 4/2 = 3; the rest as before
    assert _flat(n_step_returns(REWARDS, NEXT, _at(2), NEVER, 0.5)) == [3, 4, 4, 28.5, 41]


def test_two_steps():
    # Cut at t = 2. G0 = 1 + 2/2 + 20/4 = 7; G1 = 2 + 4/2 + 30/4 = 11.5; G2 = 4 + 30/2 = 19 (the
    # episode is over) G3 = 8 + 16/2 + 50/4 = 28.5; G4 = 16 + 50/2 = 41 (the unroll is over)
    assert _flat(n_step_returns(REWARDS, NEXT, NEVER, _at(2), 0.5, n=2)) == [7, 11.5, 19, 28.5, 41]
    # The same with a failure at 2: G1 = 2 + 4/2 = 4, G2 = 4
    assert _flat(n_step_returns(REWARDS, NEXT, _at(2), NEVER, 0.5, n=2)) == [7, 4, 4, 28.5, 41]


def test_one_step():
    # r + V/2, without the value at the failure
    assert _flat(n_step_returns(REWARDS, NEXT, _at(1), _at(3), 0.5, n=1)) == [6, 2, 19, 28, 41]


def test_a_failure_at_the_time_limit_is_a_failure():
    assert _flat(n_step_returns(REWARDS, NEXT, _at(2), _at(2), 0.5)) == [3, 4, 4, 28.5, 41]


def test_lambda_by_hand():
    # lambda 1/2, cut at t = 2: G2 = 19; G1 = 2 + (20/2 + 19/2)/2 = 11.75; G0 = 1 + (10/2 +
    # 11.75/2)/2 = 6.4375 G4 = 41; G3 = 8 + (40/2 + 41/2)/2 = 28.25
    assert _flat(lambda_returns(REWARDS, NEXT, NEVER, _at(2), 0.5, 0.5)) == [
        6.4375,
        11.75,
        19,
        28.25,
        41,
    ]


def _random(seed: int, num_objectives: int = 3):
    g = torch.Generator().manual_seed(seed)
    shape = (12, 6, num_objectives)
    rewards, values = (torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(2))
    terminated, truncated = (torch.rand(shape[:2], generator=g) < 0.15 for _ in range(2))
    return rewards, values, terminated, truncated


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [1, 2, 5, 12, 99])
def test_n_step_equals_its_definition(seed, n):
    rewards, values, terminated, truncated = _random(seed)
    found = n_step_returns(rewards, values, terminated, truncated, 0.9, n)
    expected = torch.zeros_like(rewards)
    for t in range(12):
        for b in range(6):
            for m in range(min(n, 12 - t)):
                last = m == min(n, 12 - t) - 1 or bool(terminated[t + m, b] | truncated[t + m, b])
                expected[t, b] += 0.9**m * rewards[t + m, b]
                if last:
                    if not terminated[t + m, b]:
                        expected[t, b] += 0.9 ** (m + 1) * values[t + m, b]
                    break
    torch.testing.assert_close(found, expected)


def test_ends_of_the_lambda_family():
    case = _random(0)
    torch.testing.assert_close(lambda_returns(*case, 0.9, 0.0), n_step_returns(*case, 0.9, 1))
    torch.testing.assert_close(lambda_returns(*case, 0.9, 1.0), n_step_returns(*case, 0.9, 12))


def test_objectives_are_independent_and_may_discount_differently():
    rewards, values, terminated, truncated = _random(1)
    gammas = torch.tensor([0.5, 0.9, 1.0], dtype=torch.float64)
    together = n_step_returns(rewards, values, terminated, truncated, gammas, 4)
    for k in range(3):
        alone = n_step_returns(
            rewards[..., k : k + 1],
            values[..., k : k + 1],
            terminated,
            truncated,
            gammas[k].item(),
            4,
        )
        torch.testing.assert_close(together[..., k : k + 1], alone)


def test_environments_are_independent():
    case = _random(2)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    shuffled = [array[:, order] for array in case]
    assert torch.equal(n_step_returns(*shuffled, 0.9, 3), n_step_returns(*case, 0.9, 3)[:, order])


def test_the_value_after_a_failure_may_be_anything():
    values = NEXT.clone()
    values[2] = torch.nan
    assert _flat(n_step_returns(REWARDS, values, _at(2), NEVER, 0.5)) == [3, 4, 4, 28.5, 41]


def test_shapes_and_ranges_are_checked():
    with pytest.raises(ValueError, match="next_values"):
        n_step_returns(REWARDS, NEXT[:-1], NEVER, NEVER, 0.5)
    with pytest.raises(ValueError, match="terminated must be bool"):
        n_step_returns(REWARDS, NEXT, NEVER.float(), NEVER, 0.5)
    with pytest.raises(ValueError, match="rewards"):
        n_step_returns(REWARDS[..., 0], NEXT[..., 0], NEVER, NEVER, 0.5)
    with pytest.raises(ValueError, match="n must"):
        n_step_returns(REWARDS, NEXT, NEVER, NEVER, 0.5, 0)
    with pytest.raises(ValueError, match="lambda"):
        lambda_returns(REWARDS, NEXT, NEVER, NEVER, 0.5, 1.5)
