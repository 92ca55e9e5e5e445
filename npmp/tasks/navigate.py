"""Navigation through unknown rooms by a depth camera (as in LB-WayPtNav, Bansal et al. 2019).

A planner computes the distance to the goal from every cell of its map. The robot's command is the
velocity along the shortest path; it determines the reward, and `algo=clone` with `walker=` learns
it. A policy observes the goal, ignoring walls, and the camera's depths.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.core import geometry, ranges
from npmp.core.settings import PART, changed
from npmp.envs.camera import DepthCamera
from npmp.envs.ground import GroundConfig, RoughGround
from npmp.envs.state import RobotState
from npmp.envs.task import Goals, Inputs, Parts, Sensor, StepResult, Task, Trial
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.sim.rooms import THICK_M, WALL_M
from npmp.sim.terrain import PERIOD_M, Terrain
from npmp.tasks.commands import MODEST_RANGE, Commands
from npmp.tasks.velocity import velocity_figures
from npmp.tasks.walk import WalkConfig, by_commands, first_step, resolve_walking, walking

INPUTS = {"goal_forward_m": (-8.0, 8.0), "goal_left_m": (-8.0, 8.0)}
GOALS = 8  # per field
NEAR_M = 0.5  # distance at which a goal is reached
CELL_M = 0.1  # cell of the planner's map
# height above the floor of an obstacle, and of free floor
OBSTACLE_M = 0.2
FLOOR_M = 0.05
# evidence in a map: of free floor by a depth network, which errs, of an occupied cell, and the
# limit
FREE_EVIDENCE = 0.25
OCCUPIED = 2.0
MAX_EVIDENCE = 4.0
_AHEAD_M = (0.3, 0.6)  # radii at which the planner compares distances to the goal
_BODY_M = 0.45  # least distance of ANYmal's centre from walls
_TIGHT_COST = 300.0  # largest additional cost of a path closer than `_BODY_M`
_CLEARANCE_M = 0.9  # distance from walls below which paths cost more
_TURN = 2.0  # yaw rate per heading error [1/s]
_SPEED_MPS = 0.7


@dataclass(frozen=True)
class NavigateConfig:
    """The navigation task's settings, in addition to those of walking. Raises ValueError for values
    out of range."""

    walk: WalkConfig = field(
        default_factory=lambda: WalkConfig(
            ground=GroundConfig(terrain="rooms"), camera="stereo", episode_s=40.0
        ),
        metadata=PART,
    )
    # length of the shortest path to the goal [m]
    goal_m: tuple[float, float] = (5.0, 15.0)

    def __post_init__(self) -> None:
        ranges.pairs(self, "goal_m")
        ranges.above_zero(self, "goal_m")


class Routes(NamedTuple):
    """Goals of F fields, and distances to them on cells of `CELL_M`."""

    goals: Tensor  # (F, G, 2) [m] from a field's corner
    distance: Tensor  # (F, G, R, C) distance to each goal [m], row by y


def routes_of(terrain: Terrain, seed: int) -> Routes:
    """Distances to `GOALS` random start places of each field."""
    rng = np.random.default_rng(seed)
    plans = []
    step = round(CELL_M / terrain.cell)
    parts = zip(terrain.corner, terrain.places, terrain.levels, strict=True)
    for i, (corner, places, level) in enumerate(parts):
        heights = terrain.period(i)[:-1, :-1].numpy()
        stands = heights > heights.min() + 0.5 * WALL_M * level
        chosen = places[torch.from_numpy(rng.permutation(len(places))[:GOALS])] - corner
        at = (chosen / CELL_M).round().long().numpy()[:, ::-1]
        plans.append((chosen, _lengths(stands, terrain.cell, step, at)))
    return Routes(torch.stack([goals for goals, _ in plans]), torch.stack([x for _, x in plans]))


def _lengths(stands: np.ndarray, cell: float, step: int, goals: np.ndarray) -> Tensor:
    """Distances (G, R, C) [m] to goals (G, 2), row and column.

    Cells too close to walls have a high cost, but are not blocked: an obstacle may be an error of
    the map.
    """
    # slow to import
    from scipy.ndimage import distance_transform_edt
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import dijkstra

    gap = (distance_transform_edt(~stands) * cell)[::step, ::step]
    factor = 1.0 + 10.0 * np.clip(1.0 - gap / _CLEARANCE_M, 0.0, 1.0) ** 2
    factor += _TIGHT_COST * np.clip(1.0 - gap / _BODY_M, 0.0, 1.0)
    index = np.arange(gap.size).reshape(gap.shape)
    edges = []
    for rows, columns in ((0, 1), (1, 0), (1, 1), (1, -1)):
        left, right = max(0, -columns), max(0, columns)
        here = (slice(0, gap.shape[0] - rows), slice(left, gap.shape[1] - right))
        there = (slice(rows, None), slice(right, gap.shape[1] - left))
        cost = CELL_M * math.hypot(rows, columns) * 0.5 * (factor[here] + factor[there])
        edges.append((index[here].ravel(), index[there].ravel(), cost.ravel()))
    begin, end, cost = (np.concatenate(part) for part in zip(*edges, strict=True))
    graph = coo_matrix((cost, (begin, end)), shape=(gap.size, gap.size)).tocsr()
    near = distance_transform_edt(gap <= _BODY_M, return_distances=False, return_indices=True)
    start = [index[tuple(near[:, r, c])] for r, c in goals]  # the nearest cell that a robot fits in
    length = dijkstra(graph, directed=False, indices=start)
    return torch.tensor(length.reshape(-1, *gap.shape), dtype=torch.float32)


class GlobalPlanner(Goals):
    """Goals in rooms, `place` (n, 2) [m] in the world, and velocities along the shortest path, on
    the complete map."""

    saved: ClassVar[Mapping[str, str]] = {"place": "place", "which": "goal_index"}

    def __init__(self, config: NavigateConfig, commands: Commands):
        """Raises InputError for another terrain than rooms."""
        self.config = config
        self.commands = commands
        terrain = config.walk.ground.terrain
        if terrain != "rooms":
            raise InputError(f"task.terrain={terrain}: expected rooms")

    def bind(self, env: TaskEnv[Any]) -> None:
        super().bind(env)
        device = env.device
        n = env.num_envs
        assert isinstance(env.ground, RoughGround)  # rooms
        seed = self.config.walk.ground.terrain_seed
        routes = routes_of(env.ground.terrain.to(torch.device("cpu")), seed)
        self.routes = Routes(*(part.to(device) for part in routes))
        self.place = torch.zeros(n, 2, device=device)
        self.goal_index = torch.zeros(n, dtype=torch.long, device=device)  # in its field
        self._limits = torch.tensor(self.commands.config.range, device=device)

    def goal(self) -> Tensor:
        """`place`."""
        return self.place

    def describe(self, i: int) -> dict[str, Any]:
        return {"goal": self.place[i]}

    # --- planning ---

    def distance_to_goal(self, place: Tensor, goal: Tensor | None = None) -> Tensor:
        """Distances (n, k) [m] from places (n, k, 2) in the world to the robots' goals, or to goals
        (n, k) of their fields."""
        field = self.env.ground.field.unsqueeze(-1)
        goal = self.goal_index.unsqueeze(-1) if goal is None else goal
        cell = ((place - self.env.ground.terrain.corner[field]) / CELL_M).round().long()
        size = torch.tensor(self.routes.distance.shape[:1:-1], device=cell.device)
        column, row = torch.minimum(cell.clamp(min=0), size - 1).unbind(-1)
        return self.routes.distance[field, goal, row, column]

    def _command(self, ids: Tensor) -> None:
        """Set the commands of robots ids (k,) along the shortest path."""
        state = self.env.state
        angle = torch.arange(0.0, 2.0 * math.pi, math.pi / 12.0, device=ids.device)
        directions = torch.stack((torch.cos(angle), torch.sin(angle)), -1)
        ring = torch.cat([radius * directions for radius in _AHEAD_M])
        left = self.distance_to_goal(state.root_pos[:, None, :2] + ring)
        best = directions[left.argmin(-1) % len(directions)]
        excluded = best @ ring.T < 0.85 * ring.norm(dim=-1)  # not averaged: other sides
        share = torch.softmax((-left / 0.05).masked_fill(excluded, -math.inf), -1)
        ahead = (share.unsqueeze(-1) * ring).sum(1)
        yaw = geometry.yaw_of(state.root_rot)
        turn = torch.atan2(ahead[:, 1], ahead[:, 0]) - yaw
        turn = torch.atan2(torch.sin(turn), torch.cos(turn))
        speed = _SPEED_MPS * torch.cos(turn).clamp(min=0.0) ** 5
        command = torch.stack((speed, torch.zeros_like(turn), _TURN * turn), -1)
        arrived = (
            self.distance_to_goal(state.root_pos[:, None, :2]) < 0.5 * NEAR_M
        )  # as close as it gets
        command = command.clamp(*self._limits.T).masked_fill(arrived, 0.0)
        self.commands.current = self.commands.current.index_copy(0, ids, command[ids])

    # --- episodes ---

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """Select a goal at a distance within `goal_m`, otherwise the farthest."""
        place = self.env.state.root_pos[:, None, :2].expand(-1, GOALS, 2)
        left = self.distance_to_goal(
            place, torch.arange(GOALS, device=ids.device).expand(len(place), -1)
        )
        near, far = self.config.goal_m
        uniform = torch.rand(len(ids), GOALS, generator=generator, device=ids.device)
        fits = (left[ids] >= near) & (left[ids] <= far)
        best = torch.where(fits.any(-1, keepdim=True), fits * uniform, left[ids]).argmax(-1)
        ground = self.env.ground
        field = self.env.ground.field[ids]
        goal = ground.terrain.corner[field] + self.routes.goals[field, best]
        self.goal_index = self.goal_index.index_copy(0, ids, best)
        self.place = self.place.index_copy(0, ids, goal)
        self._command(ids)

    def advance(self, result: StepResult, generator: torch.Generator) -> None:
        self._command(torch.arange(self.env.num_envs, device=self.place.device))

    # --- measures in the simulation ---

    def arrived(self, state: RobotState, goal: Tensor) -> Tensor:
        """Whether robots are at their goals, (n,) bool."""
        return torch.linalg.vector_norm(self.place - state.root_pos[:, :2], dim=-1) < NEAR_M

    def error(self, state: RobotState, goal: Tensor) -> Tensor:
        """Distance to the goal along the shortest path, (n,) [m]."""
        return self.distance_to_goal(state.root_pos[:, :2].unsqueeze(1)).squeeze(-1)


class MappingPlanner(GlobalPlanner):
    """A planner on a map from the camera's images of this episode, with exact poses. Unobserved
    cells are free."""

    saved: ClassVar[Mapping[str, str]] = {
        **GlobalPlanner.saved,
        "poses": "poses",
        "evidence": "evidence",
        "lengths": "lengths",
    }

    def __init__(
        self, config: NavigateConfig, commands: Commands, camera: DepthCamera, home_height: float
    ):
        """home_height: of the root in the home pose [m]."""
        super().__init__(config, commands)
        self.camera = camera
        self.home_height = home_height

    def bind(self, env: TaskEnv[Any]) -> None:
        super().bind(env)
        n = env.num_envs
        device = env.device
        images = self.camera.past.shape[1]
        self._cell: float = env.ground.terrain.cell  # type: ignore[attr-defined]  # rooms
        fine, coarse = (round(PERIOD_M / cell) for cell in (self._cell, CELL_M))
        self.poses = torch.zeros(n, images, 12, device=device)  # poses of the latest images
        self.evidence = torch.zeros(n, fine, fine, device=device)  # evidence of occupied cells
        self.lengths = torch.zeros(n, coarse, coarse, device=device)
        self._begun: Tensor | None = None

    def distance_to_goal(self, place: Tensor, goal: Tensor | None = None) -> Tensor:
        """As `GlobalPlanner.distance_to_goal`, on the robots' own maps."""
        if goal is not None:
            return super().distance_to_goal(place, goal)
        corner = self.env.ground.terrain.corner[self.env.ground.field]
        cell = ((place - corner[:, None]) / CELL_M).round().long()
        column, row = cell.clamp(0, self.lengths.shape[-1] - 1).unbind(-1)
        robots = torch.arange(len(place), device=row.device).unsqueeze(-1)
        return self.lengths[robots, row, column]

    def aim(self, place: Tensor) -> None:
        """Set the goals of robots to the nearest free places to places (n, 2) in the world [m]."""
        corner = self.env.ground.terrain.corner[self.env.ground.field]
        edge = THICK_M + _BODY_M
        self.place = corner + (place - corner).clamp(edge, PERIOD_M - edge)
        self._plan(torch.arange(len(place), device=place.device))

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """Start with an empty map and the first image."""
        self.evidence = self.evidence.index_fill(0, ids, 0.0)
        here = self._pose[ids].unsqueeze(1).expand(-1, self.poses.shape[1], -1)
        self.poses = self.poses.index_copy(0, ids, here)
        self._begun = ids
        super().begin(ids, generator)

    @property
    def _pose(self) -> Tensor:
        state = self.env.state
        return torch.cat((state.root_pos, state.root_rot.flatten(1)), -1)

    def _command(self, ids: Tensor) -> None:
        """Add new images to the maps, plan again, and set the commands."""
        camera = self.camera
        if self._begun is None:
            older = torch.cat((self._pose.unsqueeze(1), self.poses[:, :-1]), 1)
            self.poses = torch.where((camera.age == 0)[:, None, None], older, self.poses)
            late = camera.delay - camera.age
            updated = torch.nonzero((late >= 0) & (late % camera.period == 0)).squeeze(-1)
            image = torch.div(late[updated], camera.period, rounding_mode="floor")
        else:
            updated = self._begun
            image = torch.zeros_like(updated)
            self._begun = None
        if len(updated):
            self._add_depths(updated, camera.past[updated, image], self.poses[updated, image])
            self._plan(updated)
        super()._command(ids)

    def _add_depths(self, ids: Tensor, depth: Tensor, pose: Tensor) -> None:
        """Add depths (k, pixels) [m] from poses (k, 12) to the maps of robots ids (k,). Points
        `OBSTACLE_M` above the floor are evidence of an obstacle, with a depth network floor points
        are evidence against one."""
        camera = self.camera
        rotation = pose[:, 3:].view(-1, 3, 3)
        rays = camera.rays @ rotation.mT
        at = pose[:, :3] + rotation @ camera.place
        point = at[:, None] + depth.unsqueeze(-1) * rays
        floor = pose[:, 2] - self.home_height
        up = point[..., 2] - floor[:, None]
        near = depth < camera.config.range_m[1]
        free, stands = (FREE_EVIDENCE, 1.0) if camera.config.network else (0.0, OCCUPIED)
        evidence = (
            torch.where(up > OBSTACLE_M, stands, torch.where(up < FLOOR_M, -free, 0.0)) * near
        )
        corner = self.env.ground.terrain.corner[self.env.ground.field[ids]]
        cell = ((point[..., :2] - corner[:, None]) / self._cell).round().long()
        column, row = cell.clamp(0, self.evidence.shape[-1] - 1).unbind(-1)
        robot = ids.unsqueeze(-1).expand_as(row)
        self.evidence.index_put_((robot, row, column), evidence, accumulate=True)
        self.evidence[ids] = self.evidence[ids].clamp(-MAX_EVIDENCE, MAX_EVIDENCE)

    def _plan(self, ids: Tensor) -> None:
        corner = self.env.ground.terrain.corner[self.env.ground.field]
        goal = ((self.place - corner) / CELL_M).round().long().flip(-1).clamp(min=0)
        step = round(CELL_M / self._cell)
        for i in ids.tolist():
            stands = (self.evidence[i] >= OCCUPIED).cpu().numpy()
            self.lengths[i] = _lengths(stands, self._cell, step, goal[i : i + 1].cpu().numpy())[0]


