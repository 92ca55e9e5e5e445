"""Trained artefacts on disk: a folder of NAME.safetensors (tensors) and NAME.json (the contract).
Nothing in it can run code."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mocap_data.errors import InputError
from mocap_data.files import atomic_path, write_json
from mocap_data.input_files import read_json, reading, regular_file
from npmp.core.settings import from_mapping, shown

Contract = TypeVar("Contract")
Module = TypeVar("Module", bound=nn.Module)

# bytes; the paper's sizes make 20 MB
MAX_WEIGHTS = 1 << 30
# of a contract's numbers with a fraction: gains, ranges, rates
LARGEST = 1e9
# what a tensor may hold; others can be written, and not computed with
DTYPES = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
}
# bytes that say which tensors there are; ours have 5 KB, checkpoints' 20
MAX_HEADER = 1 << 20


@dataclass(frozen=True)
class Record:
    """The keys of a contract's training record that other code reads; there may be more."""

    hold: str = ""
    accelerometer: str = ""
    data: str = ""
    clips: list[str] = field(default_factory=list)
    licences: list[str] = field(default_factory=list)
    command_range: list[list[float]] = field(default_factory=list)
    env_steps: int = 0
    iterations: int = 0
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)


def short(folders: str) -> str:
    """Folders joined by "+" without their parents, as `actuator=` has them."""
    return "+".join(Path(folder).name for folder in folders.split("+"))


