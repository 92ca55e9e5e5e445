"""Unrolls equal their step-by-step runs, across resets and from any stored state."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from npmp.rl.unroll import reset_state, unroll, unroll_lstm
from npmp.tree import leaves, map_tree, stack_trees

T, B, F, H = 9, 4, 3, 5


def _case(seed: int) -> tuple[nn.LSTMCell, Tensor, tuple[Tensor, Tensor], Tensor]:
    torch.manual_seed(seed)
    cell = nn.LSTMCell(F, H)
    state = (torch.randn(B, H), torch.randn(B, H))
    resets = torch.rand(T, B) < 0.25
    resets[4, 1] = True  # a reset inside, whatever the seed
    return cell, torch.randn(T, B, F), state, resets


def _lstm_step(cell: nn.LSTMCell):
    def step(x: Tensor, state: tuple[Tensor, Tensor]):
        h, c = cell(x, state)
        return h, (h, c)

    return step


def test_unroll_counts_steps_since_the_reset():
    # The cell adds its input. Inputs 1 from state 10: 11, 12, then a reset at t = 2: 1, 2.
    # The second sequence resets at t = 0: the stored state is dropped before the first input: 1, 2,
    # 3, 4.
    resets = torch.tensor([[False, True], [False, False], [True, False], [False, False]])
    outputs, state = unroll(
        lambda x, s: (s + x, s + x), torch.ones(4, 2), torch.full((2,), 10.0), resets
    )
    assert outputs.tolist() == [[11, 1], [12, 2], [1, 3], [2, 4]]
    assert state.tolist() == [2, 4]


@pytest.mark.parametrize("seed", range(5))
def test_unroll_equals_its_step_by_step_run(seed):
    cell, inputs, state, resets = _case(seed)
    whole, whole_state = unroll(_lstm_step(cell), inputs, state, resets)
    outputs = []
    for t in range(T):
        output, state = unroll(_lstm_step(cell), inputs[t : t + 1], state, resets[t : t + 1])
        outputs.append(output)
    assert torch.equal(whole, torch.cat(outputs))
    assert all(torch.equal(a, b) for a, b in zip(whole_state, state, strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_unroll_lstm_equals_unroll_of_the_cell_and_its_own_steps(seed):
    cell, inputs, state, resets = _case(seed)
    reference, reference_state = unroll(_lstm_step(cell), inputs, state, resets)
    whole, whole_state = unroll_lstm(cell, inputs, state, resets)
    torch.testing.assert_close(whole, reference)
    torch.testing.assert_close(whole_state, reference_state)

    outputs = []
    for t in range(T):
        output, state = unroll_lstm(cell, inputs[t : t + 1], state, resets[t : t + 1])
        outputs.append(output)
    assert torch.equal(whole, torch.cat(outputs))
    assert all(torch.equal(a, b) for a, b in zip(whole_state, state, strict=True))


def test_unroll_lstm_equals_torch_lstm_between_resets():
    # Two episodes in one unroll are two separate runs of nn.LSTM: the stored state, then zeros.
    cell, inputs, state, _ = _case(7)
    resets = torch.zeros(T, B, dtype=torch.bool)
    resets[4] = True
    lstm = nn.LSTM(F, H)
    lstm.load_state_dict({f"{name}_l0": tensor for name, tensor in cell.state_dict().items()})
    first, _ = lstm(inputs[:4], (state[0][None], state[1][None]))
    second, _ = lstm(inputs[4:])
    torch.testing.assert_close(
        unroll_lstm(cell, inputs, state, resets)[0], torch.cat([first, second])
    )


def test_no_gradient_crosses_a_reset():
    cell, inputs, state, _ = _case(3)
    resets = torch.zeros(T, B, dtype=torch.bool)
    resets[4] = True
    inputs.requires_grad_(True)
    outputs, _ = unroll_lstm(cell, inputs, state, resets)
    (gradient,) = torch.autograd.grad(outputs[4:].sum(), inputs)
    assert torch.all(gradient[:4] == 0)
    assert torch.all(gradient[4:].abs().sum((0, 2)) > 0)


class _Pair(NamedTuple):
    a: Tensor
    b: Tensor


@dataclasses.dataclass(frozen=True)
class _State:
    pair: _Pair
    named: dict[str, Tensor]


def test_states_may_be_nested():
    state = _State(_Pair(torch.ones(2, 3), torch.ones(2)), {"x": torch.ones(2, 1, 4)})
    reset = reset_state(state, torch.tensor([True, False]))
    assert isinstance(reset, _State) and isinstance(reset.pair, _Pair)
    for leaf in leaves(reset):
        assert torch.all(leaf[0] == 0) and torch.all(leaf[1] == 1)
    stacked = stack_trees([state, reset])
    assert [list(leaf.shape) for leaf in leaves(stacked)] == [[2, 2, 3], [2, 2], [2, 2, 1, 4]]
    with pytest.raises(TypeError, match="not str"):
        map_tree(torch.neg, {"x": "text"})


def test_shapes_are_checked():
    cell, inputs, state, resets = _case(0)
    with pytest.raises(ValueError, match="resets"):
        unroll_lstm(cell, inputs, state, resets[:-1])
    with pytest.raises(ValueError, match="bool"):
        unroll(_lstm_step(cell), inputs, state, resets.float())
    with pytest.raises(ValueError, match="T >= 1"):
        unroll(_lstm_step(cell), inputs[:0], state, resets[:0])
