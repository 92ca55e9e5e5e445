"""Trained artefacts: a folder of NAME.safetensors (tensors) and NAME.json (contract); no code."""

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
from torch.overrides import TorchFunctionMode

from mocap_data.errors import InputError
from mocap_data.files import atomic_path, write_json
from mocap_data.input_files import read_json, reading, regular_file
from npmp.core.settings import format_value, from_mapping

Contract = TypeVar("Contract")
Module = TypeVar("Module", bound=nn.Module)

# largest absolute value of a contract's floats: gains, ranges, rates
MAX_FLOAT = 1e9


@dataclass(frozen=True)
class Record:
    """The keys of a contract's training record that code reads; it may have others."""

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
    """The names of folders joined by "+", as in `actuator=`."""
    return "+".join(Path(folder).name for folder in folders.split("+"))


def write(
    folder: Path,
    name: str,
    schema: str,
    schema_version: int,
    content: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> None:
    """Write the folder's two files, each atomically.

    The contract is written last and has the weights' SHA-256: after a kill between the two, `load`
    refuses the pair.

    Raises:
      OSError: when the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / f"{name}.safetensors"
    with atomic_path(weights) as path:
        write_tensors(
            {k: v.detach().contiguous().cpu() for k, v in tensors.items()}, path, name=weights
        )
        digest = sha256(path)
    contract = {
        "schema": schema,
        "version": schema_version,
        **content,
        "versions": versions(),
        "weights_sha256": digest,
    }
    write_json(folder / f"{name}.json", contract)


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
    """The network of a folder. It is allocated after the contract's sizes match the weights.

    Args:
      kind: its name in messages, "skill module".
      contract: the dataclass of the JSON's content; other keys are ignored.
      make: the untrained network of a contract.
      renamed: older names of keys, and their present ones.

    Raises:
      InputError: for a file that is missing, damaged or of another version, files that do not
        belong together, values of other types, or tensors that are not finite.
    """
    description = folder / f"{name}.json"
    weights = folder / f"{name}.safetensors"
    content, tensors = _read(description, weights, kind, schema, schema_version, contract)
    content = {(renamed or {}).get(key, key): value for key, value in content.items()}
    field_names = {f.name for f in fields(contract)}  # type: ignore[arg-type]
    values = {key: value for key, value in content.items() if key in field_names}
    training = content.get("training", {})
    record = {key: training[key] for key in Record.__annotations__ if key in training}
    with reading(description):
        checked = from_mapping(contract, values, at=f"'{description}'")
        from_mapping(Record, record, at=f"'{description}'.training")
        sizes = {name: getattr(checked, name) for name in field_names - {"training", "versions"}}
        problem = implausible(sizes, sum(tensor.numel() for tensor in tensors.values()))
    if problem:
        raise InputError(f"'{description}': {problem}")
    with reading(description), torch.device("meta"), _Uninitialized():
        expected = make(checked).state_dict()
    if mismatch := first_mismatch(tensors, expected):
        raise InputError(f"'{weights}' does not fit its {description.name}: {mismatch}")
    module = make(checked)
    module.load_state_dict(tensors)
    return module


class _Uninitialized(TorchFunctionMode):
    """Leaves out the initialization of weights: of normal weights without storage it would import
    torch's compiler, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _read(
    description: Path, weights: Path, kind: str, schema: str, schema_version: int, contract: type
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    for path in (description, weights):
        if not path.exists():
            raise InputError(f"no {kind} in '{path.parent}': '{path.name}' is missing")
    content = read_json(description)
    if not isinstance(content, dict) or content.get("schema") != schema:
        raise InputError(f"'{description}': expected schema '{schema}' of a {kind}")
    if content.get("version") != schema_version:
        stored = f"{content.get('version')!r:.20}"
        raise InputError(
            f"'{description}': version {stored}, expected {schema_version} by this npmp"
        )
    required = [
        f.name for f in fields(contract) if f.default is MISSING and f.default_factory is MISSING
    ]
    if missing := sorted(key for key in [*required, "weights_sha256"] if key not in content):
        raise InputError(f"'{description}' lacks {', '.join(missing)}")
    if sha256(regular_file(weights)) != content["weights_sha256"]:
        raise InputError(f"'{weights}' does not fit its {description.name}: its checksum differs")
    tensors = read_tensors(weights)
    with reading(weights):
        for key, value in tensors.items():
            if value.is_floating_point() and not bool(torch.isfinite(value.float()).all()):
                raise InputError(f"'{weights}': tensor '{key}' is not finite")
    return content, tensors


def implausible(value: Any, weights: int, at: str = "") -> str | None:
    """The first number of a contract that exceeds the number of weights, as a layer has at least
    one weight per unit; None if there is none."""
    if isinstance(value, Mapping):
        entries = [(f"{at}.{key}" if at else str(key), entry) for key, entry in value.items()]
    elif isinstance(value, list | tuple):
        entries = [(f"{at}[{i}]", entry) for i, entry in enumerate(value)]
    else:
        if isinstance(value, int) and value > weights:
            return f"{at}={format_value(value)}: too much for weights of {weights:,} numbers"
        if isinstance(value, float) and MAX_FLOAT < abs(value) < math.inf:
            return f"{at}={value:g}: must be at most {MAX_FLOAT:g}"
        return None
    problems = (implausible(entry, weights, key) for key, entry in entries)
    return next((problem for problem in problems if problem), None)


def first_mismatch(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str | None:
    """The first difference between the tensors' names, shapes or types and the expected ones; None
    if they agree."""
    if missing := [name for name in expected if name not in tensors]:
        return f"'{missing[0]}' is missing"
    for name, tensor in tensors.items():
        if name not in expected:
            return f"unknown tensor '{name:.60}'"
        target = expected[name]
        if tensor.shape != target.shape:
            return f"'{name}' is {list(tensor.shape)}, expected {list(target.shape)}"
        floats = tensor.is_floating_point() and target.is_floating_point()
        if not floats and tensor.dtype != target.dtype:
            return f"'{name}' is {tensor.dtype}, expected {target.dtype}"
    return None


def write_tensors(tensors: Mapping[str, Tensor], path: Path, *, name: Path) -> None:
    """Write a safetensors file.

    Args:
      name: the file in messages, as `path` may be temporary.

    Raises:
      OSError: also for a full disk, for which safetensors raises its own error.
    """
    try:
        save_file(dict(tensors), str(path))
    except SafetensorError as error:
        # the system's number in Rust's message
        match = re.search(r"os error (\d+)", str(error))
        number = int(match[1]) if match else errno.EIO
        raise OSError(number, os.strerror(number) if match else str(error), str(name)) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises InputError for other and damaged files."""
    with reading(regular_file(path)):
        return load_file(str(path))


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions() -> dict[str, str]:
    """Versions of the packages that a trained artefact depends on."""
    installed = {}
    for name in ("npmp", "torch", "mujoco", "numpy"):
        try:
            installed[name] = version(name)
        # a source tree that is not installed
        except PackageNotFoundError:
            installed[name] = "unknown"
    return installed
