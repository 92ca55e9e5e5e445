"""The allow-list of graphs: every step terminates in constant time and reads no other file.

The graph is parsed by protobuf, like in onnxruntime. `MESSAGES` has the required fields of ONNX by
their numbers in onnx.proto, as only an export depends on `onnx`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from mocap_data.errors import InputError

# the operators of `npmp.deploy.export`, and unfused forms of its products and sums
ARITHMETIC = ("Abs", "Add", "Div", "Min", "Mul", "Pow", "Reciprocal", "Sqrt", "Sub", "Sum")
FUNCTIONS = ("Atan", "Clip", "Cos", "Elu", "Exp", "Identity", "Round", "Sigmoid", "Sin", "Tanh")
CHOICES = ("And", "Greater", "IsNaN", "Less", "LessOrEqual", "Where")
LAYERS = ("Gemm", "LayerNormalization", "MatMul")
PARTS = ("Concat", "ReduceL2", "ReduceMin", "ReduceSum", "Slice", "Split")
OPERATORS = frozenset((*ARITHMETIC, *FUNCTIONS, *CHOICES, *LAYERS, *PARTS))
# operators whose inputs after the first determine the size of the result
SIZED = ("ReduceL2", "ReduceMin", "ReduceSum", "Slice", "Split")
# weights of all tensors: 64 MB; an export has half a million [D]
MAX_WEIGHTS = 1 << 24
# name, number and type of each field: a message's name, "bytes", or "int64"
MESSAGES: dict[str, list[tuple[str, int, str]]] = {
    "Model": [("graph", 7, "Graph"), ("training_info", 20, "bytes"), ("functions", 25, "bytes")],
    "Graph": [
        ("node", 1, "Node"),
        ("initializer", 5, "Tensor"),
        ("sparse_initializer", 15, "bytes"),
    ],
    "Node": [
        ("input", 1, "bytes"),
        ("op_type", 4, "bytes"),
        ("attribute", 5, "Attribute"),
        ("domain", 7, "bytes"),
    ],
    "Attribute": [
        ("t", 5, "bytes"),
        ("g", 6, "bytes"),
        ("tensors", 10, "bytes"),
        ("graphs", 11, "bytes"),
        ("sparse_tensor", 22, "bytes"),
        ("sparse_tensors", 23, "bytes"),
    ],
    "Tensor": [
        ("dims", 1, "int64"),
        ("name", 8, "bytes"),
        ("external_data", 13, "Entry"),
        ("data_location", 14, "int64"),
    ],
    "Entry": [("key", 1, "bytes"), ("value", 2, "bytes")],
}
# fields of ONNX messages that are lists
REPEATED = {
    "training_info",
    "functions",
    "node",
    "initializer",
    "sparse_initializer",
    "input",
    "attribute",
    "tensors",
    "graphs",
    "sparse_tensors",
    "dims",
    "external_data",
}


def check_graph(graph: bytes, name: str, *, external: bool = False) -> None:
    """Refuse a graph that may not terminate, whose steps may differ in duration, or with weights in
    another file.

    Args:
      graph: the content of policy.onnx. name: for error messages.
      external: a policy of another project, for simulation only. Every standard operator without a
        graph of its own is allowed, and weights in files of the same folder.

    Raises:
      InputError: for such a graph, or bytes that are not a graph.
    """
    model = _model_type()()
    try:
        model.ParseFromString(graph)
    except message.DecodeError as error:
        raise InputError(f"'{name}': expected an ONNX graph: {error}") from error

    weights = list(model.graph.initializer)
    if external:
        _check_locations(weights, name)
    elif any(tensor.external_data or tensor.data_location for tensor in weights):
        raise InputError(f"'{name}': weights in another file; expected them in the graph")
    count = sum(_elements(tensor) for tensor in weights)
    if count > MAX_WEIGHTS:
        raise InputError(f"'{name}': {count:,} weights: must be at most {MAX_WEIGHTS:,}")

    if model.functions or model.training_info or model.graph.sparse_initializer:
        raise InputError(
            f"'{name}': expected a graph without functions, training info and sparse weights"
        )
    constants = {tensor.name for tensor in weights} | {b""}
    for node in model.graph.node:
        if external:
            _check_external_node(node, name)
        else:
            _check_node(node, constants, name)


def _check_locations(weights: list[Any], file: str) -> None:
    """Raises InputError for weights in a file of another folder."""
    for tensor in weights:
        entries = {
            entry.key: entry.value.decode(errors="replace") for entry in tensor.external_data
        }
        location = entries.get(b"location", "")
        if tensor.data_location and not re.fullmatch(r"[\w-][\w.-]*", location):
            raise InputError(f"'{file}': weights in '{location:.80}': must be in the same folder")


def _check_external_node(node: Any, file: str) -> None:
    """Raises InputError for an operator of another domain, or one with graphs, as a loop."""
    operator = node.op_type.decode(errors="replace")
    if node.domain not in (b"", b"ai.onnx"):
        domain = node.domain.decode(errors="replace")
        raise InputError(f"'{file}': operator '{domain}.{operator:.40}': must be one of ONNX")
    if any(attribute.g or attribute.graphs for attribute in node.attribute):
        raise InputError(f"'{file}': operator {operator}: has a graph in an attribute")


def _check_node(node: Any, constants: set[bytes], file: str) -> None:
    """Raises InputError for an operator that is not allowed, graphs or tensors in attributes, or a
    result of computed size."""
    operator = node.op_type.decode(errors="replace")
    if node.domain not in (b"", b"ai.onnx") or operator not in OPERATORS:
        domain = node.domain.decode(errors="replace")
        raise InputError(
            f"'{file}': operator '{domain and domain + '.'}{operator:.40}': must be one of those "
            "that npmp deploy export writes"
        )
    if any(attribute.ListFields() for attribute in node.attribute):
        raise InputError(f"'{file}': operator {operator}: graph or tensor in an attribute")
    if operator in SIZED and not set(node.input[1:]) <= constants:
        raise InputError(f"'{file}': operator {operator}: the size of its result is computed")


def _elements(tensor: Any) -> int:
    """The number of elements; above the limit for a negative dimension."""
    count = 1
    for size in tensor.dims:
        count *= size if size >= 0 else MAX_WEIGHTS + 1
    return count


@cache
def _model_type() -> Any:
    """The protobuf class of `Model` in `MESSAGES`."""
    field_type = descriptor_pb2.FieldDescriptorProto
    kinds = {"bytes": field_type.TYPE_BYTES, "int64": field_type.TYPE_INT64}
    file = descriptor_pb2.FileDescriptorProto(name="npmp_onnx.proto", package="npmp_onnx")
    for title, rows in MESSAGES.items():
        entry = file.message_type.add(name=title)
        for label, number, kind in rows:
            entry.field.add(
                name=label,
                number=number,
                type=kinds.get(kind, field_type.TYPE_MESSAGE),
                type_name=None if kind in kinds else f".npmp_onnx.{kind}",
                label=field_type.LABEL_REPEATED if label in REPEATED else field_type.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("npmp_onnx.Model"))
