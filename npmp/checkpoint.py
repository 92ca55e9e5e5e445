"""Checkpoints that survive a kill at any moment: tensors in one safetensors file, complete or absent, checked when
read.

A checkpoint is a flat dict of named tensors and a dict of JSON values. Its file is written beside its final name,
flushed to disk, then renamed; its SHA-256 lies in a small JSON file of the same name, written last. Loading takes the
newest pair that agrees.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.files import atomic_path


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any], *, keep: int = 2) -> Path:
    """Write checkpoint number `step` and drop all but the newest `keep`.

    Args:
      tensors: of any dtype; names must be unique. They may share memory.
      values: whatever JSON can hold.

    Returns: the file of tensors. Raises: OSError when the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for half in folder.glob(".checkpoint_*"):  # of a process that was killed while it wrote
        half.unlink(missing_ok=True)
    path = folder / f"checkpoint_{step:010d}.safetensors"
    with atomic_path(path) as temporary:
        try:
            save_file(_alone(tensors), str(temporary))
        except SafetensorError as error:  # its word for a full disk, too
            raise OSError(f"{path}: {error}") from error
        digest = _digest(Path(temporary))
    with atomic_path(path.with_suffix(".json")) as temporary:
        Path(temporary).write_text(json.dumps({"step": step, "sha256": digest, "values": values}, indent=1) + "\n")
    _sync(folder)  # the new names must be on the disk before the old ones go
    # By step, not by age; but never what was written just now, though leftovers of another run may be further on.
    kept = {path.stem, *(old.stem for old in sorted(folder.glob("checkpoint_*.json"), key=_step)[-keep:])}
    for old in (*folder.glob("checkpoint_*.json"), *folder.glob("checkpoint_*.safetensors")):
        if old.stem not in kept:
            old.unlink(missing_ok=True)
    return path


def load_latest(folder: Path) -> tuple[int, dict[str, Tensor], dict[str, Any]]:
    """The newest whole checkpoint: step, tensors, values.

    Raises: InputError when there is none, or none that is undamaged.
    """
    damaged = []
    for description in sorted(folder.glob("checkpoint_*.json"), key=_step, reverse=True):
        path = description.with_suffix(".safetensors")
        try:
            content = json.loads(description.read_text())
            if _digest(path) != content["sha256"]:
                raise ValueError("its checksum differs")
            return int(content["step"]), load_file(str(path)), content["values"]
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            damaged.append(f"{path.name} ({error})")
    if damaged:
        raise InputError(f"no usable checkpoint in '{folder}': {'; '.join(damaged)}")
    raise InputError(f"no checkpoint in '{folder}'")


def _alone(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, contiguous, copied only where two share their memory, which the format does not allow."""
    seen: set[int] = set()
    alone = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        memory = plain.untyped_storage().data_ptr()
        alone[name] = plain.clone() if memory in seen else plain
        seen.add(memory)
    return alone


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _step(path: Path) -> int:
    digits = path.stem.rpartition("_")[2]
    return int(digits) if digits.isdigit() else -1


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors that hold infinite numbers or none at all."""

    def sound(tensor: Tensor) -> bool:
        # a sum is ten times as fast as looking at each, and finite only if all are
        return not tensor.is_floating_point() or bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())

    return [name for name, tensor in tensors.items() if not sound(tensor)]


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under `prefix.name`."""
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors named `prefix.*`, without the prefix: the inverse of `prefixed`."""
    start = prefix + "."
    return {name[len(start) :]: value for name, value in tensors.items() if name.startswith(start)}


@contextmanager
def fitting() -> Iterator[None]:
    """Around what takes over a checkpoint's tensors: an entry that lacks or does not fit is the user's mistake.

    Raises: InputError in place of what torch and dicts raise.
    """
    try:
        yield
    except (RuntimeError, KeyError, ValueError) as error:
        said = " ".join(str(error).splitlines()[:2])  # of torch's list of what does not fit the first
        raise InputError(f"the checkpoint is of another kind of run: {said}") from error


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's moments and step counts as named tensors. Learning rates are not among them: schedules set
    those."""
    state = optimizer.state_dict()["state"]
    return {
        f"{index}.{name}": torch.as_tensor(value) for index, entry in state.items() for name, value in entry.items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`, for an optimizer over the same parameters.

    Raises: ValueError for a tensor that fits no parameter, with nothing changed.
    """
    content = optimizer.state_dict()
    shapes = [weight.shape for group in optimizer.param_groups for weight in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        if not index.isdecimal() or int(index) >= len(shapes) or value.shape not in (shapes[int(index)], ()):
            raise ValueError(f"the optimizer's {key} {list(value.shape)} fits none of its {len(shapes)} parameters")
        state.setdefault(int(index), {})[name] = value.clone()
    content["state"] = state
    optimizer.load_state_dict(content)
