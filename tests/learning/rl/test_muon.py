"""Muon against torch's, in bfloat16, and by singular values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from npmp.learning.rl.muon import MATRIX_RATE, Muon, orthogonalized


@pytest.mark.parametrize("shape", [(8, 8), (3, 5, 20), (40, 6)])
def test_singular_values_become_about_one_and_their_vectors_stay(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(shape, dtype=torch.float64)
    u, s, vh = torch.linalg.svd(matrices, full_matrices=False)
    # the iteration multiplies small singular values by 3.4^5 = 480 at most
    s = s.clamp(min=0.02 * s.norm(dim=-1, keepdim=True).amax())
    result = orthogonalized(u @ torch.diag_embed(s) @ vh)
    inner = u.mT @ result @ vh.mT
    values = torch.diagonal(inner, dim1=-2, dim2=-1)
    assert values.min() > 0.65 and values.max() < 1.25
    torch.testing.assert_close(inner, torch.diag_embed(values), atol=1e-9, rtol=0.0)


def test_a_hidden_matrix_moves_as_by_torch_and_a_bias_as_by_adam() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 12)
    reference = layer.weight.detach().clone().requires_grad_(True)
    bias = layer.bias.detach().clone().requires_grad_(True)
    own = Muon(layer)
    own.param_groups[0]["lr"] = 1e-3
    by_torch = torch.optim.Muon([reference], lr=1e-3 * MATRIX_RATE, weight_decay=0.0)
    adam = torch.optim.Adam([bias], lr=1e-3)
    for _ in range(3):
        layer.weight.grad = torch.randn(12, 6)
        layer.bias.grad = torch.randn(12)
        reference.grad = layer.weight.grad.clone()
        bias.grad = layer.bias.grad.clone()
        for optimizer in (own, by_torch, adam):
            optimizer.step()
    # torch iterates in bfloat16, of 8 bits: each step of size 0.03 is off by up to some percent
    torch.testing.assert_close(layer.weight, reference, atol=3 * 0.03 * 0.05, rtol=0.0)
    torch.testing.assert_close(layer.bias, bias)


def test_the_last_layer_moves_by_adam_and_the_gates_of_an_lstm_apart() -> None:
    torch.manual_seed(0)
    cell = nn.LSTMCell(4, 4)
    head = nn.Linear(4, 2)
    network = nn.ModuleDict({"cell": cell, "head": head})
    optimizer = Muon(network)
    optimizer.param_groups[0]["lr"] = 1e-3
    before = cell.weight_hh.detach().clone()
    last = head.weight.detach().clone()
    for weight in network.parameters():
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    # Adam's first step is the learning rate, whatever the gradient
    torch.testing.assert_close((head.weight - last).abs(), torch.full((2, 4), 1e-3))
    for gate in ((before - cell.weight_hh) / (1e-3 * MATRIX_RATE)).chunk(4):
        values = torch.linalg.svdvals(gate)
        assert values.min() > 0.3 and values.max() < 1.25


def test_weights_without_a_gradient_stay() -> None:
    layer = nn.Linear(2, 2)
    before = layer.weight.detach().clone()
    Muon(layer).step()
    assert torch.equal(layer.weight, before)
