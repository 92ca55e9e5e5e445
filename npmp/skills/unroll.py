"""An LSTM over time: from a stored state, reset inside the sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LSTMState = tuple[Tensor, Tensor]


def unroll_lstm(
    cell: nn.LSTMCell, inputs: Tensor, state: LSTMState, resets: Tensor
) -> tuple[Tensor, LSTMState]:
    """Run an nn.LSTMCell over T steps of B sequences; no state is held.

    Args:
      cell: one step; on two cores its fused step beats one product of the inputs of all steps.
      inputs: [T, B, F]. state: (h, c) before step 0, each [B, H].
      resets: [T, B] bool, the step is an episode's first: the state that arrives is replaced by
        zeros before the cell sees the input.

    Returns: h of every step [T, B, H], and (h, c) after the last.
    """
    # a reset state is zero, so a product will do
    keep = (~resets).unsqueeze(-1).to(inputs.dtype)
    h, c = state
    outputs = []
    for t in range(len(resets)):
        h, c = cell(inputs[t], (h * keep[t], c * keep[t]))
        outputs.append(h)
    return torch.stack(outputs), (h, c)
