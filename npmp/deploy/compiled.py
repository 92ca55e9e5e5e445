"""A bundle's graph as a table of operations on one array of numbers, carried out by a loop that
numba compiles.

A general runtime needs about half a microsecond for each operation before it begins to compute; a
policy has fifty, and its weights are read in that time. Here an operation costs what it computes.
Every value is a vector, ONNX's (1, n), and what is true is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
import onnx
from numba import njit
from numpy.typing import NDArray
from onnx import numpy_helper

from mocap_data.errors import InputError
from mocap_data.outside import reading

ALIGNED = 16  # numbers: a cache line of 64 bytes
MOST_NUMBERS, MOST_ROWS = 1 << 27, 100_000  # 0.5 GB; ours have 0.7 million numbers and 200 rows
OPSETS = (18, 25)  # in between, nothing changed in what is known here
ZERO, HALF, ONE, TWO, NINE = (np.float32(value) for value in (0.0, 0.5, 1.0, 2.0, 9.0))
# tanh's continued fraction, six levels deep, as a quotient of polynomials of x^2
N0, N1, N2 = (np.float32(value) for value in (135135.0, 17325.0, 378.0))
D0, D1, D2, D3 = (np.float32(value) for value in (135135.0, 62370.0, 3150.0, 28.0))
# of sums, so that they use all lanes; what is not finite stays so
ANY_ORDER = {"reassoc", "contract", "arcp", "nsz", "afn"}


class Operation(IntEnum):
    """By ONNX's names, but for the first two."""

    Copy = 0
    Spread = 1  # one number to n
    Gemm = 2
    LayerNormalization = 3
    ReduceSum = 4
    ReduceL2 = 5
    ReduceMin = 6
    ReduceMax = 7
    Tanh = 8  # from here on of each number
    Sigmoid = 9
    Elu = 10
    Not = 11
    Abs = 12
    Neg = 13
    Sqrt = 14
    Reciprocal = 15
    Exp = 16
    Log = 17
    Sin = 18
    Cos = 19
    Atan = 20
    IsNaN = 21
    Add = 22  # of two
    Sub = 23
    Mul = 24
    Div = 25
    Min = 26
    Max = 27
    Pow = 28
    Less = 29
    LessOrEqual = 30
    Greater = 31
    GreaterOrEqual = 32
    Equal = 33
    And = 34
    Or = 35
    Where = 36  # of three
    Clip = 37


UNARY = range(Operation.Tanh, Operation.Add)
BINARY = range(Operation.Add, Operation.Where)
REDUCING = (Operation.ReduceSum, Operation.ReduceL2, Operation.ReduceMin, Operation.ReduceMax)


# --- the loop
# ---------------------------------------------------------------------------------------------------------


@njit(fastmath=ANY_ORDER, error_model="numpy", inline="always")
def _least(x: Any, y: Any) -> Any:
    """What is no number stays so; numba's own min and max may lose it."""
    return y if x > y or y != y else x


@njit(fastmath=ANY_ORDER, error_model="numpy", inline="always")
def _most(x: Any, y: Any) -> Any:
    return y if x < y or y != y else x


@njit(fastmath=ANY_ORDER, error_model="numpy", inline="always")
def _tanh(x: Any) -> Any:
    """To 3e-7: beyond 9 it is 1 in single precision, and of half of x the fraction is as exact as
    that."""
    half = HALF * _least(_most(x, -NINE), NINE)
    square = half * half
    over = half * (N0 + square * (N1 + square * (N2 + square)))
    under = D0 + square * (D1 + square * (D2 + square * D3))
    return TWO * over * under / (under * under + over * over)


