"""Recorded walks and trots over generated ground: stairs, gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import InputError
from mocap_data.ground_profile import CELL_M, GroundProfile
from mocap_data.motion import ReferenceMotion, mean_speed
from mocap_data.store import MotionSet
from npmp.robots import Robot
from retarget.cleaning import unused_name
from retarget.over_ground import over_ground
from retarget.prepared_robot import PreparedRobot
from retarget.quality import QualityMeter

# different grounds in each round; motions share them
_PER_ROUND = 16
# [m] length of each, after which it repeats: two flights up and down, or some gaps
PERIOD_M = 8.0
# [m] treads
_TREADS_M = (0.25, 0.4)
_MOST_STEPS = 4
# [m] depth of gaps, deeper than a leg reaches
_DEPTH_M = 0.5
# [m] unevenness of their bottom, as feet are placed on level ground only
_UNEVEN_M = 0.03
# [m] ground between gaps; longer from the last of a period to the first of the next
_BETWEEN_M = (0.8, 1.8)
# [m/s] mean speeds of walks and trots
_SPEEDS_MPS = (0.25, 1.6)
# random places on its ground from which a motion's start is chosen
_PLACES = 4


class Kind(NamedTuple):
    """A kind of ground: its generator, of the least and the largest length [m], and the limits and
    the grid of these lengths [m]."""

    make: Callable[[tuple[float, float], np.random.Generator], GroundProfile]
    least_m: float
    most_m: float
    # 0: any length
    grid_m: float = 0.0


def require_lengths(kind: str, lengths_m: object) -> tuple[float, float]:
    """The least and the largest riser of stairs, or width of gaps, [m].

    Args:
      kind: of `KINDS`.

    Raises:
      InputError: for other values than two within the kind's limits, on its grid.
    """
    allowed = KINDS[kind]
    if isinstance(lengths_m, list | tuple) and len(lengths_m) == 2:
        low, high = (float(value) for value in lengths_m)
        on_grid = not allowed.grid_m or all(
            abs(value - allowed.grid_m * round(value / allowed.grid_m)) < 1e-6
            for value in (low, high)
        )
        if allowed.least_m <= low <= high <= allowed.most_m and on_grid:
            return low, high
    grid = f", in steps of {allowed.grid_m:g} m" if allowed.grid_m else ""
    raise InputError(
        f"{kind}={lengths_m}: expected [lowest, highest] within {allowed.least_m:g} to "
        f"{allowed.most_m:g} m{grid}"
    )


def stairs(risers_m: tuple[float, float], rng: np.random.Generator) -> GroundProfile:
    """A period of two flights up and down with a floor before and on top; one of one step is a
    platform. Risers are `CELL_M` wide in plan, which is part of the tread."""
    half = round(0.5 * PERIOD_M / CELL_M)
    flights = []
    for _ in range(2):
        steps = int(rng.integers(1, _MOST_STEPS + 1))
        tread = int(rng.integers(round(_TREADS_M[0] / CELL_M), round(_TREADS_M[1] / CELL_M) + 1))
        up = np.repeat(np.arange(1, steps), tread)
        floor = (half - 2 * len(up)) // 2
        top = half - 2 * len(up) - floor
        levels = np.concatenate((np.zeros(floor), up, np.full(top, steps), up[::-1]))
        flights.append(rng.uniform(*risers_m) * levels)
    return GroundProfile(np.concatenate(flights))


def gaps(widths_m: tuple[float, float], rng: np.random.Generator) -> GroundProfile:
    """A period of level ground with gaps; their sides are `CELL_M` wide in plan, within them."""
    low, high = (round(width / CELL_M) for width in widths_m)
    shortest, longest = (round(length / CELL_M) for length in _BETWEEN_M)
    heights = np.zeros(round(PERIOD_M / CELL_M))
    edge = int(rng.integers(shortest // 2, longest))
    while True:
        width = int(rng.integers(low, high + 1))
        if edge + width > len(heights) - shortest // 2:
            return GroundProfile(heights)
        bottom = np.arange(width - 1) % 2 * _UNEVEN_M - _DEPTH_M
        heights[edge + 1 : edge + width] = bottom
        edge += width + int(rng.integers(shortest, longest + 1))


# by the name of their option; wider gaps have footfalls farther from level ground than these move
KINDS = {"stairs": Kind(stairs, 0.01, 0.5), "gaps": Kind(gaps, 2.0 * CELL_M, 0.4, CELL_M)}


def over_generated(
    motions: MotionSet,
    robot: Robot,
    kind: str,
    lengths_m: tuple[float, float],
    seed: int,
    rounds: int = 1,
) -> list[ReferenceMotion]:
    """The walks and trots among the motions over a kind of ground, called NAME_KIND, or NAME_KIND_2
    and so on where there is one, not cleaned.

    Each is turned so that it moves along x, and begins where the ground under it varies most, of
    some random places.

    Args:
      kind: of `KINDS`.
      lengths_m: the least and the largest, of `require_lengths`.
      rounds: how often each motion is laid, over different ground.

    Raises:
      InputError: as `over_ground`.
    """
    prepared = PreparedRobot.of(robot)
    meter = QualityMeter(robot)
    make = KINDS[kind].make
    grounds = [
        make(lengths_m, np.random.default_rng((seed, i))) for i in range(rounds * _PER_ROUND)
    ]
    rng = np.random.default_rng(seed)
    low, high = _SPEEDS_MPS
    walks = [motion for motion in motions.motions if low <= mean_speed(motion) <= high]
    names = set(motions.names)
    results = []
    for round_index, (i, motion) in product(range(rounds), enumerate(walks)):
        contacts = meter.contacts(motion)
        ground = grounds[round_index * _PER_ROUND + i % _PER_ROUND]
        qpos = _along_x(motion.qpos)
        places = rng.uniform(0.0, PERIOD_M, _PLACES)
        varies = np.ptp(ground.height_at(qpos[:, 0] + places[:, None]), axis=1)
        qpos[:, 0] += places[varies.argmax()]
        name = unused_name(f"{motion.name}_{kind}", names)
        begun = replace(motion, name=name, qpos=qpos, contacts=contacts)
        results.append(meter.measured(over_ground(begun, ground, prepared)))
    return results


def _along_x(qpos: Array) -> Array:
    """Poses (T, 7 + J) turned to move along x in total, from the origin."""
    path = qpos[-1, :2] - qpos[0, :2]
    angle = -np.arctan2(path[1], path[0])
    turn = rotations.from_axis_angle(np.array([0.0, 0.0, 1.0]), float(angle))
    out = qpos.copy()
    out[:, :2] -= qpos[0, :2]
    out[:, :3] = rotations.rotate(turn, out[:, :3])
    out[:, 3:7] = rotations.multiply(turn, qpos[:, 3:7])
    return out
