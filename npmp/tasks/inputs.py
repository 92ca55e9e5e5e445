"""Sensors of walking policies: a clock, heights of the ground."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from npmp.core import ranges
from npmp.core.host_waits import constant
from npmp.envs.ground import points_around
from npmp.envs.state import RobotState
from npmp.envs.task import Sensor, StepResult
from npmp.robots import Robot

SETTINGS = (
    "clock_s",
    "sees_ground",
    "camera",
)  # settings of a task that determine the policy's sensors
CLOCK = ("clock_sin", "clock_cos")
# sample points of the map about each foot: forwards and to the left of it [m]
MAP_POINTS = tuple((0.05 * i, y) for i in range(-2, 10) for y in (-0.05, 0.05))
SIGHT_ORIGIN_M = (0.45, 0.0, 0.1)  # origin of ANYmal's lines of sight in the root frame [m]
OCCLUSION_M = 0.02  # height above a line of sight from which ground occludes it
SIGHT_POINTS = 8  # points on each line of sight
HEIGHT_RANGE = (-0.5, 0.5)  # [m] above the floor under a robot in its home pose


class Clock(Sensor):
    """The phase of a stride, `phase` (n,) in [0, 1); 0 at an episode's start."""

    saved: ClassVar[Mapping[str, str]] = {"clock.phase": "phase"}
    imaginable = False
    phase: Tensor

    def __init__(self, period_s: float):
        self.period_s = period_s
        self.ranges = dict.fromkeys(CLOCK, (-1.0, 1.0))

    def bind(self, env: Any) -> None:
        super().bind(env)
        self.phase = torch.zeros(env.num_envs, device=env.device)

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        self.phase = self.phase.index_fill(0, ids, 0.0)

    def restart(self, mask: Tensor) -> None:
        self.phase = torch.where(mask, 0.0, self.phase)

    def restarted(self, reading: Tensor) -> Tensor:
        return self.read()

    def advance(self, result: StepResult, generator: torch.Generator) -> None:
        self.phase = (self.phase + self.env.dt / self.period_s) % 1.0

    def read(self) -> Tensor:
        """Sine and cosine of the phase, (n, 2)."""
        angle = 2.0 * math.pi * self.phase.unsqueeze(-1)
        return torch.cat((torch.sin(angle), torch.cos(angle)), -1)


@dataclass(frozen=True)
class HeightMapErrors:
    """Errors of a height map. Raises ValueError out of range."""

    # standard deviation of each height at each reading
    ground_noise_m: float = 0.01
    # standard deviation of the map's offset along x, y and z, sampled per episode
    ground_drift_m: float = 0.0
    # delay of the map; imagined robots have none
    ground_delay_s: float = 0.0
    # share of heights without a reading, which are then 0 (level floor)
    ground_holes: float = 0.0
    # whether ground that is occluded from ANYmal's front has no reading
    ground_hidden: bool = False

    def __post_init__(self) -> None:
        ranges.not_negative(self, "ground_noise_m", "ground_drift_m", "ground_delay_s")
        ranges.at_most(self, ranges.LONGEST_DELAY_S, "ground_delay_s")
        ranges.share(self, "ground_holes")