@njit(fastmath=ANY_ORDER, error_model="numpy")
def _rare(operation: int, x: Any, y: Any, z: Any) -> Any:
    if operation == Operation.Div:
        return x / y
    if operation == Operation.Min:
        return _least(x, y)
    if operation == Operation.Max:
        return _most(x, y)
    if operation == Operation.Pow:
        return x**y
    if operation == Operation.Less:
        return np.float32(x < y)
    if operation == Operation.LessOrEqual:
        return np.float32(x <= y)
    if operation == Operation.Greater:
        return np.float32(x > y)
    if operation == Operation.GreaterOrEqual:
        return np.float32(x >= y)
    if operation == Operation.Equal:
        return np.float32(x == y)
    if operation == Operation.And:
        return x * y
    if operation == Operation.Or:
        return max(x, y)
    if operation == Operation.Not:
        return ONE - x
    if operation == Operation.Abs:
        return abs(x)
    if operation == Operation.Neg:
        return -x
    if operation == Operation.Sqrt:
        return np.sqrt(x)
    if operation == Operation.Reciprocal:
        return ONE / x
    if operation == Operation.Exp:
        return math.exp(x)
    if operation == Operation.Log:
        return np.log(x)
    if operation == Operation.Sin:
        return math.sin(x)
    if operation == Operation.Cos:
        return math.cos(x)
    if operation == Operation.Atan:
        return math.atan(x)
    if operation == Operation.IsNaN:
        return np.float32(x != x)
    if operation == Operation.Where:
        return y if x != ZERO else z
    return _least(_most(x, y), z)  # Clip


@njit(fastmath=ANY_ORDER, error_model="numpy")
def execute(table: NDArray[np.int64], values: NDArray[np.float32]) -> None:
    """Carry out every row of a table.

    table: rows of an `Operation`, where its inputs x, y, z and its output are in `values`, how many
    numbers the output has, and how many x has. Nothing is checked here: `Table` writes none that go
    beyond `values`.
    """
    for row in range(table.shape[0]):
        operation, n, width = table[row, 0], table[row, 5], table[row, 6]
        x = values[table[row, 1] : table[row, 1] + width]
        y = values[table[row, 2] :]
        z = values[table[row, 3] :]
        out = values[table[row, 4] : table[row, 4] + n]
        if operation == Operation.Copy:
            for i in range(n):
                out[i] = x[i]
        elif operation == Operation.Spread:
            for i in range(n):
                out[i] = x[0]
        elif operation == Operation.Gemm:
            for i in range(n):
                weights, total = y[i * width : (i + 1) * width], ZERO
                for j in range(width):
                    total += weights[j] * x[j]
                out[i] = total + z[i]
        elif operation == Operation.LayerNormalization:
            mean, variance = ZERO, ZERO
            for i in range(n):
                mean += x[i]
            mean /= np.float32(n)
            for i in range(n):
                variance += (x[i] - mean) * (x[i] - mean)
            scale = ONE / np.sqrt(variance / np.float32(n) + z[n])  # epsilon is behind the bias
            for i in range(n):
                out[i] = (x[i] - mean) * scale * y[i] + z[i]
        elif operation == Operation.Tanh:
            for i in range(n):
                out[i] = _tanh(x[i])
        elif operation == Operation.Sigmoid:
            for i in range(n):
                out[i] = HALF + HALF * _tanh(HALF * x[i])
        elif operation == Operation.Elu:
            for i in range(n):
                t = _tanh(HALF * _least(x[i], ZERO))
                # exp(x) - 1 without its rounding near 0
                out[i] = _most(x[i], ZERO) + TWO * t / (ONE - t)
        elif operation == Operation.Add:
            for i in range(n):
                out[i] = x[i] + y[i]
        elif operation == Operation.Sub:
            for i in range(n):
                out[i] = x[i] - y[i]
        elif operation == Operation.Mul:
            for i in range(n):
                out[i] = x[i] * y[i]
        elif operation == Operation.ReduceSum:
            total = ZERO
            for i in range(width):
                total += x[i]
            out[0] = total
        elif operation == Operation.ReduceL2:
            total = ZERO
            for i in range(width):
                total += x[i] * x[i]
            out[0] = np.sqrt(total)
        elif operation == Operation.ReduceMin:
            out[0] = x[0]
            for i in range(1, width):
                out[0] = _least(out[0], x[i])
        elif operation == Operation.ReduceMax:
            out[0] = x[0]
            for i in range(1, width):
                out[0] = _most(out[0], x[i])
        else:
            for i in range(n):
                out[i] = _rare(operation, x[i], y[i], z[i])


