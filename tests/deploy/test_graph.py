"""Graphs that are refused: they may not terminate, or read other files."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmp.deploy import OnnxPolicy
from npmp.deploy.graph import MAX_WEIGHTS, check_graph
from tests.deploy.standins import toy, toy_graph
from tests.refusals import refusal

if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")):
    pytest.skip("the extra deploy is not installed", allow_module_level=True)


def changed(change: Callable[[Any], None]) -> bytes:
    """The toy's graph after `change` of its model."""
    import onnx

    model = onnx.load_model_from_string(toy_graph(toy()))
    change(model)
    return bytes(model.SerializeToString())


def loop() -> Any:
    """A node that goes on for ever, as the condition of its body stays true."""
    from onnx import TensorProto, helper

    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
    ]
    output = helper.make_tensor_value_info("on", TensorProto.BOOL, [])
    body = helper.make_graph([helper.make_node("Identity", ["go"], ["on"])], "b", inputs, [output])
    return helper.make_node("Loop", ["", ""], [], body=body)


def test_a_loop() -> None:
    refusal("'Loop'", check_graph, changed(lambda model: model.graph.node.append(loop())), "x.onnx")
    refusal(
        "policy.onnx.*'Loop'",
        OnnxPolicy,
        toy(),
        changed(lambda model: model.graph.node.append(loop())),
    )


def test_a_loop_in_other_bytes() -> None:
    """A varint of two bytes for the length 4: protobuf reads it as the usual one of one byte."""
    import onnx

    usual = changed(lambda model: model.graph.node.append(loop()))
    assert usual.count(b"\x22\x04Loop") == 1
    # of the node and the graph around it the lengths grow by 1, both are written anew
    inner = loop().SerializeToString().replace(b"\x22\x04Loop", b"\x22\x84\x00Loop")
    graph = onnx.load_model_from_string(toy_graph(toy())).graph.SerializeToString()
    node = b"\x0a" + varint(len(inner)) + inner
    hidden = toy_graph(toy()) + b"\x3a" + varint(len(graph + node)) + graph + node
    assert b"\x22\x04Loop" not in hidden
    assert onnx.load_model_from_string(hidden).graph.node[-1].op_type == "Loop"
    refusal("'Loop'", check_graph, hidden, "x.onnx")


def varint(value: int) -> bytes:
    """As protobuf writes it."""
    more, low = divmod(value, 128)
    return bytes([low]) if not more else bytes([low | 128]) + varint(more)


def test_a_loop_within_another_operator() -> None:
    """As a subgraph of an allowed one, which onnxruntime may ignore; If itself is not allowed."""
    from onnx import helper

    body = helper.make_graph([loop()], "inner", [], [])

    def nest(model: Any) -> None:
        model.graph.node[0].attribute.append(helper.make_attribute("body", body))

    refusal("MatMul", check_graph, changed(nest), "x.onnx")
    branch = helper.make_node("If", ["command"], [], then_branch=body, else_branch=body)
    refusal("'If'", check_graph, changed(lambda model: model.graph.node.append(branch)), "x.onnx")


def test_a_loop_in_a_function() -> None:
    """Named as an operator that is allowed."""
    from onnx import helper

    imports = [helper.make_opsetid("", 18)]
    function = helper.make_function("", "Add", [], [], [loop()], imports)
    refusal("functions", check_graph, changed(lambda model: model.functions.append(function)), "x")


def test_an_operator_of_another_domain() -> None:
    from onnx import helper

    node = helper.make_node("Add", ["h_low", "one"], [], domain="custom")
    refusal(
        "'custom.Add'", check_graph, changed(lambda model: model.graph.node.append(node)), "x.onnx"
    )


def test_a_result_whose_size_is_computed() -> None:
    """A step might then be as fast as the others until one command comes."""
    from onnx import helper

    node = helper.make_node("Slice", ["obs", "command", "one"], ["part"])
    refusal("Slice", check_graph, changed(lambda m: m.graph.node.append(node)), "x")


def test_too_many_weights() -> None:
    """A dimension below 0 counts as too many."""
    for dims in ([MAX_WEIGHTS, 2], [1 << 40, 2, 1], [-1]):
        weights = {"dims": dims, "data_type": 1}
        graph = changed(lambda model, more=weights: model.graph.initializer.add(**more))
        refusal("weights", check_graph, graph, "x.onnx")


def test_no_graph_at_all() -> None:
    refusal("expected an ONNX graph", check_graph, b"\x3a\xff", "x.onnx")


@pytest.mark.parametrize("marked", [True, False])
def test_weights_outside_of_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: bool
) -> None:
    """No checksum covers a file of the folder in which a process happens to start. marked: by the
    place of the data, too."""
    import onnx

    monkeypatch.chdir(tmp_path)
    Path("weights").write_bytes(bytes(np.zeros((12, 2), np.float32)))

    def outside(model: Any) -> None:
        matrix = model.graph.initializer[0]
        matrix.ClearField("raw_data")
        if marked:
            matrix.data_location = onnx.TensorProto.EXTERNAL
        place = matrix.external_data.add()
        place.key, place.value = "location", "weights"

    refusal("weights in another file", OnnxPolicy, toy(), changed(outside))
    if marked:  # onnxruntime itself has no place for them
        monkeypatch.setattr("npmp.deploy.onnx_policy.check_graph", lambda *_, **__: None)
        refusal(r"policy.onnx: .*External data", OnnxPolicy, toy(), changed(outside))
