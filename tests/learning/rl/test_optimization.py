"""Gradients limited per robot, and updates that are skipped."""

from __future__ import annotations

import pytest
import torch

from npmp.learning.rl import optimization
from npmp.learning.rl.optimization import bounded_gradient, descend


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


def test_a_gradient_that_is_not_finite_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the gradient is zeroed, without asking for the norm. Adam's first step is of the
    length of the learning rate, in whichever direction."""
    for asynchronous in (False, True):
        monkeypatch.setattr(optimization, "is_asynchronous", lambda device, a=asynchronous: a)
        weight = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.Adam([weight], lr=0.1)
        norm = descend((weight * torch.tensor([3.0, torch.nan])).sum(), optimizer, 1.0)
        assert not norm.isfinite()
        assert weight.tolist() == [1.0, 1.0]
        # of a new one, as Adam counts the step with a zero gradient
        optimizer = torch.optim.Adam([weight], lr=0.1)
        norm = descend((weight * torch.tensor([3.0, -4.0])).sum(), optimizer, 1.0)
        assert norm.item() == pytest.approx(5.0)
        torch.testing.assert_close(weight.detach(), torch.tensor([0.9, 1.1]))