@njit(error_model="numpy")
def advance(
    table: NDArray[np.int64],
    told: tuple[NDArray[np.float64], ...],
    widths: NDArray[np.int64],
    scales: NDArray[np.float64],
    values: NDArray[np.float32],
    after: int,
    target: NDArray[np.float64],
) -> int:
    """A control step, as `npmp.deploy.runtime.Runtime.step`.

    widths: of the vectors that are told, then of the target and of the memory, which follows what
    is told at the beginning of `values`. scales: (2, o + c) less and over. after: where in `values`
    the answer is, and behind it what is to be remembered.

    Returns 1 where something told, 2 where something answered is not finite, 3 for another width;
    memory and `target` are then as they were.
    """
    at, joints, remembered = 0, widths[len(told)], widths[len(told) + 1]
    if len(target) != joints:
        return 3
    for part in range(len(told)):
        vector = told[part]
        if len(vector) != widths[part]:
            return 3
        for x in vector:
            values[at] = (x - scales[0, at]) / scales[1, at]
            if not np.isfinite(values[at]):
                return 1
            at += 1
    execute(table, values)
    for i in range(after, after + joints + remembered):
        if not np.isfinite(values[i]):
            return 2
    for i in range(joints):
        target[i] = scales[0, i] + values[after + i]
    for i in range(remembered):
        values[at + i] = values[after + joints + i]
    return 0


# --- the table
# --------------------------------------------------------------------------------------------------------


