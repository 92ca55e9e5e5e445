"""Rough terrain: periodic height fields side by side in one scene, each robot on one of them.

All simulations share one model with one MuJoCo height field, which contains every field of the
terrain. A field is periodic with `PERIOD_M` in both directions, and continues by `MARGIN_M` around
its period, further than a robot reaches. A robot that leaves its period is moved back by whole
periods, so the ground has no edge.

Kinds: Perlin noise, as in robot-NPMP, and seven of sim-to-real practice. A level in [0, 1] scales
each from flat ground to `TerrainLimits`. Vertical faces are one grid cell wide, as
hard to climb up to 15 cm as boxes (experiments/results/2026-12-03-vertical-faces.md).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocap_data.input_files import require_memory
from npmp.core import ranges
from npmp.sim.rooms import rooms
from npmp.sim.scene import FIELD_CONTACT_S, FLOOR

FloatArray = NDArray[np.floating[Any]]
PERIOD_M = 8.0
MARGIN_M = 1.0
# grid spacing of terrain with edges [m]; half of it takes 1.5 times as long per physics step on
# stairs, and four times the memory
_FINE = 0.05
# grid spacing of smooth terrain [m]: fewer triangles per foot, less work for the contact solver
_COARSE = 0.1
# start positions per field, sampled from the flattest 4 * _STARTS points
_STARTS = 32
# half the side of the square around a start in which heights are compared [m]
_START_HALF = 0.6
# length of floor before and after a slope or stairs [m], half of that between two of them
_FLAT_M = 0.7
# distance of a start from the climb that it faces [m]
_STARTS_BEFORE_M = (0.35, 0.65)
# lengths of treads [m]
_TREADS_M = (0.25, 0.3, 0.35, 0.4)
# along x of `parkour` [m]: from where to where its platform is; where its gaps begin, and the
# widest; the length of the top of its stairs. And the number of its steps, up and down.
_PARKOUR_PLATFORM_M = (1.0, 1.7)
_PARKOUR_GAPS_M = (6.3, 7.35)
_PARKOUR_GAP_M = 0.6
_PARKOUR_TOP_M = 1.4
_PARKOUR_STEPS = 4
# depth of gaps [m]: deeper than a leg reaches with the body level
_DEPTH = 0.5


@dataclass(frozen=True)
class TerrainLimits:
    """Each kind of terrain at level 1, but Perlin noise."""

    # amplitude of heights at points 0.2 m apart
    noise_m: float = 0.05
    # largest height of a block and depth of a pit
    obstacle_m: float = 0.2
    # width of gaps, one every 2 m
    gap_m: float = 0.6
    # height of raised squares of 2.6 m
    platform_m: float = 0.5
    # slope of pyramids and pits
    slope_deg: float = 30.0
    # height of a step; treads of 0.25 to 0.4 m, one length per field
    stair_m: float = 0.2
    # between stones, whose sides shrink from 0.8 to 0.35 m
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
    """Points of one period in each direction, and their spacing [m]. Indices are modulo
    `points`."""

    points: int
    cell: float

    def of(self, length_m: float) -> int:
        """Number of cells of a length."""
        return round(length_m / self.cell)


# --- kinds: heights (points, points) [m] of one period, row by y, column by x; level in [0, 1] ---


def perlin(grid: Grid, height: float, rng: np.random.Generator) -> FloatArray:
    """Perlin noise of two octaves, the first of waves 1 to 2 m long; from 0 to `height` [m]."""
    waves = int(rng.integers(round(PERIOD_M / 2.0), round(PERIOD_M / 1.0) + 1))
    coarse, fine = (_gradient_noise(grid.points, n, rng) for n in (waves, 2 * waves))
    heights = coarse + 0.5 * fine
    return height * (heights - heights.min()) / np.ptp(heights)


def _gradient_noise(points: int, waves: int, rng: np.random.Generator) -> FloatArray:
    """Periodic Perlin noise on a lattice of `waves` random gradients in each direction."""
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
    """Squares every 2 m with gaps between them."""
    in_gap = _trenches(grid, round(PERIOD_M / 2.0), limits.gap_m * level)
    return np.where(in_gap[:, None] | in_gap[None], -_DEPTH, 0.0)


def platforms(
    grid: Grid, level: float, limits: TerrainLimits, rng: np.random.Generator
) -> FloatArray:
    """Four raised squares with lanes of 1.4 m between them. One in y is about the middle row."""
    along = np.arange(grid.points) % (grid.points // 2)
    raised = (along >= grid.of(_FLAT_M)) & (along <= grid.points // 2 - grid.of(_FLAT_M))
    both = np.roll(raised, grid.points // 4)[:, None] & raised[None]
    return limits.platform_m * level * both


def stepping_stones(
    grid: Grid, level: float, limits: TerrainLimits, rng: np.random.Generator
) -> FloatArray:
    """Square stones with gaps between them, heights within 3 cm, and a floor to start from."""
    width = limits.stone_gap_m * level
    count = round(PERIOD_M / (0.8 - 0.45 * level + width))
    in_gap = _trenches(grid, count, width)
    stone = np.arange(grid.points) * count // grid.points
    height = 0.03 * level * rng.uniform(-1.0, 1.0, (count, count))
    heights = np.where(in_gap[:, None] | in_gap[None], -_DEPTH, height[np.ix_(stone, stone)])
    heights[_inwards(grid) >= grid.points // 2 - grid.of(1.0)] = 0.0
    return heights


def _trenches(grid: Grid, count: int, width_m: float) -> NDArray[np.bool_]:
    """Points (points,) bool at the bottom of `count` gaps, width_m between their upper edges; at
    least one point each."""
    at = np.arange(grid.points)
    # points since the current gap began
    since = at - -(-(at * count // grid.points) * grid.points // count)
    return since < _bottom(grid, width_m)


def _bottom(grid: Grid, width_m: float) -> int:
    """Points at the bottom of a gap, width_m between its upper edges; at least one."""
    return max(1, grid.of(width_m) - 1) if width_m > 0 else 0


def slopes(grid: Grid, level: float, limits: TerrainLimits, rng: np.random.Generator) -> FloatArray:
    """A square pyramid, or a pit, with a floor around it and on top."""
    run = np.clip(_inwards(grid) - grid.of(_FLAT_M), 0, grid.points // 2 - 2 * grid.of(_FLAT_M))
    rise = math.tan(math.radians(limits.slope_deg * level))
    return rng.choice((-1.0, 1.0)) * rise * grid.cell * run


def stairs(grid: Grid, level: float, limits: TerrainLimits, rng: np.random.Generator) -> FloatArray:
    """As `slopes`, in steps with treads of one length."""
    sign = rng.choice((-1.0, 1.0))
    tread = grid.of(rng.choice(_TREADS_M))
    most = (grid.points // 2 - 2 * grid.of(_FLAT_M)) // tread
    steps = np.clip((_inwards(grid) - grid.of(_FLAT_M)) // tread + 1, 0, most)
    return sign * limits.stair_m * level * steps


def parkour(
    grid: Grid, level: float, limits: TerrainLimits, rng: np.random.Generator
) -> FloatArray:
    """Along x a platform, stairs up and down, and two gaps of at most 0.6 m."""
    tread = grid.of(rng.choice(_TREADS_M))
    beside_top = np.abs(np.arange(grid.points) - grid.points // 2) - grid.of(_PARKOUR_TOP_M / 2.0)
    step = np.clip(_PARKOUR_STEPS - np.ceil(beside_top / tread), 0, _PARKOUR_STEPS)
    heights = limits.stair_m * level * step
    begin, end = (grid.of(x) for x in _PARKOUR_PLATFORM_M)
    heights[begin : end + 1] = limits.platform_m * level
    width = _bottom(grid, min(limits.gap_m * level, _PARKOUR_GAP_M))
    for x in _PARKOUR_GAPS_M:
        heights[grid.of(x) : grid.of(x) + width] = -_DEPTH
    return np.tile(heights, (grid.points, 1))


def _inwards(grid: Grid) -> NDArray[np.int64]:
    """Cells from the edge of the period, (points, points)."""
    out = np.abs(np.arange(grid.points) - grid.points // 2)
    return grid.points // 2 - np.maximum(out[:, None], out[None])


_KINDS: dict[str, Callable[[Grid, float, TerrainLimits, np.random.Generator], FloatArray]]
_KINDS = {
    of.__name__: of for of in (noise, obstacles, gaps, slopes, stairs, stepping_stones, platforms)
}
KINDS = ("perlin", *_KINDS)
_KINDS |= {"parkour": parkour, "rooms": rooms}
TERRAINS = ("flat", *KINDS, "parkour", "rooms", "mixed")
# kinds whose fields have a foot and a top
CLIMBED = ("slopes", "stairs", "platforms", "parkour")
_SMOOTH = ("flat", "perlin", "noise", "slopes")


def check_kind(kind: str) -> None:
    """Raise ValueError unless `kind` is one of `TERRAINS`, or several joined by "+"."""
    parts = kind.split("+")
    if kind != "mixed" and not all(part in TERRAINS[:-1] for part in parts):
        raise ValueError(
            f"terrain must be one of {', '.join(TERRAINS)}, or several joined by +; got {kind!r}"
        )


def kinds_of(kind: str) -> tuple[str, ...]:
    """The kinds of a terrain's fields, in turn."""
    return KINDS if kind == "mixed" else tuple(kind.split("+"))


