"""Unrolling an LSTM over time, from a stored state and with resets inside the sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LSTMState = tuple[Tensor, Tensor]


def unroll_lstm(
    cell: nn.LSTMCell, inputs: Tensor, state: LSTMState, resets: Tensor
) -> tuple[Tensor, LSTMState]:
    """Run an nn.LSTMCell over T steps of B sequences.

    Args:
      cell: one step; on two cores faster than one product of the inputs of all steps.
      inputs: [T, B, F]. state: (h, c) before step 0, each [B, H].
      resets: [T, B] bool, the step is an episode's first: the state before it is set to zero.

    Returns: h of every step [T, B, H], and (h, c) after the last.
    """
    keep = (~resets).unsqueeze(-1).to(inputs.dtype)
    h, c = state
    outputs = []
    for t in range(len(resets)):
        h, c = cell(inputs[t], (h * keep[t], c * keep[t]))
        outputs.append(h)
    return torch.stack(outputs), (h, c)
