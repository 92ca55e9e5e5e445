"""How robots move, held against their recordings: histograms of speed, turn, and feet off the
ground."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.envs import TaskEnv
from npmp.envs.feet import Feet
from npmp.envs.state import RobotState
from npmp.robots import Robot
from npmp.tasks.commands import RecordedVelocities
from npmp.tasks.velocity import heading_velocity

WINDOW_S = 0.5  # over which velocities are averaged: within a stride a body sways
OFF_GROUND_M = 0.005  # height of a foot's lowest point from which on it is off the ground
STANDING_MPS = 0.1
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
EDGES = {
    "speed_mps": np.arange(0.0, 4.05, 0.1),
    "turn_rps": np.arange(0.0, 4.1, 0.2),
    "feet_up": np.arange(-0.5, 5.0),
}


class Movement(NamedTuple):
    """What some robots, or motions, did."""

    speed_mps: Tensor  # (S,) horizontal, of half a second each
    turn_rps: Tensor  # (S,) size of the yaw rate, likewise
    # (M,) feet off the ground at a moment; (0,) where the robot's feet are not known
    feet_up: Tensor

    @staticmethod
    def of(velocity: Tensor, feet_up: Tensor) -> Movement:
        """velocity: (S, 3) forward, lateral [m/s], yaw rate [rad/s]."""
        return Movement(velocity[:, :2].norm(dim=-1), velocity[:, 2].abs(), feet_up)

    @staticmethod
    def recorded(motions: MotionSet, robot: Robot) -> Movement:
        """Of every frame of the motions. Raises InputError without a clip of two frames."""
        feet, counted = feet_of(robot), torch.zeros(0)
        if feet is not None and motions.motions:
            up = [(feet.heights(m.qpos) > OFF_GROUND_M).sum(-1) for m in motions.motions]
            counted = torch.from_numpy(np.concatenate(up))
        return Movement.of(RecordedVelocities.of(motions, WINDOW_S).velocity, counted)

    def shares(self) -> dict[str, np.ndarray]:
        """The histogram of each, over `EDGES`, sums of 1; what lies beyond is in the outer bins."""
        found = {}
        for name, values in self._asdict().items():
            edges = EDGES[name]
            inside = np.clip(values.double().numpy(), edges[0], edges[-1] - 1e-9)
            found[name] = np.histogram(inside, edges)[0] / max(1, len(values))
        return found

    def summary(self) -> dict[str, Any]:
        """`standing_share`, and the 5, 25, 50, 75 and 95 % quantiles of speed and turn, and mean
        feet off the ground."""
        if not len(self.speed_mps):
            return {}
        standing = (self.speed_mps < STANDING_MPS).double().mean().item()
        figures: dict[str, Any] = {"standing_share": standing}
        for name in ("speed_mps", "turn_rps"):
            figures[name] = np.quantile(getattr(self, name).double().numpy(), QUANTILES).tolist()
        if len(self.feet_up):
            figures["feet_up"] = self.feet_up.double().mean().item()
        return figures

    def overlap(self, other: Movement) -> dict[str, float]:
        """The shared area of both histograms, 0 to 1."""
        pairs = zip(self.shares().items(), other.shares().values(), strict=True)
        return {name: float(np.minimum(a, b).sum()) for (name, a), b in pairs if a.any()}


def feet_of(robot: Robot) -> Feet | None:
    """The feet of a robot; None where they are not known."""
    try:
        return Feet(robot)
    except InputError:
        return None


class MovementRecorder:
    """Gathers the movement of robots, step by step."""

    def __init__(self, env: TaskEnv[Any]):
        self.feet = feet_of(env.robot)
        self.window = max(1, round(WINDOW_S / env.dt))
        self._sum = torch.zeros(env.num_envs, 3)
        self._whole = torch.ones(env.num_envs, dtype=torch.bool)
        self._steps = 0
        self._velocity: list[Tensor] = []
        self._up: list[Tensor] = []

    def __call__(self, state: RobotState, up: Tensor) -> None:
        """Robots (n, ...) after a step, and which of them count."""
        self._sum += heading_velocity(state).nan_to_num(0.0)
        self._whole &= up
        if self.feet is not None and up.any():
            place = self.feet(state.root_pos[up], state.root_rot[up], state.joint_pos[up])
            self._up.append((place[..., 2].amin(-1) - self.feet.radius > OFF_GROUND_M).sum(-1))
        self._steps += 1
        if self._steps % self.window == 0:
            self._velocity.append((self._sum / self.window)[self._whole])
            self._sum, self._whole = torch.zeros_like(self._sum), torch.ones_like(self._whole)

    def movement(self) -> Movement:
        """All of it; of a stretch shorter than half a second there are no velocities."""
        velocity = torch.cat(self._velocity) if self._velocity else torch.zeros(0, 3)
        return Movement.of(velocity, torch.cat(self._up) if self._up else torch.zeros(0))
