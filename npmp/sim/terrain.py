"""Rough ground: periodic height fields side by side in one scene, each robot on one of them.

All simulations share one model, and in it one MuJoCo height field, which holds every field of the
terrain. A field repeats itself after `PERIOD_M` in both directions and is continued by `MARGIN_M`
around its period, further than a robot reaches. So a robot that leaves its period is moved back by
whole periods, and stands as it stood: the ground has no edge, and no episode ends at one.

Kinds: Perlin noise, as robot-NPMP trains on, and the six of sim-to-real practice. A level in [0, 1]
scales each from flat ground to what `TerrainLimits` says. Walls of steps, gaps and stones lean by
one cell of the grid.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter, minimum_filter
from torch import Tensor

from mocap_data.input_files import require_memory
from npmp.core import ranges
from npmp.sim.rooms import rooms
from npmp.sim.scene import FLOOR

FloatArray = NDArray[np.floating[Any]]
PERIOD_M = 8.0
MARGIN_M = 1.0
# Distance of the grid's points [m]. Smooth ground is as well described by fewer: a foot meets fewer
# triangles at once, and each costs the contact solver.
_FINE = 0.05
_COARSE = 0.1
# where episodes start, per field: drawn from the gentlest points, four times as many
_PLACES = 32
# half the square around a place in which heights are compared for that [m]
_START_HALF = 0.6
# of floor before and after a slope or stairs [m], half of what is between two of them
_FLAT_M = 0.7
# of gaps [m]: a leg that steps in does not find the ground with the body still level
_DEPTH = 0.5


@dataclass(frozen=True)
class TerrainLimits:
    """Each kind of ground at level 1, but Perlin noise."""

    # heights of points 0.2 m apart, up and down
    noise_m: float = 0.05
    # heights of blocks and depths of pits, at most
    obstacle_m: float = 0.2
    # width of gaps around squares of 1.6 m
    gap_m: float = 0.3
    # of pyramids and pits
    slope_deg: float = 25.0
    # height of a step; treads are 0.3 m
    stair_m: float = 0.2
    # between stones; they shrink from 0.8 to 0.35 m
    stone_gap_m: float = 0.2

    def __post_init__(self) -> None:
        ranges.not_negative(self, *self.__dataclass_fields__)
        if self.slope_deg > 60.0 or max(self.gap_m, self.stone_gap_m) > 1.0:
            raise ValueError(
                "slope_deg must be at most 60, gap_m and stone_gap_m at most 1;"
                f" got {self.slope_deg}, {self.gap_m}, {self.stone_gap_m}"
            )


@dataclass(frozen=True)
class Grid:
    """Points of one period in either direction, and their distance [m]. Point i + points is point i
    again."""

    points: int
    cell: float

    def of(self, length_m: float) -> int:
        """Cells of a length."""
        return round(length_m / self.cell)


# --- kinds: heights (points, points) [m] of one period, row by y, column by x; level in [0, 1] ---


def perlin(grid: Grid, height: float, rng: np.random.Generator) -> FloatArray:
    """Perlin noise of waves 1 to 2 m long, with half as much of half that length; from 0 to
    `height` [m]."""
    waves = int(rng.integers(round(PERIOD_M / 2.0), round(PERIOD_M / 1.0) + 1))
    coarse, fine = (_gradient_noise(grid.points, n, rng) for n in (waves, 2 * waves))
    heights = coarse + 0.5 * fine
    return height * (heights - heights.min()) / np.ptp(heights)


def _gradient_noise(points: int, waves: int, rng: np.random.Generator) -> FloatArray:
    """Perlin's noise on a lattice of so many random gradients in either direction, periodic."""
    angle = rng.uniform(0.0, 2.0 * math.pi, (waves, waves))
    at = np.arange(points) * waves / points
    low = at.astype(int)
    part = at - low
    fade = part**3 * (part * (6.0 * part - 15.0) + 10.0)
    noise = np.zeros((points, points))
    for dy, weight_y in ((0, 1.0 - fade), (1, fade)):
        for dx, weight_x in ((0, 1.0 - fade), (1, fade)):
            corner = angle[np.ix_((low + dy) % waves, (low + dx) % waves)]
            ramp = np.cos(corner) * (part - dx)[None] + np.sin(corner) * (part - dy)[:, None]
            noise += weight_y[:, None] * weight_x[None] * ramp
    return noise


