"""npmp reuse task=gap: run up to a gap and cross it to a landing point.

The commands of walking lead to the landing point. Whether a robot strides or jumps is up to its
policy.
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
from npmp.sim.terrain import kinds_of
from npmp.tasks.commands import Commands
from npmp.tasks.walk import WalkConfig, resolve_walking, walking

# gaps lie parallel to the axes, one every 2 m, so a point 2 m along an axis is on ground again [m]
AHEAD_M = 2.0
# distance at which a landing point is reached [m]
REACHED_M = 0.3
# largest distance from it at the end, after braking [m]
STAYED_M = 0.6


@dataclass(frozen=True)
class GapConfig:
    """The gap task's settings, in addition to those of walking. Raises ValueError for values out of
    range."""

    walk: WalkConfig = field(
        default_factory=lambda: changed(WalkConfig(), terrain="gaps", sees_ground=True),
        metadata=PART,
    )
    # speed of the run-up, at most that of the policy's range
    speed_mps: float = 1.0
    # yaw rate per bearing of the landing point [1/s]
    yaw_gain: float = 2.0

    def __post_init__(self) -> None:
        ranges.above_zero(self, "speed_mps", "yaw_gain")
        if set(kinds_of(self.walk.ground.terrain)) - {"gaps", "flat"}:
            raise ValueError(f"terrain={self.walk.ground.terrain}: expected gaps, flat or both")


def command_to(offset: Tensor, config: GapConfig) -> Tensor:
    """Commands of walking (n, 3) [m/s, m/s, rad/s] to landing points at offsets (n, 2) [m] in the
    heading frame."""
    bearing = torch.atan2(offset[:, 1], offset[:, 0])
    forward = config.speed_mps * torch.cos(bearing).clamp(min=0.0)
    return torch.stack((forward, torch.zeros_like(forward), config.yaw_gain * bearing), dim=-1)


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
        """Set the landing point from the start pose."""
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
        """Set the commands of robots ids (k,), within the policy's range; zero at the point."""
        offset = self.offset()
        distance = torch.linalg.vector_norm(offset, dim=-1, keepdim=True)
        command = command_to(offset, self.config).clamp(*self._limits.T) * (distance > REACHED_M)
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
        """`missed`: the share of robots that fell, did not come within `REACHED_M` of their point,
        or are more than `STAYED_M` away at the end."""
        reached = (trial.error < REACHED_M).any(0) & (trial.error[-1] < STAYED_M)
        return {"missed": 1.0 - (reached & ~trial.fell.any(0)).float().mean().item()}


class Gap(Task):
    """Cross a gap. An episode fails as in walking."""

    name = "gap"
    config_type = GapConfig
    policies_of = ("walk",)
    main_figure = "missed"

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
            error_name="distance_m",
            figures=replace(
                parts.figures,
                of=landing.figures,
                logged=("missed", "distance_m", "falls_per_minute"),
                trial_s=5.0,
            ),
        )
        super().__init__(robot, c, parts)

    @classmethod
    def resolve(
        cls, config: GapConfig, motions: MotionSet | None, training: Mapping[str, Any]
    ) -> GapConfig:
        """As `resolve_walking`."""
        walk = resolve_walking(config.walk, motions, training, default=GapConfig().walk)
        return replace(config, walk=walk)
