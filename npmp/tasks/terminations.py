"""Terminations: functions of state and goal that end an episode as failed."""

from __future__ import annotations

import math

import mujoco
import torch
from torch import Tensor

from npmp.envs.state import RobotState
from npmp.envs.task import Part
from npmp.robots import Robot
from npmp.sim import add_contact_sensors

# legs: feet and the links that carry them; limbs: all links but the root, as in legged_gym
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
        feet = self.robot.foot_bodies
        carriers = {f"contact_{spec.body(foot).parent.name}" for foot in feet}
        root = {f"contact_{self.robot.body_names[0]}"}
        sensors = add_contact_sensors(spec, self.robot)
        ends = {"feet": {*sensors}, "legs": {*sensors} - carriers, "limbs": root}
        self.names = [name for name in sensors if name in ends[self.may_touch]]

    def __call__(self, state: RobotState, goal: Tensor) -> Tensor:
        robots = self.env.robots
        return torch.cat([robots.sensor(name) for name in self.names], -1).any(-1)


class Fallen(Part):
    """Whether robots lie or tilt by more than 60 degrees, (n,) bool."""

    def __call__(self, state: RobotState, goal: Tensor) -> Tensor:
        return self.env.fallen(state)  # type: ignore[no-any-return]
