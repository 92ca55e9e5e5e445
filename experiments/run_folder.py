"""A run folder's record of its settings: config.yaml, and .hydra as Hydra writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from mocap_data.files import atomic_path

CONFIG = "config.yaml"
# Hydra's: the config, Hydra's own settings and the overrides
HYDRA = ".hydra"


def write_config(folder: Path, verb: str, values: Mapping[str, Any]) -> None:
    """Write FOLDER/config.yaml, which `read_run_settings` reads."""
    with atomic_path(folder / CONFIG) as path:
        path.write_text(to_yaml(verb, values), encoding="utf-8")


def write_hydra(folder: Path, values: Mapping[str, Any], config: DictConfig | None = None) -> None:
    """Write FOLDER/.hydra as Hydra does. config: Hydra's; by default that of the running job, if
    Hydra runs it."""
    config = config or cast(DictConfig | None, HydraConfig.instance().cfg)
    if config is None:
        return
    hydra_folder = folder / HYDRA
    hydra_folder.mkdir(exist_ok=True)
    OmegaConf.save(OmegaConf.create(dict(values)), hydra_folder / "config.yaml")
    OmegaConf.save(OmegaConf.masked_copy(config, "hydra"), hydra_folder / "hydra.yaml")
    OmegaConf.save(config.hydra.overrides.task, hydra_folder / "overrides.yaml")


def to_yaml(verb: str, values: Mapping[str, Any]) -> str:
    """Settings as YAML."""
    return yaml.safe_dump({"verb": verb, **values}, sort_keys=False, allow_unicode=True, width=100)
