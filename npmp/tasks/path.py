"""Following a path: a walking policy's commands come from a proportional controller (robot-NPMP,
path following).

A point p_bar moves along the path. The command is v_cmd = v_bar + P (p_bar - p) in the heading
frame. The distance is measured along the path, and across it at the nearest point, so that a
lagging robot does not cut corners. The yaw rate turns the robot towards the path's direction.
Positions are exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as File
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mocap_data.errors import InputError, unknown
from mocap_data.readers.waypoints import read_waypoints
from mocap_data.store import MotionSet
from npmp.core import geometry, ranges
from npmp.core.settings import PART
from npmp.envs.state import RobotState
from npmp.envs.task import Part, StepResult, Task, Trial
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.tasks.commands import Commands
from npmp.tasks.velocity import velocity_figures
from npmp.tasks.walk import WalkConfig, first_step, resolve_walking, walking

SPACING_M = 0.02  # spacing of the resampled path
BLEND_M = 0.25  # half the length over which the direction is averaged, which rounds corners
RUN_OUT_M = 1.0  # straight extension, so that robots need not stop at the end
LONGEST_M = 1000.0


@dataclass(frozen=True)
class PathConfig:
    """The path task's settings, in addition to those of walking. Raises ValueError for values out
    of range."""

    walk: WalkConfig = field(default_factory=WalkConfig, metadata=PART)
    # a name of `SHAPES`, or a CSV file of x, y in metres
    path: str = "figure_eight"
    # speed of the followed point, lower in tight curves
    speed_mps: float = 0.5
    # P of the command [1/s]
    gain: float = 1.5
    # yaw rate per heading error [1/s]
    yaw_gain: float = 2.0
    # largest distance of the followed point ahead of the robot
    lead_m: float = 0.5

    def __post_init__(self) -> None:
        ranges.above_zero(self, "speed_mps", "gain", "yaw_gain", "lead_m")


# --- paths ---


def figure_eight() -> np.ndarray:
    """Bernoulli's lemniscate of 9 m by 3.2 m, (N, 2), with radii of at least 1.5 m."""
    t = np.linspace(math.pi / 2, 5 * math.pi / 2, 801)
    return 4.5 * np.stack((np.cos(t), np.sin(t) * np.cos(t)), -1) / (1.0 + np.sin(t)[:, None] ** 2)


def slalom() -> np.ndarray:
    """A slalom around six cones 3 m apart, 0.6 m beside each, (N, 2), with radii of at least 1.5
    m."""
    x = np.linspace(0.0, 6 * 3.0, 901)
    return np.stack((x, 0.6 * np.sin(math.pi * x / 3.0)), -1)


def square() -> np.ndarray:
    """A square of 4 m by 4 m, from the middle of a side, (6, 2)."""
    return np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 4.0], [-2.0, 4.0], [-2.0, 0.0], [0.0, 0.0]])


SHAPES = {"figure_eight": figure_eight, "slalom": slalom, "square": square}


def waypoints_of(name: str) -> np.ndarray:
    """The points (N, 2) [m] of a shape by its name, or of a CSV file. Raises InputError for
    neither."""
    if name in SHAPES:
        return SHAPES[name]()
    if not name.lower().endswith(".csv"):
        raise unknown("path", name, (*SHAPES, "a file that ends in .csv"))
    return read_waypoints(File(name).expanduser(), longest_m=LONGEST_M)


class SampledPath(NamedTuple):
    """A resampled path of S points `SPACING_M` apart, from the origin, initially along x."""

    point: Tensor  # (S, 2) [m]
    heading: Tensor  # (S,) [rad], without jumps
    curvature: Tensor  # (S,) [1/m]
    length: float  # [m], without the extension


def sampled_path(waypoints: np.ndarray) -> SampledPath:
    """Resample waypoints (N, 2) [m] that do not all coincide."""
    step = np.linalg.norm(np.diff(waypoints, axis=0), axis=-1)
    kept = np.concatenate(([True], step > 1e-9))
    points = waypoints[kept]
    along = np.concatenate(([0.0], np.cumsum(step[step > 1e-9])))
    at = np.arange(0.0, along[-1], SPACING_M)
    line = np.stack([np.interp(at, along, points[:, k]) for k in (0, 1)], -1)
    blend = round(BLEND_M / SPACING_M)
    ends = [
        np.arange(1, round(RUN_OUT_M / SPACING_M) + 1)[:, None] * SPACING_M * unit
        for unit in _ends(points)
    ]
    line = np.concatenate((points[0] - ends[0][:blend][::-1], line, points[-1] + ends[1]))
    chord = line[2 * blend :] - line[: -2 * blend]
    heading = np.unwrap(np.arctan2(chord[:, 1], chord[:, 0]))
    line = line[blend : len(line) - blend] - points[0]
    curvature = np.gradient(heading, SPACING_M)
    cos, sin = math.cos(heading[0]), math.sin(heading[0])
    line = line @ np.array([[cos, -sin], [sin, cos]])
    parts = (line, heading - heading[0], curvature)
    point, heading, curvature = (torch.tensor(part, dtype=torch.float32) for part in parts)
    return SampledPath(point, heading, curvature, float(along[-1]))


