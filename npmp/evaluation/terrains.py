"""Which terrain a policy walks on: one trial per slope, step and height of Perlin noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

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


def terrains(config: WalkConfig) -> Iterator[tuple[str, float, WalkConfig]]:
    """Kinds of ground, each with its measure (degrees or metres) and the walking task on it,
    straight ahead at `SPEED_MPS`, or as near to it as the range of commands goes."""
    low, high = config.command_range[0] if config.command_range else (SPEED_MPS, SPEED_MPS)
    speed_mps = min(max(SPEED_MPS, low), high)
    straight = replace(
        config,
        commands="uniform",
        command_range=((speed_mps, speed_mps), (0.0, 0.0), (0.0, 0.0)),
        command_nonzero=(1.0, 0.0, 0.0),
        terrain_level=1.0,
        terrain_curriculum=False,
        terrain_starts="gentle",
    )
    few = min(16, config.terrain_fields)  # there is only up and down
    stepped = [("slopes", angle, TerrainLimits(slope_deg=angle)) for angle in SLOPES_DEG]
    stepped += [("stairs", step, TerrainLimits(stair_m=step)) for step in STAIRS_M]
    for kind, measure, limits in stepped:
        on = replace(straight, terrain=kind, terrain_limits=limits, terrain_fields=few)
        yield kind, measure, on
    for height in PERLIN_M:
        yield "perlin", height, replace(straight, terrain="perlin", terrain_height=height)


def on_terrains(
    policy: Policy,
    make_env: Callable[[WalkConfig], TaskEnv[Walk]],
    config: WalkConfig,
    *,
    seconds: float = 20.0,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """A trial of a policy on each of `terrains`.

    Args:
      make_env: the robots of a trial, e.g. `lambda c: TaskEnv(Walk(robot, c), 64, robots=...)`.
      config: the walking task; its `terrain_seed` gives the fields.

    Returns: a row per ground: `terrain`, `value` [deg or m], `upright`, the share of robots that
      did not fail in the time, `falls_per_minute`, and `progress`, how far they went the way that
      was asked, as a share of it: a robot may stay upright in front of a step.
    """
    rows = []
    for terrain, value, task in terrains(config):
        trial = run_trial(policy, make_env(task), seconds=seconds, seed=seed)
        minutes = trial.fell.numel() * trial.dt / 60.0
        row = {"terrain": terrain, "value": value}
        row["upright"] = (~trial.fell.any(0)).float().mean().item()
        row["falls_per_minute"] = trial.fell.sum().item() / minutes
        rows.append(row | {"progress": progress(trial)})
    return rows


def progress(trial: Trial) -> float:
    """How far robots went the commanded way, as a share of the commanded distance, over all of a
    walking trial."""
    command = trial.seen["command"][..., :2]
    achieved = trial.seen["achieved"][..., :2]
    speed = torch.linalg.vector_norm(command, dim=-1)
    along = (achieved * command).sum(-1) / speed.clamp(min=1e-6)
    return (along.sum() / speed.sum().clamp(min=1e-6)).item()
