"""Task `walk` that continues after falls, for a robot that can get up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from npmp.envs.state import RobotState
from npmp.envs.task import Part, Start, Task
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.tasks.recover import BodiesCollide, RecoverConfig, dropped, is_up
from npmp.tasks.walk import Walk, WalkConfig, walking


class Fallen(Part):
    """Starts from the states after drops, a different one for each robot."""

    def __init__(self, robot: Robot, config: RecoverConfig):
        self.robot = robot
        self.config = config

    def bind(self, env: TaskEnv[Any]) -> None:
        super().bind(env)
        enough = replace(self.config, drops=max(self.config.drops, env.num_envs))
        drops = dropped(self.robot, enough, 1, env.num_threads)
        self.drops = tuple(part.to(env.device) for part in drops)

    def start(self, ids: Tensor, generator: torch.Generator, **where: Tensor) -> Start:
        """As `Starts`."""
        row = ids % len(self.drops[0])
        qpos, qvel, state = (part[row] for part in self.drops)
        return Start(qpos, qvel, RobotState.unpack(state))


class WalkOn(Walk):
    """Walking without termination by falls. Joint limits and self-collision are those of task
    `recover`. Episodes start after a drop, or as in `walking`.

    It has the name, inputs and figures of task `walk`, and a metric `up`, (n,) bool.
    """

    def __init__(
        self, robot: Robot, config: WalkConfig, recover: RecoverConfig, *, dropped: bool = True
    ):
        """dropped: whether episodes start after a drop."""
        robot = robot.with_joint_ranges(recover.joint_range_rad)
        height = float(robot.home_qpos[2])
        parts = walking(robot, config)

        def up(state: RobotState, goal: Tensor) -> Tensor:
            return is_up(state, 1.0, height, recover)

        parts = replace(
            parts,
            starts=Fallen(robot, recover) if dropped else parts.starts,
            terminations=(),
            metrics={**parts.metrics, "up": up},
            memory=[*parts.memory, BodiesCollide(robot)],
        )
        Task.__init__(self, robot, config, parts)