class GroundMap(Sensor):
    """Heights of the ground around the feet, from a map on which the robot is localized."""

    saved: ClassVar[Mapping[str, str]] = {"map.drift": "drift", "map.past": "past"}
    drift: Tensor  # (n, 3) offset of the map in the world [m]
    past: Tensor  # (n, D + 1, F g) heights now and in the D control steps before, the latest first

    def __init__(self, robot: Robot, config: HeightMapErrors):
        self.config = config
        self.home_m = float(robot.home_qpos[2])
        self.ranges = dict.fromkeys(ground_names(robot), HEIGHT_RANGE)

    def bind(self, env: Any) -> None:
        super().bind(env)
        n = env.num_envs
        steps = round(self.config.ground_delay_s / env.dt)
        self.drift = torch.zeros(n, 3, device=env.device)
        self.past = torch.zeros(n, steps and steps + 1, len(self.ranges), device=env.device)

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """Sample the drift of robots ids (k,), and fill their history with the current heights."""
        if self.config.ground_drift_m:
            drift = torch.randn(len(ids), 3, generator=generator, device=ids.device)
            self.drift = self.drift.index_copy(0, ids, self.config.ground_drift_m * drift)
        if self.past.shape[1]:
            now = self._heights()[ids].unsqueeze(1).expand(-1, self.past.shape[1], -1)
            self.past = self.past.index_copy(0, ids, now)

    def advance(self, result: StepResult, generator: torch.Generator) -> None:
        if self.past.shape[1]:
            self.past = torch.cat((self._heights().unsqueeze(1), self.past[:, :-1]), 1)

    def _heights(self) -> Tensor:
        """Current heights on the map, (n, F g) [m]."""
        return self._mapped(self.env.state, self.drift, self.env.ground.height_in_world)

    def _mapped(
        self, state: RobotState, drift: Tensor, height: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Heights on a map at a drift (..., 3) [m] around robots (...), (..., F g) [m].

        height: of the ground at positions (..., F g, 2).
        """
        position = self._positions(state) - drift[..., None, :2]
        heights = height(position)
        if self.config.ground_hidden:
            heights = heights.masked_fill(_occluded(state, position, heights, height), math.nan)
        return heights + drift[..., 2:] - (state.root_pos[..., 2:] - self.home_m)

    def _positions(self, state: RobotState) -> Tensor:
        """`MAP_POINTS` about the feet of robots (...), (..., F g, 2) [m]."""
        feet = self.env.feet(state.root_pos, state.root_rot, state.joint_pos).mean(-2)[..., :2]
        return points_around(state, constant(MAP_POINTS, feet.device), feet).flatten(-3, -2)

    def points(self) -> Tensor:
        """The map where a policy reads it, without noise and holes, (n, F g, 3) [m]."""
        state = self.env.state
        heights = self.past[:, -1] if self.past.shape[1] else self._heights()
        heights = heights + (state.root_pos[:, 2:] - self.home_m)
        return torch.cat((self._positions(state), heights.unsqueeze(-1)), -1)

    def read(self) -> Tensor:
        """Heights at `MAP_POINTS` of each foot above the floor under a robot in its home pose, (n,
        F g) [m]; each call samples noise and holes."""
        heights = self.past[:, -1] if self.past.shape[1] else self._heights()
        generator = self.env.generator
        noise = torch.randn(heights.shape, generator=generator, device=heights.device)
        holes = torch.zeros_like(heights, dtype=torch.bool)
        if self.config.ground_holes:
            uniform = torch.rand(heights.shape, generator=generator, device=heights.device)
            holes = uniform < self.config.ground_holes
        return self._measured(heights, noise, holes)

    def imagined(
        self, state: RobotState, height: Callable[[Tensor], Tensor], drift: Tensor, noise: Tensor
    ) -> Tensor:
        """As `Sensor.imagined`; without delay."""
        heights = self._mapped(state, self.config.ground_drift_m * drift, height)
        normal, other = noise.unbind(-2)
        holes = torch.special.ndtr(other) < self.config.ground_holes
        return self._measured(heights, normal, holes)

    def _measured(self, heights: Tensor, noise: Tensor, holes: Tensor) -> Tensor:
        noisy = heights + self.config.ground_noise_m * noise
        return torch.where(holes, 0.0, noisy).nan_to_num(0.0).clamp(*HEIGHT_RANGE)


def _occluded(
    state: RobotState, position: Tensor, heights: Tensor, height: Callable[[Tensor], Tensor]
) -> Tensor:
    """Whether robots (...) see ground at positions (..., k, 2) and heights (..., k) [m] occluded.

    Returns: (..., k) bool.
    """
    origin = state.root_pos + state.root_rot @ torch.tensor(SIGHT_ORIGIN_M, device=position.device)
    share = torch.arange(1, SIGHT_POINTS, device=position.device) / SIGHT_POINTS
    points = origin[..., None, None, :2].lerp(position.unsqueeze(-2), share.unsqueeze(-1))
    ground = height(points.flatten(-3, -2)).unflatten(-1, points.shape[-3:-1])
    sight = origin[..., None, 2:].lerp(heights.unsqueeze(-1), share)
    return (ground > sight + OCCLUSION_M).any(-1)


def ground_names(robot: Robot) -> tuple[str, ...]:
    """Names of the heights: ground_FOOT_X_Y_m, X forwards and Y to the left of a foot [m]."""
    feet = robot.foot_bodies
    return tuple(f"ground_{foot}_{x:+.2f}_{y:+.2f}_m" for foot in feet for x, y in MAP_POINTS)