def write(
    folder: Path,
    name: str,
    schema: str,
    schema_version: int,
    content: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> None:
    """Write the folder's two files, each whole or not at all.

    The contract comes last and carries the weights' SHA-256: a kill between the two leaves a pair
    that `load` refuses, not one that belongs to two different trainings.

    Raises:
      OSError: when the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / f"{name}.safetensors"
    with atomic_path(weights) as path:
        write_tensors(
            {k: v.detach().contiguous().cpu() for k, v in tensors.items()}, path, called=weights
        )
        digest = sha256(path)
    described = {
        "schema": schema,
        "version": schema_version,
        **content,
        "versions": versions(),
        "weights_sha256": digest,
    }
    write_json(folder / f"{name}.json", described)


def load(
    folder: Path,
    name: str,
    kind: str,
    schema: str,
    schema_version: int,
    contract: type[Contract],
    make: Callable[[Contract], Module],
    *,
    renamed: Mapping[str, str] | None = None,
) -> Module:
    """The network of a folder. Nothing is allocated before the contract's sizes are known to be
    those of the weights.

    Args:
      kind: what to call it in messages, "skill module".
      contract: the dataclass of the JSON's content; other keys are ignored.
      make: the network, untrained, of a contract.
      renamed: keys of older files with the same content, and their names of today.

    Raises:
      InputError: when a file is missing, damaged or of another version, when the two do not belong
        together, when the contract has values of other types, or when a tensor holds NaN or
        infinity.
    """
    description = folder / f"{name}.json"
    weights = folder / f"{name}.safetensors"
    content, tensors = _read(description, weights, kind, schema, schema_version, contract)
    content = {(renamed or {}).get(key, key): value for key, value in content.items()}
    field_names = {f.name for f in fields(contract)}  # type: ignore[arg-type]
    agreed = from_mapping(
        contract, {k: v for k, v in content.items() if k in field_names}, at=f"'{description}'"
    )
    training = content.get("training", {})
    record = {key: training[key] for key in Record.__annotations__ if key in training}
    from_mapping(Record, record, at=f"'{description}'.training")
    sizes = {name: getattr(agreed, name) for name in field_names - {"training", "versions"}}
    if strange := absurd(sizes, sum(tensor.numel() for tensor in tensors.values())):
        raise InputError(f"'{description}': {strange}")
    with reading(description), torch.device("meta"):
        expected = make(agreed).state_dict()
    if misfit := unlike(tensors, expected):
        raise InputError(f"'{weights}' does not fit its {description.name}: {misfit}")
    module = make(agreed)
    module.load_state_dict(tensors)
    return module


def _read(
    description: Path, weights: Path, kind: str, schema: str, schema_version: int, contract: type
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    for path in (description, weights):
        if not path.exists():
            raise InputError(f"no {kind} in '{path.parent}': '{path.name}' is missing")
    content = read_json(description)
    if not isinstance(content, dict) or content.get("schema") != schema:
        raise InputError(f"'{description}' does not describe a {kind} (schema '{schema}')")
    if content.get("version") != schema_version:
        stored = f"{content.get('version')!r:.20}"
        raise InputError(
            f"'{description}' has version {stored}; this npmp reads version {schema_version}"
        )
    required = [
        f.name for f in fields(contract) if f.default is MISSING and f.default_factory is MISSING
    ]
    if missing := sorted(key for key in [*required, "weights_sha256"] if key not in content):
        raise InputError(f"'{description}' lacks {', '.join(missing)}")
    if sha256(regular_file(weights, at_most=MAX_WEIGHTS)) != content["weights_sha256"]:
        raise InputError(f"'{weights}' does not fit its {description.name}: its checksum differs")
    tensors = read_tensors(weights)
    for key, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InputError(f"'{weights}': tensor '{key}' is not finite")
    return content, tensors


def absurd(value: Any, weights: int, at: str = "") -> str | None:
    """The first number of a contract that no network of so many weights has: a layer has a weight
    for each of its units at the least. None where there is none."""
    if isinstance(value, Mapping):
        inner = [(f"{at}.{key}" if at else str(key), entry) for key, entry in value.items()]
    elif isinstance(value, list | tuple):
        inner = [(f"{at}[{i}]", entry) for i, entry in enumerate(value)]
    else:
        if isinstance(value, int) and value > weights:
            return f"{at} is {shown(value)}, too much for weights of {weights:,} numbers"
        if isinstance(value, float) and LARGEST < abs(value) < math.inf:
            return f"{at} is {value:g}, expected at most {LARGEST:g}"
        return None
    return next(
        (problem for place, entry in inner if (problem := absurd(entry, weights, place))), None
    )


def unlike(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str | None:
    """The first difference of tensors' names, shapes or kinds from what they must be; None where
    there is none."""
    for name in expected:
        if name not in found:
            return f"'{name}' is missing"
    for name, tensor in found.items():
        if name not in expected:
            return f"there is no '{name:.60}'"
        wanted = expected[name]
        if tensor.shape != wanted.shape:
            return f"'{name}' is {list(tensor.shape)}, expected {list(wanted.shape)}"
        floats = tensor.is_floating_point() and wanted.is_floating_point()
        if not floats and tensor.dtype != wanted.dtype:
            return f"'{name}' is {tensor.dtype}, expected {wanted.dtype}"
    return None


def write_tensors(tensors: Mapping[str, Tensor], path: Path, *, called: Path) -> None:
    """Write a safetensors file.

    Args:
      called: what messages name, where `path` is a temporary one.

    Raises:
      OSError: also for a full disk, which safetensors has a word of its own for.
    """
    try:
        save_file(dict(tensors), str(path))
    except SafetensorError as error:
        match = re.search(r"os error (\d+)", str(error))  # the system's number, as Rust prints it
        number = int(match[1]) if match else errno.EIO
        raise OSError(number, os.strerror(number) if match else str(error), str(called)) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
      InputError: for no regular file, and for one that is damaged or not of that format.
    """
    with reading(regular_file(path)), open(path, "rb") as file:
        declared = int.from_bytes(file.read(8), "little")
        if declared > MAX_HEADER:
            raise InputError(f"'{path}': no safetensors file (a header of {declared:,} bytes)")
        tensors = load_file(str(path))
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise InputError(
                f"'{path}': tensor '{name:.60}' is {tensor.dtype}, which nothing here computes with"
            )
    return tensors


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions() -> dict[str, str]:
    """Versions of what a trained artefact's behaviour rests on."""
    installed = {}
    for name in ("npmp", "torch", "mujoco", "numpy"):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:  # run from a source tree that is not installed
            installed[name] = "unknown"
    return installed
