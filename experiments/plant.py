"""The `randomization` group and `hold` as the environments' `PlantConfig`."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.typed import build
from npmp.envs.plant import PlantConfig
from npmp.skill import SkillModule


def plant_of(randomization: DictConfig | None, hold: str) -> PlantConfig:
    """None is no randomization. Raises InputError for values out of range or an unknown hold."""
    values: Any = {} if randomization is None else OmegaConf.to_container(randomization, resolve=True)
    return build(PlantConfig, {**values, "hold": hold}, at="randomization")


def hold_of(skill: SkillModule, given: str | None = None) -> str:
    """How setpoints are held: as given, else as the module was trained."""
    return given or str(skill.contract.training.get("hold", "zero_order"))
