"""YAML files of settings: those of conf/, and those of a run."""

from __future__ import annotations

import copy
import functools
import io
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from mocap_data.errors import InputError
from mocap_data.input_files import read_text, reading
from mocap_data.safe_yaml import MAX_YAML_BYTES, check_yaml

CONF = Path(__file__).parent.parent / "conf"

Values = dict[str, Any]


def load(path: Path) -> Values:
    """A YAML file of settings. Raises InputError where it cannot be read or refers elsewhere."""
    ours = CONF in path.parents
    return copy.deepcopy(_kept(path) if ours else _loaded(path))


def _loaded(path: Path) -> Values:
    text = read_text(path, at_most=MAX_YAML_BYTES)
    if "${" in text:
        raise InputError(f"{path}: refers to other values by ${{...}}, which settings do not")
    check_yaml(text, str(path))
    with reading(path):
        content = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a configuration (keys and values expected)")
    return {str(key): value for key, value in content.items()}


_kept = functools.cache(_loaded)  # conf/ does not change meanwhile
