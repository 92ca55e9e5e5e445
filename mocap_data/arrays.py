"""Array types, read-only arrays, and checks of their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

# [Hz] of any motion; files have the narrower range of `readers.common`
RATES_HZ = (0.01, 1e6)
# [m], [rad] of a coordinate; 32 bits have steps of 8 mm there
LARGEST = 1e5


def read_only(values: Any, *, shape: str, label: str) -> Array:
    """`values` as a finite, read-only, C-contiguous float64 array, copied unless they are one.

    shape: e.g. "(T, M, 3)"; entries that are numbers are required sizes. label: the array's name in
    an error.

    Raises:
      InputError: no numbers, another shape, no frames, or a value that is not finite.
    """
    try:
        array = np.asarray(values, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(f"{label}: expected numbers {shape} ({error})") from None
    expected = [entry.strip() for entry in shape.strip("()").split(",") if entry.strip()]
    if array.ndim != len(expected) or any(
        entry.isdigit() and int(entry) != size for entry, size in zip(expected, array.shape)
    ):
        raise InputError(f"{label} has shape {array.shape}, expected {shape}")
    if array.shape[0] == 0:
        raise InputError(f"{label} has no frames")
    finite = np.isfinite(array)
    if not finite.all():
        frame = int(np.argwhere(~finite)[0, 0])
        raise InputError(f"{label} has a value that is not finite at frame {frame} of {len(array)}")
    if array.flags.writeable or array.base is not None:
        # a read-only view can change through its base
        array = array.copy()
        array.flags.writeable = False
    return array


def unit(vectors: Array) -> Array:
    """Vectors (..., C) of length 1; zero stays zero."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-9))


def unique(names: Sequence[object], label: str) -> tuple[str, ...]:
    """`names` as a tuple of texts. Raises InputError for a repeated one."""
    texts = tuple(str(name) for name in names)
    repeated = sorted({name for name in texts if texts.count(name) > 1})
    if repeated:
        raise InputError(f"{label} name {repeated[0]!r} appears more than once")
    return texts


def set_fields(instance: object, **values: Any) -> None:
    """Set fields of a frozen dataclass, in its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def require_rate(rate_hz: float, label: str) -> float:
    """The rate [Hz]. Raises InputError outside of RATES_HZ, or for nan."""
    low, high = RATES_HZ
    if low <= rate_hz <= high:
        return float(rate_hz)
    raise InputError(f"{label} rate {rate_hz:g} Hz, expected {low:g} to {high:,.0f}")


def require_moderate(values: Array, label: str) -> None:
    """Raise InputError for coordinates (T, ...) [m] or [rad] beyond LARGEST, with the frame."""
    if max(values.max(initial=0.0), -values.min(initial=0.0)) <= LARGEST:
        return
    frame = int(np.argwhere(np.abs(values) > LARGEST)[0, 0])
    worst = float(np.abs(values[frame]).max())
    raise InputError(
        f"{label} is {worst:.3g} at frame {frame}, expected at most {LARGEST:,.0f} m or rad"
    )
