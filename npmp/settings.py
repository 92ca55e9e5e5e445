"""Values from a file or a command line into the typed settings of the library: dataclasses, whose
annotations and defaults are the schema."""

from __future__ import annotations

import dataclasses
import math
import reprlib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from mocap_data.errors import InputError

T = TypeVar("T")

_LARGEST = 2**63 - 1  # of whole numbers: what arrays count in
_NAMES = {float: "a finite number", int: "a whole number", bool: "true or false", str: "text"}
_show = reprlib.Repr()
_show.maxstring = _show.maxother = 80


class _Unlike(Exception):
    """A value is not of the type that its annotation asks for. place: its dotted key."""

    def __init__(self, place: str, value: object, expected: str):
        super().__init__(f"{place} must be {expected}, got {shown(value)}")


def from_mapping(
    cls: type[T], values: Mapping[str, Any], *, at: str = "", ignore: tuple[str, ...] = ()
) -> T:
    """A settings dataclass from a mapping; lists become tuples where tuples are asked for, nested
    mappings nested dataclasses. Keys that are not given have the dataclass's defaults; in a nested
    one, what its field defaults to.

    Args:
      at: the key that holds the mapping, for messages; the dataclass's name by default.
      ignore: keys of the mapping that are not the dataclass's business.

    Raises:
      InputError: for an unknown, a missing or an ill-typed key, with its dotted place, its value
        and what was expected, or for values out of range.
    """
    try:
        return typing.cast(T, _dataclass(cls, values, at or cls.__name__, ignore=ignore))
    except _Unlike as error:
        raise InputError(error) from None


def shown(value: object) -> str:
    """A value for a message, of bounded length however long or deep it is; as YAML writes it where
    that is simple."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    try:
        return _show.repr(list(value) if isinstance(value, tuple) else value)
    except ValueError:  # whole numbers of more than 4300 digits have no repr
        return f"a {type(value).__name__} too long to show"


def _dataclass(
    cls: type, values: object, at: str, default: Any = None, ignore: tuple[str, ...] = ()
) -> object:
    """default: an instance to change; None: the class's own defaults."""
    if isinstance(values, cls):
        return values
    if not isinstance(values, Mapping):
        raise _Unlike(at, values, "a mapping")
    hints = typing.get_type_hints(cls)
    fields = {entry.name: entry for entry in dataclasses.fields(cls) if entry.init}
    defaults = {name: getattr(default, name, _default(entry)) for name, entry in fields.items()}
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key in ignore:
            continue
        if key not in fields:
            raise InputError(f"{at} has no setting {shown(key)}; there are: {', '.join(fields)}")
        arguments[key] = _typed(hints[key], value, f"{at}.{key}", defaults[key])
    missing = [
        name for name in fields if name not in arguments and defaults[name] is dataclasses.MISSING
    ]
    if missing:
        raise InputError(f"{at} lacks {', '.join(missing)}; its settings are: {', '.join(fields)}")
    try:
        return cls(**{**defaults, **arguments})
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{at}: {error}") from error


def _default(entry: dataclasses.Field[Any]) -> Any:
    if entry.default_factory is not dataclasses.MISSING:
        return entry.default_factory()
    return entry.default


def _typed(hint: Any, value: Any, at: str, default: Any = None) -> Any:
    """The value as an annotation wants it; default: what a nested mapping changes. Raises _Unlike."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _one_of(arguments, hint, value, at)
    if dataclasses.is_dataclass(hint):
        cls = typing.cast(type, hint)
        return _dataclass(cls, value, at, default if isinstance(default, cls) else None)
    if (origin or hint) in (tuple, list):
        return _sequence(hint, value, at)
    if isinstance(origin or hint, type) and issubclass(origin or hint, Mapping):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _Unlike(at, value, _words(hint))
        of = arguments[1] if arguments else Any
        return {key: _typed(of, entry, f"{at}.{key}") for key, entry in value.items()}
    if not _is(hint, value):
        large = hint in (int, float) and type(value) is int
        raise _Unlike(at, value, "a number of less than 19 digits" if large else _words(hint))
    return float(value) if hint is float else value


def _one_of(choices: tuple[Any, ...], hint: Any, value: Any, at: str) -> Any:
    """A value of a union: what the first choice says that takes it; None stands for the others'
    absence only."""
    if value is None and type(None) in choices:
        return None
    others = [choice for choice in choices if choice is not type(None)]
    # a mapping or list: say what in it is off
    if len(others) == 1 and not isinstance(value, str | float | int | None):
        return _typed(others[0], value, at)
    for choice in others:
        try:
            return _typed(choice, value, at)
        except _Unlike:
            continue
    raise _Unlike(at, value, _words(hint))


def _sequence(hint: Any, value: Any, at: str) -> Any:
    kind, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if not isinstance(value, list | tuple):
        raise _Unlike(at, value, _words(hint))
    if kind is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            raise _Unlike(at, value, _words(hint))
        each = arguments
    else:
        each = (arguments[0] if arguments else Any,) * len(value)
    return kind(
        _typed(of, entry, f"{at}[{i}]")
        for i, (of, entry) in enumerate(zip(each, value, strict=True))
    )


def _is(hint: Any, value: Any) -> bool:
    if hint is float:
        whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST
        return whole or (isinstance(value, float) and math.isfinite(value))
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST
    return isinstance(value, hint)


def _words(hint: Any) -> str:
    """What an annotation asks for, in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return "null"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(choice) for choice in arguments)
    if (origin or hint) in (tuple, list):
        if not arguments:
            return "a list"
        if origin is list or arguments[-1] is Ellipsis:
            return f"a list, each {_words(arguments[0])}"
        return f"a list of {len(arguments)}, each {' or '.join(dict.fromkeys(_words(entry) for entry in arguments))}"
    if isinstance(origin or hint, type) and issubclass(origin or hint, Mapping):
        return "a mapping"
    return "a mapping" if dataclasses.is_dataclass(hint) else _NAMES.get(hint, str(hint))


def flat(value: Any, key: str = "") -> dict[str, Any]:
    """The leaves of nested mappings by their dotted keys."""
    if not isinstance(value, dict):
        return {key: value}
    inner = [flat(entry, f"{key}.{name}" if key else str(name)) for name, entry in value.items()]
    return {name: leaf for leaves in inner for name, leaf in leaves.items()}
