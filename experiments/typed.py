"""Configuration values into the typed settings of the library."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from mocap_data.errors import InputError

T = TypeVar("T")


def build(
    cls: type[T], values: Mapping[str, Any] | DictConfig, *, ignore: tuple[str, ...] = ("name",), at: str = ""
) -> T:
    """A frozen settings dataclass from a mapping; lists become tuples, nested mappings nested dataclasses.

    Args:
      ignore: keys of the mapping that are not the dataclass's business.
      at: the configuration key that holds the mapping, for messages; the dataclass's name by default.

    Raises: InputError for an unknown key, naming those there are, or for values that contradict each other.
    """
    if isinstance(values, DictConfig):
        values = typing.cast(Mapping[str, Any], OmegaConf.to_container(values, resolve=True))
    at = at or cls.__name__
    hints = typing.get_type_hints(cls)
    known = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key in ignore:
            continue
        if key not in known:
            raise InputError(f"{at} has no setting {key!r}; there are: {', '.join(known)}")
        if dataclasses.is_dataclass(hints[key]) and isinstance(value, Mapping):
            value = build(typing.cast(type, hints[key]), value, at=f"{at}.{key}")
        arguments[key] = tuple(value) if isinstance(value, list) else value
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"{at}: {error}") from error
