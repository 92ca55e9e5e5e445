"""An elevation map in the frame of a robot's odometry, with errors of maps on robots.

It exists in simulation only: its cells hold the height of the ground at their centres, placed by
the true pose. With `ground_delay_s` the robot saw them a while ago, and they are off by as much as
its odometry has drifted since; without, however far it has drifted, they are where they are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.core import geometry
from npmp.envs.ground import Ground
from npmp.envs.state import RobotState
from npmp.tasks.inputs import HeightMapErrors

# size of a cell, as of elevation maps of walking robots (Miki et al. 2022) [m]
CELL_M = 0.04
# time constant with which the map is raised to standing feet [s] [D]
LEVEL_S = 0.3


class MapPose(NamedTuple):
    """Where the maps of n robots are, relative to their odometry."""

    center: Tensor  # (n, 2) of the robots in the odometry's frame [m]
    shift: Tensor  # (n, 3) of the ground at `center`: position in the world minus in odometry [m]
    yaw: Tensor  # (n,) heading in the world minus in odometry [rad]
    drift: Tensor  # (n, 3) constant error of `shift` [m]
    level: Tensor  # (n,) correction of heights by standing feet [m]


class ElevationMap:
    """Maps of the ground under robots."""

    def __init__(
        self, ground: Ground, dt: float, errors: HeightMapErrors, generator: torch.Generator
    ):
        """dt: control period [s]. generator: of the errors.

        Raises: InputError for occluded ground, which is not modelled here.
        """
        if errors.ground_hidden:
            raise InputError("ground_hidden: not available for footsteps; use ground_holes")
        self.ground = ground
        self.dt = dt
        self.generator = generator
        self.errors = errors

    def begin(self, robots: RobotState, ground: Tensor) -> MapPose:
        """Maps whose odometry begins in the true poses. ground: not used."""
        none = torch.zeros_like(robots.root_pos)
        drift_m = self.errors.ground_drift_m
        drift = drift_m * self._normal(none) if drift_m else none
        return MapPose(robots.root_pos[:, :2], none, none[:, 0], drift, none[:, 0])

    def advance(self, pose: MapPose, odometry: RobotState, true: RobotState) -> MapPose:
        """Maps one control step later, which follow the odometry's drift with the map's delay as
        time constant."""
        center = odometry.root_pos[:, :2]
        # the shift at the new centre
        moved = torch.nn.functional.pad(center - pose.center, (0, 1))
        turned = geometry.to_world(geometry.yaw_matrix(pose.yaw), moved)
        shift = true.root_pos - odometry.root_pos
        yaw = geometry.yaw_of(true.root_rot @ odometry.root_rot.transpose(-1, -2)) - pose.yaw
        yaw = torch.atan2(torch.sin(yaw), torch.cos(yaw))
        share = self.dt / max(self.errors.ground_delay_s, self.dt)
        return pose._replace(
            center=center,
            shift=(pose.shift + turned - moved).lerp(shift, share),
            yaw=pose.yaw + share * yaw,
        )

    def blind(self, pose: MapPose) -> Tensor:
        """No robots, (n,) bool."""
        return torch.zeros_like(pose.level, dtype=torch.bool)

    def levelled(self, pose: MapPose, above: Tensor, stands: Tensor) -> MapPose:
        """Maps raised towards feet that stand.

        above: (n, F) heights of the feet above the map [m]. stands: (n, F) bool.
        """
        count = stands.sum(-1).clamp(min=1)
        mean = torch.where(stands, above, 0.0).sum(-1) / count
        return pose._replace(level=pose.level + self.dt / LEVEL_S * mean)

    def points(self, pose: MapPose, robot: int) -> Tensor:
        """No points, (0, 3): it has all of the ground."""
        return pose.drift.new_zeros(0, 3)

    def height_at(self, pose: MapPose, position: Tensor, robots: Tensor) -> Tensor:
        """Heights (k, ...) [m] at positions (k, ..., 2) of k robots, both in their odometry's
        frame; NaN in holes. robots: (k,) indices. Each call samples noise and holes of each
        position."""
        middle = [1] * (position.dim() - 2)
        center, shift = (
            v[robots].view(len(robots), *middle, -1) for v in (pose.center, pose.shift + pose.drift)
        )
        turn = geometry.yaw_matrix(pose.yaw[robots])[:, :2, :2].reshape(-1, *middle, 2, 2)
        place = center + shift[..., :2] + (turn @ (position - center).unsqueeze(-1)).squeeze(-1)
        cell = CELL_M * (place / CELL_M).round()
        level = pose.level[robots].view(len(robots), *middle)
        height = self.ground.height_at(cell, robots) - shift[..., 2] + level
        errors = self.errors
        if errors.ground_noise_m:
            height = height + errors.ground_noise_m * self._normal(height)
        if errors.ground_holes:
            uniform = torch.rand(height.shape, generator=self.generator, device=height.device)
            height = height.masked_fill(uniform < errors.ground_holes, math.nan)
        return height

    def highest_at(self, pose: MapPose, position: Tensor, robots: Tensor) -> Tensor:
        """As `height_at`; a cell has one height."""
        return self.height_at(pose, position, robots)

    def _normal(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator, device=like.device)
