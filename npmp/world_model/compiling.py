"""`torch.compile` for the small recursions that the learner differentiates through, and what happens where it cannot work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def compiled(step: Callable[..., Any], wanted: bool) -> Callable[..., Any]:
    """One step of a recursion, a function of tensors of fixed shapes, compiled at its first call where that is wanted.

    Compiling needs a C++ compiler at run time. Where there is none, or it fails, one line on stderr says so and the step stays
    as it is: the same numbers up to rounding, slower.

    step: its first argument is what it carries from one call to the next, a tensor or a named tuple of them.
    """
    if not wanted:
        return step
    fast: Callable[..., Any] | None = torch.compile(step, dynamic=False)

    def call(carry: Any, *inputs: Any) -> Any:
        nonlocal fast
        if fast is None:
            return step(carry, *inputs)
        # where a recursion starts, no gradient is asked for: that would be a step of its own to compile
        carry = _tracked(carry) if isinstance(carry, Tensor) else type(carry)(*map(_tracked, carry))
        try:
            return fast(carry, *inputs)
        except torch._dynamo.exc.TorchDynamoException as error:
            fast = None
            reason = str(error).strip().splitlines()[0]
            print(f"npmp: torch.compile does not work here, the run goes on without, slower: {reason}", file=sys.stderr)
            return step(carry, *inputs)

    return call


def _tracked(value: Tensor) -> Tensor:
    if value.requires_grad or not torch.is_grad_enabled():
        return value
    return value.detach().requires_grad_()
