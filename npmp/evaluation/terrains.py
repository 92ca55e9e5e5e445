"""Terrain trials of a policy: one per slope, stair height and height of Perlin noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from npmp.core.settings import changed
from npmp.envs.policy import Policy
from npmp.envs.task import Trial
from npmp.envs.task_env import TaskEnv
from npmp.evaluation.trial import run_trial
from npmp.sim.terrain import TerrainLimits
from npmp.tasks.walk import Walk, WalkConfig

SPEED_MPS = 0.5
SLOPES_DEG = (0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0)
STAIRS_M = (0.05, 0.1, 0.15, 0.2)
PERLIN_M = (0.05, 0.1, 0.2, 0.3)


def terrain_tasks(config: WalkConfig) -> Iterator[tuple[str, float, WalkConfig]]:
    """Terrain, its size [deg or m], and the walking task on it: straight ahead at `SPEED_MPS`,
    clamped to the range of commands."""
    command_range = config.command.command_range
    low, high = command_range[0] if command_range else (SPEED_MPS, SPEED_MPS)
    speed_mps = min(max(SPEED_MPS, low), high)
    straight = changed(
        config,
        commands="uniform",
        command_range=((speed_mps, speed_mps), (0.0, 0.0), (0.0, 0.0)),
        command_nonzero=(1.0, 0.0, 0.0),
        terrain_level=1.0,
        terrain_curriculum=False,
        terrain_starts="gentle",
    )
    num_fields = min(16, config.ground.terrain_fields)  # they only differ in up and down
    stepped = [("slopes", angle, TerrainLimits(slope_deg=angle)) for angle in SLOPES_DEG]
    stepped += [("stairs", step, TerrainLimits(stair_m=step)) for step in STAIRS_M]
    for kind, size, limits in stepped:
        task = changed(straight, terrain=kind, terrain_limits=limits, terrain_fields=num_fields)
        yield kind, size, task
    for height in PERLIN_M:
        yield "perlin", height, changed(straight, terrain="perlin", terrain_height=height)


def evaluate_terrains(
    policy: Policy,
    make_env: Callable[[WalkConfig], TaskEnv[Walk]],
    config: WalkConfig,
    *,
    seconds: float = 20.0,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """A trial of a policy on each of `terrain_tasks`.

    Args:
      make_env: e.g. `lambda config: TaskEnv(Walk(robot, config), 64, robots=...)`.
      config: the walking task; its `terrain_seed` gives the fields.

    Returns: rows of `terrain`, `value` [deg or m], `upright`, the share of robots that did not
      fall, `falls_per_minute`, and `progress` along the command: a robot may stay upright in front
      of a step.
    """
    rows = []
    for terrain, value, task in terrain_tasks(config):
        trial = run_trial(policy, make_env(task), seconds=seconds, seed=seed)
        minutes = trial.fell.numel() * trial.dt / 60.0
        row = {"terrain": terrain, "value": value}
        row["upright"] = (~trial.fell.any(0)).float().mean().item()
        row["falls_per_minute"] = trial.fell.sum().item() / minutes
        rows.append(row | {"progress": progress(trial)})
    return rows


def progress(trial: Trial) -> float:
    """Distance along the commanded direction as a share of the commanded distance."""
    command = trial.metrics["command"][..., :2]
    achieved = trial.metrics["achieved"][..., :2]
    speed = torch.linalg.vector_norm(command, dim=-1)
    along = (achieved * command).sum(-1) / speed.clamp(min=1e-6)
    return (along.sum() / speed.sum().clamp(min=1e-6)).item()
