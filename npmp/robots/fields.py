"""Typed reading of what a robot.yaml holds.

Every complaint is one InputError that says where it is, what stands there and what could.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mocap_data.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def fields(
    value: Any, where: str, *, required: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, Any]:
    """A mapping with all required keys and no other but the optional ones."""
    allowed = (*required, *optional)
    if not isinstance(value, dict):
        raise InputError(
            f"{where}: expected a mapping with {', '.join(required)}; found {value!r:.40}"
        )
    for key in value:
        if key not in allowed:
            raise InputError(f"{where}: unknown key '{key}'; there are: {', '.join(allowed)}")
    for key in required:
        if key not in value:
            raise InputError(f"{where}: missing key '{key}'")
    return value


def mapping(value: Any, where: str) -> dict[str, Any]:
    """A mapping from names of the file's own choosing."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{where}: expected a mapping from names; found {value!r:.40}")
    return value


def text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: expected text; found {value!r:.40}")
    return value


def number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        hint = (
            f"; a power of ten needs a dot in YAML: {float(value):#.6g}"
            if _spells_power(value)
            else ""
        )
        raise InputError(f"{where}: expected a finite number; found {value!r:.40}{hint}")
    return float(value)


def _spells_power(value: Any) -> bool:
    """Whether it is text such as "5e-06", which YAML 1.1 takes for a word."""
    return isinstance(value, str) and re.fullmatch(r"[-+]?\d+[eE][-+]?\d{1,2}", value) is not None


def flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where}: expected true or false; found {value!r:.40}")
    return value


def positive(value: Any, where: str) -> float:
    if number(value, where) <= 0:
        raise InputError(f"{where}: expected a positive number; found {value!r}")
    return float(value)


def vector(value: Any, where: str) -> FloatArray:
    """(3,) read-only."""
    if not isinstance(value, list) or len(value) != 3:
        raise InputError(f"{where}: expected three numbers; found {value!r:.40}")
    return read_only(np.array([number(item, where) for item in value]))


def one_of(value: Any, choices: Sequence[str], kind: str, where: str) -> str:
    """A name that exists; `kind` says of what: "body", "site"."""
    if value not in choices:
        raise InputError(f"{where}: no {kind} '{value}'; there are: {', '.join(choices)}")
    return str(value)


def read_only(array: ArrayLike) -> FloatArray:
    """A float64 copy that nobody can write to."""
    copy = np.array(array, dtype=np.float64)
    copy.flags.writeable = False
    return copy


def read_only_indices(array: ArrayLike) -> IntArray:
    copy = np.array(array, dtype=np.int64)
    copy.flags.writeable = False
    return copy