# --- the tasks ---


def goal_in_heading(state: RobotState, goal: Tensor) -> Tensor:
    """The goal in the heading frame, (B, 2) [m]."""
    turned = geometry.yaw_matrix(geometry.yaw_of(state.root_rot))[..., :2, :2]
    return geometry.to_local(turned, goal - state.root_pos[..., :2])


def arrival_figures(trial: Trial) -> dict[str, Any]:
    """Figures of walking, and of each robot's first episode: `missed`, the share that did not
    arrive in time without a collision; `collided`, the share that collided or fell; `arrival_s`,
    the mean time of robots that arrived."""
    arrived = first_step(trial.metrics["arrived"])
    fell = first_step(trial.fell)
    well = arrived < fell
    times = (arrived[well] + 1) * trial.dt
    return {
        **velocity_figures(trial),
        "missed": 1.0 - well.float().mean().item(),
        "collided": (fell < arrived).float().mean().item(),
        "arrival_s": times.mean().item() if len(times) else math.nan,
    }


def navigating(parts: Parts, planner: GlobalPlanner, config: NavigateConfig) -> Parts:
    """The parts of walking, with the commands of a planner and an end of the episode at the
    goal."""
    (reward,) = parts.rewards
    commands: Any = parts.commands
    return replace(
        parts,
        planner=planner,
        goals=planner,
        rewards=[replace(reward, value=by_commands(reward.value, commands))],
        metrics={name: by_commands(metric, commands) for name, metric in parts.metrics.items()},
        ends={"arrived": planner.arrived},
        imaginable=False,
        error=planner.error,
        error_name="way_left_m",
        figures=replace(
            parts.figures,
            of=arrival_figures,
            logged=("missed", "collided", "arrival_s"),
            trial_s=config.walk.episode_s,
        ),
    )


