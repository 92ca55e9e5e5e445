"""Gradients limited per robot."""

from __future__ import annotations

import pytest
import torch

from npmp.learning.rl.optimization import bounded_gradient


def test_a_large_gradient_is_limited_to_five_medians() -> None:
    values = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]], requires_grad=True)
    output = bounded_gradient(values)
    torch.testing.assert_close(output, values, rtol=0.0, atol=0.0)
    # gradients of length 1, 2 and 5000: the median is 2
    output.backward(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3000.0, 4000.0]]))
    expected = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.6 * 10.0, 0.8 * 10.0]])
    torch.testing.assert_close(values.grad, expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_non_finite_gradient_is_zeroed(bad: float) -> None:
    values = torch.zeros(3, 2, requires_grad=True)
    bounded_gradient(values).backward(torch.tensor([[1.0, 0.0], [bad, 1.0], [0.0, 0.0]]))
    torch.testing.assert_close(values.grad, torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))
