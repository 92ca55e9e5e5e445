"""What would make the host wait for a GPU, written so that it does not.

A CPU has nothing to wait for: there the branches that save work stay.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def is_asynchronous(device: torch.device) -> bool:
    """Whether asking for a value on this device waits until all work before it is done."""
    return device.type != "cpu"


def may_have_any(mask: Tensor) -> bool:
    """Whether any of mask is true; True on an asynchronous device, where asking would wait."""
    return is_asynchronous(mask.device) or bool(mask.any())


def rows_of(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Row indices (k,) with all rows where mask (n,) is true, and whether each is one, (k,) bool.

    On an asynchronous device k is n, as the number of rows is not known without waiting.
    """
    if is_asynchronous(mask.device):
        return torch.arange(len(mask), device=mask.device), mask
    ids = torch.nonzero(mask).squeeze(-1)
    return ids, torch.ones_like(ids, dtype=torch.bool)


def constant(
    values: Sequence[float] | Sequence[Sequence[float]],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Numbers as a tensor that is copied to the device once. Read only."""
    rows = tuple(tuple(row) if isinstance(row, Sequence) else row for row in values)
    return _constant(rows, device, dtype)


@functools.lru_cache(maxsize=256)
def _constant(values: tuple[Any, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    # usable for gradients also where inference asks first
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)
