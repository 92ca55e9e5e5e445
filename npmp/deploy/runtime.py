"""What carries out a bundle's graph: onnxruntime, or a loop that numba compiles (`npmp.deploy.compiled`).

Each has one robot's memory. A step reads it and writes aside, so one that fails is forgotten.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError
from mocap_data.outside import reading

ONNXRUNTIME, NUMBA = "onnxruntime", "numba"
NOT_FINITE = ("what the robot senses or is told holds a value that is not finite", "the policy's answer is not finite")
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
# a key of ONNX's external data: protobuf's first field, of eight letters, as all write it
_OUTSIDE = b"\x0a\x08location"
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"  # onnxruntime's


class Runtime(Protocol):
    described: str | None  # what the graph says that it is

    @property
    def last(self) -> Float32Array:
        """(nu,) the action of the last step, zeros at first; it may change with the next."""
        ...

    def step(self, told: Float64Array, less: Float64Array) -> Float32Array:
        """(nu,) the action that follows.

        told: (o + c,) obs, then command; the graph is shown (told - less) / over. What is in it may be gone afterwards.

        Raises:
          ValueError: for what is not finite, told or answered; the memory is then that of before.
        """
        ...

    def reset(self) -> None:
        """Empty memory."""


def open_runtime(
    kind: str,
    graph: bytes,
    name: str,
    *,
    told: Mapping[str, int],
    memory: Mapping[str, int],
    joints: int,
    over: Float64Array,
) -> Runtime:
    """Make a graph ready to run on one thread.

    kind: of RUNTIMES. graph: the content of policy.onnx; name: what messages call it. told, memory: the widths of its
    inputs. over: (o + c,) what is told is divided by this.

    Raises:
      InputError: where a package is absent, the graph has other inputs or outputs, or `kind` cannot run it.
    """
    if _OUTSIDE in graph:  # else weights are looked for beside the process, which no checksum covers
        raise InputError(f"'{name}' has weights in another file; a bundle's graph holds them itself")
    if kind not in RUNTIMES:
        raise InputError(f"no runtime {kind!r:.40}; there are {', '.join(RUNTIMES)}")
    return RUNTIMES[kind](graph, name, dict(told), {"action": joints, **memory}, over)


class OnnxRuntime:
    """By onnxruntime."""

    def __init__(self, graph: bytes, name: str, told: dict[str, int], remembered: dict[str, int], over: Float64Array):
        try:
            import onnxruntime
        except ImportError as error:
            raise _absent(ONNXRUNTIME, ONNXRUNTIME, NUMBA, error) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # its own pool would take the loop's core
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = 3  # errors only, and these are raised
        options.add_session_config_entry(WEIGHTS_FOLDER, os.devnull)  # no place for what _OUTSIDE does not find
        with reading(name):
            session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        given, answered = (
            [(entry.name, entry.type == "tensor(float)", entry.shape) for entry in entries]
            for entries in (session.get_inputs(), session.get_outputs())
        )
        _check_graph(given, answered, told, remembered, name)
        self.described = session.get_modelmeta().custom_metadata_map.get("npmp")
        self._session, self._turn, self._over = session, 0, over
        row = np.zeros((1, sum(told.values())), np.float32)
        self._shown = row[0]
        # two sets of memory: each run reads one and writes the other
        self._memory = [{key: np.zeros((1, width), np.float32) for key, width in remembered.items()} for _ in range(2)]
        self._actions = [memory["action"][0] for memory in self._memory]
        shown = {"obs": row[:, : told["obs"]], "command": row[:, told["obs"] :]}
        self._bindings = [self._bound({**self._memory[i], **shown}, self._memory[1 - i]) for i in range(2)]

    def _bound(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Any:
        binding = self._session.io_binding()
        for name, array in before.items():
            if name != "action":
                binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        for name, array in after.items():
            binding.bind_output(_next(name), "cpu", 0, np.float32, array.shape, array.ctypes.data)
        return binding

    @property
    def last(self) -> Float32Array:
        return self._actions[self._turn]

    def step(self, told: Float64Array, less: Float64Array) -> Float32Array:
        np.subtract(told, less, told)
        np.divide(told, self._over, told)
        self._shown[:] = told
        if not math.isfinite(self._shown.dot(self._shown)):  # one that is not makes the sum of squares so
            raise ValueError(NOT_FINITE[0])
        self._session.run_with_iobinding(self._bindings[self._turn])
        action = self._actions[1 - self._turn]
        if not math.isfinite(action.dot(action)):
            raise ValueError(NOT_FINITE[1])
        self._turn = 1 - self._turn
        return action

    def reset(self) -> None:
        for memory in self._memory:
            for array in memory.values():
                array.fill(0.0)


class NumbaRuntime:
    """By `npmp.deploy.compiled`. The first in a process takes some seconds to compile."""

    def __init__(self, graph: bytes, name: str, told: dict[str, int], remembered: dict[str, int], over: Float64Array):
        try:
            import onnx

            from npmp.deploy.compiled import Table, advance
        except ImportError as error:
            raise _absent(NUMBA, "numba and onnx", ONNXRUNTIME, error) from error
        with reading(name):
            model = onnx.load_model_from_string(graph)
        given, answered = (
            [(entry.name, *_shape(entry.type.tensor_type)) for entry in entries]
            for entries in (model.graph.input, model.graph.output)
        )
        _check_graph(given, answered, told, remembered, name)
        self.described = {entry.key: entry.value for entry in model.metadata_props}.get("npmp")
        joints, widths = remembered["action"], {k: width for k, width in remembered.items() if k != "action"}
        asked = {_next(key): width for key, width in remembered.items()}
        table = Table(model, before={**told, **widths}, after=asked, name=name)
        values, first, width = table.values(), sum(told.values()), sum(widths.values())
        memory, after = values[first : first + width], values[table.after : table.after + joints + width]
        self._rows, self._advance, self._memory, self.last = table.rows, advance, memory, np.zeros(joints, np.float32)
        self._arrays = (over, values, memory, after, self.last)
        nothing = np.zeros_like(over)
        advance(table.rows[:0], nothing, nothing, *self._arrays)  # compiles

    def step(self, told: Float64Array, less: Float64Array) -> Float32Array:
        wrong = self._advance(self._rows, told, less, *self._arrays)
        if wrong:
            raise ValueError(NOT_FINITE[wrong - 1])
        return self.last

    def reset(self) -> None:
        self._memory.fill(0.0)
        self.last.fill(0.0)


RUNTIMES: dict[str, Callable[[bytes, str, dict[str, int], dict[str, int], Float64Array], Runtime]] = {
    ONNXRUNTIME: OnnxRuntime,
    NUMBA: NumbaRuntime,
}


def _absent(kind: str, packages: str, other: str, error: ImportError) -> InputError:
    return InputError(f"runtime={kind} needs {packages}: pip install 'npmp[deploy]', or runtime={other} ({error})")


def _next(name: str) -> str:
    return name if name == "action" else f"{name}_next"


def _shape(tensor: Any) -> tuple[bool, list[Any]]:
    """Whether it is of single precision, and its dimensions."""
    sizes = [entry.dim_value if entry.HasField("dim_value") else entry.dim_param for entry in tensor.shape.dim]
    return tensor.elem_type == 1, sizes


def _check_graph(
    inputs: Sequence[tuple[str, bool, list[Any]]],
    outputs: Sequence[tuple[str, bool, list[Any]]],
    told: Mapping[str, int],
    remembered: Mapping[str, int],
    name: str,
) -> None:
    """Of each its name, whether it is of single precision, and its shape."""
    read = {**told, **{key: width for key, width in remembered.items() if key != "action"}}
    for found, expected in ((inputs, read), (outputs, {_next(key): width for key, width in remembered.items()})):
        if sorted(found, key=str) != sorted(((key, True, [1, width]) for key, width in expected.items()), key=str):
            raise InputError(f"'{name}' does not fit its bundle.json: it has {found!s:.200}, expected {expected}")
