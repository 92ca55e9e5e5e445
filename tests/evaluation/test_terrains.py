"""Terrain trials: tasks, rows and progress."""

from __future__ import annotations

import pytest
import torch

from npmp.core.settings import changed
from npmp.envs.task import Trial
from npmp.evaluation import terrains
from npmp.robots import Robot
from npmp.sim.terrain import TerrainLimits
from npmp.skills.composition import wandering
from npmp.skills.skill_module import SkillModule
from npmp.tasks.walk import WalkConfig
from tests.environments import walk_env


def test_each_task_has_one_terrain_straight_ahead() -> None:
    config = changed(
        WalkConfig(), terrain="mixed", terrain_curriculum=True, terrain_seed=5, commands="recorded"
    )
    tasks = list(terrains.terrain_tasks(config))
    expected = [("stairs", s) for s in terrains.STAIRS_M]
    assert [(kind, value) for kind, value, _ in tasks if kind == "stairs"] == expected
    for kind, value, config in tasks:
        ground = config.ground
        command = config.command
        assert ground.terrain == kind and ground.terrain_seed == 5 and not ground.terrain_curriculum
        assert command.commands == "uniform"
        assert command.range == ((0.5, 0.5), (0.0, 0.0), (0.0, 0.0))
        assert command.command_nonzero == (1.0, 0.0, 0.0)
        measure = {
            "slopes": ground.terrain_limits.slope_deg,
            "stairs": ground.terrain_limits.stair_m,
            "perlin": ground.terrain_height,
        }
        assert measure[kind] == value
    assert tasks[0][2].ground.terrain_limits == TerrainLimits(slope_deg=0.0)


def test_progress_by_hand() -> None:
    command = torch.tensor([0.3, 0.4, 1.0]).expand(2, 1, 3)
    achieved = torch.tensor([[[0.3, 0.4, 0.0]], [[0.4, -0.3, 0.0]]])  # along, then across
    seen = {"command": command, "achieved": achieved}
    still = torch.zeros(2, 1)
    expected = pytest.approx(0.5)
    assert terrains.progress(Trial(seen, still, still.bool(), torch.zeros(3, 19), 0.02)) == expected


def test_every_terrain_has_its_row(
    robot: Robot, skill: SkillModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terrains, "SLOPES_DEG", (20.0,))
    monkeypatch.setattr(terrains, "STAIRS_M", (0.1,))
    monkeypatch.setattr(terrains, "PERLIN_M", (0.3,))
    rows = terrains.evaluate_terrains(
        wandering(skill, torch.Generator()),
        lambda config: walk_env(robot, 3, config=config),
        changed(WalkConfig(), terrain_fields=2),
        seconds=0.2,
    )
    expected = [("slopes", 20.0), ("stairs", 0.1), ("perlin", 0.3)]
    assert [(row["terrain"], row["value"]) for row in rows] == expected
    for row in rows:
        assert 0.0 <= row["upright"] <= 1.0
        assert (row["falls_per_minute"] == 0.0) == (row["upright"] == 1.0)
