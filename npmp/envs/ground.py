"""The ground under all robots of an environment: flat, or fields of a terrain, each robot on one.

Every `TaskEnv` has one. Flat ground leaves states unchanged, and observations of the ground then
have no columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, ClassVar

import mujoco
import torch
from torch import Tensor

from npmp.core import geometry, ranges
from npmp.core.host_waits import constant, rows_of
from npmp.envs.state import RobotState
from npmp.sim.terrain import (
    CLIMBED,
    PERIOD_M,
    Terrain,
    TerrainConfig,
    TerrainLimits,
    check_kind,
    kinds_of,
)

# starts on rough ground: at its gentlest points, at the foot or on top of a climb, or, up_or_down,
# at foot or top at random
STARTS = ("gentle", "uphill", "downhill", "up_or_down")
# levels of a curriculum
ROWS = 8
# the critic's height samples, forwards of the robot [m]
AHEAD = tuple(0.1 * i for i in range(-5, 6))
# the critic's height samples, to the left of the robot [m]
ASIDE = tuple(0.1 * i for i in range(-3, 4))
AROUND = torch.cartesian_prod(torch.tensor(AHEAD), torch.tensor(ASIDE))  # (g, 2)
# the world model's height samples about a foot, which moves less far in a control step [m]
ABOUT_FEET = torch.tensor([[0.0, 0.0], [0.08, 0.0], [-0.08, 0.0], [0.0, 0.08], [0.0, -0.08]])
_HARD_ENOUGH_M = 1.0  # episodes with a shorter commanded distance do not change the level


@dataclass(frozen=True)
class GroundConfig:
    """The ground of a task. Raises ValueError for values out of range."""

    # a name of `terrain.TERRAINS`, or several joined by "+"
    terrain: str = "flat"
    # scale of the terrain: flat at 0, `terrain_height` and `terrain_limits` at 1
    terrain_level: float = 1.0
    # height of Perlin noise, from the lowest to the highest point [m]
    terrain_height: float = 0.3
    # curriculum over 8 levels, each kind for an equal share of the robots; the highest level is
    # `terrain_level`
    terrain_curriculum: bool = False
    # number of fields over which robots are distributed
    terrain_fields: int = 128
    terrain_seed: int = 0
    # where episodes start: gentle, or uphill, downhill or up_or_down (facing slopes, stairs and
    # platforms)
    terrain_starts: str = "gentle"
    # sizes of the other kinds at level 1
    terrain_limits: TerrainLimits = field(default_factory=TerrainLimits)

    def __post_init__(self) -> None:
        ranges.one_of(self, "terrain_starts", STARTS)
        check_kind(self.terrain)
        climbs = {*CLIMBED, "mixed"} & set(self.terrain.split("+"))
        if self.terrain_starts != "gentle" and not climbs:
            raise ValueError(
                f"terrain_starts={self.terrain_starts}: needs {', '.join(CLIMBED)} or mixed, got "
                f"terrain={self.terrain}"
            )
        kinds = len(kinds_of(self.terrain))
        if self.terrain_curriculum and self.terrain_fields < kinds:
            raise ValueError(
                f"terrain_fields={self.terrain_fields}: terrain_curriculum needs at least one field"
                f" of each of the {kinds} kinds"
            )
        try:
            self.fields()
        except ValueError as error:
            raise ValueError(f"terrain_{error}") from error

    def fields(self) -> TerrainConfig:
        """The terrain's own settings; those of Perlin noise where the ground is flat. A curriculum
        has every kind at each of its levels."""
        rows = max(1, min(ROWS, self.terrain_fields // len(kinds_of(self.terrain))))
        return TerrainConfig(
            "perlin" if self.terrain == "flat" else self.terrain,
            self.terrain_level,
            self.terrain_height,
            self.terrain_fields,
            rows if self.terrain_curriculum else 1,
            self.terrain_seed,
            self.terrain_limits,
        )


class Ground:
    """Flat ground, and the interface of all ground."""

    rough = False
    spread = False  # in a trial: robots are distributed over all fields, levels do not change

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        """Replace the scene's floor."""

    def bind(self, env: Any) -> None:
        """Allocate state for a `TaskEnv` whose robots exist."""
        self.env = env

    def move_to_field(self, ids: Tensor, generator: torch.Generator) -> None:
        """Move robots ids (k,) from flat ground to the start of an episode."""

    def advance(self, failed: Tensor, metrics: Mapping[str, Tensor]) -> None:
        """Record a control step, and move back robots that left their field.

        failed: (n,) bool. metrics: may have `command` and `achieved` (n, 2 or more) in the heading
        frame, whose first two columns are used [m/s].
        """

    def integrated(self, state: RobotState) -> RobotState:
        """The state of all robots (n, ...) as the integral of its velocities, without the
        displacements of robots that were moved back."""
        return state

    def local(self, state: RobotState) -> RobotState:
        """`integrated`, with heights above the mean of the surrounding ground.

        These heights follow the ground, so they are not the integral of the velocities.
        """
        return state

    def patch(self, state: RobotState) -> Tensor:
        """The ground of all robots, (n, 2): mean height around them [m], index of the field; (n, 0)
        if flat."""
        return state.root_pos[:, :0]

    def local_patch(self, state: RobotState) -> Tensor:
        """As `patch`; its height is the one that `local` subtracts. They differ where imagined
        heights are in the world (`ReferenceGround`)."""
        return self.patch(state)

    def relief(self, state: RobotState) -> Tensor:
        """The critic's observation of the ground: heights around robots minus their mean, (n, g)
        [m], clamped to 1; (n, 0) if flat."""
        return state.root_pos[:, :0]

    def height_at(self, position: Tensor, robots: Tensor) -> Tensor:
        """Height of the ground under k robots, (k, ...) [m], at positions (k, ..., 2) as of
        `integrated`. robots: (k,) indices."""
        return position.new_zeros(position.shape[:-1])

    def height_in_world(self, position: Tensor) -> Tensor:
        """Height of the ground (...) [m] at positions (..., 2) in the simulation."""
        return position.new_zeros(position.shape[:-1])

    def above(self, position: Tensor, patch: Tensor) -> Tensor:
        """Height of the ground at positions (B, ..., 2 or 3) above patches (B, 2), (B, ...) [m]. It
        has no gradient, as a blind robot does not choose its footholds."""
        return position.new_zeros(position.shape[:-1])

    def about_feet(self, state: RobotState, patch: Tensor) -> Tensor:
        """Height of the ground at `ABOUT_FEET` of F feet above the patch (B, 2), (B, 5 F) [m],
        first under all feet; (B, 0) if flat.

        In collection the patch is that of the current state, in imagination that of the start.
        After 36 steps these differ by about 2 cm on Perlin noise of 0.3 m.
        """
        return patch[:, :0]

    def plane(self, state: RobotState, patch: Tensor) -> tuple[Tensor, Tensor]:
        """Mean height (B,) [m] of the ground under the feet, and gradient (B, 2) along x and y of
        the plane through the ground at `ABOUT_FEET` of all feet; the patch as of `about_feet`."""
        return torch.zeros_like(state.root_pos[:, 2]), torch.zeros_like(state.root_pos[:, :2])

    def figures(self) -> dict[str, float]:
        """Figures for the logs of a training run."""
        return {}

    def describe(self, i: int) -> dict[str, Any]:
        """The ground of robot i, for the record of a simulation that diverged."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """All state that the next step depends on."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state_dict`. Raises ValueError for one of another kind of ground."""
        if state:
            raise ValueError("the checkpoint is of rough ground, expected flat ground")


