"""When an episode fails: functions of state and goal that a task lists."""

from __future__ import annotations

import math

import mujoco
import torch
from torch import Tensor

from npmp.envs.state import RobotState
from npmp.envs.task import Part
from npmp.robots import Robot
from npmp.sim import add_contact_sensors

MAY_TOUCH = ("feet", "legs")  # legs: the links that carry the feet, too


class Tilt:
    """Whether the root's vertical axis leans more than a limit from the world's, (...) bool."""

    def __init__(self, limit_deg: float):
        self._least = math.cos(math.radians(limit_deg))

    def __call__(self, state: RobotState, goal: Tensor) -> Tensor:
        return state.root_rot[..., 2, 2] < self._least


class FloorContacts(Part):
    """Whether a body that may not touch the floor does, (n,) bool, of simulated robots as of the
    last physics step."""

    def __init__(self, robot: Robot, may_touch: str = "feet"):
        """may_touch: one of `MAY_TOUCH`."""
        self.robot = robot
        self.may_touch = may_touch

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        """Sensors of contacts with the floor."""
        spared = set()
        if self.may_touch == "legs":
            feet = self.robot.foot_bodies
            spared = {f"contact_{spec.body(foot).parent.name}" for foot in feet}
        sensors = add_contact_sensors(spec, self.robot)
        self.names = [name for name in sensors if name not in spared]

    def __call__(self, state: RobotState, goal: Tensor) -> Tensor:
        robots = self.env.robots
        return torch.cat([robots.sensor(name) for name in self.names], -1).any(-1)


class Fallen(Part):
    """Whether robots lie or have tipped over by more than 60 degrees, (n,) bool."""

    def __call__(self, state: RobotState, goal: Tensor) -> Tensor:
        return self.env.fallen(state)  # type: ignore[no-any-return]
