"""Obeying velocity commands in the style of recordings: a task made of a reference and a command.

The command says where to go, the reference how the joints move on the way. Its root's path is not
tracked; a clip is followed over and over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp import ranges
from npmp.envs.state import RobotState
from npmp.envs.task import Outcome, TaskLoss, Trial
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.tasks.commands import CommandConfig, Commands, with_range
from npmp.tasks.imitation import ClipStartConfig, Imitation, ImitationConfig
from npmp.tasks.terminations import diverged
from npmp.tasks.velocity import (
    COMMAND_CHANNELS,
    COMMAND_NAMES,
    CourseConfig,
    course_loss,
    heading_velocity,
    velocity_error,
    velocity_figures,
    velocity_reward,
)


@dataclass(frozen=True)
class FollowConfig(CommandConfig, CourseConfig, ClipStartConfig):
    """The task's settings. Raises ValueError for values out of range."""

    # width of the velocity's reward [m^2/s^2]
    phi: float = 0.5
    # of joints away from the reference's, summed over them [1/rad]
    style_weight: float = 0.2
    episode_s: float = 10.0

    def __post_init__(self) -> None:
        for part in (CommandConfig, CourseConfig, ClipStartConfig):
            part.__post_init__(self)
        ranges.above_zero(self, "phi", "episode_s")
        ranges.not_negative(self, "style_weight")


class Follow(Imitation):
    """Robots on flat ground, each with a command and its own moment of a clip.

    A goal is that of imitation, then the command. A robot fails where it falls.
    """

    name, config_type = "follow", FollowConfig
    objectives = ("velocity", "style")
    error_name = main_figure = "velocity_error"
    inputs: Mapping[str, tuple[float, float]] = dict.fromkeys(COMMAND_NAMES, (-1.0, 1.0))
    kept: tuple[str, ...] = (*Imitation.kept, "commands.current", "commands.left")
    channels = COMMAND_CHANNELS
    judged = ("velocity_error", "style_error_rad", "falls_per_minute")

    def __init__(
        self, robot: Robot, config: FollowConfig | None = None, motions: MotionSet | None = None
    ):
        """motions: the style, and where no range of commands is named the velocities asked for.
        Raises InputError as `Imitation` does."""
        super().__init__(robot, ImitationConfig(), motions)
        self.config: FollowConfig = with_range(config or FollowConfig(), motions, {})
        self.objectives, self.episode_s = Follow.objectives, self.config.episode_s
        self.commands = Commands(self.config, motions)
        joints = zip(robot.joint_names, robot.joint_lower, robot.joint_upper, strict=True)
        self.inputs = {
            **dict(zip(COMMAND_NAMES, self.config.range, strict=True)),
            **{f"{name}_rad": (float(low), float(high)) for name, low, high in joints},
        }

    @classmethod
    def resolve(
        cls, config: FollowConfig, motions: MotionSet | None, training: Mapping[str, Any]
    ) -> FollowConfig:
        """As `Task.resolve`: the range of commands (`with_range`)."""
        return with_range(config, motions, training)

    def bind(self, env: TaskEnv[Any]) -> None:
        self.commands.bind(env.num_envs, env.dt, env.device)
        super().bind(env)

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """New commands."""
        self.commands.begin(ids, generator)

    def judge(self) -> Outcome:
        """Eq. 16, and how near the joints are to the reference's. Seen: `command`, `achieved` (n,
        3), `style_error` (n,) [rad]."""
        env, c, command = self.env, self.config, self.commands.current
        velocity = heading_velocity(env.state)
        joints = self.reference.at(self.next_goal(self.goal(), env.state)[:, 1].long()).joint_pos
        away = (env.state.joint_pos - joints).abs().mean(-1)
        rewards = torch.stack((velocity_reward(velocity, command, c.phi), torch.exp(-away)), -1)
        failed = env.fallen(env.state) | diverged(env)
        seen = {
            "command": command,
            "achieved": velocity.nan_to_num(0.0),
            "style_error": away.nan_to_num(0.0),
        }
        error = velocity_error(velocity, command)
        return Outcome(rewards.nan_to_num(0.0), failed, torch.zeros_like(failed), error, seen)

    def advance(self, outcome: Outcome, generator: torch.Generator) -> None:
        """The next frame, and a new command where one is due."""
        self.frame = self.next_goal(self.goal(), self.env.state)[:, 1].long()
        self.commands.advance(generator)

    def schedule(self, steps: int, generator: torch.Generator | None) -> None:
        """As `Task.schedule`: the commands."""
        super().schedule(steps, generator)
        self.commands.schedule(steps, generator)

    def figures(self, trial: Trial) -> dict[str, Any]:
        """As `Task.figures`, `velocity_figures`, and `style_error_rad`, the mean distance of joints
        from the reference's."""
        style = {"style_error_rad": trial.seen["style_error"].mean().item()}
        return super().figures(trial) | velocity_figures(trial) | style

    # --- for simulated and imagined robots ---

    def goal(self) -> Tensor:
        """Clip, frame, last frame, command: (n, 6)."""
        return torch.cat((super().goal(), self.commands.current), -1)

    def see(self, state: RobotState, goal: Tensor) -> Tensor:
        """The command and the reference's next joint angles, (B, 3 + nu)."""
        coming = self.next_goal(goal, state)[:, 1].long()
        return torch.cat((goal[:, 3:], self.reference.at(coming).joint_pos), -1)

    def next_goal(self, goal: Tensor, after: RobotState) -> Tensor:
        """The next frame; after a clip's last its first."""
        first = self.reference.start[goal[:, 0].long()].to(goal)
        frame = torch.where(goal[:, 1] < goal[:, 2], goal[:, 1] + 1.0, first)
        return torch.cat((goal[:, :1], frame.unsqueeze(-1), goal[:, 2:]), -1)

    def new_goals(self, goal: Tensor, generator: torch.Generator) -> Tensor:
        """Other commands."""
        drawn = self.commands.draw(goal[:, 3:], generator, change=1.0)
        return torch.cat((goal[:, :3], drawn), -1)

    def imagined_loss(
        self, before: RobotState, after: RobotState, goals: Tensor, patch: Tensor
    ) -> TaskLoss:
        """As `Task.imagined_loss`: `course_loss` of the velocities; the joints' distance from the
        reference's."""
        off = course_loss(heading_velocity(after), goals[-1, :, 3:], self.config, self.env.dt)
        joints = self.reference.at(goals[..., 1].long()).joint_pos
        away = (after.joint_pos - joints).abs().sum(-1).mean(0)
        return TaskLoss(off, self.config.style_weight * away)