def resolve_navigating(
    config: NavigateConfig, motions: MotionSet | None, training: Mapping[str, Any]
) -> NavigateConfig:
    """As `resolve_walking`, also for a record of other inputs than velocities."""
    record = dict(training)
    command_range = training.get("command_range") or ()
    record["command_range"] = command_range if len(command_range) == 3 else MODEST_RANGE
    walk = resolve_walking(config.walk, motions, record, default=NavigateConfig().walk)
    return replace(config, walk=walk)


class Navigate(Task):
    """Go to a goal in rooms, where the episode ends. It fails if anything but a foot touches floor
    or wall.

    The policy's input is the goal.
    """

    name = "navigate"
    config_type = NavigateConfig
    main_figure = "missed"

    def __init__(
        self, robot: Robot, config: NavigateConfig | None = None, motions: MotionSet | None = None
    ):
        """As `walking` and `GlobalPlanner`."""
        c = config or NavigateConfig()
        parts = walking(robot, c.walk, motions)
        sensors = [part for part in parts.observations if isinstance(part, Sensor)]
        parts = replace(parts, observations=[Inputs(goal_in_heading, INPUTS), *sensors])
        planner = GlobalPlanner(c, parts.commands)
        super().__init__(robot, c, navigating(parts, planner, c))

    @classmethod
    def resolve(
        cls, config: NavigateConfig, motions: MotionSet | None, training: Mapping[str, Any]
    ) -> NavigateConfig:
        """As `resolve_navigating`."""
        return resolve_navigating(config, motions, training)


