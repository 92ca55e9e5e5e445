"""The compiled loop, operation by operation against ONNX's own reference, and what it refuses."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from mocap_data.errors import InputError

if any(importlib.util.find_spec(name) is None for name in ("onnx", "numba")):
    pytest.skip("the extra deploy is not installed", allow_module_level=True)

from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from npmp.deploy.compiled import BINARY, UNARY, Operation, Table, _tanh, execute

BOOLEAN = {"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "And", "Or", "Not", "IsNaN"}
AT_LEAST_0 = {"Sqrt", "Log", "Pow"}


def made(nodes: list[Any], before: dict[str, Any], after: dict[str, int], **constants: Any) -> Any:
    """A model of inputs and outputs (1, n)."""
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "test",
        [
            helper.make_tensor_value_info(name, floats, [1, np.size(value)])
            for name, value in before.items()
        ],
        [helper.make_tensor_value_info(name, floats, [1, width]) for name, width in after.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def answers(model: Any, before: dict[str, Any], after: dict[str, int]) -> list[np.ndarray]:
    table = Table(
        model, before={name: np.size(value) for name, value in before.items()}, after=after
    )
    values = table.values()
    assert values.ctypes.data % 64 == 0
    within(table, values.size, sum(map(np.size, before.values())))
    told = np.concatenate([np.ravel(value) for value in before.values()]).astype(np.float32)
    values[: told.size] = told
    execute(table.rows, values)
    return np.split(
        values[table.after : table.after + sum(after.values())], np.cumsum([*after.values()])[:-1]
    )


def within(table: Table, size: int, told: int) -> None:
    """What is read and written is in the values, was there before it is read, and is written once."""
    there = np.zeros(size, bool)
    there[:told] = True
    for place, numbers in table._constants:
        there[place : place + numbers.size] = True
    for operation, *inputs, out, n, width in table.rows.tolist():
        reads = [width]
        if operation == Operation.Gemm:
            reads += [n * width, n]
        elif operation == Operation.LayerNormalization:
            reads += [n, n + 1]
        elif operation in BINARY:
            reads += [n]
        elif operation >= BINARY.stop:
            reads += [n, n]
        for place, count in zip(inputs, reads):
            assert place >= 0 and place + count <= size and there[place : place + count].all()
        assert out >= 0 and out + n <= size and not there[out : out + n].any()
        there[out : out + n] = True


def compared(
    nodes: list[Any], before: dict[str, Any], after: dict[str, int], **constants: Any
) -> None:
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
    rng = np.random.default_rng(operation)
    x, y = (np.round(2.0 * rng.normal(size=width), 1) for width in widths)
    if name in BOOLEAN:  # some are equal, some no number
        y[-1] = x[-1]
        x[0] = np.nan if name == "IsNaN" or widths == (19, 19) else x[0]
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
    before, after = (
        {"x": x} | ({} if y is None else {"y": y}),
        {"out": max(x.size, 0 if y is None else y.size)},
    )
    numbers = (
        {"zero": np.zeros(1, np.float32), "one": np.ones(1, np.float32)} if name in BOOLEAN else {}
    )
    compared(nodes, before, after, **numbers)
    if y is not None:
        compared(nodes, {"x": x}, after, y=y.astype(np.float32), **numbers)


def test_of_whole_vectors() -> None:
    """Products of any width, the parts of a value, what is put together, a value given back as it
    came."""
    rng = np.random.default_rng(0)
    for n, width in ((1, 1), (3, 33), (64, 65), (16, 128)):
        x, weights, bias = (
            rng.normal(size=shape).astype(np.float32) for shape in (width, (n, width), n)
        )
        one = {"before": {"x": x}, "after": {"out": n}}
        compared(
            [helper.make_node("Gemm", ["x", "w", "b"], ["out"], transB=1)], **one, w=weights, b=bias
        )
        compared([helper.make_node("Gemm", ["x", "w"], ["out"])], **one, w=weights.T.copy())
        compared([helper.make_node("MatMul", ["x", "w"], ["out"])], **one, w=weights.T.copy())
        norm = helper.make_node("LayerNormalization", ["x", "g", "b"], ["out"], epsilon=0.01)
        compared([norm], {"x": x}, {"out": width}, g=weights[0], b=weights[-1])
        for name in ("ReduceSum", "ReduceL2", "ReduceMin", "ReduceMax"):
            compared(
                [helper.make_node(name, ["x", "along"], ["out"])],
                {"x": x},
                {"out": 1},
                along=np.array([-1]),
            )
    x = rng.normal(size=7)
    nodes = [
        helper.make_node("Split", ["x", "parts"], ["a", "b", "c"], axis=1),
        helper.make_node("Concat", ["c", "k", "a"], ["first"], axis=-1),
        helper.make_node("Identity", ["b"], ["second"]),
        helper.make_node("Identity", ["x"], ["third"]),
    ]
    after = {"third": 7, "first": 5, "second": 3}
    compared(nodes, {"x": x}, after, parts=np.array([2, 3, 2]), k=np.float32([[5.0]]))
    compared(
        [helper.make_node("Split", ["x"], ["a", "b", "c"], axis=1, num_outputs=3)],
        {"x": x},
        {"a": 3, "c": 1, "b": 3},
    )
    far = np.iinfo(np.int64).max
    for start, end, step, n in (
        (0, 3, 1, 3),
        (2, far, 2, 3),
        (-1, -far, -1, 7),
        (-3, -1, 1, 2),
        (5, 1, -2, 2),
    ):
        bounds = {
            "s": np.array([start]),
            "e": np.array([end]),
            "a": np.array([-1]),
            "d": np.array([step]),
        }
        compared(
            [helper.make_node("Slice", ["x", *bounds], ["out"])], {"x": x}, {"out": n}, **bounds
        )
    for low, high in ((-0.5, 0.25), (None, 0.25), (-0.5, None)):
        given = {
            key: np.float32(v) for key, v in {"low": low, "high": high}.items() if v is not None
        }
        inputs = ["x", "low" if low is not None else "", *(["high"] if high is not None else [])]
        compared([helper.make_node("Clip", inputs, ["out"])], {"x": x}, {"out": 7}, **given)
    pick = [
        helper.make_node("Less", ["x", "y"], ["low"]),
        helper.make_node("Where", ["low", "one", "x"], ["out"]),
    ]
    compared(pick, {"x": x, "y": 0.0}, {"out": 7}, one=np.float32(1.0))


def test_functions_over_all_of_their_range() -> None:
    """To 3e-7, the rounding of three operations, and finite where the argument is huge."""
    x = np.concatenate(
        (np.linspace(-12.0, 12.0, 20001), [0.0, 1e-30, -1e-30, 1e30, -1e30, 80.0, -80.0])
    )
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


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_is_no_number_stays_none(order: tuple[int, int]) -> None:
    """Else an answer would pass as one that is worth nothing."""
    shown = {"x": np.array([np.nan, 1.0, -1.0] * 12), "y": np.array([0.5, np.nan, 0.0] * 12)}
    x, y = (["x", "y"][i] for i in order)
    for name in ("Min", "Max", "Add", "Div", "Clip", "Tanh", "Sigmoid", "Elu"):
        inputs = (
            [x, y] if Operation[name] in BINARY else [x, "low", "high"] if name == "Clip" else [x]
        )
        model = made(
            [helper.make_node(name, inputs, ["z"])],
            shown,
            {"z": 36},
            low=np.float32(-0.5),
            high=np.float32(0.5),
        )
        (found,) = answers(model, shown, {"z": 36})
        none = np.isnan(shown[x]) | (np.isnan(shown[y]) if len(inputs) == 2 else False)
        np.testing.assert_array_equal(np.isnan(found), none, err_msg=name)
    for name in ("ReduceMin", "ReduceMax", "ReduceSum", "ReduceL2"):
        (found,) = answers(
            made(
                [helper.make_node(name, [x, "along"], ["z"])], shown, {"z": 1}, along=np.array([1])
            ),
            shown,
            {"z": 1},
        )
        assert np.isnan(found)
    over = helper.make_node("Div", ["x", "y"], ["z"])
    signs = {"x": np.array([0.0, 1.0, -1.0]), "y": 0.0}
    np.testing.assert_array_equal(
        answers(made([over], signs, {"z": 3}), signs, {"z": 3})[0], [np.nan, np.inf, -np.inf]
    )


@pytest.mark.parametrize(
    ("node", "constants", "n", "said"),
    [
        (("Softmax", ["x"], {}), {}, 4, "cannot do 'Softmax'"),
        (
            ("Gemm", ["x", "w"], {"transB": 1, "alpha": 2.0}),
            {"w": np.ones((2, 4))},
            2,
            "scaled, or transposed",
        ),
        (
            ("Gemm", ["x", "w", "b"], {"transB": 1, "beta": 2.0}),
            {"w": np.ones((2, 4)), "b": np.ones(2)},
            2,
            "scaled, or",
        ),
        (("Gemm", ["x", "w"], {"transA": 1}), {"w": np.ones((1, 2))}, 2, "."),
        (("Gemm", ["x", "w"], {"transB": 1}), {"w": np.ones((2, 5))}, 2, "."),
        (("Gemm", ["x", "w", "b"], {"transB": 1}), {"w": np.ones((2, 4)), "b": np.ones(3)}, 2, "."),
        (
            ("Gemm", ["x", "w", "b"], {"transB": 1}),
            {"w": np.ones((2, 4)), "b": np.ones((2, 1))},
            2,
            ".",
        ),
        (("Gemm", ["x", "x"], {}), {}, 4, "."),
        (("MatMul", ["x", "w"], {}), {"w": np.ones((1, 4, 2))}, 2, "."),
        (("Add", ["x", "w"], {}), {"w": np.ones(3)}, 4, "."),
        (("Add", ["x", "w"], {}), {"w": np.ones((2, 4))}, 4, "."),
        (("Add", ["x", "w"], {}), {"w": np.ones((1, 1, 4))}, 4, "."),
        (("Add", ["x", "w"], {}), {"w": np.arange(4)}, 4, "."),
        (("Add", ["x", "y"], {}), {}, 4, "."),
        (("Elu", ["x"], {"alpha": 2.0}), {}, 4, "cannot do 'Elu'"),
        (("Concat", ["x", "x"], {"axis": 0}), {}, 4, "."),
        (("Split", ["x", "w"], {"axis": 1}), {"w": np.array([4, 4])}, 4, "."),
        (("Split", ["x", "w"], {"axis": 0}), {"w": np.array([1])}, 4, "along axes"),
        (
            ("LayerNormalization", ["x", "w"], {}),
            {"w": np.ones(3)},
            4,
            "cannot do 'LayerNormalization'",
        ),
        (("LayerNormalization", ["x", "w"], {"axis": 0}), {"w": np.ones(4)}, 4, "along axes"),
        (("ReduceSum", ["x", "w"], {}), {"w": np.array([0])}, 4, "along axes"),
        (("ReduceSum", ["x", "w"], {"keepdims": 0}), {"w": np.array([1])}, 1, "."),
        (("ReduceMax", ["x"], {"axes": [1]}), {}, 1, "axes"),  # as before version 18
        (
            ("Slice", ["x", "s", "e", "a"], {}),
            {"s": np.array([0]), "e": np.array([1]), "a": np.array([0])},
            4,
            "along axes",
        ),
        (("Tanh", ["x"], {}), {}, 2, "."),
        (("Tanh", ["x"], {}), {"y": np.ones(4)}, 4, "."),
        (("Tanh", ["x"], {}), {"x": np.ones(4)}, 4, "one name"),
        (("Tanh", ["x"], {"domain": "com.microsoft"}), {}, 4, "."),
        (("Spread", ["x"], {}), {}, 4, "."),
    ],
)
def test_what_it_cannot_do_is_refused(
    node: Any, constants: dict[str, Any], n: int, said: str
) -> None:
    """It checks no index while it runs, so nothing may be written that goes beyond the values, and
    where it does not know how something is meant, it must not guess. What ONNX's own checker
    refuses, it says in its own words."""
    kind, inputs, given = node
    numbers = {k: v if v.dtype == np.int64 else v.astype(np.float32) for k, v in constants.items()}
    model = made(
        [helper.make_node(kind, inputs, ["y"], **given)], {"x": np.zeros(4)}, {"y": n}, **numbers
    )
    with pytest.raises(InputError, match=said):
        Table(model, before={"x": 4}, after={"y": n})


def test_graphs_that_are_none_are_refused() -> None:
    def tanh(count: int = 1) -> Any:
        return made(
            [helper.make_node("Tanh", ["x"], ["y"])] * count,
            {"x": np.zeros(4)},
            {"y": 4},
            k=np.zeros(4),
        )

    def refused(model: Any, said: str) -> None:
        with pytest.raises(InputError, match=said):
            Table(model, before={"x": 4}, after={"y": 4})

    Table(tanh(), before={"x": 4}, after={"y": 4})
    refused(tanh(2), "y")  # twice the same output
    for version in (6, 17, 99):
        old = tanh()
        old.opset_import[0].version = version
        refused(old, f"versions 18 to 25, not .*{version}")
    none = tanh()
    del none.opset_import[:]
    refused(none, "versions 18 to 25")
    twice = tanh()
    twice.graph.input.append(twice.graph.input[0])
    refused(twice, "one name")
    outside = tanh()
    place = outside.graph.initializer[0].external_data.add()
    place.key, place.value = "location", "weights"
    refused(outside, "weights in another file")
    cut = tanh()
    cut.graph.initializer[0].raw_data = b"1234"
    refused(cut, ".")
    huge = tanh()
    del huge.graph.node[:]
    names = ["x", *(f"v{i}" for i in range(40)), "y"]
    for before, after in pairwise(names):
        huge.graph.node.append(helper.make_node("Concat", [before, before], [after], axis=1))
    refused(huge, ".")


def test_too_many_numbers_are_refused() -> None:
    names = [f"v{i}" for i in range(28)]
    nodes = [helper.make_node("Concat", [a, a], [b], axis=1) for a, b in pairwise(["x", *names])]
    nodes.append(helper.make_node("Slice", [names[-1], "s", "e", "a"], ["y"]))
    bounds = {"s": np.array([0]), "e": np.array([4]), "a": np.array([1])}
    model = made(nodes, {"x": np.zeros(4)}, {"y": 4}, **bounds)
    with pytest.raises(InputError, match="more than 134,217,728 numbers"):
        Table(model, before={"x": 4}, after={"y": 4})
