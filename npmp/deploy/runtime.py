"""What carries out a bundle's graph: onnxruntime, or a loop that numba compiles
(`npmp.deploy.compiled`).

Each has one robot's memory. A step reads it and writes aside, so one that fails is forgotten.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError
from mocap_data.outside import reading

ONNXRUNTIME, NUMBA = "onnxruntime", "numba"
NOT_FINITE = (
    "what the robot senses or is told holds a value that is not finite",
    "the policy's answer is not finite",
)
DOUBLE = np.dtype(np.float64)
Float64Array = NDArray[np.float64]
# a key of ONNX's external data: protobuf's first field, of eight letters, as all write it
_OUTSIDE = b"\x0a\x08location"
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"  # onnxruntime's


class Runtime(Protocol):
    described: str | None  # what the graph says that it is

    def step(self, told: tuple[Float64Array, ...], target: Float64Array) -> None:
        """A control step.

        Args:
          told: vectors of the given widths, joint angles first; obs and command of the graph are
            (these - less) / over.
          target: (nu,) gets the action and the first of `less`, the home pose. It may be one of
            what is told.

        Raises:
          TypeError: for other widths; a runtime may also refuse what is no vector of doubles one
            behind another.
          ValueError: for what is not finite, told, answered or to be remembered.
          Either way memory and target are then as they were.
        """
        ...

    def reset(self) -> None:
        """Empty memory."""


def open_runtime(
    kind: str,
    graph: bytes,
    name: str,
    *,
    told: Sequence[int],
    memory: Mapping[str, int],
    joints: int,
    scales: Float64Array,
) -> Runtime:
    """Make a graph ready to run on one thread.

    kind: of RUNTIMES. graph: the content of policy.onnx; name: what messages call it. told: the
    widths of what `step` is told; the last is the graph's command, the others its obs. memory: the
    widths of its other inputs. scales: (2, o + c) less, which begins with the home pose, and over.

    Raises:
      InputError: where a package is absent, the graph has other inputs or outputs, or `kind` cannot
        run it.
    """
    # else weights are looked for beside the process, which no checksum covers
    if _OUTSIDE in graph:
        raise InputError(
            f"'{name}' has weights in another file; a bundle's graph holds them itself"
        )
    if kind not in RUNTIMES:
        raise InputError(f"no runtime {kind!r:.40}; there are {', '.join(RUNTIMES)}")
    return RUNTIMES[kind](graph, name, tuple(told), {"action": joints, **memory}, scales)


class OnnxRuntime:
    """By onnxruntime."""

    def __init__(
        self,
        graph: bytes,
        name: str,
        told: tuple[int, ...],
        remembered: dict[str, int],
        scales: Float64Array,
    ):
        try:
            import onnxruntime
        except ImportError as error:
            raise _absent(ONNXRUNTIME, ONNXRUNTIME, NUMBA, error) from error
        options = onnxruntime.SessionOptions()
        # its own pool would take the loop's core
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = 3  # errors only, and these are raised
        # no place for what _OUTSIDE does not find
        options.add_session_config_entry(WEIGHTS_FOLDER, os.devnull)
        with reading(name):
            session = onnxruntime.InferenceSession(
                graph, options, providers=["CPUExecutionProvider"]
            )
        given, answered = (
            [(entry.name, entry.type == "tensor(float)", entry.shape) for entry in entries]
            for entries in (session.get_inputs(), session.get_outputs())
        )
        _check_graph(given, answered, told, remembered, name)
        self.described = session.get_modelmeta().custom_metadata_map.get("npmp")
        self._session, self._turn, self._shapes = session, 0, [(width,) for width in told]
        (self._less, self._over), self._told = scales, np.empty(sum(told))
        self._home = self._less[: remembered["action"]]
        row, seen = np.zeros((1, sum(told)), np.float32), sum(told[:-1])
        self._shown = row[0]
        # two sets of an action and memory: each run reads one and writes the other
        self._answers = np.zeros((2, sum(remembered.values())), np.float32)
        ends = np.cumsum([*remembered.values()])[:-1]
        memory = [
            dict(zip(remembered, np.split(answer[None], ends, 1), strict=True))
            for answer in self._answers
        ]
        self._actions = [entry["action"][0] for entry in memory]
        shown = {"obs": row[:, :seen], "command": row[:, seen:]}
        self._bindings = [self._bound({**memory[i], **shown}, memory[1 - i]) for i in range(2)]

    def _bound(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Any:
        binding = self._session.io_binding()
        for name, array in before.items():
            if name != "action":
                binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        for name, array in after.items():
            binding.bind_output(_next(name), "cpu", 0, np.float32, array.shape, array.ctypes.data)
        return binding

    def step(self, told: tuple[Float64Array, ...], target: Float64Array) -> None:
        if [np.shape(vector) for vector in told] != self._shapes:
            raise TypeError("of other widths")
        np.concatenate(told, out=self._told)
        np.subtract(self._told, self._less, self._told)
        np.divide(self._told, self._over, self._told)
        self._shown[:] = self._told
        if not np.isfinite(self._shown).all():
            raise ValueError(NOT_FINITE[0])
        self._session.run_with_iobinding(self._bindings[self._turn])
        if not np.isfinite(self._answers[1 - self._turn]).all():
            raise ValueError(NOT_FINITE[1])
        self._turn = 1 - self._turn
        np.add(self._home, self._actions[self._turn], target)

    def reset(self) -> None:
        self._answers.fill(0.0)


class NumbaRuntime:
    """By `npmp.deploy.compiled`. The first in a process takes some seconds to compile."""

    def __init__(
        self,
        graph: bytes,
        name: str,
        told: tuple[int, ...],
        remembered: dict[str, int],
        scales: Float64Array,
    ):
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
        asked = {_next(key): width for key, width in remembered.items()}
        table = Table(model, before=_read(told, remembered), after=asked, name=name)
        values, first, joints = table.values(), sum(told), remembered["action"]
        width = sum(remembered.values()) - joints
        self._rows, self._advance, self._memory = table.rows, advance, values[first : first + width]
        self._constant = np.array([*told, joints, width]), scales, values, table.after
        # compiles
        advance(table.rows[:0], tuple(map(np.zeros, told)), *self._constant, np.zeros(joints))

    def step(self, told: tuple[Float64Array, ...], target: Float64Array) -> None:
        for vector in told:  # for another type numba would compile for seconds
            if vector.__class__ is not np.ndarray or vector.dtype != DOUBLE or vector.ndim != 1:
                raise TypeError("no vector of doubles")
            if not vector.flags.carray:
                raise TypeError("no vector that lies one number behind another and may be written")
        wrong = self._advance(self._rows, told, *self._constant, target)
        if wrong > len(NOT_FINITE):
            raise TypeError("of other widths")
        if wrong:
            raise ValueError(NOT_FINITE[wrong - 1])

    def reset(self) -> None:
        self._memory.fill(0.0)


RUNTIMES: dict[
    str, Callable[[bytes, str, tuple[int, ...], dict[str, int], Float64Array], Runtime]
] = {ONNXRUNTIME: OnnxRuntime, NUMBA: NumbaRuntime}


def _absent(kind: str, packages: str, other: str, error: ImportError) -> InputError:
    return InputError(
        f"runtime={kind} needs {packages}: pip install 'npmp[deploy]', or runtime={other} ({error})"
    )


def _next(name: str) -> str:
    return name if name == "action" else f"{name}_next"


def _shape(tensor: Any) -> tuple[bool, list[Any]]:
    """Whether it is of single precision, and its dimensions."""
    sizes = [
        entry.dim_value if entry.HasField("dim_value") else entry.dim_param
        for entry in tensor.shape.dim
    ]
    return tensor.elem_type == 1, sizes


def _read(told: Sequence[int], remembered: Mapping[str, int]) -> dict[str, int]:
    """The widths of a graph's inputs."""
    memory = {key: width for key, width in remembered.items() if key != "action"}
    return {"obs": sum(told[:-1]), "command": told[-1], **memory}


def _check_graph(
    inputs: Sequence[tuple[str, bool, list[Any]]],
    outputs: Sequence[tuple[str, bool, list[Any]]],
    told: Sequence[int],
    remembered: Mapping[str, int],
    name: str,
) -> None:
    """Of each its name, whether it is of single precision, and its shape."""
    read = _read(told, remembered)
    for found, expected in (
        (inputs, read),
        (outputs, {_next(key): width for key, width in remembered.items()}),
    ):
        if sorted(found, key=str) != sorted(
            ((key, True, [1, width]) for key, width in expected.items()), key=str
        ):
            raise InputError(
                f"'{name}' does not fit its bundle.json: it has {found!s:.200}, expected {expected}"
            )
