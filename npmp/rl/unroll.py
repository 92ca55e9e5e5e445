"""Recurrent networks over time: start from a stored state, reset inside the sequence.

Legend: T steps, B parallel sequences, H units. A reset at step t means that step t is the first of
an episode: the state that arrives at t is replaced by the initial one BEFORE the cell sees the
input of step t. The functions hold no state, so a run over T steps equals T runs over one step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from npmp.tree import Tree, leaves, map_tree, stack_trees, where_tree

LSTMState = tuple[Tensor, Tensor]


def reset_state(state: Tree, resets: Tensor) -> Tree:
    """A state with leaves [B, ...], zero for the sequences whose `resets` [B] is true."""
    return where_tree(resets, map_tree(torch.zeros_like, state), state)


def unroll(
    cell: Callable[[Tree, Tree], tuple[Tree, Tree]], inputs: Tree, state: Tree, resets: Tensor
) -> tuple[Tree, Tree]:
    """Run `cell(input [B, ...], state) -> (output, state)` over time.

    Args:
        cell: one step; a pure function of its arguments.
        inputs: tree with leaves [T, B, ...].
        state: tree with leaves [B, ...], the state before step 0.
        resets: [T, B] bool, true at the first step of an episode, which starts from zeros.
    Returns:
        outputs with leaves [T, B, ...], and the state after step T - 1.
    Raises:
      ValueError: no step, or inputs that do not lead with the shape of `resets`.
    """
    _check_time_batch(inputs, resets)
    outputs = []
    for t in range(resets.shape[0]):
        state = reset_state(state, resets[t])
        output, state = cell(map_tree(lambda leaf, t=t: leaf[t], inputs), state)
        outputs.append(output)
    return stack_trees(outputs), state


def unroll_lstm(
    cell: nn.LSTMCell, inputs: Tensor, state: LSTMState, resets: Tensor
) -> tuple[Tensor, LSTMState]:
    """`unroll` of an nn.LSTMCell, whose fresh state is zero.

    Args:
        cell: one step. On two cores its fused step beats one matrix product of the inputs of all
          steps.
        inputs: [T, B, F]. state: (h, c), each [B, H]. resets: [T, B] bool.
    Returns:
        h of every step [T, B, H], and (h, c) after the last.
    Raises:
      ValueError: no step, or inputs that do not lead with the shape of `resets`.
    """
    _check_time_batch(inputs, resets)
    # [T, B, 1]; a reset state is zero, so a product will do
    keep = (~resets).unsqueeze(-1).to(inputs.dtype)
    h, c = state
    outputs = []
    for t in range(resets.shape[0]):
        h, c = cell(inputs[t], (h * keep[t], c * keep[t]))
        outputs.append(h)
    return torch.stack(outputs), (h, c)


def _check_time_batch(inputs: Tree, resets: Tensor) -> None:
    if resets.dim() != 2 or resets.shape[0] == 0 or resets.dtype != torch.bool:
        raise ValueError(
            f"resets must be bool [T, B] with T >= 1, got {resets.dtype} {list(resets.shape)}"
        )
    for leaf in leaves(inputs):
        if leaf.shape[:2] != resets.shape:
            raise ValueError(
                f"inputs {list(leaf.shape)} must lead with the [T, B] of resets {list(resets.shape)}"
            )
