"""The compiled loop, operation by operation against ONNX's own reference, and what it refuses."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from mocap_data.errors import InputError

if any(importlib.util.find_spec(name) is None for name in ("onnx", "numba")):
    pytest.skip("the extra deploy is not installed", allow_module_level=True)

from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from npmp.deploy.compiled import BINARY, UNARY, Operation, Table, _tanh, execute

RNG = np.random.default_rng(0)
BOOLEAN = {"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "And", "Or", "Not", "IsNaN"}
AT_LEAST_0 = {"Sqrt", "Log", "Pow"}


def made(nodes: list[Any], before: dict[str, Any], after: dict[str, int], **constants: Any) -> Any:
    """A model of inputs and outputs (1, n)."""
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, floats, [1, np.size(value)]) for name, value in before.items()],
        [helper.make_tensor_value_info(name, floats, [1, width]) for name, width in after.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def answers(model: Any, before: dict[str, Any], after: dict[str, int]) -> list[np.ndarray]:
    table = Table(model.graph, before={name: np.size(value) for name, value in before.items()}, after=after)
    values = table.values()
    assert values.ctypes.data % 64 == 0
    told = np.concatenate([np.ravel(value) for value in before.values()]).astype(np.float32)
    values[: told.size] = told
    execute(table.rows, values)
    return np.split(values[table.after : table.after + sum(after.values())], np.cumsum([*after.values()])[:-1])


def compared(nodes: list[Any], before: dict[str, Any], after: dict[str, int], **constants: Any) -> None:
    """The reference's answers, to what rounding makes of them."""
    model = made(nodes, before, after, **constants)
    shown = {name: np.reshape(value, (1, -1)).astype(np.float32) for name, value in before.items()}
    expected = ReferenceEvaluator(model).run(None, shown)
    for found, right in zip(answers(model, before, after), expected, strict=True):
        np.testing.assert_allclose(found, np.ravel(right), rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("operation", [*UNARY, *BINARY])
@pytest.mark.parametrize("widths", [(19, 19), (19, 1), (1, 19), (1, 1)])
def test_of_each_number(operation: int, widths: tuple[int, int]) -> None:
    """A single number goes with each of the other's; a constant is no other than an input."""
    name = Operation(operation).name
    x, y = (np.round(2.0 * RNG.normal(size=width), 1) for width in widths)
    if operation in UNARY:
        x, y = x if name not in AT_LEAST_0 else np.abs(x) + 0.1, None
    elif name in ("Pow", "Div"):
        x, y = np.abs(x) + 0.1, y + 0.05
    nodes, last, inputs = [], "out", ["x"] if y is None else ["x", "y"]
    if name in ("And", "Or", "Not"):
        nodes = [helper.make_node("Less", [key, "zero"], [f"{key}_low"]) for key in inputs]
        inputs = [f"{key}_low" for key in inputs]
    if name in BOOLEAN:  # as a number
        last = "true"
        tail = [helper.make_node("Where", ["true", "one", "zero"], ["out"])]
    else:
        tail = []
    nodes += [helper.make_node(name, inputs, [last]), *tail]
    before, after = {"x": x} | ({} if y is None else {"y": y}), {"out": max(x.size, 0 if y is None else y.size)}
    numbers = {"zero": np.zeros(1, np.float32), "one": np.ones(1, np.float32)} if name in BOOLEAN else {}
    compared(nodes, before, after, **numbers)
    if y is not None:
        compared(nodes, {"x": x}, after, y=y.astype(np.float32), **numbers)


def test_of_whole_vectors() -> None:
    """Products of any width, the parts of a value, what is put together, a value given back as it came."""
    for n, width in ((1, 1), (3, 33), (64, 65), (16, 128)):
        x, weights, bias = (RNG.normal(size=shape).astype(np.float32) for shape in (width, (n, width), n))
        one = {"before": {"x": x}, "after": {"out": n}}
        compared([helper.make_node("Gemm", ["x", "w", "b"], ["out"], transB=1)], **one, w=weights, b=bias)
        compared([helper.make_node("Gemm", ["x", "w"], ["out"])], **one, w=weights.T.copy())
        compared([helper.make_node("MatMul", ["x", "w"], ["out"])], **one, w=weights.T.copy())
        norm = helper.make_node("LayerNormalization", ["x", "g", "b"], ["out"], epsilon=0.01)
        compared([norm], {"x": x}, {"out": width}, g=weights[0], b=weights[-1])
        for name in ("ReduceSum", "ReduceL2", "ReduceMin", "ReduceMax"):
            compared([helper.make_node(name, ["x", "along"], ["out"])], {"x": x}, {"out": 1}, along=np.array([-1]))
    x = RNG.normal(size=7)
    nodes = [
        helper.make_node("Split", ["x", "parts"], ["a", "b", "c"], axis=1),
        helper.make_node("Concat", ["c", "k", "a"], ["first"], axis=-1),
        helper.make_node("Identity", ["b"], ["second"]),
        helper.make_node("Identity", ["x"], ["third"]),
    ]
    after = {"third": 7, "first": 5, "second": 3}
    compared(nodes, {"x": x}, after, parts=np.array([2, 3, 2]), k=np.float32([[5.0]]))
    compared(
        [helper.make_node("Split", ["x"], ["a", "b", "c"], axis=1, num_outputs=3)], {"x": x}, {"a": 3, "c": 1, "b": 3}
    )
    far = np.iinfo(np.int64).max
    for start, end, step, n in ((0, 3, 1, 3), (2, far, 2, 3), (-1, -far, -1, 7), (-3, -1, 1, 2), (5, 1, -2, 2)):
        bounds = {"s": np.array([start]), "e": np.array([end]), "a": np.array([-1]), "d": np.array([step])}
        compared([helper.make_node("Slice", ["x", *bounds], ["out"])], {"x": x}, {"out": n}, **bounds)
    for low, high in ((-0.5, 0.25), (None, 0.25), (-0.5, None)):
        given = {key: np.float32(v) for key, v in {"low": low, "high": high}.items() if v is not None}
        inputs = ["x", "low" if low is not None else "", *(["high"] if high is not None else [])]
        compared([helper.make_node("Clip", inputs, ["out"])], {"x": x}, {"out": 7}, **given)
    pick = [helper.make_node("Less", ["x", "y"], ["low"]), helper.make_node("Where", ["low", "one", "x"], ["out"])]
    compared(pick, {"x": x, "y": 0.0}, {"out": 7}, one=np.float32(1.0))


def test_functions_over_all_of_their_range() -> None:
    """To 3e-7, the rounding of three operations, and finite where the argument is huge."""
    x = np.concatenate((np.linspace(-12.0, 12.0, 20001), [0.0, 1e-30, -1e-30, 1e30, -1e30, 80.0, -80.0]))
    x = x.astype(np.float32)
    exact = x.astype(np.float64)
    for name, right in (
        ("Tanh", np.tanh(exact)),
        ("Sigmoid", 1.0 / (1.0 + np.exp(-np.clip(exact, -700.0, 700.0)))),
        ("Elu", np.where(exact > 0.0, exact, np.expm1(np.minimum(exact, 0.0)))),
    ):
        model = made([helper.make_node(name, ["x"], ["y"])], {"x": x}, {"y": x.size})
        (found,) = answers(model, {"x": x}, {"y": x.size})
        assert np.abs(found - right)[exact <= 12.0].max() < 3e-7
        np.testing.assert_allclose(found[exact > 12.0], right[exact > 12.0], rtol=1e-6)
    assert _tanh(np.float32(0.0)) == 0.0 and _tanh(np.float32(-20.0)) == -1.0


def test_what_is_not_finite_stays_so() -> None:
    x = np.array([0.0, 1.0, -1.0])
    (found,) = answers(
        made([helper.make_node("Div", ["x", "y"], ["z"])], {"x": x, "y": 0.0}, {"z": 3}), {"x": x, "y": 0.0}, {"z": 3}
    )
    np.testing.assert_array_equal(found, [np.nan, np.inf, -np.inf])


@pytest.mark.parametrize(
    ("node", "constants", "said"),
    [
        (("Softmax", ["x"], {}), {}, "cannot do 'Softmax'"),
        (("Conv", ["x", "w"], {}), {}, "cannot do 'Conv'"),
        (("Spread", ["x"], {}), {}, "cannot do 'Spread'"),
        (("Tanh", ["x"], {"domain": "com.microsoft"}), {}, "of 'com.microsoft'"),
        (("Gemm", ["x", "w"], {"transB": 1}), {"w": np.ones((2, 5))}, "'x' has 4 numbers, the weights are for 5"),
        (("Gemm", ["x", "w", "b"], {"transB": 1}), {"w": np.ones((2, 4)), "b": np.ones(3)}, "cannot do 'Gemm'"),
        (("Gemm", ["x", "w"], {"transB": 1, "alpha": 2.0}), {"w": np.ones((2, 4))}, "scaled, or transposed"),
        (("Gemm", ["x", "x"], {}), {}, "cannot do 'Gemm'"),
        (("MatMul", ["x", "w"], {}), {"w": np.ones((4, 2, 2))}, "cannot do 'MatMul'"),
        (("Add", ["x", "w"], {}), {"w": np.ones(3)}, "cannot do 'Add'"),
        (("Add", ["x", "w"], {}), {"w": np.ones((4, 4))}, "'w' is no vector"),
        (("Add", ["x", "y"], {}), {}, "'y'"),
        (("Add", ["x"], {}), {}, "1 inputs"),
        (("Elu", ["x"], {"alpha": 2.0}), {}, "cannot do 'Elu'"),
        (("Concat", ["x", "x"], {"axis": 0}), {}, "along axes"),
        (("Split", ["x", "w"], {"axis": 1}), {"w": np.array([4, 4])}, "4 numbers into"),
        (("LayerNormalization", ["x", "w"], {}), {"w": np.ones(3)}, "cannot do 'LayerNormalization'"),
        (("ReduceSum", ["x", "w"], {}), {"w": np.array([0])}, "along axes"),
        (("ReduceSum", ["x", "w"], {"keepdims": 0}), {"w": np.array([1])}, "without keepdims"),
        (("Tanh", ["x"], {}), {}, "'y' has 4 numbers, expected 2"),
        (("Tanh", ["x"], {}), {"y": np.ones(4)}, "'y' has no numbers, or twice"),
        (("Identity", ["x"], {}), {"y": np.ones(4)}, "'y' has no numbers, or twice"),
    ],
)
def test_what_it_cannot_do_is_named(node: Any, constants: dict[str, Any], said: str) -> None:
    """It checks no index while it runs, so nothing may be written that goes beyond the values."""
    kind, inputs, given = node
    numbers = {k: v if v.dtype == np.int64 else v.astype(np.float32) for k, v in constants.items()}
    model = made([helper.make_node(kind, inputs, ["y"], **given)], {"x": np.zeros(4)}, {"y": 2}, **numbers)
    with pytest.raises(InputError, match=said):
        Table(model.graph, before={"x": 4}, after={"y": 2})
