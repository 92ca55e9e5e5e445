"""What a skill module says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npmp import artifact, modules
from npmp.skill import SkillModule

Module = SkillModule | str | Path


def open_module(module: Module) -> SkillModule:
    """A module: itself, from its folder, or shipped, by name. Raises InputError for none."""
    return module if isinstance(module, SkillModule) else SkillModule.load(modules.find(module))


def describe(module: Module) -> dict[str, Any]:
    """The contract, the networks' sizes, the training record, the data's licences, and the file
    where there is one.

    Raises:
      InputError: for a module that is not there or is damaged.
    """
    skill = open_module(module)
    contract, training = skill.contract, dict(skill.contract.training)
    networks = {"encoder": skill.encoder, "decoder": skill.decoder}
    sizes = {
        part: sum(p.numel() for p in network.parameters()) for part, network in networks.items()
    }
    clips = training.pop("clips", [])
    figures: dict[str, Any] = {
        "robot": skill.robot,
        "model_sha256": contract.model_sha256,
        "joints": contract.joint_names,
        "control_rate_hz": contract.control_rate_hz,
        "physics_rate_hz": contract.physics_rate_hz,
        "hold": skill.hold,
        "accelerometer": skill.accelerometer,
        "latent_dim": skill.latent_dim,
        "alpha": skill.alpha,
        "decoder_senses": {str(name): int(width) for name, width in contract.observation},
        "encoder_sees": {
            "features": contract.context_size,
            "frames_ahead": contract.context_horizon,
        },
        "net": contract.net,
        "parameters": {**sizes, "all": sum(sizes.values())},
        "licences": training.pop("licences", []),
        "training": {**training, "clips": len(clips)},
        "versions": contract.versions,
    }
    if not isinstance(module, SkillModule):
        path = modules.find(module) / "module.safetensors"
        figures["file"] = {
            "weights": contract.weights_dtype,
            "bytes": path.stat().st_size,
            "sha256": artifact.sha256(path),
        }
    return figures
