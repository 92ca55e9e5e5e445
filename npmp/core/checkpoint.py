"""Checkpoints that survive a kill at any time.

A checkpoint is a flat dict of named tensors and a dict of JSON values. The tensors' file is written
under a temporary name, flushed to disk, then renamed; a JSON file of the same name has its SHA-256
and is written last. Loading uses the newest matching pair.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.files import atomic_path, write_json
from mocap_data.input_files import read_json, reading, regular_file, require_memory
from npmp.core.artifact import read_tensors, sha256, write_tensors


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Any],
    *,
    keep: int = 2,
) -> Path:
    """Write checkpoint number `step` and drop all but the newest `keep`.

    Args:
      tensors: of any dtype; they may share memory.
      values: JSON values.

    Returns: the file of tensors.

    Raises:
      OSError: when the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # temporary files of killed processes
    for partial in folder.glob(".checkpoint_*"):
        partial.unlink(missing_ok=True)
    path = folder / f"checkpoint_{step:010d}.safetensors"
    with atomic_path(path) as temporary:
        write_tensors(_unshared(tensors), temporary, name=path)
        digest = sha256(temporary)
    description = {"step": step, "sha256": digest, "values": values}
    write_json(path.with_suffix(".json"), description, indent=1)
    # the new names must be on disk before the old ones are deleted
    _sync(folder)
    # the new one stays even if another run left later steps
    newest = sorted(folder.glob("checkpoint_*.json"), key=_step)[-keep:]
    kept = {path.stem, *(old.stem for old in newest)}
    for old in (*folder.glob("checkpoint_*.json"), *folder.glob("checkpoint_*.safetensors")):
        if old.stem not in kept:
            old.unlink(missing_ok=True)
    return path


def present(folder: Path) -> list[Path]:
    """The descriptions of a folder's checkpoints, newest first; empty for an absent folder.

    Raises:
      InputError: for a path that is not a readable folder.
    """
    try:
        with reading(folder):
            paths = [path for path in folder.iterdir() if path.match("checkpoint_*.json")]
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError) and not folder.is_symlink():
            return []
        raise
    return sorted(paths, key=_step, reverse=True)


def load_latest(folder: Path) -> tuple[int, dict[str, Tensor], dict[str, Any]]:
    """The newest valid checkpoint: step, tensors, values. Newer damaged ones are named on stderr.

    Raises:
      InputError: for a folder without a valid checkpoint.
    """
    damaged: list[InputError] = []
    for description in present(folder):
        try:
            checkpoint = _load(description)
        except InputError as error:
            damaged.append(error)
            listed = "; ".join(map(str, damaged))
            continue
        if damaged:
            print(f"npmp: damaged: {InputError(listed)}; using {description.stem}", file=sys.stderr)
        return checkpoint
    if damaged:
        raise InputError(f"no usable checkpoint in '{folder}': {listed}")
    raise InputError(f"no checkpoint in '{folder}'")


def _load(description: Path) -> tuple[int, dict[str, Tensor], dict[str, Any]]:
    content = read_json(description)
    path = description.with_suffix(".safetensors")
    step, digest, values = (
        content.get(key) if isinstance(content, dict) else None
        for key in ("step", "sha256", "values")
    )
    if type(step) is not int or not 0 <= step < 2**63 or not isinstance(values, dict):
        raise InputError(f"{description.name} is not a checkpoint's description")
    require_memory(regular_file(path).stat().st_size, f"the checkpoint {path.name}")
    if sha256(path) != digest:
        raise InputError(f"{path.name}: its checksum differs")
    return step, read_tensors(path), values


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, copied where they share memory, as safetensors requires."""
    addresses: set[int] = set()
    unshared = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        address = plain.untyped_storage().data_ptr()
        unshared[name] = plain.clone() if address in addresses else plain
        addresses.add(address)
    return unshared


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _step(path: Path) -> int:
    digits = path.stem.rpartition("_")[2]
    return int(digits) if digits.isdigit() else -1


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors with infinite or NaN entries."""
    # a sum is ten times faster than a test of every entry, and finite only if all are
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    suspects = {name: tensor for name, tensor in floats.items() if not tensor.sum().isfinite()}
    return [name for name, tensor in suspects.items() if not tensor.isfinite().all()]


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under `prefix.name`."""
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors named `prefix.*`, without the prefix: the inverse of `prefixed`."""
    start = prefix + "."
    return {name[len(start) :]: value for name, value in tensors.items() if name.startswith(start)}


@contextmanager
def restoring() -> Iterator[None]:
    """Inside, errors of missing or mismatched entries of a checkpoint become InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        # the first entry of torch's list
        message = " ".join((str(error).strip() or type(error).__name__).splitlines()[:2])
        raise InputError(
            f"the checkpoint is of a run with other settings, or of another version of npmp: "
            f"{message}; the run's config.yaml has its settings"
        ) from error


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's moments and step counts as named tensors, without learning rates, which
    schedules set."""
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, entry in optimizer.state_dict()["state"].items()
        for name, value in entry.items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`, for an optimizer over the same parameters.

    Raises:
      ValueError: for a tensor that matches no parameter; nothing is changed.
    """
    content = optimizer.state_dict()
    shapes = [weight.shape for group in optimizer.param_groups for weight in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        valid = index.isdecimal() and len(index) < 10 and int(index) < len(shapes)
        valid = valid and not value.is_complex()
        if not valid or value.shape not in (shapes[int(index)], ()):
            raise ValueError(
                f"the optimizer's {key} {list(value.shape)} matches none of its {len(shapes)} "
                "parameters"
            )
        state.setdefault(int(index), {})[name] = value.clone()
    content["state"] = state
    optimizer.load_state_dict(content)
