"""Terrain trials: tasks, rows and progress."""

from __future__ import annotations

import pytest
import torch

from npmp.core.settings import changed
from npmp.envs.task import Trial
from npmp.evaluation import terrains
from npmp.robots import Robot
from npmp.skills.composition import wandering
from npmp.skills.skill_module import SkillModule
from npmp.tasks.walk import WalkConfig
from tests.environments import walk_env


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
