"""The benchmark of PPO from nothing: its rewards by hand, and what a run writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from npmp.envs import TaskEnv
from npmp.robots import Robot
from npmp.tasks.walk import Walk

pytest.importorskip("rsl_rl", reason="rsl-rl-lib is not installed")

from npmp.experiments.benchmarks import ppo_control


@pytest.fixture
def env(robot: Robot) -> TaskEnv[Any]:
    return TaskEnv(ppo_control.control_task(Walk(robot)), 2, seed=0)


def test_standing_robots_earn_what_the_command_leaves(env: TaskEnv[Any]) -> None:
    """exp(-0.5^2 / 0.25) forward at half a metre per second, 1 and 0.5 without a command."""
    goal = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(
        ppo_control.linear(env.state, goal), torch.tensor([math.exp(-1.0), 1.0])
    )
    rewards = torch.stack([term(env.state, goal) for term in env.task.parts.rewards], -1)
    # torques of the step before and the pose at rest cost nothing
    assert rewards[1].sum().item() == pytest.approx(1.5, abs=1e-3)


def test_long_swings_pay_when_they_end(env: TaskEnv[Any]) -> None:
    """Two feet land after 0.7 s and 0.3 s: 0.2 s above and 0.2 s below half a second."""
    memory = env.task.parts.rewards[-1].value.__self__
    memory.swing_s = torch.tensor([[0.7, 0.0, 0.0, 0.0], [0.3, 0.0, 0.0, 0.0]])
    goal = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(memory.air_time(env.state, goal), torch.tensor([0.2, -0.2]))
    assert (memory.air_time(env.state, 0.0 * goal) == 0.0).all()


def test_a_run_writes_its_curve_and_its_grid(tmp_path: Path) -> None:
    steps = 4 * ppo_control.ROLLOUT
    keys = ["num_envs=4", "evaluation.every=1", "evaluation.robots=1", "evaluation.seconds=0.5"]
    ppo_control.main(["--error", "0", *keys, f"steps={2 * steps}", f"out={tmp_path}"])
    result = json.loads((tmp_path / "ppo_control.json").read_text())
    assert [row["env_steps"] for row in result["curve"]] == [0, steps, 2 * steps]
    assert result["curve"][-1]["cpu_s"] > 0.0
    assert [0.0, 0.0, 0.0] in [row["command"] for row in result["grid"]]
    assert "| velocity error |" in (tmp_path / "ppo_control.md").read_text()
    assert (tmp_path / "ppo.pt").exists()
