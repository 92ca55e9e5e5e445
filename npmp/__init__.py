"""Neural probabilistic motor primitives for legged robots: from motion recordings to reusable
skills.

The heavy parts load when they are first used: `import npmp` alone imports neither torch nor a
simulator.

    npmp.robots.load("anymal_b")                     a robot's names, figures and model
    npmp.tasks.make("imitation", robot=..., ...)     many simulated robots at once, in torch
    npmp.SkillModule.load(folder)                    a trained skill module
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npmp import envs, robots, tasks
    from npmp.skills.skill_module import SkillModule

__version__ = "0.1.0"  # the one place: pyproject.toml reads it
__all__ = ["SkillModule", "__version__", "envs", "robots", "tasks"]


def __getattr__(name: str) -> Any:
    if name in ("envs", "robots", "tasks"):
        return importlib.import_module(f"npmp.{name}")
    if name == "SkillModule":
        return importlib.import_module("npmp.skills.skill_module").SkillModule
    raise AttributeError(f"module 'npmp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
