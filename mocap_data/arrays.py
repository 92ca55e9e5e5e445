"""The array type of this package, and read-only arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


def read_only(values: Any, *, shape: str, what: str) -> Array:
    """`values` as a finite, read-only, C-contiguous float64 array, copied unless they are one.

    shape: as an error shows it, e.g. "(T, M, 3)"; entries that are numbers are required sizes.
    what: the array's name in an error.

    Raises:
      InputError: for no numbers, another shape, no frames, or a value that is not finite.
    """
    try:
        array = np.asarray(values, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must be an array {shape} of numbers: {error}") from None
    expected = [entry.strip() for entry in shape.strip("()").split(",") if entry.strip()]
    if array.ndim != len(expected) or any(
        entry.isdigit() and int(entry) != size for entry, size in zip(expected, array.shape)
    ):
        raise InputError(f"{what} has shape {array.shape}, expected {shape}")
    if array.shape[0] == 0:
        raise InputError(f"{what} has no frames")
    finite = np.isfinite(array)
    if not finite.all():
        frame, frames = int(np.argwhere(~finite)[0, 0]), len(array)
        raise InputError(f"{what} has a value that is not finite at frame {frame} of {frames}")
    if array.flags.writeable or array.base is not None:
        # a read-only view could still change through its base
        array = array.copy()
        array.flags.writeable = False
    return array


def set_fields(instance: object, **values: Any) -> None:
    """Set fields of a frozen dataclass in its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)