class RoughGround(Ground):
    """A terrain, and which of its fields each robot is on.

    Without a curriculum each episode is on a random field. With a curriculum, as in legged_gym
    (Rudin et al. 2021), a robot stays on one kind of ground, and its field has the robot's level,
    `row`; at first robots are spread over all levels. It moves up if the last episode did not fail
    and covered at least half of the commanded distance, otherwise down; from the top it moves to a
    random level.

    `field`, `row`: (n,) long. `moved`: (n, 2) [m] whole periods by which a robot was moved since
    the start of its episode.
    """

    rough = True
    # {key in checkpoints: attribute}
    saved: ClassVar[Mapping[str, str]] = {
        "field": "field",
        "row": "row",
        "moved": "moved",
        "asked": "commanded_m",
        "went": "travelled_m",
        "failed": "failed",
    }

    def __init__(self, terrain: Terrain, *, starts: str = "gentle", curriculum: bool = False):
        """starts: one of `STARTS`. Those at `Terrain.before_climb` face along x; gentle ones, and
        all on kinds without climbs, have any heading."""
        self.terrain = terrain
        self.begin = starts
        self.curriculum = curriculum

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        self.terrain.add_to_scene(spec)

    def bind(self, env: Any) -> None:
        n = env.num_envs
        device = env.device
        self.env = env
        self.terrain = self.terrain.to(device)
        self._levels = torch.tensor(self.terrain.levels, device=device)
        facing = self.begin != "gentle"
        climbs = [facing and kind in CLIMBED for kind in self.terrain.kinds]
        self._climbs = torch.tensor(climbs, device=device)
        self._rows = len(self.terrain.first) - 1
        # fields in blocks of one kind, and each robot's kind under a curriculum
        self._by_kind = torch.argsort(self.terrain.column, stable=True)
        self._kinds = kinds_of(self.terrain.config.kind)
        self._column = torch.arange(n, device=device) * len(self._kinds) // n
        self._grid = AROUND.to(device)
        self._about_feet = ABOUT_FEET.to(device)
        self.field = torch.zeros(n, dtype=torch.long, device=device)
        # spread over all levels: a run has few episodes per robot
        self.row = torch.arange(n, device=device) % self._rows
        self.moved = torch.zeros(n, 2, device=device)
        # current episode: commanded distance, distance along the command, and failure
        self.commanded_m = torch.zeros(n, device=device)
        self.travelled_m = torch.zeros(n, device=device)
        self.failed = torch.zeros(n, dtype=torch.bool, device=device)

    # --- episodes ---

    def move_to_field(self, ids: Tensor, generator: torch.Generator) -> None:
        """Move robots ids (k,) from flat ground onto a field, the lowest foot on the ground."""
        draw = torch.rand(4, len(ids), generator=generator, device=self.field.device)
        fields = len(self.terrain.starts)
        if self.spread:
            field = self._by_kind[ids * fields // self.env.num_envs]
        elif self.curriculum:
            self._promote(ids, draw[3])
            field = self._of_kind_and_level(ids, draw[0])
        else:
            field = (draw[0] * fields).long()
        spot = (draw[1] * self.terrain.starts.shape[1]).long()
        position = self.terrain.starts[field, spot]
        yaw = 2.0 * math.pi * draw[2]
        if self.begin != "gentle":
            climbs = self._climbs[field]
            down = torch.full_like(climbs, self.begin == "downhill")
            if self.begin == "up_or_down":
                down = torch.rand(len(ids), generator=generator, device=climbs.device) < 0.5
            before = self.terrain.before_climb(field, draw[1:3], down)
            position = torch.where(climbs.unsqueeze(-1), before, position)
            yaw = torch.where(climbs, -geometry.yaw_of(self.env.state.root_rot[ids]), yaw)
        self.env.robots.carry(ids, position, geometry.yaw_matrix(yaw))
        lift = torch.zeros(len(ids), 3, device=position.device)
        lift[:, 2] = self._missing(RobotState.unpack(self.env.state.pack()[ids]))
        self.env.robots.shift(ids, lift)
        self.field = self.field.index_copy(0, ids, field)
        self.moved = self.moved.index_fill(0, ids, 0.0)
        self.commanded_m = self.commanded_m.index_fill(0, ids, 0.0)
        self.travelled_m = self.travelled_m.index_fill(0, ids, 0.0)
        self.failed = self.failed.index_fill(0, ids, False)

    def _of_kind_and_level(self, ids: Tensor, uniform: Tensor) -> Tensor:
        """Random fields (k,) of the kind and level of robots ids (k,). uniform: (k,) in [0, 1)."""
        low, high = (self.terrain.first[self.row[ids] + k] for k in (0, 1))
        kinds = len(self._kinds)
        column = self._column[ids]
        count = (high - low - column + kinds - 1) // kinds
        return low + column + kinds * (uniform * count).long()

    def _promote(self, ids: Tensor, uniform: Tensor) -> None:
        """Update the levels of robots ids (k,) whose episode ended. uniform: (k,) in [0, 1)."""
        failed = self.failed[ids]
        commanded = self.commanded_m[ids]
        row = self.row[ids]
        far = self.travelled_m[ids] >= 0.5 * commanded
        counts = failed | (commanded >= _HARD_ENOUGH_M)
        row = torch.where(counts, row + torch.where(far & ~failed, 1, -1), row).clamp(min=0)
        row = torch.where(row < self._rows, row, (uniform * self._rows).long())
        self.row = self.row.index_copy(0, ids, row)

    def _missing(self, state: RobotState) -> Tensor:
        """Gap between the ground and the robots' lowest foot, (k,) [m]."""
        feet = self.env.feet
        centers = feet(state.root_pos, state.root_rot, state.joint_pos)
        # on a slope a sphere does not touch at its lowest point: test five points of its underside
        directions = [[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
        beside = math.sqrt(0.5) * feet.radius * constant(directions, centers.device)
        under = (feet.radius**2 - beside.square().sum(-1)).sqrt()
        ground = self.terrain.height_at(centers[..., None, :2] + beside)
        return (ground + under - centers[..., None, 2]).amax((1, 2, 3))

    def advance(self, failed: Tensor, metrics: Mapping[str, Tensor]) -> None:
        if "command" in metrics and "achieved" in metrics:
            command = metrics["command"]
            velocity = metrics["achieved"]
            speed = torch.linalg.vector_norm(command[:, :2], dim=-1)
            along = (velocity[:, :2] * command[:, :2]).sum(-1) / speed.clamp(min=1e-6)
            self.commanded_m = self.commanded_m + speed * self.env.dt
            self.travelled_m = self.travelled_m + along.nan_to_num(0.0) * self.env.dt
        self.failed = failed
        back = self.terrain.way_back(self.env.state.root_pos[:, :2], self.field)
        ids, _ = rows_of(back.any(-1))
        if len(ids):
            self.moved = self.moved + back
            self.env.robots.shift(ids, torch.nn.functional.pad(back[ids], (0, 1)))

    # --- surroundings ---

    def around(self, state: RobotState) -> Tensor:
        """Heights of the ground at the points `AROUND` of robots, (..., g) [m]."""
        return self.terrain.height_at(points_around(state, self._grid))

    def level(self, state: RobotState) -> Tensor:
        """The mean height of the ground `around`, (...) [m]."""
        return self.around(state).mean(-1)

    def integrated(self, state: RobotState) -> RobotState:
        root_pos = torch.cat((state.root_pos[..., :2] - self.moved, state.root_pos[..., 2:]), -1)
        return state._replace(root_pos=root_pos)

    def local(self, state: RobotState) -> RobotState:
        return self.integrated(state).above(self.level(state))

    def patch(self, state: RobotState) -> Tensor:
        return torch.stack((self.level(state), self.field.to(state.root_pos)), -1)

    def relief(self, state: RobotState) -> Tensor:
        heights = self.around(state)
        return (heights - heights.mean(-1, keepdim=True)).clamp(-1.0, 1.0)

    def height_at(self, position: Tensor, robots: Tensor) -> Tensor:
        return self._height(position, self.field[robots])

    def height_in_world(self, position: Tensor) -> Tensor:
        return self.terrain.height_at(position)

    def _height(self, position: Tensor, field: Tensor) -> Tensor:
        """Height of periodic fields (k,) at positions (k, ..., 2), (k, ...) [m]."""
        corner = self.terrain.corner[field]
        corner = corner.view(len(corner), *([1] * (position.dim() - 2)), 2)
        return self.terrain.height_at(corner + (position.to(corner) - corner) % PERIOD_M)

    def above(self, position: Tensor, patch: Tensor) -> Tensor:
        level, field = patch.unbind(-1)
        height = self._height(position[..., :2].detach(), field.long())
        return height - level.view(-1, *([1] * (height.dim() - 1)))

    @torch.no_grad()
    def about_feet(self, state: RobotState, patch: Tensor) -> Tensor:
        points = self._points_about_feet(state)
        return self.above(points, patch).transpose(-1, -2).flatten(-2)

    @torch.no_grad()
    def plane(self, state: RobotState, patch: Tensor) -> tuple[Tensor, Tensor]:
        points = self._points_about_feet(state)
        heights = self.above(points, patch)
        gradient = geometry.plane_gradient(points.flatten(1, 2), heights.flatten(1))
        return heights[..., 0].mean(-1), gradient

    def _points_about_feet(self, state: RobotState) -> Tensor:
        """Positions of `ABOUT_FEET`, (B, F, 5, 2) [m]."""
        feet = self.env.feet(state.root_pos, state.root_rot, state.joint_pos).mean(-2)[..., :2]
        return points_around(state, self._about_feet, feet)

    def figures(self) -> dict[str, float]:
        """With a curriculum `terrain_level`, the mean level of the robots' fields, and with several
        kinds that of each, `terrain_level_KIND`."""
        if not self.curriculum:
            return {}
        levels = self._levels[self.field].tolist()
        of_kind: dict[str, list[float]] = {}
        for column, level in zip(self._column.tolist(), levels, strict=True):
            of_kind.setdefault(f"terrain_level_{self._kinds[column]}", []).append(level)
        means = {key: fmean(values) for key, values in of_kind.items()}
        return {"terrain_level": fmean(levels), **(means if len(means) > 1 else {})}

    def describe(self, i: int) -> dict[str, Any]:
        return {"field": int(self.field[i])}

    # --- checkpoints ---

    def state_dict(self) -> dict[str, Tensor]:
        return {key: getattr(self, name) for key, name in self.saved.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """As `Ground.load_state_dict`; also raises for fields and levels that do not exist."""
        if "field" not in state:
            raise ValueError("the checkpoint is of flat ground, expected rough ground")
        for name, count in (("field", len(self.terrain.starts)), ("row", self._rows)):
            if not ((state[name] >= 0) & (state[name] < count)).all():
                raise ValueError(f"{name}: must be below {count}")
        for key, name in self.saved.items():
            setattr(self, name, state[key].to(self.field.device, copy=True))


def make_ground(config: Ground | GroundConfig) -> Ground:
    """Make the ground of a task. Raises InputError for more fields than memory holds."""
    if isinstance(config, Ground):
        return config
    if config.terrain == "flat":
        return Ground()
    return RoughGround(
        Terrain(config.fields()), starts=config.terrain_starts, curriculum=config.terrain_curriculum
    )


def points_around(state: RobotState, offsets: Tensor, centres: Tensor | None = None) -> Tensor:
    """Points (..., g, 2) [m] in the world at `offsets` (g, 2) [m] forwards and to the left of
    robots; with centres (..., F, 2) around these, (..., F, g, 2)."""
    yaw = geometry.yaw_of(state.root_rot).unsqueeze(-1)
    cosine = torch.cos(yaw)
    sine = torch.sin(yaw)
    ahead = offsets[:, 0]
    aside = offsets[:, 1]
    turned = torch.stack((cosine * ahead - sine * aside, sine * ahead + cosine * aside), -1)
    if centres is None:
        return state.root_pos[..., None, :2] + turned
    return centres.unsqueeze(-2) + turned.unsqueeze(-3)
