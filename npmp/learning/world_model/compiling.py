"""`torch.compile` for the small recursions that the learner differentiates through, and what
happens where it cannot work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from npmp.core.tree import map_tree


def compiled(step: Callable[..., Any], wanted: bool) -> Callable[..., Any]:
    """One step of a recursion, a function of tensors of fixed shapes, compiled at its first call
    where that is wanted.

    Compiling needs a C++ compiler at run time. Where there is none, or it fails, one line on stderr
    says so and the step stays as it is: the same numbers up to rounding, slower. The backward pass
    is compiled at its first use, in the caller's `backward()`; so the first call with
    gradients tries both ways once, and throws the result away. Shapes that come later are compiled
    anew: of these, a failure is met in the forward pass only.

    step: its first argument is what it carries from one call to the next, a tree of tensors.
    """
    if not wanted:
        return step
    fast: Callable[..., Any] | None = torch.compile(step, dynamic=False)
    tried = False

    def call(carry: Any, *inputs: Any) -> Any:
        nonlocal fast, tried
        if fast is None:
            return step(carry, *inputs)
        # where a recursion starts, no gradient is needed: that would be a step of its own to
        # compile
        carry = map_tree(_tracked, carry)
        try:
            if not tried and torch.is_grad_enabled():
                _try_both_ways(fast, carry, inputs)
                tried = True
            return fast(carry, *inputs)
        except _failures() as error:
            fast = None
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            print(
                "npmp: torch.compile does not work here, the run goes on without, slower: "
                f"{reason}",
                file=sys.stderr,
            )
            return step(carry, *inputs)

    return call


def _try_both_ways(step: Callable[..., Any], carry: Any, inputs: tuple[Any, ...]) -> None:
    """Call a step and go back through it to what it carries; no parameter's gradient changes."""
    outputs = [
        leaf
        for leaf in pytree.tree_leaves(step(carry, *inputs))
        if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    if outputs:
        total = torch.stack([output.sum() for output in outputs]).sum()
        carried = [leaf for leaf in pytree.tree_leaves(carry) if leaf.requires_grad]
        torch.autograd.grad(total, carried, allow_unused=True)


def _failures() -> tuple[type[Exception], ...]:
    """What says that compiling failed: torch's errors of tracing and of making code, and the
    system's of disk and compiler."""
    import torch._inductor.exc as inductor

    kinds = (kind for kind in vars(inductor).values() if isinstance(kind, type))
    own = (kind for kind in kinds if issubclass(kind, Exception))
    return (torch._dynamo.exc.TorchDynamoException, OSError, *own)


def _tracked(value: Tensor) -> Tensor:
    tracked = value.requires_grad or not value.is_floating_point()
    if tracked or not torch.is_grad_enabled():
        return value
    return value.detach().requires_grad_()
