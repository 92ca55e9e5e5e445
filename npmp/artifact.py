"""Trained artefacts on disk: a folder of NAME.safetensors (tensors) and NAME.json (the contract). Nothing in it can run
code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.files import atomic_path


def write(
    folder: Path, name: str, schema: str, schema_version: int, content: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write the folder's two files, each whole or not at all.

    The contract comes last and carries the weights' SHA-256: a kill between the two leaves a pair that `read` refuses,
    not one that belongs to two different trainings.

    Raises: OSError when the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / f"{name}.safetensors") as path:
        save_file({k: v.detach().contiguous().cpu() for k, v in tensors.items()}, str(path))
        digest = sha256(Path(path))
    described = {
        "schema": schema,
        "version": schema_version,
        **content,
        "versions": versions(),
        "weights_sha256": digest,
    }
    with atomic_path(folder / f"{name}.json") as path:
        path.write_text(json.dumps(described, indent=2) + "\n")


def read(
    folder: Path, name: str, kind: str, schema: str, schema_version: int, required: Iterable[str]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The contract and the tensors of a folder.

    Args:
      kind: what to call it in messages, "skill module".
      required: keys that the contract must have.

    Raises: InputError when a file is missing, damaged or of another version, when the two do not belong together, or
      when a tensor holds NaN or infinity.
    """
    description, weights = folder / f"{name}.json", folder / f"{name}.safetensors"
    for path in (description, weights):
        if not path.is_file():
            raise InputError(f"no {kind} in '{folder}': '{path.name}' is missing")
    try:
        content = json.loads(description.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"'{description}' is not valid JSON: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != schema:
        raise InputError(f"'{description}' does not describe a {kind} (schema '{schema}')")
    if content.get("version") != schema_version:
        raise InputError(
            f"'{description}' has version {content.get('version')}; this npmp reads version {schema_version}"
        )
    if missing := sorted(key for key in [*required, "weights_sha256"] if key not in content):
        raise InputError(f"'{description}' lacks {', '.join(missing)}")
    if sha256(weights) != content["weights_sha256"]:
        raise InputError(f"'{weights}' does not fit its {description.name}: its checksum differs")
    try:
        tensors = load_file(str(weights))
    except SafetensorError as error:
        raise InputError(f"'{weights}' does not fit its {description.name}: {str(error).splitlines()[0]}") from error
    for key, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InputError(f"'{weights}': tensor '{key}' is not finite")
    return content, tensors


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions() -> dict[str, str]:
    """Versions of what a trained artefact's behaviour rests on."""
    found = {}
    for name in ("npmp", "torch", "mujoco", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a source tree that is not installed
            found[name] = "unknown"
    return found
