"""`torch.compile` for one step of a recursion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.core.tree import map_tree


def compiled(step: Callable[..., Any], enabled: bool) -> Callable[..., Any]:
    """The step, if enabled compiled at its first call for tensors of fixed shapes.

    step: its first argument is the carry of the recursion, a tree of tensors.

    Raises:
      InputError: at the first call, if compilation fails; it needs a C++ compiler.
    """
    if not enabled:
        return step
    # for the compiler, which set_deterministic_debug_mode does not reach
    torch.use_deterministic_algorithms(
        torch.are_deterministic_algorithms_enabled(),
        warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    compiled_step = torch.compile(step, dynamic=False)

    def call(carry: Any, *inputs: Any) -> Any:
        try:
            return compiled_step(map_tree(_require_grad, carry), *inputs)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"algo.compile=true: torch.compile failed: {reason}") from error

    return call


def _require_grad(value: Tensor) -> Tensor:
    """The first carry of a recursion needs no gradient, which would compile a step of its own."""
    tracked = value.requires_grad or not value.is_floating_point()
    if tracked or not torch.is_grad_enabled():
        return value
    return value.detach().requires_grad_()
