"""The task of gaps: where its landing points lie, and the commands that lead to them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from npmp.core.settings import changed
from npmp.envs import TaskEnv
from npmp.envs.task import Trial
from npmp.experiments.examples.gap import AHEAD_M, Gap, GapConfig, Landing, command_to
from npmp.robots import Robot
from npmp.sim.terrain import TerrainLimits
from tests.refusals import refusal

N = 16


@pytest.fixture
def env(robot: Robot) -> TaskEnv[Gap]:
    config = changed(
        GapConfig(), terrain_limits=TerrainLimits(gap_m=0.3), terrain_fields=2, speed_mps=0.7
    )
    env = TaskEnv(Gap(robot, config), N, num_threads=1)
    env.reset()
    return env


def test_commands_of_offsets() -> None:
    config = GapConfig(speed_mps=0.8, yaw_gain=2.0)
    ahead = math.sqrt(0.5) * 0.8
    for offset, command in (
        ((2.0, 0.0), (0.8, 0.0, 0.0)),
        ((1.0, 1.0), (ahead, 0.0, 0.5 * math.pi)),
        ((0.0, -1.0), (0.0, 0.0, -math.pi)),
    ):
        result = command_to(torch.tensor([offset]), config)
        torch.testing.assert_close(result, torch.tensor([command]), atol=1e-6, rtol=0.0)


def test_a_gap_lies_before_each_landing_point(env: TaskEnv[Gap]) -> None:
    start = env.state.root_pos[:, :2]
    point = env.task.planner.point
    way = point - start
    assert (torch.linalg.vector_norm(way, dim=-1) - AHEAD_M).abs().max() < 1e-5
    # along an axis, at most 45 degrees from the heading
    assert way.abs().amin(-1).max() < 1e-5
    assert (way * env.state.root_rot[:, :2, 0]).sum(-1).min() > AHEAD_M * math.sqrt(0.5) - 1e-5
    share = torch.linspace(0.0, 1.0, 101).view(-1, 1, 1)
    heights = env.ground.height_in_world(start + share * way)
    assert heights[0].abs().max() < 1e-6 and heights[-1].abs().max() < 1e-6
    assert (heights < -0.4).any(0).all()


def test_robots_at_their_points_stand(env: TaskEnv[Gap]) -> None:
    ids = torch.arange(N)
    command: Any = env.task.commands
    assert command.current[:, 0].min() > 0.3
    assert torch.linalg.vector_norm(command.current[:, :2], dim=-1).max() <= 0.7 + 1e-6
    way = env.task.planner.point - env.state.root_pos[:, :2]
    env.robots.shift(ids, torch.nn.functional.pad(way, (0, 1)))
    env.step(torch.zeros(N, env.num_actions))
    assert (command.current == 0.0).all()
    assert env.task.parts.error(env.state, command.current).max() < 0.05


def test_who_misses() -> None:
    """Five robots: one stands at its point, one falls, one stops before it, one walks past it, one
    brakes behind it."""
    distance = torch.tensor(
        [[2.0, 2.0, 2.0, 2.0, 2.0], [0.2, 0.2, 0.4, 0.2, 0.2], [0.1, 0.1, 0.4, 0.9, 0.5]]
    )
    fell = torch.zeros(3, 5, dtype=torch.bool)
    fell[1, 1] = True
    trial = Trial(metrics={}, error=distance, fell=fell, dt=0.02, qpos=torch.zeros(4, 19))
    figures = Landing.figures(Landing(GapConfig(), None), trial)
    assert figures == {"missed": pytest.approx(0.6)}


def test_a_blind_policy_serves_it() -> None:
    """Its sensors replace the task's own."""
    blind = {"command_range": [[0.0, 1.0], [-0.1, 0.1], [-0.5, 0.5]], "sees_ground": False}
    assert not Gap.resolve(GapConfig(), None, blind).walk.sees_ground
    assert Gap.resolve(GapConfig(), None, {**blind, "sees_ground": True}).walk.sees_ground
    refusal("terrain=stairs: expected gaps", changed, GapConfig(), terrain="stairs")
