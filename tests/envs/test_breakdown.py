"""Simulations that break down: seen although MuJoCo puts them back by itself, counted, described,
and kept from all others."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from mocap_data.store import MotionSet
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.robots import Robot
from npmp.sim.randomization import PhysicsConfig, Spread
from tests.environments import imitation_env, walk_env


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes its warnings to a file in the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("hold", ["zero_order", "first_order"])
@pytest.mark.parametrize(
    ("array", "value", "reason"),
    [
        ("qvel", 1e5, "faster than"),  # numbers yet, but no robot's
        ("qvel", 1e12, "BADQVEL"),  # MuJoCo resets the simulation: all that is seen of it is finite
        ("qvel", math.nan, "BADQVEL"),
        ("qpos", math.inf, "BADQPOS"),
    ],
)
def test_a_broken_simulation_fails_alone(
    hold: str, array: str, value: float, reason: str, robot: Robot, motions: MotionSet
) -> None:
    robots_config = RobotBatchConfig(hold=hold, physics=PhysicsConfig(mass=Spread(whole=0.1)))
    env, other = (imitation_env(robot, motions, 3, seed=0, robots=robots_config) for _ in range(2))
    for one in (env, other):
        # clip 1 begins at frame 100
        one.reset(clip=torch.tensor([0, 1, 1]), frame=torch.tensor([5, 107, 120]))
    before = env.state.pack()[1]
    getattr(env.robots.sim, array)[1, 2] = value
    action = torch.zeros(3, env.num_actions)
    step, whole = env.step(action), other.step(action)
    assert step.terminated[1] and not step.truncated[1]
    assert env.robots.broken.tolist() == [False, True, False]
    assert torch.equal(step.state.pack()[1], before) and bool(step.rewards.isfinite().all())
    assert torch.equal(step.state.pack()[[0, 2]], whole.state.pack()[[0, 2]])
    (known,) = env.robots.breakdowns
    assert (known["robot"], known["clip"], known["frame"]) == (1, motions.motions[1].name, 7)
    assert reason in known["reason"] and list(known["physics"]) == ["mass_whole"]
    assert len(known["state_before"]) == len(before)
    env.reset(step.terminated)
    again = env.step(action)
    assert not env.robots.broken.any() and len(env.robots.breakdowns) == 1
    assert bool(again.state.pack().isfinite().all())


def test_breakdowns_that_are_not_taken_do_not_pile_up(robot: Robot) -> None:
    plant = walk_env(robot, 2).robots
    plant.broken = torch.ones(2, dtype=torch.bool)
    for _ in range(80):
        plant.record_breakdowns(lambda robot: {"time": plant.lost // 2})
    assert plant.lost == 160 and len(plant.breakdowns) == 100 and plant.breakdowns[-1]["time"] == 79
    plant.clear_breakdowns()
    assert plant.lost == 0 and not plant.breakdowns
