"""The check of a graph in a child process, before a robot's process loads it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from npmp.deploy import Bundle, golden_check
from npmp.deploy.golden_check import check_golden
from tests.deploy.standins import toy, toy_golden, toy_graph, write_toy
from tests.refusals import refusal

if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")):
    pytest.skip("the extra deploy is not installed", allow_module_level=True)


def squared(folder: Path, width: int, times: int) -> Bundle:
    """The toy with a width x width matrix that is squared `times` times. It is an outer product, so
    that the file is small."""
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load_model_from_string(toy_graph(toy()))
    graph = model.graph
    ones = np.full((width, 1), 1e-3, np.float32)
    graph.initializer.append(numpy_helper.from_array(ones, "tall"))
    graph.initializer.append(numpy_helper.from_array(ones.T, "wide"))
    nodes = [helper.make_node("Mul", ["tall", "command"], ["tall_0"])]
    nodes += [helper.make_node("MatMul", ["tall_0", "wide"], ["m0"])]
    nodes += [helper.make_node("MatMul", [f"m{k}", f"m{k}"], [f"m{k + 1}"]) for k in range(times)]
    nodes += [helper.make_node("ReduceSum", [f"m{times}"], ["sum"])]
    last = next(node for node in graph.node if node.output[0] == "action")
    last.output[0] = "plain"
    nodes += [helper.make_node("Sum", ["plain", "sum"], ["action"])]
    graph.node.extend(nodes)
    Bundle.write(folder, toy(), model.SerializeToString(), toy_golden()._asdict())
    return Bundle.read(folder)


def test_a_sound_bundle(tmp_path: Path) -> None:
    result = check_golden(write_toy(tmp_path))
    assert result.difference < 1e-7 and 0.0 < result.median_s <= result.p99_s


def test_a_large_product_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8,000 x 8,000 needs no loop: a step takes 1e12 multiplications."""
    bundle = squared(tmp_path, 8000, 3)
    assert len(bundle.graph) < 100_000
    monkeypatch.setattr(golden_check, "START_S", 2.0)
    refusal("golden steps took more than 3 s", check_golden, bundle)


def test_more_memory_than_a_policy_needs(tmp_path: Path) -> None:
    """A matrix of 5 GB."""
    refusal("the graph fails|ended with code", check_golden, squared(tmp_path, 36_000, 0))


def test_a_slow_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write_toy(tmp_path)
    monkeypatch.setattr(golden_check, "MAX_PERIOD_SHARE", 1e-7)
    refusal("ms per control step", check_golden, bundle)


def with_one(folder: Path, value: float) -> Bundle:
    """The toy with another weight in place of the 1 of h_low_next = h_low + 1."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load_model_from_string(toy_graph(toy()))
    one = next(tensor for tensor in model.graph.initializer if tensor.name == "one")
    one.CopyFrom(numpy_helper.from_array(np.full((1, 1), value, np.float32), "one"))
    Bundle.write(folder, toy(), model.SerializeToString(), toy_golden()._asdict())
    return Bundle.read(folder)


def test_other_outputs(tmp_path: Path) -> None:
    refusal("differs from torch by .*e-05", check_golden, with_one(tmp_path, 1.0001))


def test_a_graph_that_fails(tmp_path: Path) -> None:
    """h_low_next = h_low + infinity."""
    refusal("the graph fails: .*finite", check_golden, with_one(tmp_path, np.inf))


def test_files_that_are_swapped_before_the_child_reads_them(tmp_path: Path) -> None:
    bundle = write_toy(tmp_path)
    write_toy(tmp_path, golden=toy_golden(104)._asdict())
    refusal("changed while it was read", check_golden, bundle)
