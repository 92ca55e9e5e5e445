"""An LSTM's unroll equals its step-by-step run, across resets and from any stored state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from npmp.skills.unroll import unroll_lstm

T, B, F, H = 9, 4, 3, 5


def _case(seed: int) -> tuple[nn.LSTMCell, Tensor, tuple[Tensor, Tensor], Tensor]:
    torch.manual_seed(seed)
    cell = nn.LSTMCell(F, H)
    state = (torch.randn(B, H), torch.randn(B, H))
    resets = torch.rand(T, B) < 0.25
    resets[4, 1] = True  # a reset inside, whatever the seed
    return cell, torch.randn(T, B, F), state, resets


@pytest.mark.parametrize("seed", range(3))
def test_it_equals_its_steps_and_the_cell_s(seed: int) -> None:
    cell, inputs, (h, c), resets = _case(seed)
    whole, last = unroll_lstm(cell, inputs, (h, c), resets)
    state, steps, by_hand = (h, c), [], []
    for t in range(T):
        output, state = unroll_lstm(cell, inputs[t : t + 1], state, resets[t : t + 1])
        steps.append(output)
        begins = resets[t].unsqueeze(-1)
        h, c = cell(inputs[t], (h.masked_fill(begins, 0.0), c.masked_fill(begins, 0.0)))
        by_hand.append(h)
    assert torch.equal(whole, torch.cat(steps))
    assert all(torch.equal(a, b) for a, b in zip(last, state, strict=True))
    torch.testing.assert_close(whole, torch.stack(by_hand))
