"""Dead zones: small commands to which a walking policy does not respond."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.envs.policy import Policy
from npmp.envs.task import Trial
from npmp.evaluation.trial import run_trial
from npmp.robots import Robot
from npmp.tasks.commands import CommandRange
from npmp.tasks.walk import Walk, WalkConfig

AXES = ("forward", "lateral", "yaw")
MAGNITUDES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # [m/s, rad/s] [D]
ROBOTS_PER_COMMAND = 4  # [D]
MIN_RESPONSE = 0.2  # share of a command that must be achieved [gaitkeeper 0.5]
# duration of a trial, and its last part, which is measured [D]
SECONDS = 12.0
LAST_S = 5.0


class DeadZone(NamedTuple):
    """Responses to small commands in one direction of one axis."""

    axis: str
    sign: int
    up_to: float  # largest command below `first`; 0: none
    first: float | None  # smallest command with a response
    achieved: list[tuple[float, float]]  # command, mean velocity [m/s, rad/s]

    def __str__(self) -> str:
        direction = f"{self.axis} {'-' if self.sign < 0 else '+'}"
        response = "none" if self.first is None else f"from {self.first:g}"
        return f"{direction}: no response up to {self.up_to:g}, response {response}"


def axis_commands(command_range: CommandRange) -> Tensor:
    """Commands of one axis each within a range, (k, 3)."""
    commands = [
        sign * magnitude * torch.eye(3)[axis]
        for axis, (low, high) in enumerate(command_range)
        for sign, limit in ((1.0, high), (-1.0, -low))
        for magnitude in MAGNITUDES
        if magnitude <= limit + 1e-9
    ]
    return torch.stack(commands) if commands else torch.zeros(0, 3)


def find_dead_zones(
    policy: Policy,
    robot: Robot,
    config: WalkConfig,
    robots: RobotBatchConfig,
    command_range: CommandRange,
    *,
    seed: int = 0,
    **place: Any,
) -> list[DeadZone]:
    """Both directions of each axis within the policy's range, on the ground of `config`.

    place: as of `TaskEnv`.
    """
    commands = axis_commands(command_range).repeat_interleave(ROBOTS_PER_COMMAND, 0)
    if not len(commands):
        return []
    env = TaskEnv(Walk(robot, config), len(commands), robots=robots, seed=seed, **place)
    trial = run_trial(policy, env, seconds=SECONDS, seed=seed, commands=commands.unsqueeze(0))
    return dead_zones_of(trial, commands)


def dead_zones_of(trial: Trial, commands: Tensor) -> list[DeadZone]:
    """As `find_dead_zones`, of a trial with constant commands (n, 3), `ROBOTS_PER_COMMAND` robots
    in a row each. A fall does not count as a response."""
    last = trial.metrics["achieved"][-round(LAST_S / trial.dt) :].mean(0)
    achieved = last.view(-1, ROBOTS_PER_COMMAND, 3).mean(1)
    upright = ~trial.fell.any(0).view(-1, ROBOTS_PER_COMMAND).any(1)
    commands = commands[::ROBOTS_PER_COMMAND]
    results = []
    for axis, name in enumerate(AXES):
        for sign in (1, -1):
            rows = torch.nonzero(sign * commands[:, axis] > 0.0).squeeze(-1)
            if not len(rows):
                continue
            both = torch.stack((commands[rows, axis], achieved[rows, axis]), -1)
            pairs = [(round(command, 4), round(mean, 4)) for command, mean in both.tolist()]
            responses = [
                mean / command >= MIN_RESPONSE and up
                for (command, mean), up in zip(pairs, upright[rows].tolist(), strict=True)
            ]
            num_dead = (*responses, True).index(True)
            up_to = abs(pairs[num_dead - 1][0]) if num_dead else 0.0
            first = abs(pairs[num_dead][0]) if num_dead < len(pairs) else None
            results.append(DeadZone(name, sign, up_to, first, pairs))
    return results
