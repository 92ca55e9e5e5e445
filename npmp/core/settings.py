"""Typed settings from plain mappings: the schema is a dataclass, its annotations and defaults."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
import re
import reprlib
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from mocap_data.errors import InputError, nearest
from mocap_data.safe_yaml import read_yaml

T = TypeVar("T")

# largest integer: floats cannot represent all larger ones
_LARGEST = 2**53
# settings of the process, which may change when a run is resumed
OF_THE_PROCESS = ("out", "resume", "device", "engine", "threads", "torch_threads")
# metadata of a field that holds a part's settings, a dataclass. In mappings the part's keys may
# stand without its name, {"terrain": "stairs"} for {"ground": {"terrain": "stairs"}}; `to_plain`,
# and with it run folders and the command line, have the first
PART = {"part": True}
_NAMES = {float: "a finite number", int: "a whole number", bool: "true or false", str: "text"}
_show = reprlib.Repr()
_show.maxstring = _show.maxother = 80


class _TypeMismatch(InputError):
    """A value whose type differs from its annotation. place: its dotted key."""

    def __init__(self, place: str, value: object, expected: str):
        super().__init__(f"{place} must be {expected}, got {format_value(value)}")


@functools.cache
def plain_fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a dataclass by their plain keys; a part is replaced by its fields. Raises
    TypeError for a key that two parts have."""
    fields: dict[str, dataclasses.Field[Any]] = {}
    for entry in dataclasses.fields(cls):
        if not entry.init:
            continue
        is_part = entry.name in _parts(cls)
        new = plain_fields(_parts(cls)[entry.name]) if is_part else {entry.name: entry}
        if twice := fields.keys() & new.keys():
            raise TypeError(f"{cls.__name__} has the key {min(twice)!r} twice")
        fields |= new
    return fields


@functools.cache
def _parts(cls: type) -> dict[str, type]:
    """The types of the parts of a dataclass by their names."""
    hints = typing.get_type_hints(cls)
    return {
        entry.name: hints[entry.name]
        for entry in dataclasses.fields(cls)
        if "part" in entry.metadata
    }


@functools.cache
def _keys(cls: type) -> set[str]:
    """The keys of a mapping for a dataclass, with and without the names of its parts."""
    return {*plain_fields(cls), *_parts(cls)}.union(*map(_keys, _parts(cls).values()))


def plain_key(cls: type, key: str) -> str:
    """A dotted key without the names of parts, "terrain" for "ground.terrain"."""
    name, _, rest = key.partition(".")
    inner = rest.partition(".")[0]
    for part, kind in _parts(cls).items():
        if name != part and name in _keys(kind):
            return plain_key(kind, key)
        # not a key of another part
        if name == part and rest and (inner in _keys(kind) or inner not in _keys(cls)):
            return plain_key(kind, rest)
    return key


def changed(config: T, **values: Any) -> T:
    """Settings with other values; keys and errors as of `from_mapping`."""
    cls = type(config)
    return typing.cast(T, _dataclass(cls, values, cls.__name__, config))


def from_mapping(
    cls: type[T], values: Mapping[str, Any], *, at: str = "", ignore: tuple[str, ...] = ()
) -> T:
    """A settings dataclass from a mapping. Lists become tuples and mappings nested dataclasses, by
    the annotations. Missing keys take the dataclass's defaults, in a nested one its field's.

    Args:
      at: key of the mapping, for messages; by default the dataclass's name.
      ignore: keys of the mapping to ignore.

    Raises:
      InputError: for an unknown, missing or ill-typed key, and for values out of range.
    """
    return typing.cast(T, _dataclass(cls, values, at or cls.__name__, ignore=ignore))


def to_plain(value: Any) -> Any:
    """Settings as types of YAML and JSON: mappings, lists, text and numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain: dict[str, Any] = {}
        for entry in dataclasses.fields(value):
            if entry.init:
                inner = to_plain(getattr(value, entry.name))
                plain |= inner if "part" in entry.metadata else {entry.name: inner}
        return plain
    if isinstance(value, Mapping):
        return {str(name): to_plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def as_text(value: Any) -> str:
    """A plain value as text for the command line."""
    words = {None: "null", True: "true", False: "false"}
    plain = value is None or isinstance(value, bool)
    return words[value] if plain else str(value).replace(" ", "")


@functools.cache
def hints_of(cls: type) -> dict[str, Any]:
    """The types of a dataclass's fields and of those of its parts."""
    hints = typing.get_type_hints(cls)
    for kind in _parts(cls).values():
        hints |= hints_of(kind)
    return hints


