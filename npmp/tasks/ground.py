"""Rough ground under the robots of a task: who stands on which field, at which level, and what is
around.

What a task has to do with it: `add_to_scene` and `bind` where it does so itself, `settle` where
episodes begin, when the robots have been placed as on flat ground, `advance` after every step,
`local` where heights count.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from npmp import geometry
from npmp.envs.state import RobotState
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.sim.terrain import CLIMBED, PERIOD_M, Terrain

# what a critic knows of the ground: heights at points around the robot, forwards and to the left
# [m]
AHEAD = tuple(0.1 * i for i in range(-5, 6))
ASIDE = tuple(0.1 * i for i in range(-3, 4))
# what a policy that sees the ground is told: heights likewise, about each foot and on its way
SEEN = tuple((0.05 * i, y) for i in range(-2, 10) for y in (-0.05, 0.05))
SEEN_RANGE = (-0.5, 0.5)  # [m] above where the floor is under a robot that stands in its home pose
_HARD_ENOUGH_M = 1.0  # an episode that was asked to go less far says nothing about the ground


class Ground:
    """The terrain, and which of its fields each robot is on.

    Without a curriculum every episode is on a field drawn from all. With one it is on one of the
    robot's level, `row`, as in legged_gym (Rudin et al. 2021): up where the last episode did not
    fail and went at least half as far as asked, down where it failed or went less far; from the top
    to a random one.

    `field`, `row` (n,) long; `moved` (n, 2) [m]: whole periods by which a robot was moved since its
    episode began.
    """

    def __init__(self, terrain: Terrain, *, uphill: bool = False):
        """uphill: on slopes and stairs start at `Terrain.foot`, facing up, instead of at a gentle
        place, facing anywhere."""
        self.terrain, self.uphill = terrain, uphill
        self.add_to_scene = terrain.add_to_scene

    def bind(self, env: TaskEnv[Any]) -> None:
        """As `Task.bind`."""
        n, device = env.num_envs, env.device
        self.env, self.terrain = env, self.terrain.to(device)
        self._feet = env.feet
        self._levels = torch.tensor(self.terrain.levels, device=device)
        climbs = [self.uphill and kind in CLIMBED for kind in self.terrain.kinds]
        self._climbs = torch.tensor(climbs, device=device)
        self._rows = len(self.terrain.first) - 1
        self._grid = torch.cartesian_prod(torch.tensor(AHEAD), torch.tensor(ASIDE)).to(device)
        self.field, self.row = (torch.zeros(n, dtype=torch.long, device=device) for _ in range(2))
        self.moved = torch.zeros(n, 2, device=device)
        # of the present episode: how far it was asked to go and went that way [m], and whether it
        # has failed
        self.asked, self.went = (torch.zeros(n, device=device) for _ in range(2))
        self.failed = torch.zeros(n, dtype=torch.bool, device=device)

    # --- episodes ---

    def settle(self, ids: Tensor, generator: torch.Generator, *, trial: bool) -> None:
        """Put robots ids (k,), placed as on flat ground, onto a field, the lowest foot on the
        ground.

        trial: every robot on a field of its own, spread over all of them, levels left as they are.
        """
        draw = torch.rand(4, len(ids), generator=generator, device=self.field.device)
        fields = len(self.terrain.places)
        if trial:
            field = ids * fields // self.env.num_envs
        else:
            if self._rows > 1:
                self._promote(ids, draw[3])
            low, high = (self.terrain.first[self.row[ids] + k] for k in (0, 1))
            field = low + (draw[0] * (high - low)).long()
        spot = (draw[1] * self.terrain.places.shape[1]).long()
        place, yaw = self.terrain.places[field, spot], 2.0 * math.pi * draw[2]
        if self.uphill:
            up = self._climbs[field]
            place = torch.where(up.unsqueeze(-1), self.terrain.foot(field, draw[1:3]), place)
            yaw = torch.where(up, 0.0, yaw)
        self.env.robots.carry(ids, place, geometry.yaw_matrix(yaw))
        lift = torch.zeros(len(ids), 3, device=place.device)
        lift[:, 2] = self._missing(RobotState.unpack(self.env.state.pack()[ids]))
        self.env.robots.shift(ids, lift)
        self.field = self.field.index_copy(0, ids, field)
        self.moved = self.moved.index_fill(0, ids, 0.0)
        self.asked, self.went = (total.index_fill(0, ids, 0.0) for total in (self.asked, self.went))
        self.failed = self.failed.index_fill(0, ids, False)

    def _promote(self, ids: Tensor, draw: Tensor) -> None:
        """The levels that the episodes of robots ids, now over, have earned. draw (k,) uniform in
        [0, 1)."""
        failed, asked, went, row = self.failed[ids], self.asked[ids], self.went[ids], self.row[ids]
        far, said = went >= 0.5 * asked, failed | (asked >= _HARD_ENOUGH_M)
        row = torch.where(said, row + torch.where(far & ~failed, 1, -1), row).clamp(min=0)
        self.row = self.row.index_copy(
            0, ids, torch.where(row < self._rows, row, (draw * self._rows).long())
        )

    def _missing(self, state: RobotState) -> Tensor:
        """By how much robots have to be lifted until their lowest foot is on the ground, (k,) [m]."""
        centers, radius = (
            self._feet(state.root_pos, state.root_rot, state.joint_pos),
            self._feet.radius,
        )
        # a sphere on a slope touches beside its lowest point: five points of its underside
        beside = torch.tensor(
            [[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], device=centers.device
        )
        beside = math.sqrt(0.5) * radius * beside
        under = (radius**2 - beside.square().sum(-1)).sqrt()
        ground = self.terrain.height_at(centers[..., None, :2] + beside)
        return (ground + under - centers[..., None, 2]).amax((1, 2, 3))

    def advance(self, failed: Tensor, command: Tensor, velocity: Tensor) -> None:
        """After a control step: note how far it went, and bring back who left the period of the
        field.

        failed (n,) bool; command and velocity (n, 3) in the heading frame, of which the first two
        count [m/s].
        """
        speed = torch.linalg.vector_norm(command[:, :2], dim=-1)
        along = (velocity[:, :2] * command[:, :2]).sum(-1) / speed.clamp(min=1e-6)
        self.asked = self.asked + speed * self.env.dt
        self.went = self.went + along.nan_to_num(0.0) * self.env.dt
        self.failed = failed
        back = self.terrain.way_back(self.env.state.root_pos[:, :2], self.field)
        ids = torch.nonzero(back.any(-1)).squeeze(-1)
        if len(ids):
            self.moved = self.moved + back
            self.env.robots.shift(ids, torch.nn.functional.pad(back[ids], (0, 1)))

    # --- what is around ---

    def around(self, state: RobotState) -> Tensor:
        """Heights of the ground in the world at points around robots, (..., g) [m]: AHEAD by ASIDE,
        in the heading frame."""
        return self.terrain.height_at(points_around(state, self._grid))

    def level(self, state: RobotState) -> Tensor:
        """The mean height of the ground `around`, (...) [m]."""
        return self.around(state).mean(-1)

    def height_at(self, place: Tensor, field: Tensor) -> Tensor:
        """Height of fields (k,), each repeated without end, at places (k, ..., 2): (k, ...) [m]."""
        corner = self.terrain.corner[field]
        corner = corner.view(len(corner), *([1] * (place.dim() - 2)), 2)
        return self.terrain.height_at(corner + (place.to(corner) - corner) % PERIOD_M)

    def mean_level(self) -> float:
        """The mean level of the fields that robots are on."""
        return self._levels[self.field].mean().item()

    def unmoved(self, state: RobotState) -> RobotState:
        """The state of all robots as if they had never been moved back by a period."""
        return state._replace(
            root_pos=torch.cat((state.root_pos[..., :2] - self.moved, state.root_pos[..., 2:]), -1)
        )

    def local(self, state: RobotState) -> RobotState:
        """The same with their height above the ground's `level`.

        Heights follow the ground: over time they are no integral of the velocities, as heights
        above one level are.
        """
        return self.unmoved(state).above(self.level(state))

    def relief(self, state: RobotState) -> Tensor:
        """What a critic knows of the ground: the heights `around` about their mean, (..., g) [m],
        at most 1."""
        heights = self.around(state)
        return (heights - heights.mean(-1, keepdim=True)).clamp(-1.0, 1.0)

    # --- checkpoints ---

    _KEPT = ("field", "row", "moved", "asked", "went", "failed")

    def state_dict(self) -> dict[str, Tensor]:
        """As `Task.state_dict`."""
        return {f"ground.{name}": getattr(self, name) for name in self._KEPT}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """As `Task.load_state_dict`. Raises ValueError where it was taken on flat ground or holds
        fields that there are not."""
        if "ground.field" not in state:
            raise ValueError("taken on flat ground")
        if not (
            (state["ground.field"] >= 0) & (state["ground.field"] < len(self.terrain.places))
        ).all():
            raise ValueError("a field of the terrain that there is not")
        if not ((state["ground.row"] >= 0) & (state["ground.row"] < self._rows)).all():
            raise ValueError("a level of the terrain that there is not")
        for name in self._KEPT:
            setattr(self, name, state[f"ground.{name}"].to(self.field.device, copy=True))


def seen_names(robot: Robot) -> tuple[str, ...]:
    """Of the heights that a policy is told: ground_FOOT_X_Y_m, X forwards and Y to the left of a
    foot [m]."""
    return tuple(
        f"ground_{foot}_{x:+.2f}_{y:+.2f}_m" for foot in robot.foot_bodies for x, y in SEEN
    )


def points_around(state: RobotState, offsets: Tensor, place: Tensor | None = None) -> Tensor:
    """Places (..., g, 2) [m] in the world, `offsets` (g, 2) [m] forwards and to the left of robots;
    or of places (..., F, 2) of each robot, (..., F, g, 2)."""
    yaw = geometry.yaw_of(state.root_rot).unsqueeze(-1)
    cosine, sine, ahead, aside = torch.cos(yaw), torch.sin(yaw), offsets[:, 0], offsets[:, 1]
    turned = torch.stack((cosine * ahead - sine * aside, sine * ahead + cosine * aside), -1)
    if place is None:
        return state.root_pos[..., None, :2] + turned
    return place.unsqueeze(-2) + turned.unsqueeze(-3)
