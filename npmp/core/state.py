"""A trainer's state as named tensors: its parts are listed once, and that list both packs and
unpacks them.

    parts = {"skill": module, "optimizer": optimizer, "env": env, "z": z, "generator": generator}
    tensors = pack(parts)                  # {"skill.encoder...": ..., "optimizer.0.exp_avg": ...,
    "z": ..., ...} unpack(parts, tensors)                 # everything as it was when packed

A part is one of: a tensor (restored in place), a torch.Generator, an optimizer (its moments;
learning rates belong to schedules), a mapping or named tuple of parts, or anything with state_dict
and load_state_dict. Numbers that a trainer counts are an object's attributes: `Numbers(trainer,
"iteration_count", "env_steps")`.
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
class HasState(Protocol):
    """What keeps its own state: networks, environments, learners, a replay."""

    def state_dict(self) -> Mapping[str, Tensor]:
        """Named tensors."""

    def load_state_dict(self, state: Any) -> Any:
        """The inverse."""


class Numbers:
    """Attributes of an object that are Python numbers, as one tensor: whole numbers, or with a
    float among them all of them as float64."""

    def __init__(self, owner: object, *names: str):
        self.owner = owner
        self.names = names

    def tensor(self) -> Tensor:
        """Their values now."""
        values = [getattr(self.owner, name) for name in self.names]
        kind = torch.float64 if any(isinstance(value, float) for value in values) else torch.int64
        return torch.tensor(values if len(values) > 1 else values[0], dtype=kind)

    def take(self, tensor: Tensor) -> None:
        """Set them. Raises ValueError for another number of them."""
        if tensor.shape != self.tensor().shape:
            raise ValueError(f"{list(tensor.shape)} numbers are not {', '.join(self.names)}")
        for name, value in zip(self.names, tensor.reshape(-1).tolist(), strict=True):
            setattr(self.owner, name, type(getattr(self.owner, name))(value))


Part = (
    Tensor
    | torch.Generator
    | torch.optim.Optimizer
    | Numbers
    | HasState
    | Mapping[str, Any]
    | tuple[Any, ...]
)


def _flat(parts: Mapping[str, Part]) -> dict[str, Any]:
    """The parts by dotted names, those of mappings and tuples each by itself."""
    flat: dict[str, Any] = {}
    for name, part in parts.items():
        inner: Any = {} if part is None else part  # an empty tree
        if isinstance(inner, tuple):
            inner = dict(zip(getattr(inner, "_fields", map(str, range(len(inner)))), inner))
        flat |= prefixed(name, _flat(inner)) if isinstance(inner, Mapping) else {name: part}
    return flat


def pack(parts: Mapping[str, Part]) -> dict[str, Tensor]:
    """The tensors of all parts by name. They may share memory with the parts, as those of
    `state_dict` do.

    Raises:
      TypeError: for a part of no known kind.
    """
    packed: dict[str, Tensor] = {}
    for name, part in _flat(parts).items():
        if isinstance(part, Tensor):
            packed[name] = part
        elif isinstance(part, torch.Generator):
            packed[name] = part.get_state()
        elif isinstance(part, Numbers):
            packed[name] = part.tensor()
        elif isinstance(part, torch.optim.Optimizer):
            packed |= prefixed(name, optimizer_tensors(part))
        elif isinstance(part, HasState):
            packed |= prefixed(name, part.state_dict())
        else:
            raise TypeError(f"{name}: a {type(part).__name__} is no part of a state")
    return packed


def unpack(parts: Mapping[str, Part], tensors: Mapping[str, Tensor]) -> None:
    """Give every part its tensors, in place, on the devices where the parts are.

    Tensors that no part asks for are left alone. What has no memory of its own yet, such as an
    expanded view, must not be a part: it is written to.

    Raises:
      InputError: for an entry that is absent, or of another shape or kind than its part's.
    """
    flat = _flat(parts)
    with restoring():
        # checks before anything is changed
        for name, part in flat.items():
            if isinstance(part, Tensor | torch.Generator | Numbers) and name not in tensors:
                raise KeyError(f"it has no {name}")
            if not isinstance(part, Tensor):
                continue
            stored = tensors[name]
            if stored.shape != part.shape or stored.dtype != part.dtype:
                raise ValueError(
                    f"{name} is {stored.dtype} {list(stored.shape)} there, and {part.dtype} "
                    f"{list(part.shape)} here"
                )
        for name, part in flat.items():
            if isinstance(part, Tensor):
                with torch.no_grad():
                    part.copy_(tensors[name])
            elif isinstance(part, torch.Generator):
                part.set_state(tensors[name])
            elif isinstance(part, Numbers):
                part.take(tensors[name])
            elif isinstance(part, torch.optim.Optimizer):
                load_optimizer_tensors(part, under(name, tensors))
            else:
                part.load_state_dict(under(name, tensors))


class Resumable:
    """What lists its parts, and can be kept and continued by that list."""

    def _parts(self) -> Mapping[str, Part]:
        raise TypeError(f"{type(self).__name__} lists no parts")

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the rest of the run depends on: a resumed run equals an uninterrupted
        one."""
        return pack(self._parts())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
          InputError: when it belongs to a run with other networks or numbers of robots.
        """
        unpack(self._parts(), state)
