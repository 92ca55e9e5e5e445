"""Ranges of settings, checked in `__post_init__`: errors name the setting and its value; None is
valid."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from numbers import Real
from typing import Any

from mocap_data.errors import InputError

# units of a layer: the paper's widest has 1024; an LSTM of this width has 2 GB of weights
MAX_WIDTH = 8192
# length of the observations' history
LONGEST_DELAY_S = 10.0


def above_zero(settings: object, *names: str) -> None:
    """Raise InputError unless the named fields, or their entries, are finite and above zero."""
    _check(settings, names, "above 0", lambda value: 0 < value < math.inf)


def not_negative(settings: object, *names: str) -> None:
    """Raise InputError unless the named fields, or their entries, are finite and at least zero."""
    _check(settings, names, "at least 0", lambda value: 0 <= value < math.inf)


def at_least_one(settings: object, *names: str) -> None:
    """Raise InputError unless the named fields, or their entries, are integers of at least one."""
    _check(
        settings,
        names,
        "a whole number of at least 1",
        lambda value: value >= 1 and isinstance(value, int),
    )


def at_most(settings: object, most: float, *names: str) -> None:
    """Raise InputError unless the named fields, or their entries, are at most `most`."""
    _check(settings, names, f"at most {most:g}", lambda value: value <= most)


def share(settings: object, *names: str) -> None:
    """Raise InputError unless the named fields, or their entries, are from zero to one."""
    _check(settings, names, "in [0, 1]", lambda value: 0 <= value <= 1)


def one_of(settings: object, name: str, choices: Collection[str]) -> None:
    """Raise InputError unless the named field is one of the choices."""
    if (value := getattr(settings, name)) not in (None, *choices):
        raise InputError(f"{name} must be one of {', '.join(choices)}; got {value!r:.40}")


def pairs(settings: object, *names: str) -> None:
    """Raise InputError unless the named fields have two entries, a schedule's start and end."""
    for name in names:
        value = getattr(settings, name)
        if not isinstance(value, tuple) or len(value) != 2:
            raise InputError(
                f"{name} must be two numbers [at the start, at the end], got {_as_list(value)}"
            )


def _check(
    settings: object, names: tuple[str, ...], expected: str, valid: Callable[[Any], bool]
) -> None:
    for name in names:
        if (setting := getattr(settings, name)) is None:
            continue
        values = setting if isinstance(setting, tuple) else (setting,)
        if not values or not all(isinstance(value, Real) and valid(value) for value in values):
            raise InputError(f"{name} must be {expected}, got {_as_list(setting)}")


def _as_list(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
