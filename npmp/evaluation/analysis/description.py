"""Description of a skill module."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from npmp.core import artifact
from npmp.skills import modules
from npmp.skills.skill_module import SkillModule

Module = SkillModule | str | Path


def open_module(module: Module) -> SkillModule:
    """Load a module from a folder or the name of a shipped one. Raises InputError for neither."""
    return module if isinstance(module, SkillModule) else SkillModule.load(modules.find(module))


def describe(module: Module) -> dict[str, Any]:
    """Contract, network sizes, training record, licences of the data, and, if saved, the file.

    Raises:
      InputError: for a missing or damaged module.
    """
    skill = open_module(module)
    figures = asdict(skill.contract)
    training = dict(skill.contract.training)
    clips = training.pop("clips", [])
    sizes = {}
    for part in ("encoder", "decoder"):
        sizes[part] = sum(p.numel() for p in getattr(skill, part).parameters())
    figures |= {
        "observation": dict(skill.contract.observation),
        "hold": skill.hold,
        "accelerometer": skill.accelerometer,
        "parameters": {**sizes, "all": sum(sizes.values())},
        "licences": training.pop("licences", []),
        "training": {**training, "clips": len(clips)},
    }
    if not isinstance(module, SkillModule):
        path = modules.find(module) / "module.safetensors"
        figures["file"] = {"bytes": path.stat().st_size, "sha256": artifact.sha256(path)}
    return figures
