"""Configuration values into the typed settings of the library."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from npmp.settings import from_mapping

T = TypeVar("T")


def build(
    cls: type[T],
    values: Mapping[str, Any] | DictConfig,
    *,
    ignore: tuple[str, ...] = ("name",),
    at: str = "",
) -> T:
    """`npmp.settings.from_mapping` of a configuration's group, whose `name` is not the dataclass's
    business."""
    if isinstance(values, DictConfig):
        values = typing.cast(Mapping[str, Any], OmegaConf.to_container(values, resolve=True))
    return from_mapping(cls, values, ignore=ignore, at=at)