def _ends(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Directions (2,) of the path's start and end."""
    first, last = points[1] - points[0], points[-1] - points[-2]
    return first / np.linalg.norm(first), last / np.linalg.norm(last)


def nearest(path: SampledPath, position: Tensor, near: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Index and distance (n,) of the path's point nearest to positions (n, 2), among points around
    index `near` (n,).

    width: number of points ahead and behind to search, so that robots stay on their branch at
    crossings.
    """
    window = near.unsqueeze(-1) + torch.arange(-width, width + 1, device=near.device)
    window = window.clamp(0, len(path.point) - 1)
    distance = torch.linalg.vector_norm(path.point[window] - position.unsqueeze(1), dim=-1)
    best = distance.argmin(-1, keepdim=True)
    return window.gather(1, best).squeeze(-1), distance.gather(1, best).squeeze(-1)


def command_on(
    path: SampledPath,
    position: Tensor,
    yaw: Tensor,
    near: Tensor,
    ahead: Tensor,
    config: PathConfig,
    turning: float,
) -> Tensor:
    """Commands (n, 3) in the heading frame, before they are clipped to the policy's range.

    Args:
      position, yaw: (n, 2) [m], (n,) [rad] of the robots in the path's frame.
      near: (n,) index of the nearest point.
      ahead: (n,) [m] distance of p_bar ahead of the nearest point, along the path.
      turning: largest yaw rate [rad/s], which limits the speed of p_bar in curves.
    """
    heading = path.heading[near]
    speed = speed_on(path, near, config, turning)
    cos, sin = torch.cos(heading), torch.sin(heading)
    off = config.gain * (path.point[near] - position)
    along = speed + config.gain * ahead
    x = along * cos + off[:, 0]
    y = along * sin + off[:, 1]
    cos = torch.cos(yaw)
    sin = torch.sin(yaw)
    turn = heading - yaw
    turn = torch.atan2(torch.sin(turn), torch.cos(turn))
    yaw_rate = speed * path.curvature[near] + config.yaw_gain * turn
    return torch.stack((cos * x + sin * y, cos * y - sin * x, yaw_rate), -1)


def speed_on(path: SampledPath, index: Tensor, config: PathConfig, turning: float) -> Tensor:
    """Speeds [m/s] of p_bar at points (n,), limited by curvature and yaw rate."""
    # the remaining yaw rate is for corrections
    allowed = 0.8 * turning / path.curvature[index].abs().clamp(min=1e-6)
    return allowed.clamp(min=0.05, max=config.speed_mps)


# --- the task ---


class PathPlanner(Part):
    """Commands that follow a path repeatedly, from each robot's position and heading at the
    episode's start."""

    saved: ClassVar[Mapping[str, str]] = {"origin": "origin", "near": "near", "target": "target"}

    def __init__(self, config: PathConfig, commands: Commands):
        """Raises InputError for an unknown path, and for a speed beyond the range of commands."""
        c = self.config = config
        self.commands = commands
        (_, fastest), _, (left, right) = commands.config.range
        if c.speed_mps > fastest:
            raise InputError(
                f"speed_mps={c.speed_mps:g}: must be at most {fastest:g} m/s, as command_range"
            )
        if not (turning := min(-left, right)) > 0.0:
            raise InputError(
                f"command_range: yaw rates {left:g} to {right:g} rad/s, a path needs both signs"
            )
        self.path = sampled_path(waypoints_of(c.path))
        self._turning = turning
        # half the search window around the last nearest point
        self._width = max(1, round(min(c.lead_m / SPACING_M, len(self.path.point))))
        every = torch.arange(round(self.path.length / SPACING_M) + 1)
        needed = (SPACING_M / speed_on(self.path, every, c, turning)).sum().item()
        self.trial_s = 5.0 + 1.25 * needed

    def bind(self, env: TaskEnv[Any]) -> None:
        super().bind(env)
        device = env.device
        n = env.num_envs
        moved = {name: getattr(self.path, name).to(device) for name in SampledPath._fields[:3]}
        self.path = self.path._replace(**moved)
        self._limits = torch.tensor(self.commands.config.range, device=device)
        # origin of the path's frame: x, y [m], yaw [rad], world frame
        self.origin = torch.zeros(n, 3, device=device)
        self.near = torch.zeros(n, dtype=torch.long, device=device)
        self.target = torch.zeros(n, device=device)  # position of p_bar along the path [m]

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """Place the start of the path at the robots' poses."""
        state = self.env.state
        yaw = geometry.yaw_of(state.root_rot).unsqueeze(-1)
        stand = torch.cat((state.root_pos[:, :2], yaw), -1)
        self.origin = self.origin.index_copy(0, ids, stand[ids])
        self.near = self.near.index_fill(0, ids, 0)
        self.target = self.target.index_fill(0, ids, 0.0)
        self._command(ids)

    def advance(self, result: StepResult, generator: torch.Generator) -> None:
        """Move p_bar; it waits if it is too far ahead."""
        c = self.config
        position, _ = self._pose()
        self.near, _ = nearest(self.path, position, self.near, self._width)
        at = (self.target / SPACING_M).long().clamp(max=len(self.path.point) - 1)
        moved = self.target + self.env.dt * speed_on(self.path, at, c, self._turning)
        end = SPACING_M * (len(self.path.point) - 1)
        self.target = torch.minimum(moved, SPACING_M * self.near + c.lead_m).clamp(max=end)
        self._command(torch.arange(len(self.near), device=self.near.device))

    def _command(self, ids: Tensor) -> None:
        """Set the commands of robots ids (k,)."""
        ahead = self.target - SPACING_M * self.near
        command = command_on(self.path, *self._pose(), self.near, ahead, self.config, self._turning)
        command = command.clamp(*self._limits.T)
        self.commands.current = self.commands.current.index_copy(0, ids, command[ids])

    def _pose(self) -> tuple[Tensor, Tensor]:
        """Positions (n, 2) [m] and yaw (n,) [rad] of the robots in the path's frame."""
        state = self.env.ground.integrated(self.env.state)
        yaw = self.origin[:, 2]
        moved = state.root_pos[:, :2] - self.origin[:, :2]
        turned = geometry.to_local(geometry.yaw_matrix(yaw)[:, :2, :2], moved)
        return turned, geometry.yaw_of(state.root_rot) - yaw

    # --- measures in the simulation ---

    def position(self, state: RobotState, goal: Tensor) -> Tensor:
        """Positions of the robots in the path's frame, (n, 2) [m]."""
        return self._pose()[0]

    def _nearest(self) -> tuple[Tensor, Tensor]:
        return nearest(self.path, self._pose()[0], self.near, self._width)

    def error(self, state: RobotState, goal: Tensor) -> Tensor:
        """Distance to the path, (n,) [m]."""
        return self._nearest()[1]

    def lag(self, state: RobotState, goal: Tensor) -> Tensor:
        """Distance behind p_bar, (n,) [m]."""
        return self.target - SPACING_M * self._nearest()[0]

    def finished(self, state: RobotState, goal: Tensor) -> Tensor:
        """Whether robots are at the path's end, (n,) bool."""
        return self._nearest()[0] * SPACING_M >= self.path.length

    def figures(self, trial: Trial) -> dict[str, Any]:
        """Figures of walking, `path_error_max_m` over all robots and steps, `finished`, the share
        of robots that reach the end without a fall, `path_lag_m`, the mean distance behind
        p_bar."""
        done = first_step(trial.metrics["finished"])
        fell = first_step(trial.fell)
        return {
            **velocity_figures(trial),
            "path_error_max_m": trial.error.max().item(),
            "finished": (done < fell).float().mean().item(),
            "path_lag_m": trial.metrics["lag"].mean().item(),
            "path_length_m": self.path.length,
        }


class Path(Task):
    """Follow a path. An episode fails as in walking, and ends with the path."""

    name = "path"
    config_type = PathConfig
    policies_of = ("walk",)
    main_figure = "path_error_mean_m"

    def __init__(
        self, robot: Robot, config: PathConfig | None = None, motions: MotionSet | None = None
    ):
        """As `walking` and `PathPlanner`."""
        c = config or PathConfig()
        parts = walking(robot, c.walk, motions)
        planner = PathPlanner(c, parts.commands)
        parts = replace(
            parts,
            planner=planner,
            ends={"finished": planner.finished},
            error=planner.error,
            error_name="path_error_mean_m",
            metrics={**parts.metrics, "place": planner.position, "lag": planner.lag},
            figures=replace(
                parts.figures,
                of=planner.figures,
                logged=("path_error_mean_m", "path_error_max_m", "finished", "falls_per_minute"),
                trial_s=planner.trial_s,
            ),
        )
        super().__init__(robot, c, parts)

    @classmethod
    def resolve(
        cls, config: PathConfig, motions: MotionSet | None, training: Mapping[str, Any]
    ) -> PathConfig:
        """As `resolve_walking`."""
        return replace(config, walk=resolve_walking(config.walk, motions, training))
