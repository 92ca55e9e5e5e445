"""The array type of this package, and arrays that nobody can change behind our back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError

Array = NDArray[np.float64]


def read_only(values: Any, *, shape: str, what: str) -> Array:
    """`values` as a read-only, C-contiguous float64 array.

    Copies unless `values` already is one, so that freezing it never freezes the caller's own array.

    shape: the expected shape as it shall stand in an error, e.g. "(T, M, 3)": its number of entries
    is
        the number of dimensions, and entries that are numbers are required sizes.
    what: how to call the array in an error.

    Raises:
      InputError: for values that are not numbers, a wrong shape, or an entry that is not finite
        (naming the first frame, i.e. the first index, that has one).
    """
    try:
        array = np.asarray(values, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must be an array {shape} of numbers: {error}") from None
    expected = [entry.strip() for entry in shape.strip("()").split(",") if entry.strip()]
    fits = array.ndim == len(expected) and all(
        not entry.isdigit() or int(entry) == size
        for entry, size in zip(expected, array.shape, strict=True)
    )
    if not fits:
        raise InputError(f"{what} has shape {array.shape}, expected {shape}")
    if array.shape[0] == 0:
        raise InputError(f"{what} has no frames")
    finite = np.isfinite(array)
    if not finite.all():
        frame = int(np.argwhere(~finite)[0, 0])
        raise InputError(
            f"{what} has a value that is not finite at frame {frame} of {array.shape[0]}"
        )
    if array.flags.writeable or array.base is not None:
        array = array.copy()  # a read-only view could still change through its base
        array.flags.writeable = False
    return array
