"""Terrain trials of a policy: one per kind of ground and size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmp.core.settings import changed
from npmp.envs.policy import Policy
from npmp.envs.task import Trial
from npmp.envs.task_env import TaskEnv
from npmp.evaluation.trial import run_trial
from npmp.sim.terrain import KINDS, TerrainLimits
from npmp.tasks.walk import Walk, WalkConfig

SPEED_MPS = 0.5
# share of the commanded distance that a robot must cover
ACROSS = 0.8
# added to the terrain's seed, so that the fields differ from those of training
UNSEEN_SEED = 1000
# fields of a trial, if the task has as many
FIELDS = 100


class TerrainTrial(NamedTuple):
    """Trials on one kind of ground."""

    # kind of `terrain.KINDS`
    kind: str
    # setting of the size: of TerrainLimits, or terrain_height
    setting: str
    # [m], of slopes [deg]
    sizes: tuple[float, ...]
    # `terrain_starts`
    starts: str = "gentle"
    # what the size is: height, width or slope
    size: str = "height"

    @property
    def unit(self) -> str:
        """The unit of the size."""
        return "deg" if self.size == "slope" else "m"


TERRAIN_TRIALS = {
    "flat": TerrainTrial("flat", "", (0.0,)),
    "stairs_up": TerrainTrial("stairs", "stair_m", (0.05, 0.1, 0.12, 0.15, 0.2), "uphill"),
    "stairs_down": TerrainTrial("stairs", "stair_m", (0.05, 0.1, 0.12, 0.15, 0.2), "downhill"),
    "slopes_up": TerrainTrial("slopes", "slope_deg", (10.0, 20.0, 30.0), "uphill", "slope"),
    "slopes_down": TerrainTrial("slopes", "slope_deg", (10.0, 20.0, 30.0), "downhill", "slope"),
    "platforms": TerrainTrial("platforms", "platform_m", (0.1, 0.15, 0.2, 0.3, 0.4, 0.5), "uphill"),
    "gaps": TerrainTrial("gaps", "gap_m", (0.1, 0.2, 0.4, 0.6), size="width"),
    "obstacles": TerrainTrial("obstacles", "obstacle_m", (0.05, 0.1, 0.2)),
    "stepping_stones": TerrainTrial(
        "stepping_stones", "stone_gap_m", (0.05, 0.1, 0.2), size="width"
    ),
    "perlin": TerrainTrial("perlin", "terrain_height", (0.1, 0.2, 0.3)),
}


def terrain_tasks(config: WalkConfig) -> Iterator[tuple[str, float, WalkConfig]]:
    """Name of `TERRAIN_TRIALS`, size [m or deg], and the walking task on it: straight ahead at
    `SPEED_MPS`, clamped to the range of commands. If `terrain` names kinds, only the courses of
    these and flat ground."""
    command_range = config.command.command_range
    low, high = command_range[0] if command_range else (SPEED_MPS, SPEED_MPS)
    speed_mps = min(max(SPEED_MPS, low), high)
    ground = config.ground
    straight = changed(
        config,
        commands="uniform",
        command_range=((speed_mps, speed_mps), (0.0, 0.0), (0.0, 0.0)),
        command_nonzero=(1.0, 0.0, 0.0),
        terrain_level=1.0,
        terrain_curriculum=False,
        terrain_seed=ground.terrain_seed + UNSEEN_SEED,
        terrain_fields=min(FIELDS, ground.terrain_fields),
    )
    chosen = set(ground.terrain.split("+")) & {
        terrain_trial.kind for terrain_trial in TERRAIN_TRIALS.values()
    }
    if chosen <= {"flat"}:
        chosen = set(KINDS)
    for name, terrain_trial in TERRAIN_TRIALS.items():
        for size in terrain_trial.sizes if terrain_trial.kind in {*chosen, "flat"} else ():
            values: dict[str, Any] = {
                "terrain": terrain_trial.kind,
                "terrain_starts": terrain_trial.starts,
            }
            if terrain_trial.setting == "terrain_height":
                values["terrain_height"] = size
            elif terrain_trial.setting:
                values["terrain_limits"] = TerrainLimits(**{terrain_trial.setting: size})
            yield name, size, changed(straight, **values)


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

    Returns: rows of `terrain`, `value` [m or deg], `success`, the share of robots that got across
      without a fall, `upright`, the share without a fall, `displacement`, the mean over robots
      of the function of this name, and `falls_per_minute`.
    """
    rows = []
    for terrain, value, task in terrain_tasks(config):
        trial = run_trial(policy, make_env(task), seconds=seconds, seed=seed)
        upright = ~trial.fell.any(0)
        share = displacement(trial)
        row: dict[str, Any] = {"terrain": terrain, "value": value}
        row["success"] = (upright & (share >= ACROSS)).float().mean().item()
        row["upright"] = upright.float().mean().item()
        row["displacement"] = share.mean().item()
        minutes = trial.fell.numel() * trial.dt / 60.0
        rows.append(row | {"falls_per_minute": trial.fell.sum().item() / minutes})
    return rows


def displacement(trial: Trial) -> Tensor:
    """Displacement of each robot until its first fall, along its first heading and as a share of
    the commanded distance of the whole trial, (n,).

    A robot that walks along a step instead of climbing it has none.
    """
    steps, n = trial.fell.shape
    # a diverged robot has no pose at its fall: the step before
    before_fall = (trial.fell.int().argmax(0) - 1).clamp(min=0)
    last = torch.where(trial.fell.any(0), before_fall, steps - 1)
    pose = trial.metrics["pose"]
    moved = pose[last, torch.arange(n), :2] - pose[0, :, :2]
    yaw = pose[0, :, 2]
    along = moved[:, 0] * torch.cos(yaw) + moved[:, 1] * torch.sin(yaw)
    speed = torch.linalg.vector_norm(trial.metrics["command"][..., :2], dim=-1)
    return along / (speed.sum(0) * trial.dt).clamp(min=1e-6)


def progress(trial: Trial) -> float:
    """Distance along the commanded direction as a share of the commanded distance."""
    command = trial.metrics["command"][..., :2]
    achieved = trial.metrics["achieved"][..., :2]
    speed = torch.linalg.vector_norm(command, dim=-1)
    along = (achieved * command).sum(-1) / speed.clamp(min=1e-6)
    return (along.sum() / speed.sum().clamp(min=1e-6)).item()
