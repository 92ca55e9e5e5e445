"""A trainer's parts, packed and unpacked by one list."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from npmp.core import checkpoint
from npmp.core.state import Counters, StatePart, pack, unpack
from tests.refusals import refusal

Memory = namedtuple("Memory", ("hidden", "cell"))


class Toy:
    """A trainer with a part of every kind."""

    def __init__(self, seed: int, robots: int = 3):
        torch.manual_seed(seed)
        self.net = nn.Linear(2, 2)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)
        self.generator = torch.Generator().manual_seed(seed)
        self.z, self.first = torch.zeros(robots, 2), torch.ones(robots, dtype=torch.bool)
        self.memory = Memory(torch.zeros(robots, 4), torch.zeros(robots, 4))
        self.iteration_count, self.env_steps, self.rate = 0, 0, 0.5

    def parts(self) -> dict[str, StatePart]:
        return {
            "net": self.net,
            "optimizer": self.optimizer,
            "generator": self.generator,
            "z": self.z,
            "first": self.first,
            "carried": self.memory,
            "counts": Counters(self, "iteration_count", "env_steps"),
            "rate": Counters(self, "rate"),
        }

    def step(self) -> None:
        self.z = torch.rand(self.z.shape, generator=self.generator)
        self.memory = Memory(*(part + self.z.sum() for part in self.memory))
        self.first = self.z[:, 0] > 0.5
        self.optimizer.zero_grad()
        self.net(self.z).square().sum().backward()
        self.optimizer.step()
        self.iteration_count, self.env_steps, self.rate = (
            self.iteration_count + 1,
            self.env_steps + 3,
            self.rate * 0.9,
        )


def equal(one: Toy, other: Toy) -> bool:
    a, b = pack(one.parts()), pack(other.parts())
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_what_is_unpacked_goes_on_as_what_was_packed(tmp_path: Path) -> None:
    one, other = Toy(0), Toy(5)
    one.step()
    checkpoint.save(tmp_path, 1, pack(one.parts()), {})
    _, tensors, _ = checkpoint.load_latest(tmp_path)
    assert {"net.weight", "optimizer.0.exp_avg", "carried.hidden", "z", "counts"} <= tensors.keys()
    unpack(other.parts(), tensors)
    assert equal(one, other)
    assert (other.iteration_count, other.env_steps, other.rate) == (1, 3, 0.45)
    assert isinstance(other.env_steps, int) and isinstance(other.rate, float)
    one.step()
    other.step()
    assert equal(one, other)


@pytest.mark.parametrize(
    "wrong",
    ["fewer robots", "another type", "no z", "no carried.cell", "no net", "two counts more"],
)
def test_what_does_not_fit_is_one_line_and_changes_nothing(wrong: str) -> None:
    one, other, untouched = Toy(0), Toy(5), Toy(5)
    one.step()
    tensors: dict[str, Any] = pack(one.parts())
    if wrong == "fewer robots":
        tensors = pack(Toy(0, robots=2).parts())
    elif wrong == "another type":
        tensors["z"] = tensors["z"].double()
    elif wrong == "two counts more":
        tensors["counts"] = torch.arange(4)
    else:
        tensors = {
            name: value
            for name, value in tensors.items()
            if not name.startswith(wrong.removeprefix("no "))
        }
    refusal("the checkpoint", unpack, other.parts(), tensors)
    if wrong not in ("no net", "two counts more"):
        assert equal(other, untouched)
