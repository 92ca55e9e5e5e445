"""A scripted dribbler: velocity commands to a walking policy, made of where ball and target are.

It goes around the ball to a place behind it, seen from the target, in which a fore foot stands behind the ball; and on
through the ball. Every command follows from what the robot sees now; nothing is remembered. Points of the plane are
complex numbers here, x + iy: a turn by an angle is a product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from npmp import ranges


@dataclass(frozen=True)
class CommanderConfig:
    """How ANYmal dribbles [D: by evolution in simulation, docs/learning.md].
    Raises ValueError for values out of range."""

    reach: float = 0.373  # the place is this far behind the ball [m]
    side: float = 0.274  # and this far to the side, where a fore foot is [m]
    circle: float = 0.098  # radius of the way around the place to the right direction [m]
    behind: float = 0.382  # from here on the robot counts as behind the ball [m], ...
    corridor: float = 0.104  # ... where it is so near to the line through the place [m],
    look: float = 0.261  # and heads for where the line is so far ahead of it [m]
    facing: float = 2.11  # within about this distance of the place it turns to the target, beyond to where it goes [m]
    turn: float = 4.03  # yaw rate per radian [1/s]
    near: float = 0.376  # speed at the ball [m/s]
    near_rise: float = 0.056  # more of it per metre from ball to target [1/s]
    far: float = 1.37  # speed away from the ball [m/s]
    near_m: float = 0.903  # what is away [m]
    done: float = 0.177  # a ball so near to its target is left alone [m]
    # of commands: forward, lateral, yaw; what the walking policy obeys, sideways a bit less, as that is how it falls
    lowest: tuple[float, float, float] = (-0.6, -0.45, -2.0)
    highest: tuple[float, float, float] = (1.5, 0.45, 2.0)

    def __post_init__(self) -> None:
        ranges.above_zero(
            self, "reach", "side", "circle", "behind", "corridor", "look", "facing", "turn", "near", "far", "near_m",
            "done",
        )  # fmt: skip
        ranges.not_negative(self, "near_rise")
        for name in ("lowest", "highest"):  # lists as they come from a file become tuples
            object.__setattr__(self, name, tuple(float(v) for v in getattr(self, name)))
        pairs = list(zip(self.lowest, self.highest, strict=False))
        if len(self.lowest) != 3 or len(self.highest) != 3 or not all(low < 0.0 < high for low, high in pairs):
            raise ValueError(f"lowest and highest need three numbers, below and above zero; got {pairs}")


def dribble_command(ball: Tensor, target: Tensor, config: CommanderConfig) -> Tensor:
    """The command (n, 3), forward, lateral [m/s] and yaw rate [rad/s], for ball and target (n, 2) in the heading frame
    [m]."""
    c, at = config, _complex(ball)
    way = _complex(target) - at
    to_go = way.abs()
    along = way / to_go.clamp(min=1e-6)  # the direction in which the ball is pushed
    ahead, distance = _to_place(-at * along.conj(), c)
    course = ahead * along
    share = torch.exp(-distance / c.facing)
    heading = (share * along + (1.0 - share) * course).angle()
    close = (1.0 - at.abs() / c.near_m).clamp(0.0, 1.0).sqrt()
    speed = close * (c.near + c.near_rise * to_go) + (1.0 - close) * c.far
    velocity = speed * course
    # slower rather than in another direction
    parts = zip((velocity.real, velocity.imag), c.lowest[:2], c.highest[:2], strict=True)
    share = torch.stack([_allowed(part, low, high) for part, low, high in parts]).amin(0).clamp(max=1.0)
    yaw_rate = (c.turn * heading).clamp(c.lowest[2], c.highest[2])
    command = torch.stack((share * velocity.real, share * velocity.imag, yaw_rate), -1)
    return torch.where((to_go < c.done).unsqueeze(-1), 0.0, command)


def _to_place(root: Tensor, c: CommanderConfig) -> tuple[Tensor, Tensor]:
    """The course, a unit number, and the distance [m] to the nearer of the two places.

    root: (n,) complex, the robot relative to the ball, the target in the direction of 1.
    """
    places = []
    for side in (c.side, -c.side):  # a left fore foot stands behind the ball where the root is to its right
        place = torch.complex(root.real + c.reach, root.imag + side)
        behind = (root.real < -c.behind) & (place.imag.abs() < c.corridor)
        places.append(torch.complex(torch.where(behind, place.real.clamp(max=-c.look), place.real), place.imag))
    left, right = places
    place = torch.where(left.abs() <= right.abs(), left, right)
    return _field(place, c.circle), place.abs()


def _field(place: Tensor, circle: float) -> Tensor:
    """A course from anywhere (n,) to zero, to arrive in the direction of 1: the univector field of Kim et al. 2004.

    On the left of the goal it turns around a circle on its left, on the right around one on its right.
    """
    ways = []
    for side in (1.0, -1.0):
        offset = torch.complex(place.real, place.imag - side * circle)
        distance = offset.abs().clamp(min=1e-6)
        bend = torch.where(distance > circle, 2.0 - circle / distance, (distance / circle).sqrt())
        ways.append(torch.polar(torch.ones_like(distance), offset.angle() + side * 0.5 * math.pi * bend))
    share = ((place.imag + circle) / (2.0 * circle)).clamp(0.0, 1.0)
    mean = share * ways[0] + (1.0 - share) * ways[1]
    return mean / mean.abs().clamp(min=1e-6)


def _allowed(value: Tensor, low: float, high: float) -> Tensor:
    """What share of a velocity stays within its limits, above 1 where all of it does."""
    return torch.where(value > 0.0, high / value.clamp(min=1e-9), low / value.clamp(max=-1e-9))


def _complex(points: Tensor) -> Tensor:
    return torch.complex(points[..., 0], points[..., 1])
