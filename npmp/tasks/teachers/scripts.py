"""Registry of scripts: policies without weights that command a lower policy.

A contract stores a script's name and settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar, Protocol

from torch import Tensor

from mocap_data.errors import unknown
from npmp.core.settings import from_mapping
from npmp.core.tree import Tree
from npmp.envs.policy import Observation
from npmp.tasks.teachers.dribbling import DribbleScript

SCRIPTS: dict[str, type[Script]] = {}


class Script(Protocol):
    """A `Policy` whose output is commands, computed from its task's observation."""

    name: ClassVar[str]
    # the dataclass of its settings
    config_type: ClassVar[type]
    # names of its commands, in order
    commands: ClassVar[tuple[str, ...]]
    # width of `features`
    feature_width: ClassVar[int]
    config: Any

    def __init__(self, config: Any): ...

    def initial_state(self, n: int) -> Tree: ...

    def step(self, observation: Observation, state: Tree) -> tuple[Tensor, Tree]:
        """Commands (..., c), and the state."""

    def features(self, task: Tensor) -> Tensor:
        """Further inputs of a lower policy that learns, (..., f), from the task's observation."""


def register(kind: type[Script]) -> type[Script]:
    """Register a script by its name."""
    SCRIPTS[kind.name] = kind
    return kind


def make(settings: Mapping[str, Any], *, at: str) -> Script:
    """Make a script from its name and settings. Raises InputError for an unknown one."""
    name = settings["name"]
    if name not in SCRIPTS:
        raise unknown("script", name, SCRIPTS)
    kind = SCRIPTS[name]
    return kind(from_mapping(kind.config_type, settings, at=at, ignore=("name",)))


def settings_of(script: Script) -> dict[str, Any]:
    """Name and settings, as `make` takes them."""
    return {"name": script.name, **asdict(script.config)}


register(DribbleScript)
