"""A trainer's state as named tensors, packed and unpacked by one list of its parts.

    parts = {"skill": module, "optimizer": optimizer, "env": env, "z": z, "generator": generator}
    tensors = pack(parts)    # {"skill.encoder...": ..., "optimizer.0.exp_avg": ..., "z": ..., ...}
    unpack(parts, tensors)

A part is a tensor (restored in place), a torch.Generator, an optimizer (its moments; schedules set
learning rates), a mapping or named tuple of parts, or an object with state_dict and
load_state_dict. Counters of a trainer are attributes: `Counters(trainer, "iteration_count",
"env_steps")`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from npmp.core.checkpoint import (
    load_optimizer_tensors,
    optimizer_tensors,
    prefixed,
    restoring,
    under,
)


@runtime_checkable
class Stateful(Protocol):
    """Networks, environments, learners, replay buffers: objects with a state."""

    def state_dict(self) -> Mapping[str, Tensor]:
        """Named tensors."""

    def load_state_dict(self, state: Any) -> Any:
        """The inverse."""


class Counters:
    """Attributes of an object that are Python numbers, as one tensor: int64, or float64 if one of
    them is a float."""

    def __init__(self, owner: object, *names: str):
        self.owner = owner
        self.names = names

    def tensor(self) -> Tensor:
        """Their present values."""
        values = [getattr(self.owner, name) for name in self.names]
        kind = torch.float64 if any(isinstance(value, float) for value in values) else torch.int64
        return torch.tensor(values if len(values) > 1 else values[0], dtype=kind)

    def load(self, tensor: Tensor) -> None:
        """Set them. Raises ValueError for another shape."""
        if tensor.shape != self.tensor().shape:
            raise ValueError(f"{list(tensor.shape)} numbers, expected {', '.join(self.names)}")
        for name, value in zip(self.names, tensor.reshape(-1).tolist(), strict=True):
            setattr(self.owner, name, type(getattr(self.owner, name))(value))


StatePart = (
    Tensor
    | torch.Generator
    | torch.optim.Optimizer
    | Counters
    | Stateful
    | Mapping[str, Any]
    | tuple[Any, ...]
)


def _flat(parts: Mapping[str, StatePart]) -> dict[str, Any]:
    """The parts by dotted names, without mappings and tuples."""
    flat: dict[str, Any] = {}
    for name, part in parts.items():
        # None is an empty tree
        inner: Any = {} if part is None else part
        if isinstance(inner, tuple):
            inner = dict(zip(getattr(inner, "_fields", map(str, range(len(inner)))), inner))
        flat |= prefixed(name, _flat(inner)) if isinstance(inner, Mapping) else {name: part}
    return flat


def pack(parts: Mapping[str, StatePart]) -> dict[str, Tensor]:
    """The tensors of all parts by name, which may share memory with the parts.

    Raises:
      TypeError: for a part of another type.
    """
    packed: dict[str, Tensor] = {}
    for name, part in _flat(parts).items():
        if isinstance(part, Tensor):
            packed[name] = part
        elif isinstance(part, torch.Generator):
            packed[name] = part.get_state()
        elif isinstance(part, Counters):
            packed[name] = part.tensor()
        elif isinstance(part, torch.optim.Optimizer):
            packed |= prefixed(name, optimizer_tensors(part))
        elif isinstance(part, Stateful):
            packed |= prefixed(name, part.state_dict())
        else:
            raise TypeError(f"{name}: a {type(part).__name__} has no state")
    return packed


def unpack(parts: Mapping[str, StatePart], tensors: Mapping[str, Tensor]) -> None:
    """Load the tensors into the parts, in place and on the parts' devices.

    Other tensors are ignored. A part must not be an expanded view, as it is written to.

    Raises:
      InputError: for an entry that is missing, or of another shape or type than its part.
    """
    flat = _flat(parts)
    with restoring():
        # checks before anything is changed
        for name, part in flat.items():
            if isinstance(part, Tensor | torch.Generator | Counters) and name not in tensors:
                raise ValueError(f"{name} is missing")
            if not isinstance(part, Tensor):
                continue
            stored = tensors[name]
            if stored.shape != part.shape or stored.dtype != part.dtype:
                raise ValueError(
                    f"{name} is {stored.dtype} {list(stored.shape)}, expected {part.dtype} "
                    f"{list(part.shape)}"
                )
        for name, part in flat.items():
            if isinstance(part, Tensor):
                with torch.no_grad():
                    part.copy_(tensors[name])
            elif isinstance(part, torch.Generator):
                part.set_state(tensors[name])
            elif isinstance(part, Counters):
                part.load(tensors[name])
            elif isinstance(part, torch.optim.Optimizer):
                load_optimizer_tensors(part, under(name, tensors))
            else:
                part.load_state_dict(under(name, tensors))


class Resumable:
    """An object whose state is a list of parts."""

    def _parts(self) -> Mapping[str, StatePart]:
        raise TypeError(f"{type(self).__name__} lists no parts")

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state: a resumed run equals an uninterrupted one."""
        return pack(self._parts())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a `state_dict`.

        Raises:
          InputError: for a run with other networks or numbers of robots.
        """
        unpack(self._parts(), state)
