"""The bundle: a folder with a policy and its skill module for a robot.

`bundle.json` is the contract, `policy.onnx` one graph of both levels with its recurrent state as
inputs and outputs, `golden.npz` reference inputs and outputs. Reading needs neither torch nor
MuJoCo, and executes nothing in the bundle.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError
from mocap_data.files import atomic_path, json_text
from mocap_data.input_files import parse_json, reading, regular_file
from mocap_data.npz import load_npz, names_in_npz
from npmp.core.settings import from_mapping
from npmp.deploy.contract import BundleContract
from npmp.deploy.onnx_policy import Golden, OnnxPolicy

SCHEMA = "npmp.bundle"
VERSION = 3
CONTRACT = "bundle.json"
GRAPH = "policy.onnx"
GOLDEN = "golden.npz"
# largest size of a file, usually 2 MB, and of the unpacked golden.npz, usually 6 MB [bytes]
MAX_BYTES = 1 << 30
MAX_GOLDEN_BYTES = 1 << 28
# steps and resets of golden.npz; all steps are checked before a robot starts [D]
MAX_STEPS = 20_000
MIN_STEPS = 100
MIN_RESETS = 2


class Bundle:
    """A bundle that has been read and checked."""

    def __init__(self, folder: Path, contract: BundleContract, content: Mapping[str, bytes]):
        """content: of the files beside bundle.json, by name."""
        self.folder = folder
        self.contract = contract
        self._content = content

    @staticmethod
    def read(folder: str | Path) -> Bundle:
        """Read and check a folder without executing anything in it.

        Raises:
          InputError: for a folder that is missing, damaged, changed after the export, or of another
            version.
        """
        folder = Path(folder)
        path = folder / CONTRACT
        if not path.is_file():
            raise InputError(f"'{folder}': no {CONTRACT}; npmp deploy export writes a bundle")
        with reading(path):
            described = parse_json(_bytes(path).decode(), str(path))
        if not isinstance(described, dict) or described.get("schema") != SCHEMA:
            raise InputError(f"'{path}': schema is not '{SCHEMA}'; is it another kind of file?")
        if (version := described.get("version")) != VERSION:
            raise InputError(
                f"'{path}': version={version!r:.20}, expected {VERSION}; export the policy again"
            )
        header = ("schema", "version")
        contract = from_mapping(BundleContract, described, at=f"'{path}'", ignore=header)
        if set(contract.files) != {GRAPH, GOLDEN}:
            raise InputError(
                f"'{path}': files={list(contract.files)!s:.200}, expected {GRAPH} and {GOLDEN}"
            )
        content = {name: _bytes(folder / name) for name in contract.files}
        for name, digest in contract.files.items():
            if hashlib.sha256(content[name]).hexdigest() != digest:
                raise InputError(
                    f"'{folder / name}': sha256 differs from the export; export the policy again"
                )
        if contract.in_graph().encode() not in content[GRAPH]:
            raise InputError(
                f"'{path}': differs from its copy in {GRAPH}; was it edited after the export?"
            )
        return Bundle(folder, contract, content)

    @staticmethod
    def write(
        folder: str | Path,
        contract: BundleContract,
        graph: bytes,
        golden: Mapping[str, NDArray[Any]],
    ) -> None:
        """Write a folder, each file atomically, bundle.json last: `read` refuses a partial bundle.

        Raises:
          OSError: if it cannot be written.
        """
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **golden)
        content = {GRAPH: graph, GOLDEN: buffer.getvalue()}
        files = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
        described = {"schema": SCHEMA, "version": VERSION, **asdict(contract), "files": files}
        # lists of numbers or names on one line each
        lists = r"\[\s+([^][{}]*?)\s+\]"
        text = json_text(described, indent=2)
        text = re.sub(lists, lambda match: f"[{' '.join(match[1].split())}]", text)
        content[CONTRACT] = f"{text}\n".encode()
        for name, data in content.items():
            with atomic_path(Path(folder) / name) as path:
                path.write_bytes(data)

    @property
    def graph(self) -> bytes:
        """The content of policy.onnx."""
        return self._content[GRAPH]

    def policy(self) -> OnnxPolicy:
        """The policy in its initial state. Raises InputError as `OnnxPolicy`."""
        return OnnxPolicy(self.contract, self.graph, name=str(self.folder / GRAPH))

    def golden(self) -> Golden:
        """The reference inputs and outputs recorded at the export.

        Raises:
          InputError: for wrong arrays, values that are not finite, or too few or too many steps.
        """
        path = self.folder / GOLDEN
        joints = len(self.contract.joints)
        content = self._content[GOLDEN]
        names = names_in_npz(path, content=content)
        arrays = load_npz(path, names, content=content, at_most=MAX_GOLDEN_BYTES)
        if set(arrays) != set(Golden._fields):
            raise InputError(
                f"'{path}': arrays {', '.join(arrays)!s:.200}, expected {', '.join(Golden._fields)}"
            )
        reset = arrays["reset"]
        if reset.dtype != bool or reset.ndim != 1 or not reset[:1].all():
            raise InputError(f"'{path}': reset: expected a bool per step, true at the first")
        steps = reset.size
        if not MIN_STEPS <= steps <= MAX_STEPS or reset.sum() < MIN_RESETS:
            raise InputError(
                f"'{path}': {steps:,} steps with {reset.sum()} resets, expected {MIN_STEPS} to "
                f"{MAX_STEPS:,} steps and at least {MIN_RESETS} resets"
            )
        widths = {
            "joint_pos": joints,
            "gyro": 3,
            "accelerometer": 3,
            "up": 3,
            "target": joints,
            "command": self.contract.command_width,
            "memory": sum(self.contract.memory.values()),
        }
        for name, width in widths.items():
            array = arrays[name]
            if array.shape != (steps, width):
                raise InputError(f"'{path}': {name} is {array.shape}, expected {(steps, width)}")
            if not np.issubdtype(array.dtype, np.floating) or not np.isfinite(array).all():
                raise InputError(f"'{path}': {name}: expected finite numbers")
            arrays[name] = array.astype(np.float32 if name == "memory" else np.float64)
        count = joints + widths["memory"]
        rounding = arrays["rounding"]
        if rounding.shape != (count,) or rounding.dtype != np.float64:
            raise InputError(f"'{path}': rounding is {rounding.shape}, expected {(count,)} float64")
        return Golden(**arrays)


def _bytes(path: Path) -> bytes:
    with reading(path):
        return regular_file(path, at_most=MAX_BYTES).read_bytes()
