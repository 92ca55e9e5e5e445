"""What a policy may observe beside the task's own inputs: a clock, heights of the ground."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from npmp.envs.ground import points_around
from npmp.robots import Robot

SETTINGS = ("clock_s", "sees_ground")  # of a task: whether policies observe these
CLOCK = ("clock_sin", "clock_cos")
# heights about each foot and on its way: forwards and to the left of it [m]
SEEN = tuple((0.05 * i, y) for i in range(-2, 10) for y in (-0.05, 0.05))
SEEN_RANGE = (-0.5, 0.5)  # [m] above where the floor is under a robot that stands in its home pose


class Clock:
    """The share of a stride that is over, `phase` (n,) in [0, 1); 0 where an episode begins."""

    phase: Tensor

    def __init__(self, period_s: float):
        self.period_s = period_s
        self.ranges = dict.fromkeys(CLOCK, (-1.0, 1.0))

    def bind(self, n: int, device: torch.device) -> None:
        """Clocks of n robots."""
        self.phase = torch.zeros(n, device=device)

    def begin(self, ids: Tensor) -> None:
        """Start those of robots ids (k,)."""
        self.phase = self.phase.index_fill(0, ids, 0.0)

    def restart(self, mask: Tensor) -> None:
        """Start those of robots (n,) bool."""
        self.phase = torch.where(mask, 0.0, self.phase)

    def advance(self, dt: float) -> None:
        """Go on by a control step [s]."""
        self.phase = (self.phase + dt / self.period_s) % 1.0

    def read(self, env: Any) -> Tensor:
        """Sine and cosine of the phase, (n, 2)."""
        angle = 2.0 * math.pi * self.phase.unsqueeze(-1)
        return torch.cat((torch.sin(angle), torch.cos(angle)), -1)


class GroundMap:
    """Heights of the ground around the feet, as a robot knows it that knows its place on a map."""

    def __init__(self, robot: Robot, noise_m: float):
        """noise_m: deviation of each height."""
        self.noise_m, self.home_m = noise_m, float(robot.home_qpos[2])
        self.ranges = dict.fromkeys(ground_names(robot), SEEN_RANGE)

    def read(self, env: Any) -> Tensor:
        """Heights at `SEEN` from each foot, above where the floor is under a robot in its home
        pose, (n, F g) [m]; each call draws their noise anew."""
        state = env.state
        feet = env.feet(state.root_pos, state.root_rot, state.joint_pos).mean(-2)[..., :2]
        place = points_around(state, torch.tensor(SEEN, device=feet.device), feet).flatten(1, 2)
        height = env.ground.height_in_world(place)
        noise = torch.randn(height.shape, generator=env.generator, device=height.device)
        seen = height - (state.root_pos[:, 2:] - self.home_m) + self.noise_m * noise
        return seen.nan_to_num(0.0).clamp(*SEEN_RANGE)


def ground_names(robot: Robot) -> tuple[str, ...]:
    """Of the heights: ground_FOOT_X_Y_m, X forwards and Y to the left of a foot [m]."""
    feet = robot.foot_bodies
    return tuple(f"ground_{foot}_{x:+.2f}_{y:+.2f}_m" for foot in feet for x, y in SEEN)