@functools.cache
def help_of(cls: type) -> dict[str, str]:
    """The comments above or beside the fields of a dataclass, its bases and its parts."""
    comments: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        above: list[str] = []
        for line in textwrap.dedent(inspect.getsource(base)).splitlines():
            comment = re.match(r"    # (.*)", line)
            field = re.match(r"    (\w+): ", line)
            if field and field[1] in base.__dataclass_fields__:
                comments[field[1]] = " ".join(filter(None, (*above, line.partition("  # ")[2])))
            above = [*above, comment[1]] if comment else []
    for kind in _parts(cls).values():
        comments |= help_of(kind)
    return comments


def unknown_setting(key: str, names: Iterable[str], also: Sequence[str] = ()) -> str:
    """ "has no setting 'stps'; the nearest are: steps, starts, stop". also: nearer names."""
    close = [*also, *nearest(key, names)][:3]
    nearest_keys = f"; the nearest are: {', '.join(close)}" if close else ""
    return f"has no setting {format_value(key)}{nearest_keys}"


def format_value(value: object) -> str:
    """A value for a message, of bounded length; null, true and false as in YAML."""
    if value is None or isinstance(value, bool):
        return as_text(value)
    try:
        return _show.repr(list(value) if isinstance(value, tuple) else value)
    # integers of more than 4300 digits have no repr
    except ValueError:
        return f"a {type(value).__name__} too long to show"


def _dataclass(
    cls: type, values: object, at: str, default: Any = None, ignore: tuple[str, ...] = ()
) -> object:
    """default: an instance to change; None: the class's own defaults."""
    if isinstance(values, cls):
        return values
    if not isinstance(values, Mapping):
        raise _TypeMismatch(at, values, "a mapping")
    hints = hints_of(cls)
    fields = {entry.name: entry for entry in dataclasses.fields(cls) if entry.init}
    defaults = {name: getattr(default, name, default_of(entry)) for name, entry in fields.items()}
    arguments: dict[str, Any] = {}
    for key in values:
        if key not in _keys(cls) and key not in ignore:
            raise InputError(f"{at} {unknown_setting(str(key), plain_fields(cls))}")
    for key, value in _with_parts(cls, values).items():
        if key not in ignore:
            place = at if key in _parts(cls) else f"{at}.{key}"
            arguments[key] = from_value(hints[key], value, place, defaults[key])
    missing = [
        name for name in fields if name not in arguments and defaults[name] is dataclasses.MISSING
    ]
    if missing:
        raise InputError(f"{at} lacks {', '.join(missing)}; its settings are: {', '.join(fields)}")
    try:
        return cls(**{**defaults, **arguments})
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{at}: {error}") from error


