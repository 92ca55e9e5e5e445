"""Dead zones: small commands that a walking policy does not obey."""

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
SIZES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # [m/s, rad/s] [D]
ROBOTS = 4  # with each command [D]
ANSWERED = 0.2  # share of a command: where less is achieved it is not answered [gaitkeeper 0.5]
# of a trial, and those that count [D]
SECONDS = 12.0
LAST_S = 5.0


class Side(NamedTuple):
    """What a policy makes of small commands to one side of one axis."""

    axis: str
    sign: int
    up_to: float  # the largest in a row, from the smallest, that is not answered; 0: none
    first: float | None  # the smallest that is answered; None: none
    achieved: list[tuple[float, float]]  # command, and what came of it [m/s, rad/s]

    def __str__(self) -> str:
        way = f"{self.axis} {'-' if self.sign < 0 else '+'}"
        then = "none is" if self.first is None else f"{self.first:g} is"
        return f"{way}: up to {self.up_to:g} not answered, {then}"


def commands_of(within: CommandRange) -> Tensor:
    """Commands of one axis each, (k, 3), as far as a range has them."""
    commands = [
        sign * size * torch.eye(3)[axis]
        for axis, (low, high) in enumerate(within)
        for sign, most in ((1.0, high), (-1.0, -low))
        for size in SIZES
        if size <= most + 1e-9
    ]
    return torch.stack(commands) if commands else torch.zeros(0, 3)


def find(
    policy: Policy,
    robot: Robot,
    config: WalkConfig,
    robots: RobotBatchConfig,
    within: CommandRange,
    *,
    seed: int = 0,
    **place: Any,
) -> list[Side]:
    """Both sides of each axis, as far as the policy's range has them, on ground as `config` has it.
    place: as `TaskEnv` takes it."""
    commands = commands_of(within).repeat_interleave(ROBOTS, 0)
    if not len(commands):
        return []
    env = TaskEnv(Walk(robot, config), len(commands), robots=robots, seed=seed, **place)
    trial = run_trial(policy, env, seconds=SECONDS, seed=seed, commands=commands.unsqueeze(0))
    return sides(trial, commands)


def sides(trial: Trial, commands: Tensor) -> list[Side]:
    """As `find`, of a trial of robots with commands (n, 3) all the time, `ROBOTS` in a row
    with the same. One that falls does not obey."""
    last = trial.seen["achieved"][-round(LAST_S / trial.dt) :].mean(0).view(-1, ROBOTS, 3).mean(1)
    upright = ~trial.fell.any(0).view(-1, ROBOTS).any(1)
    commands = commands[::ROBOTS]
    results = []
    for axis, name in enumerate(AXES):
        for sign in (1, -1):
            mine = torch.nonzero(sign * commands[:, axis] > 0.0).squeeze(-1)
            if not len(mine):
                continue
            both = torch.stack((commands[mine, axis], last[mine, axis]), -1)
            pairs = [(round(want, 4), round(got, 4)) for want, got in both.tolist()]
            obeys = [
                got / want >= ANSWERED and up
                for (want, got), up in zip(pairs, upright[mine].tolist(), strict=True)
            ]
            dead = (*obeys, True).index(True)
            up_to = abs(pairs[dead - 1][0]) if dead else 0.0
            first = abs(pairs[dead][0]) if dead < len(pairs) else None
            results.append(Side(name, sign, up_to, first, pairs))
    return results