@dataclass(frozen=True)
class TerrainConfig:
    """Fields of one terrain."""

    # one of TERRAINS, or several joined by "+"; mixed: all but flat ground, parkour and rooms
    kind: str
    # level of the hardest fields
    level: float = 1.0
    # height of Perlin noise of level 1, from the lowest to the highest point [m]
    height: float = 0.3
    fields: int = 128
    # number of levels, from level / rows to level
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
        kinds = len(kinds_of(self.kind))
        if self.rows > 1 and self.rows * kinds > self.fields:
            raise ValueError(
                f"{self.fields} fields cannot have {self.rows} levels of {kinds} kinds each"
            )


def height_field(
    kind: str, grid: Grid, level: float, config: TerrainConfig, rng: np.random.Generator
) -> FloatArray:
    """Heights (points, points) [m] of one period of a kind at a level, row by y, column by x."""
    if kind == "flat":
        return np.zeros((grid.points, grid.points))
    if kind == "perlin":
        return perlin(grid, config.height * level, rng)
    return _KINDS[kind](grid, level, config.limits, rng)


class Terrain:
    """F fields side by side, centred about the origin of the world.

    `kinds` and `levels` are those of each field; `column` (F,) the place of its kind among
    `kinds_of`; `first` (rows + 1,) the first field of each level;
    `corner` (F, 2) [m] where a field's period begins; `starts` (F, S, 2) [m] start positions;
    `climbs` (F, 2) [m] where the starts before a climb and before a descent begin along x;
    `heights` (R, C) [m] of all points. Tensors are float32.
    """

    def __init__(self, config: TerrainConfig, profiles: Sequence[FloatArray] = ()):
        """Generate the fields, deterministically from the settings. Raises InputError for more
        fields than memory holds.

        profiles: heights (points,) along x of each field, in place of generated ones.
        """
        self.config = config
        names = kinds_of(config.kind)
        self.cell = _COARSE if set(names) <= set(_SMOOTH) else _FINE
        grid = Grid(round(PERIOD_M / self.cell), self.cell)
        margin = grid.of(MARGIN_M)
        slot = grid.points + 2 * margin
        # heights in numpy, torch, MuJoCo's spec and its model
        size_b = (8 + 4 + 4 + 4) * config.fields * slot**2
        key = "task.terrain_fields"
        require_memory(size_b, f"{key}={config.fields}: that many fields")
        first = [-(-row * config.fields // config.rows) for row in range(config.rows + 1)]
        row_of = np.searchsorted(first, np.arange(config.fields), side="right") - 1
        columns = [(i - first[row]) % len(names) for i, row in enumerate(row_of)]
        self.kinds = [names[column] for column in columns]
        self.levels = [config.level * (int(row) + 1) / config.rows for row in row_of]
        across = math.ceil(math.sqrt(config.fields))
        size = np.array([across * slot, -(-config.fields // across) * slot])  # columns, rows
        self._half = (size - 1) * self.cell / 2.0
        heights = np.zeros((size[1], size[0]))
        corners = []
        starts = []
        climbs = []
        for i, (kind, level) in enumerate(zip(self.kinds, self.levels, strict=True)):
            rng = np.random.default_rng((config.seed, i))
            if profiles:
                field = np.tile(profiles[i], (grid.points, 1))
            else:
                field = height_field(kind, grid, level, config, rng)
            # equal maxima: MuJoCo skips geoms above the highest point of the whole height field
            field = field - field.max()
            row, column = divmod(i, across)
            x, y = column * slot, row * slot
            heights[y : y + slot, x : x + slot] = np.pad(field, margin, "wrap")
            corner = np.array([x + margin, y + margin]) * self.cell - self._half
            corners.append(corner)
            starts.append(corner + gentle_starts(field, grid, rng) * self.cell)
            climbs.append(_climbs(kind, field, grid))
        # of the whole height field, along x and y: half widths [m], last points
        self.half = torch.tensor(self._half)
        self.last = torch.tensor([heights.shape[1] - 1, heights.shape[0] - 1])
        self.first = torch.tensor(first)
        self.column = torch.tensor(columns)
        self.heights = torch.tensor(heights, dtype=torch.float32)
        self.corner = torch.tensor(np.array(corners), dtype=torch.float32)
        self.starts = torch.tensor(np.array(starts), dtype=torch.float32)
        self.climbs = torch.tensor(climbs, dtype=torch.float32)

    def to(self, device: torch.device) -> Terrain:
        """A copy on a device."""
        moved = copy.copy(self)
        for name in ("half", "last", "first", "column", "heights", "corner", "starts", "climbs"):
            setattr(moved, name, getattr(self, name).to(device))
        return moved

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        """Replace the scene's floor by a height field, and bound the time constants of the robot's
        and the floor's contacts at `FIELD_CONTACT_S`.

        Raises KeyError for a scene without a floor.
        """
        for geom in spec.geoms:
            # negative values are stiffness and damping
            if geom.solref[0] > FIELD_CONTACT_S:
                geom.solref[0] = FIELD_CONTACT_S
        heights = self.heights.cpu().numpy()
        low = float(heights.min())
        high = float(heights.max())
        rows, columns = heights.shape
        # half widths, elevation, thickness below
        size = [*self._half, max(high - low, 1e-3), 0.1]
        spec.add_hfield(name="ground", nrow=rows, ncol=columns, userdata=heights.ravel(), size=size)
        floor = spec.geom(FLOOR)
        floor.type = mujoco.mjtGeom.mjGEOM_HFIELD
        floor.hfieldname = "ground"
        floor.pos = [0.0, 0.0, low]

    def period(self, field: int) -> Tensor:
        """Heights of a field's period with both edges, (points + 1, points + 1) [m]."""
        points = round(PERIOD_M / self.cell)
        at = (self.corner[field].cpu() + torch.tensor(self._half)) / self.cell
        column, row = at.round().long().tolist()
        return self.heights[row : row + points + 1, column : column + points + 1]

    def height_at(self, position: Tensor) -> Tensor:
        """Height of the ground (...) [m] at positions (..., 2) [m], on MuJoCo's triangles.

        Beyond the fields it is that of the edge.
        """
        columns = self.heights.shape[1]
        half = self.half.to(position)
        last = self.last.to(position)
        at = torch.minimum(((position + half) / self.cell).clamp(min=0.0), last).nan_to_num(0.0)
        low = torch.minimum(at.floor(), last - 1)
        x, y = (at - low).unbind(-1)
        column, row = low.long().unbind(-1)
        flat = self.heights.flatten()
        index = row * columns + column
        corner, right, up, over = (flat[index + k] for k in (0, 1, columns, columns + 1))
        below = corner + x * (right - corner) + y * (over - right)
        above = corner + y * (up - corner) + x * (over - up)
        return torch.where(x >= y, below, above)

    def before_climb(self, field: Tensor, uniform: Tensor, down: Tensor) -> Tensor:
        """Start positions (k, 2) [m] on level ground, `_STARTS_BEFORE_M` before slopes, stairs and
        platforms that rise along x, or fall.

        Args:
          field: (k,). uniform: (2, k) in [0, 1). down: (k,) bool, whether the ground falls.
        """
        along = self.climbs[field, down.long()] + float(np.ptp(_STARTS_BEFORE_M)) * uniform[0]
        across = PERIOD_M / 2.0 + uniform[1] - 0.5
        return self.corner[field] + torch.stack((along, across), -1)

    def way_back(self, position: Tensor, field: Tensor) -> Tensor:
        """Displacement (k, 2) [m] by whole periods that moves positions (k, 2) into the period of
        fields (k,); 0 for positions inside."""
        return -PERIOD_M * torch.floor((position - self.corner[field]) / PERIOD_M).nan_to_num(0.0)


def _climbs(kind: str, field: FloatArray, grid: Grid) -> tuple[float, float]:
    """Where the starts before a climb and before a descent along x begin [m]."""
    row = field[grid.points // 2]
    middle = grid.points // 2
    on_top = middle - 2 * grid.of(_FLAT_M) if kind == "platforms" else middle
    foot, top = (0, on_top) if row[on_top] > row[0] else (on_top, 0)
    # the last level point
    edges = [at + int(np.argmax(np.append(row[at + 1 :], np.nan) != row[at])) for at in (foot, top)]
    return edges[0] * grid.cell - _STARTS_BEFORE_M[1], edges[1] * grid.cell - _STARTS_BEFORE_M[1]


def gentle_starts(field: FloatArray, grid: Grid, rng: np.random.Generator) -> NDArray[np.int64]:
    """Points (S, 2), column and row, sampled from those with the flattest surroundings."""
    from scipy.ndimage import maximum_filter, minimum_filter  # slow to import

    side = 2 * grid.of(_START_HALF) + 1
    spread = maximum_filter(field, side, mode="wrap") - minimum_filter(field, side, mode="wrap")
    gentle = np.argwhere(spread <= np.partition(spread.ravel(), 4 * _STARTS)[4 * _STARTS])[:, ::-1]
    return gentle[rng.integers(0, len(gentle), _STARTS)]
