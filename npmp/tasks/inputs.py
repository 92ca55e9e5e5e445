"""Sensors of walking policies: a clock, heights of the ground."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from npmp.core import ranges
from npmp.core.host_waits import constant
from npmp.envs.ground import points_around
from npmp.envs.state import RobotState
from npmp.envs.task import Sensor, StepResult
from npmp.robots import Robot

SETTINGS = ("clock_s", "sees_ground", "camera")  # of a task: whether policies observe these
CLOCK = ("clock_sin", "clock_cos")
# heights about each foot and on its way: forwards and to the left of it [m]
SEEN = tuple((0.05 * i, y) for i in range(-2, 10) for y in (-0.05, 0.05))
EYE_M = (0.45, 0.0, 0.1)  # where an ANYmal looks from, in its root frame
HIDES_M = 0.02  # above a line of sight, at least
SIGHTS = 8  # places on each line of sight
SEEN_RANGE = (-0.5, 0.5)  # [m] above where the floor is under a robot that stands in its home pose


class Clock(Sensor):
    """The phase of a stride, `phase` (n,) in [0, 1); 0 where an episode begins."""

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
class MapConfig:
    """How a map of heights differs from the ground. Raises ValueError out of range."""

    # deviation of each height at each look
    ground_noise_m: float = 0.01
    # deviation of where the map is, along x, y and z, drawn for each episode
    ground_drift_m: float = 0.0
    # age of what the robot knows; imagined robots know at once
    ground_delay_s: float = 0.0
    # share of heights that are unknown at a look; they say that the floor is level
    ground_holes: float = 0.0
    # whether the ground behind an edge is unknown, from an ANYmal's front
    ground_hidden: bool = False

    def __post_init__(self) -> None:
        ranges.not_negative(self, "ground_noise_m", "ground_drift_m", "ground_delay_s")
        ranges.at_most(self, ranges.LONGEST_DELAY_S, "ground_delay_s")
        ranges.share(self, "ground_holes")


class GroundMap(Sensor):
    """Heights of the ground around the feet, as a robot knows it that knows its place on a map."""

    saved: ClassVar[Mapping[str, str]] = {"map.drift": "drift", "map.past": "past"}
    drift: Tensor  # (n, 3) where the map is, in the world [m]
    past: Tensor  # (n, D + 1, F g) heights of now and D control steps before, the latest first

    def __init__(self, robot: Robot, config: MapConfig):
        self.config = config
        self.home_m = float(robot.home_qpos[2])
        self.ranges = dict.fromkeys(ground_names(robot), SEEN_RANGE)

    def bind(self, env: Any) -> None:
        super().bind(env)
        n = env.num_envs
        steps = round(self.config.ground_delay_s / env.dt)
        self.drift = torch.zeros(n, 3, device=env.device)
        self.past = torch.zeros(n, steps and steps + 1, len(self.ranges), device=env.device)

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """Draw the drift of robots ids (k,); their maps of the past are those of the start."""
        if self.config.ground_drift_m:
            drawn = torch.randn(len(ids), 3, generator=generator, device=ids.device)
            self.drift = self.drift.index_copy(0, ids, self.config.ground_drift_m * drawn)
        if self.past.shape[1]:
            now = self._heights()[ids].unsqueeze(1).expand(-1, self.past.shape[1], -1)
            self.past = self.past.index_copy(0, ids, now)

    def advance(self, result: StepResult, generator: torch.Generator) -> None:
        if self.past.shape[1]:
            self.past = torch.cat((self._heights().unsqueeze(1), self.past[:, :-1]), 1)

    def _heights(self) -> Tensor:
        """As the map has them now, (n, F g) [m]."""
        return self._mapped(self.env.state, self.drift, self.env.ground.height_in_world)

    def _mapped(
        self, state: RobotState, drift: Tensor, height: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Heights on a map at a drift (..., 3) [m] around robots (...), (..., F g) [m].

        height: of the ground at places (..., F g, 2).
        """
        feet = self.env.feet(state.root_pos, state.root_rot, state.joint_pos).mean(-2)[..., :2]
        place = points_around(state, constant(SEEN, feet.device), feet).flatten(-3, -2)
        place = place - drift[..., None, :2]
        heights = height(place)
        if self.config.ground_hidden:
            heights = heights.masked_fill(_hidden(state, place, heights, height), math.nan)
        return heights + drift[..., 2:] - (state.root_pos[..., 2:] - self.home_m)

    def read(self) -> Tensor:
        """Heights at `SEEN` from each foot, above where the floor is under a robot in its home
        pose, (n, F g) [m]; each call draws noise and holes anew."""
        heights = self.past[:, -1] if self.past.shape[1] else self._heights()
        generator = self.env.generator
        noise = torch.randn(heights.shape, generator=generator, device=heights.device)
        holes = torch.zeros_like(heights, dtype=torch.bool)
        if self.config.ground_holes:
            uniform = torch.rand(heights.shape, generator=generator, device=heights.device)
            holes = uniform < self.config.ground_holes
        return self._measured(heights, noise, holes)

    def imagined(self, state: RobotState, patch: Tensor, drift: Tensor, noise: Tensor) -> Tensor:
        """As `Sensor.imagined`; without delay."""
        height = partial(self.env.ground.above, patch=patch)
        heights = self._mapped(state, self.config.ground_drift_m * drift, height)
        normal, other = noise.unbind(-2)
        holes = torch.special.ndtr(other) < self.config.ground_holes
        return self._measured(heights, normal, holes)

    def _measured(self, heights: Tensor, noise: Tensor, holes: Tensor) -> Tensor:
        noisy = heights + self.config.ground_noise_m * noise
        return torch.where(holes, 0.0, noisy).nan_to_num(0.0).clamp(*SEEN_RANGE)


def _hidden(
    state: RobotState, place: Tensor, heights: Tensor, height: Callable[[Tensor], Tensor]
) -> Tensor:
    """Whether robots (...) cannot see the ground at places (..., k, 2), heights (..., k) [m]:
    (..., k)."""
    eye = state.root_pos + state.root_rot @ torch.tensor(EYE_M, device=place.device)
    share = torch.arange(1, SIGHTS, device=place.device) / SIGHTS
    way = eye[..., None, None, :2].lerp(place.unsqueeze(-2), share.unsqueeze(-1))
    ground = height(way.flatten(-3, -2)).unflatten(-1, way.shape[-3:-1])
    sight = eye[..., None, 2:].lerp(heights.unsqueeze(-1), share)
    return (ground > sight + HIDES_M).any(-1)


def ground_names(robot: Robot) -> tuple[str, ...]:
    """Of the heights: ground_FOOT_X_Y_m, X forwards and Y to the left of a foot [m]."""
    feet = robot.foot_bodies
    return tuple(f"ground_{foot}_{x:+.2f}_{y:+.2f}_m" for foot in feet for x, y in SEEN)
