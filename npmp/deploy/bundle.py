"""The bundle: a policy and its skill module as a folder that a robot can run.

`bundle.json` says what an integrator must know, `policy.onnx` is one graph of both levels with its
memory as inputs and outputs, `golden.npz` what it must answer. Nothing here needs torch or MuJoCo,
and nothing in a bundle can run code.
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
VERSION = 3  # 2 had no memory in its golden rollout
CONTRACT = "bundle.json"
GRAPH = "policy.onnx"
GOLDEN = "golden.npz"
MAX_BYTES = 1 << 30  # of a file; ours have 2 MB
MOST_GOLDEN_BYTES = 1 << 28  # unpacked; ours have 6 MB
MOST_STEPS = 20_000  # of golden.npz, which a robot answers before it starts [D]
# of a golden rollout that says anything [D]
FEWEST_STEPS = 100
FEWEST_RESETS = 2


class Bundle:
    """A bundle that has been read and found whole."""

    def __init__(self, folder: Path, contract: BundleContract, content: Mapping[str, bytes]):
        """content: of the files beside bundle.json, by their names."""
        self.folder = folder
        self.contract = contract
        self._content = content

    @staticmethod
    def read(folder: str | Path) -> Bundle:
        """Read a folder and check what is in it. Nothing in it is executed.

        Raises:
          InputError: for one that is missing, damaged, changed after it was written, or of another
            version.
        """
        folder = Path(folder)
        path = folder / CONTRACT
        if not path.is_file():
            raise InputError(
                f"no bundle in '{folder}': '{CONTRACT}' is missing (policy=... exports one)"
            )
        with reading(path):
            written = parse_json(_bytes(path).decode(), str(path))
        if not isinstance(written, dict) or written.get("schema") != SCHEMA:
            raise InputError(f"'{path}' does not describe a bundle (schema '{SCHEMA}')")
        if (version := written.get("version")) != VERSION:
            raise InputError(
                f"'{path}' has version {version!r:.20}, expected {VERSION}; export its policy again"
            )
        about = ("schema", "version")
        contract = from_mapping(BundleContract, written, at=f"'{path}'", ignore=about)
        if set(contract.files) != {GRAPH, GOLDEN}:
            raise InputError(f"'{path}': a bundle has the files {GRAPH} and {GOLDEN}")
        content = {name: _bytes(folder / name) for name in contract.files}
        for name, digest in contract.files.items():
            if hashlib.sha256(content[name]).hexdigest() != digest:
                raise InputError(
                    f"'{folder / name}' is not the file that was exported: its checksum differs"
                )
        if contract.in_graph().encode() not in content[GRAPH]:
            raise InputError(
                f"'{path}' was changed after it was exported: {GRAPH} repeats it otherwise"
            )
        return Bundle(folder, contract, content)

    @staticmethod
    def write(
        folder: str | Path,
        contract: BundleContract,
        graph: bytes,
        golden: Mapping[str, NDArray[Any]],
    ) -> None:
        """Write a folder, each file whole or not at all. bundle.json comes last: a kill in between
        leaves files that `read` refuses.

        Raises:
          OSError: when it cannot be written.
        """
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **golden)
        content = {GRAPH: graph, GOLDEN: buffer.getvalue()}
        files = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
        written = {"schema": SCHEMA, "version": VERSION, **asdict(contract), "files": files}
        # lists of numbers or words on one line each
        lists = r"\[\s+([^][{}]*?)\s+\]"
        text = json_text(written, indent=2)
        text = re.sub(lists, lambda found: f"[{' '.join(found[1].split())}]", text)
        content[CONTRACT] = f"{text}\n".encode()
        for name, data in content.items():
            with atomic_path(Path(folder) / name) as path:
                path.write_bytes(data)

    @property
    def graph(self) -> bytes:
        """policy.onnx."""
        return self._content[GRAPH]

    def policy(self) -> OnnxPolicy:
        """What acts, with empty memory. Raises InputError as `OnnxPolicy`."""
        return OnnxPolicy(self.contract, self.graph, name=str(self.folder / GRAPH))

    def golden(self) -> Golden:
        """What was recorded when it was exported.

        Raises:
          InputError: for arrays of other names, shapes or types, values that are not finite, or too
            few steps.
        """
        path = self.folder / GOLDEN
        joints = len(self.contract.joints)
        content = self._content[GOLDEN]
        names = names_in_npz(path, content=content)
        arrays = load_npz(path, names, content=content, at_most=MOST_GOLDEN_BYTES)
        if set(arrays) != set(Golden._fields):
            raise InputError(
                f"'{path}' has the arrays {', '.join(arrays)!s:.200}; "
                f"expected {', '.join(Golden._fields)}"
            )
        reset = arrays["reset"]
        if reset.dtype != bool or reset.ndim != 1 or not reset[:1].all():
            raise InputError(
                f"'{path}': reset must be true or false for each step, true at the first"
            )
        if (steps := reset.size) < FEWEST_STEPS or reset.sum() < FEWEST_RESETS:
            raise InputError(
                f"'{path}' has {steps} steps; {FEWEST_STEPS} with {FEWEST_RESETS} resets are needed"
            )
        if steps > MOST_STEPS:
            raise InputError(f"'{path}' has {steps:,} steps; at most {MOST_STEPS:,} are answered")
        widths = {"joint_pos": joints, "gyro": 3, "accelerometer": 3, "up": 3, "target": joints}
        widths["command"] = self.contract.command_width
        widths["memory"] = sum(self.contract.memory.values())
        for name, width in widths.items():
            array = arrays[name]
            if array.shape != (steps, width):
                raise InputError(f"'{path}': {name} is {array.shape}, expected {(steps, width)}")
            if not np.issubdtype(array.dtype, np.floating) or not np.isfinite(array).all():
                raise InputError(f"'{path}': {name} must be finite numbers")
            # a command is of single precision in the file, and the memory stays it
            arrays[name] = array.astype(np.float32 if name == "memory" else np.float64)
        numbers = joints + widths["memory"]
        if arrays["rounding"].shape != (numbers,) or arrays["rounding"].dtype != np.float64:
            raise InputError(f"'{path}': rounding must be {numbers} numbers")
        return Golden(**arrays)


def _bytes(path: Path) -> bytes:
    with reading(path):
        return regular_file(path, at_most=MAX_BYTES).read_bytes()
