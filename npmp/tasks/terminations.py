"""When an episode fails: small functions that a task lists."""

from __future__ import annotations

import math
from typing import Any

import mujoco
import torch
from torch import Tensor

from npmp.envs.state import RobotState
from npmp.robots import Robot
from npmp.sim import add_contact_sensors

MAY_TOUCH = ("feet", "legs")  # legs: the links that carry the feet, too


def tilted(state: RobotState, limit_deg: float) -> Tensor:
    """Whether the root's vertical axis leans more than the limit from the world's, (...) bool."""
    return state.root_rot[..., 2, 2] < math.cos(math.radians(limit_deg))


def diverged(env: Any, *others: Tensor) -> Tensor:
    """Whether the simulation of a robot broke down, or its state or others (n, ...) are no numbers:
    a failure, not a crash. (n,) bool."""
    finite = torch.isfinite(env.state.pack()).all(-1)
    for other in others:
        finite = finite & torch.isfinite(other).all(-1)
    return ~finite | env.robots.broken  # type: ignore[no-any-return]


class FloorContacts:
    """Sensors of contacts with the floor of whatever may not touch it."""

    def __init__(self, spec: mujoco.MjSpec, robot: Robot, may_touch: str = "feet"):
        """Adds the sensors to the scene. may_touch: one of `MAY_TOUCH`."""
        spared = set()
        if may_touch == "legs":
            spared = {f"contact_{spec.body(foot).parent.name}" for foot in robot.foot_bodies}
        sensors = add_contact_sensors(spec, robot)
        self.names = [name for name in sensors if name not in spared]

    def touching(self, env: Any) -> Tensor:
        """Whether one of them touches, (n,) bool; as of the last physics step."""
        return torch.cat([env.robots.sensor(name) for name in self.names], -1).any(-1)
