"""Terrain trials: tasks, rows, displacement and progress."""

from __future__ import annotations

import pytest
import torch

from npmp.core.settings import changed
from npmp.envs.task import Trial
from npmp.evaluation import terrains
from npmp.evaluation.terrains import TERRAIN_TRIALS
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


def test_success_by_hand() -> None:
    """Four robots for 10 s at 0.5 m/s, so 4 m are needed, facing y."""
    steps = 500
    command = torch.tensor([0.5, 0.0, 0.0]).expand(steps, 4, 3)
    along = torch.linspace(0.0, 1.0, steps).unsqueeze(-1)
    # across, along a step without climbing it, too slow, and falling after 2 m
    end = torch.tensor([[1.0, 4.2], [4.5, 0.3], [0.0, 3.9], [0.0, 5.0]])
    pose = torch.cat((along[..., None] * end, torch.full((steps, 4, 1), torch.pi / 2)), -1)
    fell = torch.zeros(steps, 4, dtype=torch.bool)
    fell[200, 3] = True
    # a diverged robot has no pose at its fall
    pose[200, 3] = 0.0
    trial = Trial(
        {"command": command, "pose": pose}, torch.zeros(steps, 4), fell, torch.zeros(1, 19), 0.02
    )
    expected = torch.tensor([4.2 / 5.0, 0.3 / 5.0, 3.9 / 5.0, 199 / 499])
    torch.testing.assert_close(terrains.displacement(trial), expected)
    assert (terrains.displacement(trial) >= terrains.ACROSS).tolist() == [True, False, False, False]


def test_fields_are_unseen_and_chosen_by_terrain() -> None:
    config = changed(WalkConfig(), terrain="stairs+gaps", terrain_seed=3, terrain_fields=128)
    rows = list(terrains.terrain_tasks(config))
    names = dict.fromkeys(name for name, _, _ in rows)
    assert list(names) == ["flat", "stairs_up", "stairs_down", "gaps"]
    assert {task.ground.terrain_seed for _, _, task in rows} == {1003}
    sizes = [task.ground.terrain_limits.stair_m for name, _, task in rows if name == "stairs_up"]
    assert sizes == list(TERRAIN_TRIALS["stairs_up"].sizes)
    assert len(list(terrains.terrain_tasks(WalkConfig()))) == sum(
        len(kind.sizes) for kind in TERRAIN_TRIALS.values()
    )


def test_every_terrain_has_its_row(
    robot: Robot, skill: SkillModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: kind._replace(sizes=kind.sizes[:1]) for name, kind in TERRAIN_TRIALS.items()}
    monkeypatch.setattr(terrains, "TERRAIN_TRIALS", few)
    rows = terrains.evaluate_terrains(
        wandering(skill, torch.Generator()),
        lambda config: walk_env(robot, 3, config=config),
        changed(WalkConfig(), terrain_fields=2),
        seconds=0.2,
    )
    assert [(row["terrain"], row["value"]) for row in rows] == [
        (name, kind.sizes[0]) for name, kind in TERRAIN_TRIALS.items()
    ]
    for row in rows:
        assert list(row)[2:] == ["success", "upright", "displacement", "falls_per_minute"]
        assert 0.0 <= row["success"] <= row["upright"] <= 1.0
        assert (row["falls_per_minute"] == 0.0) == (row["upright"] == 1.0)
