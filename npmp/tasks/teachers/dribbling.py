"""A scripted teacher for dribbling: velocity commands to a walking policy, from the positions of
ball and target.

The robot walks around the ball to a position opposite the target, with a fore foot behind the ball,
and then through the ball. Commands depend on the current observation only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from npmp.core import ranges
from npmp.core.tree import Tree
from npmp.envs.policy import Observation
from npmp.tasks.velocity import COMMAND_NAMES


@dataclass(frozen=True)
class DribbleScriptConfig:
    """Settings of the script, for ANYmal [D: by evolution strategies in simulation,
    docs/learning.md]. Raises ValueError for values out of range."""

    # distance of the position behind the ball [m]
    reach: float = 0.373
    # lateral offset of this position, that of a fore foot [m]
    side: float = 0.274
    # radius of the path around this position [m]
    circle: float = 0.098
    # distance from which the robot counts as behind the ball [m]
    behind: float = 0.382
    # largest lateral distance from the line through this position, to count as behind the ball [m]
    corridor: float = 0.104
    # look-ahead along that line [m]
    look: float = 0.261
    # distance from this position below which the robot faces the target, not its direction [m]
    facing: float = 2.11
    # yaw rate per heading error [1/s]
    turn: float = 4.03
    # speed at the ball [m/s]
    near: float = 0.376
    # increase of that speed per metre from ball to target [1/s]
    near_rise: float = 0.056
    # speed away from the ball [m/s]
    far: float = 1.37
    # distance beyond which the robot counts as away from the ball [m]
    near_m: float = 0.903
    # distance from ball to target below which the robot stands [m]
    done: float = 0.177
    # lowest commands of the walking policy (forward, lateral, yaw rate)
    lowest: tuple[float, float, float] = (-0.6, -0.45, -2.0)
    # highest commands of the walking policy (forward, lateral, yaw rate)
    highest: tuple[float, float, float] = (1.5, 0.45, 2.0)

    def __post_init__(self) -> None:
        above_zero = "reach side circle behind corridor look facing turn near far near_m done"
        ranges.above_zero(self, *above_zero.split())
        ranges.not_negative(self, "near_rise")
        pairs = list(zip(self.lowest, self.highest, strict=True))
        if not all(low < 0.0 < high for low, high in pairs):
            raise ValueError(f"lowest, highest: expected values below and above 0, got {pairs}")


class DribbleScript:
    """The script as a policy whose output is velocity commands."""

    name: ClassVar[str] = "dribble"
    config_type: ClassVar[type] = DribbleScriptConfig
    commands: ClassVar[tuple[str, ...]] = COMMAND_NAMES
    feature_width: ClassVar[int] = 4

    def __init__(self, config: DribbleScriptConfig):
        self.config: Any = config

    def initial_state(self, n: int) -> Tree:
        return ()

    def step(self, observation: Observation, state: Tree) -> tuple[Tensor, Tree]:
        """As `Script.step`, without gradient, as the output is discontinuous."""
        ball, target = observation.task[..., :4].split(2, -1)
        with torch.no_grad():
            return dribble_command(ball, target, self.config), state

    def features(self, task: Tensor) -> Tensor:
        """Positions of the ball, and of the target relative to it, (..., 4), squashed into the unit
        circle."""
        ball, target = task[..., :4].split(2, -1)
        return torch.cat((_squashed(ball), _squashed(target - ball)), -1)


def dribble_command(ball: Tensor, target: Tensor, config: DribbleScriptConfig) -> Tensor:
    """The command (n, 3), forward, lateral [m/s] and yaw rate [rad/s], for ball and target (n, 2)
    in the heading frame [m]."""
    c = config
    way = target - ball
    to_go = _length(way)
    along = way / to_go.clamp(min=1e-6)  # the direction in which the ball is pushed
    ahead, distance = _to_place(_turned(ball, along * along.new_tensor((-1.0, 1.0))), c)
    course = _turned(ahead, along)
    heading = course + torch.exp(distance * (-1.0 / c.facing)) * (along - course)
    forward, left = heading.split(1, -1)
    close = (1.0 - _length(ball) / c.near_m).clamp(0.0, 1.0).sqrt()
    velocity = (c.far + close * (c.near - c.far + c.near_rise * to_go)) * course
    # limit the speed, keep the direction
    lowest = ball.new_tensor(c.lowest[:2])
    highest = ball.new_tensor(c.highest[:2])
    allowed = torch.where(velocity > 0.0, highest, -lowest) / velocity.abs().clamp(min=1e-9)
    velocity = allowed.amin(-1, keepdim=True).clamp(max=1.0) * velocity
    yaw_rate = (c.turn * torch.atan2(left, forward)).clamp(c.lowest[2], c.highest[2])
    return torch.where(to_go < c.done, 0.0, torch.cat((velocity, yaw_rate), -1))


def _to_place(root: Tensor, c: DribbleScriptConfig) -> tuple[Tensor, Tensor]:
    """Direction (n, 2), a unit vector, and distance (n, 1) [m] to the nearer of the two positions.

    root: (n, 2) position of the robot relative to the ball, with the target in direction (1, 0).
    """
    x, y = root.split(1, -1)
    # a left fore foot stands behind the ball where the root is to its right; positions are columns
    ahead = x + c.reach
    left = y + y.new_tensor((c.side, -c.side))
    behind = (x < -c.behind) & (left.abs() < c.corridor)
    ahead = torch.where(behind, ahead.clamp(max=-c.look), ahead)
    first, second = torch.sqrt(ahead * ahead + left * left).split(1, -1)
    nearer = first <= second
    x, y = (torch.where(nearer, part[..., :1], part[..., 1:]) for part in (ahead, left))
    return _field(x, y, c.circle), torch.minimum(first, second)


def _field(x: Tensor, y: Tensor, circle: float) -> Tensor:
    """Directions (n, 2) at x and y (n, 1) that lead to the origin and arrive there in direction (1,
    0): the univector field of Kim et al. 2004.

    Left of the goal the path turns around a circle on the left, right of it around one on the
    right.
    """
    sides = y.new_tensor((1.0, -1.0))
    off = y - circle * sides
    distance = torch.sqrt(x * x + off * off).clamp(min=1e-6)
    radii = distance / circle
    bend = torch.where(radii > 1.0, 2.0 - 1.0 / radii, radii.sqrt())
    cos, sin = torch.cos(0.5 * math.pi * bend), sides * torch.sin(0.5 * math.pi * bend)
    share = ((y + circle) / (2.0 * circle)).clamp(0.0, 1.0)
    share = torch.cat((share, 1.0 - share), -1) / distance
    ways = share * (x * cos - off * sin), share * (x * sin + off * cos)
    mean = torch.cat([way.sum(-1, keepdim=True) for way in ways], -1)
    return mean / _length(mean).clamp(min=1e-6)


def _length(vector: Tensor) -> Tensor:
    """Lengths (n, 1) of vectors (n, 2)."""
    return torch.linalg.vector_norm(vector, dim=-1, keepdim=True)


def _turned(vector: Tensor, by: Tensor) -> Tensor:
    """Vectors (n, 2) turned by the angles of unit vectors (n, 2): the product of complex numbers,
    which ONNX lacks."""
    x, y = vector.split(1, -1)
    return x * by + y * by.flip(-1) * by.new_tensor((-1.0, 1.0))


def _squashed(point: Tensor) -> Tensor:
    """Points (..., 2) [m] squashed into the unit circle: p / (0.3 + |p|)."""
    return point / (0.3 + torch.sqrt(point.square().sum(-1, keepdim=True) + 1e-6))