class Guided(Task):
    """Task `navigate` for a walking policy, which gets the planner's velocity; the baseline with a
    complete map."""

    name = "guided"
    config_type = NavigateConfig
    policies_of = ("walk",)
    main_figure = "missed"

    def __init__(
        self, robot: Robot, config: NavigateConfig | None = None, motions: MotionSet | None = None
    ):
        """As `walking` and `GlobalPlanner`."""
        c = config or NavigateConfig()
        parts = walking(robot, c.walk, motions)
        planner = GlobalPlanner(c, parts.commands)
        super().__init__(robot, c, replace(navigating(parts, planner, c), goals=None))

    @classmethod
    def resolve(
        cls, config: NavigateConfig, motions: MotionSet | None, training: Mapping[str, Any]
    ) -> NavigateConfig:
        """As `resolve_navigating`."""
        return resolve_navigating(config, motions, training)


class Mapped(Task):
    """Task `guided` with a `MappingPlanner`."""

    name = "mapped"
    config_type = NavigateConfig
    policies_of = ("walk",)
    main_figure = "missed"

    def __init__(
        self, robot: Robot, config: NavigateConfig | None = None, motions: MotionSet | None = None
    ):
        """As `walking` and `MappingPlanner`; the policy does not observe the camera. Raises
        InputError without a camera."""
        c = config or NavigateConfig()
        parts = walking(robot, c.walk, motions)
        *observations, camera = parts.observations
        if not isinstance(camera, DepthCamera):
            raise InputError("task.camera=null: task=mapped needs a camera")
        sensors = [part for part in parts.observations if isinstance(part, Sensor)]
        parts = replace(parts, observations=observations, memory=[*parts.memory, *sensors])
        height = float(robot.home_qpos[2])
        planner = MappingPlanner(c, parts.commands, camera, height)
        super().__init__(robot, c, replace(navigating(parts, planner, c), goals=None))

    @classmethod
    def resolve(
        cls, config: NavigateConfig, motions: MotionSet | None, training: Mapping[str, Any]
    ) -> NavigateConfig:
        """As `resolve_navigating`, with the planner's own camera."""
        resolved = resolve_navigating(changed(config, camera="stereo"), motions, training)
        return changed(resolved, camera=config.walk.camera)
