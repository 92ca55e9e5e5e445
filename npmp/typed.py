"""Dataclasses from what a JSON file holds, every value held against its field's annotation."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from mocap_data.errors import InputError

T = TypeVar("T")
LARGEST = 2**53  # of whole numbers: beyond it JSON's readers, and floats, do not tell neighbours apart


def from_json(cls: type[T], values: Any, where: str) -> T:
    """An instance of a dataclass from a JSON object.

    Args:
      values: whatever stands there. where: what to call it in messages.

    Raises:
      InputError: for no object, unknown or missing keys, values of another type than the field's, and values that the
        dataclass itself refuses.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: expected an object; found {values!r:.40}")
    known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if unknown := [key for key in values if key not in known]:
        raise InputError(f"{where} has no {unknown[0]!r:.40}; there are: {', '.join(known)}")
    needed = (
        name
        for name, f in known.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    )
    if missing := [name for name in needed if name not in values]:
        raise InputError(f"{where} lacks {', '.join(missing)}")
    hints = typing.get_type_hints(cls)
    arguments = {key: typed(hints[key], value, f"{where}: {key}") for key, value in values.items()}
    try:
        return cls(**arguments)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{where}: {error}") from error


def typed(hint: Any, value: Any, where: str) -> Any:
    """A JSON value as the type says: str, bool, int, float, list[T], tuple[T, ...], dict[str, T], a dataclass, a union
    of these, or Any. Whole numbers may stand for floats.

    Raises:
      InputError: for a value of another type, a float that is not finite, or a whole number beyond `LARGEST`.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast(type, hint), value, where)
    if origin in (list, tuple):
        if not isinstance(value, list | tuple):
            raise _wrong(value, "a list", where)
        return origin(typed(inner[0], entry, f"{where}[{i}]") for i, entry in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _wrong(value, "an object", where)
        return {key: typed(inner[1], entry, f"{where}.{key}") for key, entry in value.items()}
    if origin in (typing.Union, types.UnionType):
        for choice in inner:
            try:
                return typed(choice, value, where)
            except InputError as error:
                refusal = error
        raise refusal
    return _plain(hint, value, where)


def _plain(hint: Any, value: Any, where: str) -> Any:
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(value, "a number", where)
        if abs(value) > LARGEST if isinstance(value, int) else not math.isfinite(value):
            raise InputError(f"{where}: expected a finite number; found {_shown(value)}")
        return float(value)
    if hint is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(value, "a whole number", where)
        if abs(value) > LARGEST:
            raise InputError(f"{where}: expected a whole number up to {LARGEST:,}; found {_shown(value)}")
        return value
    names = {str: "text", bool: "true or false", type(None): "null"}
    if not isinstance(value, hint):
        raise _wrong(value, names[hint], where)
    return value


def _wrong(value: Any, expected: str, where: str) -> InputError:
    return InputError(f"{where}: expected {expected}; found {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) > 10**30:  # its digits may be too many to print
        return "a whole number of more than 30 digits"
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else f"{value!r:.40}"