def noise(grid: Grid, level: float, limits: TerrainLimits, rng: np.random.Generator) -> FloatArray:
    """Uniform heights of points 0.2 m apart, linear between them."""
    step = grid.of(0.2)
    size = 2 * (grid.points // step,)
    coarse = limits.noise_m * level * rng.uniform(-1.0, 1.0, size)
    for axis in (0, 1):
        after = np.roll(coarse, -1, axis)
        shares = [after * k / step + coarse * (1.0 - k / step) for k in range(step)]
        shape = list(coarse.shape)
        shape[axis] *= step
        coarse = np.stack(shares, axis + 1).reshape(shape)
    return coarse


def obstacles(
    grid: Grid, level: float, limits: TerrainLimits, rng: np.random.Generator
) -> FloatArray:
    """Forty blocks and pits of 0.3 to 1.2 m."""
    heights = np.zeros((grid.points, grid.points))
    for _ in range(40):
        size = rng.integers(grid.of(0.3), grid.of(1.2) + 1, 2)
        corner = rng.integers(0, grid.points, 2)
        rows, columns = ((corner[k] + np.arange(size[k])) % grid.points for k in (0, 1))
        heights[np.ix_(rows, columns)] = rng.choice((-1.0, 1.0)) * rng.uniform(0.5, 1.0)
    return limits.obstacle_m * level * heights


def gaps(grid: Grid, level: float, limits: TerrainLimits, rng: np.random.Generator) -> FloatArray:
    """Squares every 1.6 m with gaps between them."""
    in_gap = _trenches(grid, round(PERIOD_M / 1.6), limits.gap_m * level)
    return np.where(in_gap[:, None] | in_gap[None], -_DEPTH, 0.0)


def stepping_stones(
    grid: Grid, level: float, limits: TerrainLimits, rng: np.random.Generator
) -> FloatArray:
    """Square stones with gaps between them, up to 3 cm higher or lower than others; some floor to
    start from."""
    width = limits.stone_gap_m * level
    count = round(PERIOD_M / (0.8 - 0.45 * level + width))
    in_gap = _trenches(grid, count, width)
    stone = np.arange(grid.points) * count // grid.points
    height = 0.03 * level * rng.uniform(-1.0, 1.0, (count, count))
    heights = np.where(in_gap[:, None] | in_gap[None], -_DEPTH, height[np.ix_(stone, stone)])
    heights[_inwards(grid) >= grid.points // 2 - grid.of(1.0)] = 0.0
    return heights


def _trenches(grid: Grid, count: int, width_m: float) -> NDArray[np.bool_]:
    """Points (points,) at the bottom of so many gaps of a width between upper edges; where there is
    one it has one."""
    at = np.arange(grid.points)
    # points since the present stretch began
    since = at - -(-(at * count // grid.points) * grid.points // count)
    return since < (max(1, grid.of(width_m) - 1) if width_m > 0 else 0)


def slopes(grid: Grid, level: float, limits: TerrainLimits, rng: np.random.Generator) -> FloatArray:
    """A square pyramid, or a pit, with a floor around it and on top."""
    run = np.clip(_inwards(grid) - grid.of(_FLAT_M), 0, grid.points // 2 - 2 * grid.of(_FLAT_M))
    rise = math.tan(math.radians(limits.slope_deg * level))
    return rng.choice((-1.0, 1.0)) * rise * grid.cell * run


def stairs(grid: Grid, level: float, limits: TerrainLimits, rng: np.random.Generator) -> FloatArray:
    """The same in steps: up to the top, or down to the ground, of a pyramid."""
    tread = grid.of(0.3)
    most = (grid.points // 2 - 2 * grid.of(_FLAT_M)) // grid.of(0.3)
    steps = np.clip((_inwards(grid) - grid.of(_FLAT_M)) // tread + 1, 0, most)
    return rng.choice((-1.0, 1.0)) * limits.stair_m * level * steps


def _inwards(grid: Grid) -> NDArray[np.int64]:
    """Cells from the edge of the period, (points, points)."""
    out = np.abs(np.arange(grid.points) - grid.points // 2)
    return grid.points // 2 - np.maximum(out[:, None], out[None])


_KINDS: dict[str, Callable[[Grid, float, TerrainLimits, np.random.Generator], FloatArray]]
_KINDS = {of.__name__: of for of in (noise, obstacles, gaps, slopes, stairs, stepping_stones)}
KINDS = ("perlin", *_KINDS)
_KINDS["rooms"] = rooms
TERRAINS = ("flat", *KINDS, "rooms", "mixed")
# kinds with a foot and a top
CLIMBED = ("slopes", "stairs")
_SMOOTH = ("flat", "perlin", "noise", "slopes")


def check_kind(kind: str) -> None:
    """Raise ValueError unless there is ground of this kind, or of those that it joins by "+"."""
    parts = kind.split("+")
    if kind != "mixed" and not all(part in TERRAINS[:-1] for part in parts):
        raise ValueError(
            f"terrain must be one of {', '.join(TERRAINS)}, or several joined by +; got {kind!r}"
        )


@dataclass(frozen=True)
class TerrainConfig:
    """Fields of one terrain."""

    # one of TERRAINS, or several joined by "+": in turn; mixed: all but flat ground and rooms
    kind: str
    # of the hardest fields
    level: float = 1.0
    # of Perlin noise of level 1, from the lowest to the highest point [m]
    height: float = 0.3
    fields: int = 128
    # of fields of one level, from level / rows to level
    rows: int = 1
    seed: int = 0
    limits: TerrainLimits = TerrainLimits()

    def __post_init__(self) -> None:
        check_kind(self.kind)
        ranges.share(self, "level")
        ranges.at_least_one(self, "fields", "rows")
        ranges.not_negative(self, "seed")
        if not 0.0 < self.height <= 1.0:
            raise ValueError(f"height must lie in (0, 1] m, got {self.height}")
        if self.rows > self.fields:
            raise ValueError(f"{self.fields} fields cannot have {self.rows} levels")


def height_field(
    kind: str, grid: Grid, level: float, config: TerrainConfig, rng: np.random.Generator
) -> FloatArray:
    """One period of a kind's ground at a level: heights (points, points) [m], row by y, column by
    x."""
    if kind == "flat":
        return np.zeros((grid.points, grid.points))
    if kind == "perlin":
        return perlin(grid, config.height * level, rng)
    return _KINDS[kind](grid, level, config.limits, rng)


class Terrain:
    """The fields side by side, centred about the origin of the world.

    `kinds` and `levels` name each field's; `first` (rows + 1,) where each row of fields of one
    level begins; `corner` (F, 2) where a field's period begins [m]; `places` (F, S, 2) where robots
    can be set down [m]; `heights` (R, C) of all points [m]. Tensors are float32.
    """

    def __init__(self, config: TerrainConfig):
        """Make the fields; the same settings give the same bits. Raises InputError for more than
        memory holds."""
        self.config = config
        names = KINDS if config.kind == "mixed" else tuple(config.kind.split("+"))
        self.cell = _COARSE if set(names) <= set(_SMOOTH) else _FINE
        grid = Grid(round(PERIOD_M / self.cell), self.cell)
        margin = grid.of(MARGIN_M)
        slot = grid.points + 2 * margin
        # heights as they are made, as a tensor, in MuJoCo's scene and in its model
        size_b = (8 + 4 + 4 + 4) * config.fields * slot**2
        key = "task.terrain_fields"
        require_memory(size_b, f"{key}={config.fields}: that many fields")
        first = [-(-row * config.fields // config.rows) for row in range(config.rows + 1)]
        row_of = np.searchsorted(first, np.arange(config.fields), side="right") - 1
        self.kinds = [names[(i - first[row]) % len(names)] for i, row in enumerate(row_of)]
        self.levels = [config.level * (int(row) + 1) / config.rows for row in row_of]
        across = math.ceil(math.sqrt(config.fields))
        size = np.array([across * slot, -(-config.fields // across) * slot])  # columns, rows
        self._half = (size - 1) * self.cell / 2.0
        heights = np.zeros((size[1], size[0]))
        corners = []
        places = []
        for i, (kind, level) in enumerate(zip(self.kinds, self.levels, strict=True)):
            rng = np.random.default_rng((config.seed, i))
            field = height_field(kind, grid, level, config, rng)
            field = field - field.max()  # MuJoCo passes over what is above the highest point of all
            row, column = divmod(i, across)
            x, y = column * slot, row * slot
            heights[y : y + slot, x : x + slot] = np.pad(field, margin, "wrap")
            corner = np.array([x + margin, y + margin]) * self.cell - self._half
            corners.append(corner)
            places.append(corner + gentle_places(field, grid, rng) * self.cell)
        self.first = torch.tensor(first)
        self.heights = torch.tensor(heights, dtype=torch.float32)
        self.corner = torch.tensor(np.array(corners), dtype=torch.float32)
        self.places = torch.tensor(np.array(places), dtype=torch.float32)

    def to(self, device: torch.device) -> Terrain:
        """The same on a device."""
        moved = copy.copy(self)
        for name in ("first", "heights", "corner", "places"):
            setattr(moved, name, getattr(self, name).to(device))
        return moved

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        """Make the scene's floor a height field. Raises KeyError for a scene without a floor."""
        heights = self.heights.cpu().numpy()
        low, high = float(heights.min()), float(heights.max())
        rows, columns = heights.shape
        # half widths, elevation, thickness below
        size = [*self._half, max(high - low, 1e-3), 0.1]
        spec.add_hfield(name="ground", nrow=rows, ncol=columns, userdata=heights.ravel(), size=size)
        floor = spec.geom(FLOOR)
        floor.type = mujoco.mjtGeom.mjGEOM_HFIELD
        floor.hfieldname = "ground"
        floor.pos = [0.0, 0.0, low]

    def period(self, field: int) -> Tensor:
        """Heights of a field's period, and of where the next one begins, (points + 1, points + 1)
        [m]."""
        points = round(PERIOD_M / self.cell)
        at = (self.corner[field].cpu() + torch.tensor(self._half)) / self.cell
        column, row = at.round().long().tolist()
        return self.heights[row : row + points + 1, column : column + points + 1]

    def height_at(self, place: Tensor) -> Tensor:
        """Height of the ground at places (..., 2) [m], on MuJoCo's triangles. Beyond the fields:
        that of the edge.

        Returns: (...) [m].
        """
        rows, columns = self.heights.shape
        half = torch.tensor(self._half, dtype=place.dtype, device=place.device)
        last = torch.tensor([columns - 1, rows - 1], dtype=place.dtype, device=place.device)
        at = torch.minimum(((place + half) / self.cell).clamp(min=0.0), last).nan_to_num(0.0)
        low = torch.minimum(at.floor(), last - 1)
        x, y = (at - low).unbind(-1)
        column, row = low.long().unbind(-1)
        flat = self.heights.flatten()
        index = row * columns + column
        corner, right, up, over = (flat[index + k] for k in (0, 1, columns, columns + 1))
        below = corner + x * (right - corner) + y * (over - right)
        above = corner + y * (up - corner) + x * (over - up)
        return torch.where(x >= y, below, above)

    def foot(self, field: Tensor, draw: Tensor) -> Tensor:
        """Places at the foot of pyramids, or on the floor of pits, of slopes or stairs, that rise
        from 0.4 to 0.9 m ahead on along x, (k, 2) [m]; fields (k,), draw (2, k) uniform in [0, 1).
        """
        corner = self.corner[field]
        half = PERIOD_M / 2.0
        pyramid = self.height_at(corner + half) > self.height_at(corner)
        along = torch.where(pyramid, 0.0, half) + (_FLAT_M - 0.4) * draw[0]
        return corner + torch.stack((along, half + draw[1] - 0.5), -1)

    def way_back(self, place: Tensor, field: Tensor) -> Tensor:
        """The whole periods [m], (k, 2), that bring places (k, 2) back into the period of fields
        (k,); most are 0."""
        return -PERIOD_M * torch.floor((place - self.corner[field]) / PERIOD_M).nan_to_num(0.0)


def gentle_places(field: FloatArray, grid: Grid, rng: np.random.Generator) -> NDArray[np.int64]:
    """Points (S, 2), column and row, drawn of those around which the ground differs least."""
    side = 2 * grid.of(_START_HALF) + 1
    spread = maximum_filter(field, side, mode="wrap") - minimum_filter(field, side, mode="wrap")
    gentle = np.argwhere(spread <= np.partition(spread.ravel(), 4 * _PLACES)[4 * _PLACES])[:, ::-1]
    return gentle[rng.integers(0, len(gentle), _PLACES)]