def _with_parts(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass, the keys of its parts in mappings by the parts' names."""
    nested = dict(values)
    for name, kind in _parts(cls).items():
        own = {key: nested.pop(key) for key in _keys(kind) if key in nested}
        if own:
            nested[name] = {**_shallow(nested.get(name, {})), **own}
    return nested


def _shallow(value: Any) -> Mapping[str, Any]:
    return vars(value) if dataclasses.is_dataclass(value) else value


def default_of(entry: dataclasses.Field[Any]) -> Any:
    """A field's default, or MISSING."""
    if entry.default_factory is not dataclasses.MISSING:
        return entry.default_factory()
    return entry.default


def from_value(hint: Any, value: Any, at: str, default: Any = None) -> Any:
    """A value converted to an annotation; default: of a nested mapping. Raises InputError as
    `from_mapping`."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _one_of(arguments, hint, value, at)
    if origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in arguments):
            raise _TypeMismatch(at, value, _words(hint))
        return value
    if hint is Path:
        if not isinstance(value, str | Path) or not str(value):
            raise _TypeMismatch(at, value, "a path")
        return Path(os.path.expanduser(value))
    if hint is int and isinstance(value, float) and value.is_integer():
        # 1e6 for 1000000
        value = int(value)
    if dataclasses.is_dataclass(hint):
        cls = typing.cast(type, hint)
        return _dataclass(cls, value, at, default if isinstance(default, cls) else None)
    if (origin or hint) in (tuple, list, Sequence):
        return _sequence(hint, value, at)
    if isinstance(origin or hint, type) and issubclass(origin or hint, Mapping):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _TypeMismatch(at, value, _words(hint))
        entry_hint = arguments[1] if arguments else Any
        return {key: from_value(entry_hint, entry, f"{at}.{key}") for key, entry in value.items()}
    if not _is(hint, value):
        large = hint in (int, float) and type(value) is int
        raise _TypeMismatch(
            at, value, f"a number of at most {_LARGEST:,}" if large else _words(hint)
        )
    return float(value) if hint is float else value


def _one_of(choices: tuple[Any, ...], hint: Any, value: Any, at: str) -> Any:
    """A value converted to the first matching type of a union."""
    if value is None and type(None) in choices:
        return None
    others = [choice for choice in choices if choice is not type(None)]
    # the error of a mapping or list names its entry
    if len(others) == 1 and not isinstance(value, str | float | int | None):
        return from_value(others[0], value, at)
    for choice in others:
        try:
            return from_value(choice, value, at)
        except _TypeMismatch:
            continue
    raise _TypeMismatch(at, value, _words(hint))


def _sequence(hint: Any, value: Any, at: str) -> Any:
    kind = typing.get_origin(hint) or hint
    arguments = typing.get_args(hint)
    kind = tuple if kind is Sequence else kind
    if not isinstance(value, list | tuple):
        raise _TypeMismatch(at, value, _words(hint))
    if typing.get_origin(hint) is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            raise _TypeMismatch(at, value, _words(hint))
        each = arguments
    else:
        each = (arguments[0] if arguments else Any,) * len(value)
    return kind(
        from_value(entry_hint, entry, f"{at}[{i}]")
        for i, (entry_hint, entry) in enumerate(zip(each, value, strict=True))
    )


def _is(hint: Any, value: Any) -> bool:
    if hint not in (int, float):
        return isinstance(value, hint)
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= _LARGEST
    return hint is float and isinstance(value, float) and math.isfinite(value)


def _words(hint: Any) -> str:
    """An annotation in words."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint is type(None):
        return "null"
    if origin is Literal:
        return " or ".join(map(str, arguments))
    if hint is Path:
        return "a path"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(choice) for choice in arguments)
    if (origin or hint) in (tuple, list, Sequence):
        if not arguments or arguments[0] is Any:
            return "a list"
        if origin is not tuple or arguments[-1] is Ellipsis:
            return f"a list, each {_words(arguments[0])}"
        each = " or ".join(dict.fromkeys(_words(entry) for entry in arguments))
        return f"a list of {len(arguments)}, each {each}"
    if isinstance(origin or hint, type) and issubclass(origin or hint, Mapping):
        return "a mapping"
    return "a mapping" if dataclasses.is_dataclass(hint) else _NAMES.get(hint, str(hint))


def read_run_settings(folder: Path) -> tuple[str | None, dict[str, Any]]:
    """A run's verb, or None, and settings from FOLDER/config.yaml. Raises InputError."""
    content = read_yaml(folder / "config.yaml")
    if not isinstance(content, dict):
        raise InputError(f"{folder / 'config.yaml'}: expected a mapping")
    verb = content.pop("verb", None)
    return (None if verb is None else str(verb)), content


def changes(
    stored: Mapping[str, Any], values: Mapping[str, Any], *, ignore: Sequence[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """Stored and new values (None if absent) of the settings that differ, by their dotted keys,
    without those of the process. ignore: further keys."""
    before = flat(to_plain(stored))
    after = flat(to_plain(values))
    return {
        key: (before.get(key), after.get(key))
        for key in {**after, **before}
        if key not in (*OF_THE_PROCESS, *ignore) and before.get(key) != after.get(key)
    }


def flat(value: Any, key: str = "") -> dict[str, Any]:
    """The leaves of nested mappings by their dotted keys."""
    if not isinstance(value, dict):
        return {key: value}
    inner = [flat(entry, f"{key}.{name}" if key else str(name)) for name, entry in value.items()]
    return {name: leaf for leaves in inner for name, leaf in leaves.items()}
