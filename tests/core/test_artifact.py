"""Artefacts whose contract and weights say different things: refused in our words, before anything
is allocated."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from npmp.core import artifact
from tests.refusals import refusal


@dataclass(frozen=True)
class Contract:
    net: dict[str, Any]
    inputs: list[tuple[str, int]]
    gain: list[float]
    training: dict[str, Any] = field(default_factory=dict)


class Net(nn.LSTMCell):
    """Weights (4 w, 2) and (4 w, w), biases (4 w) twice: 84 numbers at width 3."""

    def __init__(self, contract: Contract) -> None:
        super().__init__(sum(size for _, size in contract.inputs), contract.net["width"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    contract = Contract({"width": 3}, [("a", 2)], [1.5])
    content = {
        "net": contract.net,
        "inputs": contract.inputs,
        "gain": contract.gain,
        "training": {"iterations": 10**9},
    }
    artifact.write(tmp_path, "net", "test", 1, content, Net(contract).state_dict())
    return tmp_path


def load(folder: Path) -> Net:
    return artifact.load(folder, "net", "net", "test", 1, Contract, Net)


def test_round_trip(folder: Path) -> None:
    expected = 12 * 2 + 12 * 3 + 12 + 12
    assert sum(tensor.numel() for tensor in load(folder).state_dict().values()) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"net": {"width": 85}}, "net.width=85"),
        ({"net": {"width": 84}}, "'bias_hh' is [12], expected [336]"),
        ({"inputs": [["a", 2], ["b", 10**12]]}, "inputs[1][1]=1000000000000"),
        ({"gain": [1.0, 1e308]}, "gain[1]=1e+308"),
    ],
)
def test_numbers_that_the_weights_cannot_have(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    description = folder / "net.json"
    description.write_text(json.dumps(json.loads(description.read_text()) | change))
    assert message in refusal("", load, folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: {k: v for k, v in tensors.items() if k != "bias_hh"}, "'bias_hh'"),
        (lambda tensors: tensors | {"more": torch.zeros(1)}, "'more'"),
    ],
)
def test_tensors_that_lack_or_cannot_be(
    folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str
) -> None:
    description, weights = folder / "net.json", folder / "net.safetensors"
    save_file(change(load_file(weights)), weights)
    description.write_text(
        json.dumps(
            json.loads(description.read_text()) | {"weights_sha256": artifact.sha256(weights)}
        )
    )
    assert message in refusal("", load, folder)
