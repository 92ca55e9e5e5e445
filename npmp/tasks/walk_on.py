"""Walking on after falls: what task `walk` is for a robot that can get up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mujoco
import torch
from torch import Tensor

from npmp.envs.state import RobotState
from npmp.envs.task import Start, StepResult
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.sim.scene import let_bodies_collide
from npmp.tasks.recover import Recover, RecoverConfig, dropped
from npmp.tasks.walk import Walk, WalkConfig


class WalkOn(Walk):
    """Walking that falls do not end, of a robot that can get up: its joints turn as in task
    `recover`, its bodies collide with each other. Episodes begin where drops have left the robot,
    or as those of `Walk`.

    It is no task of its own: its inputs and figures are those of task `walk`.
    Also seen: `up`, (n,) bool.
    """

    def __init__(
        self, robot: Robot, config: WalkConfig, recover: RecoverConfig, *, dropped: bool = True
    ):
        """dropped: whether episodes begin on drops."""
        super().__init__(robot.with_joint_ranges(recover.joint_range_rad), config)
        self.recover = recover
        self.falls = Recover(robot, recover)
        self.dropped = dropped

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        """As `Walk.add_to_scene`, and bodies collide."""
        super().add_to_scene(spec)
        let_bodies_collide(spec, self.robot)

    def bind(self, env: TaskEnv[Any]) -> None:
        super().bind(env)
        if not self.dropped:
            return
        wanted = replace(self.recover, drops=max(self.recover.drops, env.num_envs))
        self.fallen = tuple(
            part.to(env.device) for part in dropped(self.robot, wanted, 1, env.num_threads)
        )

    def start(self, ids: Tensor, generator: torch.Generator, **where: Tensor) -> Start:
        """As `Task.start`: on drops, each robot on its own."""
        if not self.dropped:
            return super().start(ids, generator, **where)
        row = ids % len(self.fallen[0])
        qpos, qvel, state = (part[row] for part in self.fallen)
        return Start(qpos, qvel, RobotState.unpack(state))

    def judge(self) -> StepResult:
        """As `Walk.judge`, but only a broken simulation is a failure."""
        outcome = super().judge()
        env = self.env
        up = self.falls.is_up(env.state, env.state.root_pos.new_ones(1))
        return outcome._replace(failed=env.robots.broken, seen={**outcome.seen, "up": up})
