"""Which failures of a run are tolerated, which stop it, and the content of diverged.json."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from npmp.learning import guard as guards
from npmp.learning.guard import Diverged, Guard
from npmp.learning.rl import NonFiniteGradient

NAN = math.nan


class ToyRobots:
    lost = 0

    def __init__(self) -> None:
        self.breakdowns: list[dict[str, Any]] = []

    def clear_breakdowns(self) -> None:
        self.lost = 0
        self.breakdowns.clear()


class Toy:
    """A trainer with scripted iterations: metrics, an error, numbers of broken simulations."""

    learning_rate_keys = "algo.policy_lr=, algo.model_lr="

    def __init__(self, *results: dict[str, Any] | Exception, robots: int = 10):
        self.env: Any = SimpleNamespace(num_envs=robots, robots=ToyRobots())
        self.results = list(results)
        self.iteration_count = self.env_steps = 0
        self.weights = {"policy.weight": torch.zeros(2), "model.weight": torch.zeros(2)}

    def iteration(self, progress: float) -> dict[str, float]:
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        self.iteration_count += 1
        self.env.robots.lost = int(result.pop("broken", 0))
        self.env.robots.breakdowns += [
            {"robot": i, "reason": "BADQACC"} for i in range(self.env.robots.lost)
        ]
        return dict(result)

    def state_dict(self) -> dict[str, Tensor]:
        return self.weights

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        raise NotImplementedError


def guard(toy: Toy, place: Path) -> Guard:
    return Guard(toy, 100, place, seed=7, settings={"algo": {"policy_lr": [5e-4, 5e-5]}})


def iteration(one: Guard) -> dict[str, float]:
    """As `npmp.learning.run.train` makes it."""
    while True:
        try:
            return one.check(one.trainer.iteration(0.0))
        except NonFiniteGradient:
            one.count_discarded()


def stopped(one: Guard, place: Path) -> tuple[str, dict[str, Any]]:
    with pytest.raises(Diverged) as error:
        while True:
            iteration(one)
    return str(error.value), json.loads((place / "diverged.json").read_text())


def test_a_collection_without_a_finite_gradient_is_repeated(tmp_path: Path) -> None:
    error = NonFiniteGradient()
    toy = Toy(error, error, {"loss": 1.0})
    expected = {"loss": 1.0, "skipped_updates": 2.0, "lost_simulations": 0.0}
    assert iteration(guard(toy, tmp_path)) == expected
    with pytest.raises(RuntimeError, match="something else"):
        iteration(guard(Toy(RuntimeError("something else, non-finite")), tmp_path))


def test_repeated_collections_are_one_bad_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "PATIENCE", 2)
    error = NonFiniteGradient()
    again = (error, error, {"loss": 1.0})
    one = guard(Toy(*again, *again, {"loss": 1.0}, *again, *again, error, error, error), tmp_path)
    rows = [iteration(one) for _ in range(5)]
    assert [row["skipped_updates"] for row in rows] == [2, 2, 0, 2, 2]
    _, details = stopped(one, tmp_path)
    assert details["iteration"] == 5
    whole = guard(Toy(*again, *again, *again), tmp_path)
    assert "3 bad iterations in a row" in stopped(whole, tmp_path)[0]


def test_consecutive_bad_iterations_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "PATIENCE", 2)
    bad = [{"loss": NAN}, {"loss": NAN}]
    toy = Toy({"loss": 1.0}, *bad, {"loss": 2.0}, *bad, {"loss": NAN, "skipped_updates": 1.0})
    message, details = stopped(guard(toy, tmp_path), tmp_path)
    assert "iteration 7" in message and "algo.policy_lr=" in message
    assert f"resume={tmp_path}" in message
    assert (details["iteration"], details["part"], details["seed"], details["progress"]) == (
        7,
        "loss",
        7,
        0.07,
    )
    assert details["learning_rates"] == {"algo.policy_lr": [5e-4, 5e-5]}
    expected = ["1.0", "nan", "nan", "2.0", "nan", "nan"]
    assert [row["loss"] for row in details["iterations_before"]] == expected


def test_many_broken_simulations_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "PATIENCE", 1)
    # of ten robots; a tenth is tolerated
    few, many = {"loss": 1.0, "broken": 1}, {"loss": 1.0, "broken": 2}
    toy = Toy(dict(many), dict(few), dict(many), dict(many))
    message, details = stopped(guard(toy, tmp_path), tmp_path)
    assert "iteration 4" in message and details["part"] == "simulation"
    assert [entry["iteration"] for entry in details["lost_simulations"]] == [1, 1, 2, 3, 3, 4, 4]
    assert details["lost_simulations"][-1] == {"iteration": 4, "robot": 1, "reason": "BADQACC"}


@pytest.mark.parametrize(
    ("name", "part"),
    [("policy.weight", "loss"), ("model.weight", "model"), ("replay.floats.state", "simulation")],
)
def test_a_network_that_is_not_finite_stops_the_run_at_once(
    name: str, part: str, tmp_path: Path
) -> None:
    toy = Toy({"loss": NAN})
    toy.weights = {"policy.weight": torch.zeros(2), name: torch.tensor([0.0, NAN])}
    one = guard(toy, tmp_path)
    _, details = stopped(one, tmp_path)
    assert details["iteration"] == 1 and details["part"] == part and details["not_finite"] == [name]
    with pytest.raises(Diverged, match=name):
        one.check_state()
