"""What a run passes over, what stops it, and what it says then."""

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

    def forget_breakdowns(self) -> None:
        self.lost = 0
        self.breakdowns.clear()


class Toy:
    """A trainer whose iterations are given: metrics, or an error to raise; breakdowns come with
    them."""

    rates = "algo.policy_lr=, algo.model_lr="

    def __init__(self, *course: dict[str, Any] | Exception, robots: int = 10):
        self.env: Any = SimpleNamespace(num_envs=robots, robots=ToyRobots())
        self.course = list(course)
        self.iteration_count = self.env_steps = 0
        self.weights = {"policy.weight": torch.zeros(2), "model.weight": torch.zeros(2)}

    def iteration(self, progress: float) -> dict[str, float]:
        given = self.course.pop(0)
        if isinstance(given, Exception):
            raise given
        self.iteration_count += 1
        self.env.robots.lost = int(given.pop("broken", 0))
        self.env.robots.breakdowns += [
            {"robot": i, "reason": "BADQACC"} for i in range(self.env.robots.lost)
        ]
        return dict(given)

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
            return one.watch(one.trainer.iteration(0.0))
        except NonFiniteGradient:
            one.throw_away()


def stopped(one: Guard, place: Path) -> tuple[str, dict[str, Any]]:
    with pytest.raises(Diverged) as error:
        while True:
            iteration(one)
    return str(error.value), json.loads((place / "diverged.json").read_text())


def test_accidents_are_counted_and_passed_over(tmp_path: Path) -> None:
    toy = Toy(
        {"loss": 1.0},
        {"loss": NAN, "skipped_updates": 2.0},
        {"loss": 1.0, "broken": 3},
        {"loss": 0.5},
    )
    one = guard(toy, tmp_path)
    rows = [iteration(one) for _ in range(4)]
    assert [row["skipped_updates"] for row in rows] == [0, 2, 0, 0]
    assert [row["lost_simulations"] for row in rows] == [0, 0, 3, 0]
    assert not (tmp_path / "diverged.json").exists()


def test_an_unroll_without_a_finite_gradient_is_collected_anew(tmp_path: Path) -> None:
    error = NonFiniteGradient()
    toy = Toy(error, error, {"loss": 1.0})
    expected = {"loss": 1.0, "skipped_updates": 2.0, "lost_simulations": 0.0}
    assert iteration(guard(toy, tmp_path)) == expected
    with pytest.raises(RuntimeError, match="something else"):
        iteration(guard(Toy(RuntimeError("something else, non-finite")), tmp_path))


def test_an_iteration_counts_once_however_often_it_was_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "PATIENCE", 2)
    error = NonFiniteGradient()
    again = (error, error, {"loss": 1.0})
    one = guard(Toy(*again, *again, {"loss": 1.0}, *again, *again, error, error, error), tmp_path)
    rows = [iteration(one) for _ in range(5)]
    assert [row["skipped_updates"] for row in rows] == [2, 2, 0, 2, 2]
    message, said = stopped(one, tmp_path)
    assert "a gradient is not finite in 3 collections in a row" in message
    assert said["iteration"] == 5
    whole = guard(Toy(*again, *again, *again), tmp_path)
    assert "the last of 3 such iterations in a row" in stopped(whole, tmp_path)[0]


def test_what_goes_wrong_again_and_again_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "PATIENCE", 2)
    bad = [{"loss": NAN}, {"loss": NAN}]
    toy = Toy({"loss": 1.0}, *bad, {"loss": 2.0}, *bad, {"loss": NAN, "skipped_updates": 1.0})
    message, said = stopped(guard(toy, tmp_path), tmp_path)
    assert (
        "diverged at iteration 7 (loss: loss is nan, 1 updates were skipped, the last of 3 such"
        in message
    )
    assert "algo.policy_lr=" in message
    assert f"resume={tmp_path} with such a setting changed" in message
    assert (said["iteration"], said["part"], said["seed"], said["progress"]) == (7, "loss", 7, 0.07)
    assert said["learning_rates"] == {"algo.policy_lr": [5e-4, 5e-5]}
    expected = ["1.0", "nan", "nan", "2.0", "nan", "nan"]
    assert [row["loss"] for row in said["iterations_before"]] == expected


def test_simulations_that_break_down_in_numbers_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "PATIENCE", 1)
    # of ten robots; a tenth is borne
    few, many = {"loss": 1.0, "broken": 1}, {"loss": 1.0, "broken": 2}
    toy = Toy(dict(many), dict(few), dict(many), dict(many))
    message, said = stopped(guard(toy, tmp_path), tmp_path)
    assert "iteration 4 (simulation: 2 simulations broke down" in message
    assert "which robots" in message
    assert [entry["iteration"] for entry in said["lost_simulations"]] == [1, 1, 2, 3, 3, 4, 4]
    assert said["lost_simulations"][-1] == {"iteration": 4, "robot": 1, "reason": "BADQACC"}


@pytest.mark.parametrize(
    ("name", "part"),
    [("policy.weight", "loss"), ("model.weight", "model"), ("replay.floats.state", "simulation")],
)
def test_a_poisoned_network_stops_the_run_at_once(name: str, part: str, tmp_path: Path) -> None:
    toy = Toy({"loss": NAN})
    toy.weights = {"policy.weight": torch.zeros(2), name: torch.tensor([0.0, NAN])}
    one = guard(toy, tmp_path)
    _, said = stopped(one, tmp_path)
    assert said["iteration"] == 1 and said["part"] == part and said["not_finite"] == [name]
    with pytest.raises(Diverged, match=f"{name} not finite"):  # nor would a checkpoint be written
        one.check_state()
