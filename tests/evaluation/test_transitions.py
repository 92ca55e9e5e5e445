"""Standing still and stepping off: phases by hand, and a robot that always stands."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from npmp.envs import Trial
from npmp.envs.policy import Observation, PolicyOutput
from npmp.evaluation import transitions
from npmp.evaluation.transitions import Phase, evaluate_transitions, faults, max_error, phases
from npmp.robots import Robot
from tests.environments import walk_env

STILL = (0.0, 0.0, 0.0)


class Stands:
    """Keeps the home pose."""

    def initial_state(self, n: int) -> Tensor:
        return torch.zeros(n, 1)

    def step(self, observation: Observation, state: Tensor) -> tuple[PolicyOutput, Tensor]:
        return PolicyOutput(torch.zeros(len(state), 12)), state


def test_phases_of_a_range_by_hand() -> None:
    assert phases(((-0.5, 1.5), (-0.3, 0.3), (-1.0, 1.0))) == [
        Phase("stand", STILL, 2.0),
        Phase("walk", (0.75, 0.0, 0.0), 2.0),
        Phase("stop", STILL, 2.0),
        Phase("turn about", (0.0, 0.0, 1.0), math.pi),
        Phase("stop", STILL, 2.0),
    ]
    # half a turn at 0.5 rad/s would take 6.3 s
    slow = phases(((0.0, 0.0), (0.0, 0.0), (-0.5, 0.2)))
    assert slow[1:] == [Phase("turn about", (0.0, 0.0, -0.5), 4.0), Phase("stop", STILL, 2.0)]
    # a range without standing
    assert phases(((0.2, 1.0), (0.0, 0.0), (-1.0, 1.0))) == []


def test_the_largest_error_by_hand() -> None:
    """Steps of 0.1 s at 0.5 m/s: of half-second means the first five do not count; then one step
    stands, and 0.1 m/s is missed."""
    command = torch.tensor([0.5, 0.0, 0.0]).repeat(20, 2, 1)
    achieved = command.clone()
    achieved[:5] = 0.0
    achieved[12, 1] = 0.0
    still = torch.zeros(20, 2)
    trial = Trial(
        {"command": command, "achieved": achieved}, still, still.bool(), torch.zeros(21, 19), 0.1
    )
    assert max_error(trial) == pytest.approx(0.1)
    row = {"command": [0.5, 0.0, 0.0], "falls": 0, "max_error": 0.1}
    assert faults(row) == []
    assert faults(row | {"max_error": 0.3, "falls": 2}) == ["2 falls", "stumbles: off by 0.30"]


def test_a_fall_at_the_end_of_a_longer_phase_counts(
    robot: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two robots walks 0.25 s longer; it falls in its last step of walking."""

    def run(policy: Any, env: Any, *, seconds: float, **_: Any) -> Trial:
        steps = round(seconds / env.dt)
        zeros = torch.zeros(steps, 2, 3)
        fell = torch.zeros(steps, 2, dtype=torch.bool)
        fell[round(4.25 / env.dt) - 1, 1] = True
        return Trial(
            {"command": zeros, "achieved": zeros}, zeros[..., 0], fell, torch.zeros(steps, 19), 0.02
        )

    monkeypatch.setattr(transitions, "run_trial", run)
    monkeypatch.setattr(transitions, "standing_metrics", lambda part: {"stood": 1.0})
    rows = evaluate_transitions(Stands(), walk_env(robot, 2), seed=1)
    assert [row["falls"] for row in rows] == [0, 1, 0, 0, 0]


def test_a_robot_that_stands_has_the_error_of_the_command(robot: Robot) -> None:
    """Half of 0.8 m/s, and 0.5 rad/s."""
    rows = evaluate_transitions(Stands(), walk_env(robot, 3), seed=1)
    assert [row["phase"] for row in rows] == ["stand", "walk", "stop", "turn about", "stop"]
    assert all(row["falls"] == 0 for row in rows)
    for row in rows:
        if any(row["command"]):
            assert row["max_error"] == pytest.approx(max(row["command"]), abs=0.01)
            assert len(row["faults"]) == 1
        else:
            assert row["stood"] == 1.0 and row["faults"] == []
            assert row["feet_down"] == 1.0 and row["base_mps"] < 0.005
    # at rest already
    assert rows[2]["stand_s"] == 0.0
