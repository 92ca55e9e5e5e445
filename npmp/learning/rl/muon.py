"""Muon: orthogonalized momentum for hidden matrices, Adam for the other weights.

Jordan et al. 2024, kellerjordan.github.io/posts/muon. torch.optim.Muon iterates in bfloat16, which
processors without it emulate twenty times slower than the float32 of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

# learning rate of the matrices over the one of the other weights [D]
MATRIX_RATE = 30.0
MOMENTUM = 0.95
BETAS = (0.9, 0.999)
EPS = 1e-8
# coefficients and number of Newton-Schulz iterations (Jordan et al. 2024)
QUINTIC = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
GATES = 4  # of an LSTM, stacked in its matrices


class Muon(torch.optim.Optimizer):
    """Muon for the hidden matrices of a network, Adam for its biases, gains and last layers.

    Both follow the learning rate of the first group, the matrices times `MATRIX_RATE`.
    """

    def __init__(self, network: nn.Module, last: Iterable[nn.Module] = ()):
        """last: more last layers than those named `head`."""
        heads = {module for name, module in network.named_modules() if name.endswith("head")}
        heads |= set(last)
        matrices = []
        others = []
        # blocks of each matrix that are orthogonalized on their own
        self.blocks: list[int] = []
        for module in network.modules():
            for weight in module.parameters(recurse=False):
                hidden = isinstance(module, nn.Linear | nn.LSTMCell) and weight.dim() == 2
                if hidden and module not in heads:
                    matrices.append(weight)
                    self.blocks.append(GATES if isinstance(module, nn.LSTMCell) else 1)
                else:
                    others.append(weight)
        super().__init__([{"params": matrices}, {"params": others}], {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move the weights by their gradients; those without a gradient stay."""
        matrices, others = self.param_groups
        lr = matrices["lr"]
        for weight, blocks in zip(matrices["params"], self.blocks, strict=True):
            if weight.grad is not None:
                self._step_matrix(weight, blocks, lr * MATRIX_RATE)
        self._step_others([weight for weight in others["params"] if weight.grad is not None], lr)

    def _step_matrix(self, weight: Tensor, blocks: int, lr: float) -> None:
        gradient = weight.grad
        assert gradient is not None
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        momentum = state["momentum"].lerp_(gradient, 1.0 - MOMENTUM)
        # Nesterov
        update = gradient.lerp(momentum, MOMENTUM)
        update = update.view(blocks, -1, update.shape[1])
        rows, columns = update.shape[1:]
        scale = max(1.0, rows / columns) ** 0.5
        weight.add_(orthogonalized(update).view_as(weight), alpha=-lr * scale)

    def _step_others(self, weights: list[Any], lr: float) -> None:
        for weight in weights:
            state = self.state[weight]
            if not state:
                state["step"] = torch.tensor(0.0)
                state["exp_avg"] = torch.zeros_like(weight)
                state["exp_avg_sq"] = torch.zeros_like(weight)
        states = [self.state[weight] for weight in weights]
        adam(
            weights,
            [weight.grad for weight in weights],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=lr,
            weight_decay=0.0,
            eps=EPS,
            maximize=False,
        )


def orthogonalized(matrices: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices, approximately: matrices (..., r, c) with singular
    values of 0.7 to 1.2, by a quintic Newton-Schulz iteration."""
    a, b, c = QUINTIC
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = matrices if wide else matrices.mT
    x = x / x.flatten(-2).norm(dim=-1)[..., None, None].clamp(min=1e-12)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * (square @ square)) @ x
    return x if wide else x.mT
