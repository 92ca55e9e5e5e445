"""Gradients that no single robot rules."""

from __future__ import annotations

import pytest
import torch

from npmp.learning.rl.optimization import MAX_RATIO, bounded_gradient


def test_values_pass_and_a_runaway_gradient_is_shortened_to_five_medians() -> None:
    values = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]], requires_grad=True)
    passed = bounded_gradient(values)
    torch.testing.assert_close(passed, values, rtol=0.0, atol=0.0)
    # gradients of length 1, 2 and 5000: the median is 2
    passed.backward(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3000.0, 4000.0]]))
    expected = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.6 * 10.0, 0.8 * 10.0]])
    torch.testing.assert_close(values.grad, expected)


def test_gradients_of_like_size_are_left_alone() -> None:
    values = torch.ones(64, 3, 2, requires_grad=True)
    given = torch.rand((64, 3, 2), generator=torch.Generator().manual_seed(0)) + 0.5
    bounded_gradient(values).backward(given)
    torch.testing.assert_close(values.grad, given, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_robot_without_a_finite_gradient_counts_for_nothing(bad: float) -> None:
    values = torch.zeros(3, 2, requires_grad=True)
    bounded_gradient(values).backward(torch.tensor([[1.0, 0.0], [bad, 1.0], [0.0, 0.0]]))
    torch.testing.assert_close(values.grad, torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))


def test_what_nothing_depends_on_stays_without_a_gradient() -> None:
    values = torch.zeros(3, 2, requires_grad=True)
    bounded_gradient(values).backward(torch.zeros(3, 2))
    assert values.grad is not None and not values.grad.any()
    plain = torch.zeros(3, 2)
    assert bounded_gradient(plain) is plain


def test_a_chain_that_grows_every_step_stays_within_the_bound() -> None:
    """One robot's gradient grows by 10 a step, the others' by 1; after 20 steps it would be 10^20
    times theirs."""
    start = torch.ones(5, 1, requires_grad=True)
    growth, state = torch.tensor([[10.0], [1.0], [1.0], [1.0], [1.0]]), start
    for _ in range(20):
        state = bounded_gradient(state) * growth
    state.sum().backward()
    assert start.grad is not None
    torch.testing.assert_close(start.grad[1:], torch.ones(4, 1))
    assert start.grad[0].item() == pytest.approx(MAX_RATIO)
