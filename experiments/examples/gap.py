"""npmp reuse task=gap: run up to a gap and cross it to a landing point.

A landing point says where, the policy finds out how: the commands of walking lead to the point, and
the ground is what decides between a stride and a jump.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.core import geometry, ranges
from npmp.core.settings import PART, changed
from npmp.envs.state import RobotState
from npmp.envs.task import Part, StepResult, Task, Trial
from npmp.robots import Robot
from npmp.tasks.commands import Commands
from npmp.tasks.walk import WalkConfig, resolve_walking, walking

# gaps lie parallel to the axes, one every 2 m, so a point 2 m along an axis is on ground again [m]
AHEAD_M = 2.0
# distance at which a landing point is reached [m]
REACHED_M = 0.3


@dataclass(frozen=True)
class GapConfig:
    """The gap task's settings, in addition to those of walking. Raises ValueError for values out of
    range."""

    walk: WalkConfig = field(
        default_factory=lambda: changed(WalkConfig(), terrain="gaps", sees_ground=True),
        metadata=PART,
    )
    # speed of the run-up
    speed_mps: float = 1.0
    # yaw rate per bearing of the landing point [1/s]
    yaw_gain: float = 2.0

    def __post_init__(self) -> None:
        ranges.above_zero(self, "speed_mps", "yaw_gain")


def command_to(offset: Tensor, config: GapConfig) -> Tensor:
    """Commands of walking (n, 3) to landing points at offsets (n, 2) [m] in the heading frame; zero
    where the point is reached."""
    bearing = torch.atan2(offset[:, 1], offset[:, 0])
    forward = config.speed_mps * torch.cos(bearing).clamp(min=0.0)
    command = torch.stack((forward, torch.zeros_like(forward), config.yaw_gain * bearing), dim=-1)
    distance = torch.linalg.vector_norm(offset, dim=-1, keepdim=True)
    return command * (distance > REACHED_M)


class Landing(Part):
    """A landing point for each episode, `AHEAD_M` along the axis that the robot faces most, and the
    commands that lead to it."""

    saved: ClassVar[Mapping[str, str]] = {"point": "point"}

    def __init__(self, config: GapConfig, commands: Commands):
        self.config = config
        self.commands = commands

    def bind(self, env: Any) -> None:
        super().bind(env)
        # landing points, world frame (n, 2) [m]
        self.point = torch.zeros(env.num_envs, 2, device=env.device)
        self._limits = torch.tensor(self.commands.config.range, device=env.device)

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """Sample nothing: the point follows from the start."""
        state = self.env.ground.integrated(self.env.state)
        forward = state.root_rot[:, :2, 0]
        along_x = forward[:, :1].abs() > forward[:, 1:].abs()
        axis = torch.where(torch.cat((along_x, ~along_x), -1), forward, 0.0).sign()
        point = state.root_pos[:, :2] + AHEAD_M * axis
        self.point = self.point.index_copy(0, ids, point[ids])
        self._command(ids)

    def advance(self, result: StepResult, generator: torch.Generator) -> None:
        self._command(torch.arange(len(self.point), device=self.point.device))

    def _command(self, ids: Tensor) -> None:
        """Set the commands of robots ids (k,)."""
        command = command_to(self.offset(), self.config).clamp(*self._limits.T)
        self.commands.current = self.commands.current.index_copy(0, ids, command[ids])

    def offset(self) -> Tensor:
        """Landing points in the heading frame, (n, 2) [m]."""
        state = self.env.ground.integrated(self.env.state)
        heading = geometry.yaw_matrix(geometry.yaw_of(state.root_rot))[:, :2, :2]
        return geometry.to_local(heading, self.point - state.root_pos[:, :2])

    def distance(self, state: RobotState, goal: Tensor) -> Tensor:
        """Distance of each robot to its landing point, (n,) [m]."""
        return torch.linalg.vector_norm(self.offset(), dim=-1)

    def figures(self, trial: Trial) -> dict[str, Any]:
        """`landed`: the share of robots at their point at the end, without a fall."""
        landed = (trial.error[-1] < 2.0 * REACHED_M) & ~trial.fell.any(0)
        return {"landed": landed.float().mean().item()}


class Gap(Task):
    """Cross a gap. An episode fails as in walking."""

    name = "gap"
    config_type = GapConfig
    policies_of = ("walk",)
    main_figure = "landing_error_m"

    def __init__(
        self, robot: Robot, config: GapConfig | None = None, motions: MotionSet | None = None
    ):
        c = config or GapConfig()
        parts = walking(robot, c.walk, motions)
        landing = Landing(c, parts.commands)
        parts = replace(
            parts,
            planner=landing,
            error=landing.distance,
            error_name="landing_error_m",
            figures=replace(
                parts.figures,
                of=landing.figures,
                logged=("landing_error_m", "landed", "falls_per_minute"),
                trial_s=5.0,
            ),
        )
        super().__init__(robot, c, parts)

    @classmethod
    def resolve(
        cls, config: GapConfig, motions: MotionSet | None, training: Mapping[str, Any]
    ) -> GapConfig:
        """As `resolve_walking`."""
        return replace(config, walk=resolve_walking(config.walk, motions, training))