class Table:
    """The rows that `execute` takes, and the array that they are about."""

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        before: Mapping[str, int],
        after: Mapping[str, int],
        name: str = "the graph",
    ):
        """before, after: widths of the graph's inputs and outputs; their values lie one behind
        another in this order, from 0 and from `self.after` on.

        Raises:
          InputError: for a graph that is none, or for an operation, or a use of one, that is not
            known here.
        """
        with reading(name):
            _check(model)
            self._numbers = {
                tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer
            }
        self._rows: list[tuple[int, ...]] = []
        self._places: dict[str, int] = {}
        self._widths: dict[str, int] = {}
        self._constants: list[tuple[int, NDArray[np.float32]]] = []
        self._asked: dict[str, int] = {}
        self._special: dict[str, Callable[[Sequence[str], Sequence[str], dict[str, Any]], None]] = {
            "Gemm": self._gemm, "MatMul": self._matmul, "LayerNormalization": self._normalization, "Clip": self._clip,
            "Identity": self._identity, "Concat": self._concat, "Split": self._split, "Slice": self._slice,
            **{operation.name: partial(self._reduce, operation) for operation in REDUCING},
        }  # fmt: skip
        self._end = 0
        for key, width in before.items():
            if key in self._numbers:
                raise InputError(f"'{name}': its input '{key}' is a constant, too")
            self._places[key], self._widths[key], self._end = self._end, width, self._end + width
        self.after = place = self._new(sum(after.values()))
        for key, width in after.items():
            self._asked[key], place = place, place + width
        for node in model.graph.node:
            try:
                self._add(node)
            except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
                raise InputError(
                    f"'{name}': runtime=numba cannot do {node.op_type!r:.40} as it is used there ({error!s:.100}); "
                    f"runtime=onnxruntime may"
                ) from error
        for key, width in after.items():
            if self._widths.get(key) != width:
                raise InputError(
                    f"'{name}': '{key}' has {self._widths.get(key)} numbers, expected {width}"
                )
            if self._places[key] != self._asked[key]:  # part of another value, or one itself
                self._row(Operation.Copy, (self._places[key],), self._asked[key], width, width)
        self.rows = np.array(self._rows, np.int64).reshape(-1, 7)

    def values(self) -> NDArray[np.float32]:
        """The array, with the weights in it, all else 0."""
        room = np.zeros(self._end + 2 * ALIGNED, np.float32)
        start = -(room.ctypes.data // room.itemsize) % ALIGNED
        values = room[start : start + self._end]
        for place, numbers in self._constants:
            values[place : place + numbers.size] = numbers
        return values

    def _new(self, width: int) -> int:
        start = self._end + -self._end % ALIGNED
        self._end = start + width
        if self._end > MOST_NUMBERS:
            raise ValueError(f"more than {MOST_NUMBERS:,} numbers")
        return start

    def _row(
        self, operation: Operation, inputs: Sequence[int], out: int, n: int, width: int
    ) -> None:
        x, y, z = (*inputs, 0, 0, 0)[:3]
        self._rows.append((int(operation), x, y, z, out, n, width))
        if len(self._rows) > MOST_ROWS:
            raise ValueError(f"more than {MOST_ROWS:,} operations")

    def _output(self, key: str, width: int, place: int | None = None) -> int:
        """Where a value is, of which there is none yet: at `place`, if it is a part of another."""
        if width < 1 or not key or key in self._widths or key in self._numbers:
            raise ValueError(f"'{key}' has no numbers, or twice")
        if place is None:
            place = self._asked[key] if key in self._asked else self._new(width)
        self._widths[key], self._places[key] = width, place
        return place

    def _constant(self, numbers: Any) -> int:
        flat = np.ravel(np.asarray(numbers, np.float32))
        self._constants.append((self._new(flat.size), flat))
        return self._constants[-1][0]

    def _numbers_of(self, key: str) -> NDArray[Any]:
        numbers = self._numbers[key]
        if not numbers.size or numbers.ndim > 2 or numbers.size != (1, *numbers.shape)[-1]:
            raise ValueError(f"'{key}' is no vector")
        if numbers.dtype not in (np.float32, np.bool_):
            raise ValueError(f"'{key}' is {numbers.dtype}")
        return numbers.ravel()

    def _width(self, key: str) -> int:
        return self._numbers_of(key).size if key in self._numbers else self._widths[key]

    def _vector(self, key: str, width: int | None = None) -> tuple[int, int]:
        """Where a value is and how many numbers it has; as many as `width`, where it had one."""
        found = self._width(key)
        width = found if width is None else width
        if found not in (1, width):
            raise ValueError(f"'{key}' has {found} numbers, not {width}")
        if key in self._numbers:
            return self._constant(np.broadcast_to(self._numbers_of(key), width)), width
        if found == width:
            return self._places[key], width
        out = self._new(width)
        self._row(Operation.Spread, (self._places[key],), out, width, 1)
        return out, width

    def _add(self, node: onnx.NodeProto) -> None:
        given = {
            attribute.name: onnx.helper.get_attribute_value(attribute)
            for attribute in node.attribute
        }
        inputs, outputs = list(node.input), list(node.output)
        if node.domain not in ("", "ai.onnx"):
            raise ValueError(f"of {node.domain!r:.40}")
        if node.op_type in self._special:
            self._special[node.op_type](inputs, outputs, given)
            return
        operation = Operation[node.op_type]
        count = 1 if operation in UNARY else 2 if operation in BINARY else 3
        if operation < Operation.Tanh or len(inputs) != count or given.get("alpha", 1.0) != 1.0:
            raise ValueError(f"{len(inputs)} inputs, {given}")
        n = max(map(self._width, inputs))
        places = [self._vector(key, n)[0] for key in inputs]
        self._row(operation, places, self._output(outputs[0], n), n, n)

    def _product(self, x: str, weights: NDArray[Any], bias: NDArray[Any], out: str) -> None:
        """weights: (n, width)"""
        place, width = self._vector(x)
        n, expected = weights.shape
        if expected != width or weights.dtype != np.float32:
            raise ValueError(
                f"'{x}' has {width} numbers, the {weights.dtype} weights are for {expected}"
            )
        inputs = place, self._constant(weights), self._constant(np.broadcast_to(bias, n))
        self._row(Operation.Gemm, inputs, self._output(out, n), n, width)

    def _bias(self, inputs: Sequence[str]) -> NDArray[Any]:
        return (
            self._numbers_of(inputs[2])
            if len(inputs) > 2 and inputs[2]
            else np.zeros(1, np.float32)
        )

    def _gemm(self, inputs: Sequence[str], outputs: Sequence[str], given: dict[str, Any]) -> None:
        if (
            given.get("alpha", 1.0) != 1.0
            or given.get("beta", 1.0) != 1.0
            or given.get("transA", 0)
        ):
            raise ValueError("scaled, or transposed")
        weights = self._numbers[inputs[1]]
        self._product(
            inputs[0],
            weights if given.get("transB", 0) else weights.T,
            self._bias(inputs),
            outputs[0],
        )

    def _matmul(self, inputs: Sequence[str], outputs: Sequence[str], _: dict[str, Any]) -> None:
        self._product(inputs[0], self._numbers[inputs[1]].T, np.zeros(1, np.float32), outputs[0])

    def _normalization(
        self, inputs: Sequence[str], outputs: Sequence[str], given: dict[str, Any]
    ) -> None:
        _last_axis([given.get("axis", -1)])
        x, n = self._vector(inputs[0])
        scale = self._vector(inputs[1], n)[0]
        behind = self._constant(
            np.append(np.broadcast_to(self._bias(inputs), n), given.get("epsilon", 1e-5))
        )
        self._row(
            Operation.LayerNormalization, (x, scale, behind), self._output(outputs[0], n), n, n
        )

    def _reduce(
        self,
        operation: Operation,
        inputs: Sequence[str],
        outputs: Sequence[str],
        given: dict[str, Any],
    ) -> None:
        _last_axis(self._numbers[inputs[1]])
        x, width = self._vector(inputs[0])
        if not given.get("keepdims", 1):
            raise ValueError("without keepdims")
        self._row(operation, (x,), self._output(outputs[0], 1), 1, width)

    def _clip(self, inputs: Sequence[str], outputs: Sequence[str], _: dict[str, Any]) -> None:
        x, n = self._vector(inputs[0])
        bounds = []
        for i, none in ((1, -math.inf), (2, math.inf)):
            given = len(inputs) > i and inputs[i]
            bounds.append(
                self._vector(inputs[i], n)[0] if given else self._constant(np.full(n, none))
            )
        self._row(Operation.Clip, (x, *bounds), self._output(outputs[0], n), n, n)

    def _identity(self, inputs: Sequence[str], outputs: Sequence[str], _: dict[str, Any]) -> None:
        place, width = self._vector(inputs[0])
        self._output(outputs[0], width, place)

    def _concat(self, inputs: Sequence[str], outputs: Sequence[str], given: dict[str, Any]) -> None:
        _last_axis([given["axis"]])
        parts = [self._vector(key) for key in inputs]
        out = self._output(outputs[0], sum(width for _, width in parts))
        for place, width in parts:
            self._row(Operation.Copy, (place,), out, width, width)
            out += width

    def _split(self, inputs: Sequence[str], outputs: Sequence[str], given: dict[str, Any]) -> None:
        """Parts of a value are where it is."""
        _last_axis([given.get("axis", 0)])
        place, width = self._vector(inputs[0])
        if len(inputs) > 1:
            widths = [int(part) for part in self._numbers[inputs[1]]]
        else:  # equal ones, the last with what is left
            each = -(-width // given["num_outputs"])
            widths = [
                *[each] * (given["num_outputs"] - 1),
                width - each * (given["num_outputs"] - 1),
            ]
        if len(widths) != len(outputs) or min(widths) < 1 or sum(widths) != width:
            raise ValueError(f"{width} numbers into {widths}")
        for key, part in zip(outputs, widths, strict=True):
            self._output(key, part, place)
            place += part

    def _slice(self, inputs: Sequence[str], outputs: Sequence[str], _: dict[str, Any]) -> None:
        start, end, axis, *step = (self._numbers[key] for key in inputs[1:])
        _last_axis(axis)
        place, width = self._vector(inputs[0])
        (first,), (last,), (by,) = start, end, step[0] if step else [1]
        taken = range(width)[int(first) : int(last) : int(by)]
        if by == 1:
            self._output(outputs[0], len(taken), place + taken.start)
            return
        out = self._output(outputs[0], len(taken))
        for i, j in enumerate(taken):
            self._row(Operation.Copy, (place + j,), out + i, 1, 1)


def _check(model: onnx.ModelProto) -> None:
    """Raise what says that a model is none, or is not of the version of ONNX that is meant here."""
    versions = {entry.domain: entry.version for entry in model.opset_import}
    if model.functions:
        raise ValueError("runtime=numba knows no functions of a graph's own")
    if not OPSETS[0] <= versions.get("", 0) <= OPSETS[1]:
        raise ValueError(
            f"runtime=numba knows ONNX's operations of versions {OPSETS[0]} to {OPSETS[1]}, not {versions}"
        )
    tensors = model.graph.initializer
    if any(
        tensor.external_data or tensor.data_location == onnx.TensorProto.EXTERNAL
        for tensor in tensors
    ):
        raise ValueError("it has weights in another file; a bundle's graph holds them itself")
    names = [entry.name for entry in (*tensors, *model.graph.input)]
    if len(set(names)) < len(names):
        raise ValueError("two of its inputs and constants have one name")
    onnx.checker.check_model(model, full_check=True)  # names, types and shapes of everything


def _last_axis(axes: Sequence[int] | NDArray[Any]) -> None:
    if len(axes) != 1 or int(axes[0]) not in (-1, 1):
        raise ValueError(f"along axes {list(axes)}")
