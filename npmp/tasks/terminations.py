"""Terminations: functions of state and goal that end an episode as failed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import mujoco
import torch
from torch import Tensor

from npmp.envs.state import RobotState
from npmp.envs.task import Part
from npmp.robots import Robot
from npmp.sim import add_contact_sensors

# legs: feet and the links that carry them; limbs: all links between the root and the feet
MAY_TOUCH = ("feet", "legs", "limbs")


class Tilt:
    """Whether the root tilts by more than a limit, (...) bool."""

    def __init__(self, limit_deg: float):
        self._least = math.cos(math.radians(limit_deg))

    def __call__(self, state: RobotState, goal: Tensor) -> Tensor:
        return state.root_rot[..., 2, 2] < self._least


class FloorContacts(Part):
    """Whether any other body than the allowed ones touches the floor, (n,) bool, in the last
    physics step of the simulation."""

    def __init__(self, robot: Robot, may_touch: str = "feet"):
        """may_touch: one of `MAY_TOUCH`."""
        self.robot = robot
        self.may_touch = may_touch

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        """Add sensors of contacts with the floor."""
        allowed = set()
        for foot in self.robot.foot_bodies:
            links = list(_links_above(spec.body(foot), self.robot.body_names[0]))
            reach = {"feet": 0, "legs": 1, "limbs": len(links)}[self.may_touch]
            allowed |= {f"contact_{link}" for link in links[:reach]}
        sensors = add_contact_sensors(spec, self.robot)
        self.names = [name for name in sensors if name not in allowed]

    def __call__(self, state: RobotState, goal: Tensor) -> Tensor:
        robots = self.env.robots
        return torch.cat([robots.sensor(name) for name in self.names], -1).any(-1)


def _links_above(foot: mujoco.MjsBody, root: str) -> Iterator[str]:
    """Names of the links that carry a foot, from it upwards, without the root."""
    link = foot.parent
    while link.name != root:
        yield link.name
        link = link.parent


class Fallen(Part):
    """Whether robots lie or tilt by more than 60 degrees, (n,) bool."""

    def __call__(self, state: RobotState, goal: Tensor) -> Tensor:
        return self.env.fallen(state)  # type: ignore[no-any-return]
