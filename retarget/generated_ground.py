"""Recorded walks and trots over generated stairs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

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

# different stairs of each round; motions share them
_GROUNDS = 16
# [m] each has two flights up and down in this length
PERIOD_M = 8.0
# [m] treads
_TREADS_M = (0.25, 0.4)
_MOST_STEPS = 4
# [m/s] mean speeds of walks and trots
_SPEEDS_MPS = (0.25, 1.6)
# random places on its stairs from which a motion's start is chosen
_PLACES = 4
SUFFIX = "_stairs"


def require_risers(risers_m: object) -> tuple[float, float]:
    """The lowest and the highest riser [m]. Raises InputError for other values."""
    if isinstance(risers_m, list | tuple) and len(risers_m) == 2:
        low, high = (float(value) for value in risers_m)
        if 0.0 < low <= high <= 0.5:
            return low, high
    raise InputError(f"stairs={risers_m}: expected [lowest, highest] riser, above 0 to 0.5 m")


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


def over_stairs(
    motions: MotionSet, robot: Robot, risers_m: tuple[float, float], seed: int, rounds: int = 1
) -> list[ReferenceMotion]:
    """The walks and trots among the motions over stairs, called NAME_stairs, or NAME_stairs_2 and
    so on where there is one, not cleaned.

    Each is turned so that it moves along x, and begins where it climbs most, of some random places
    on its stairs.

    Args:
      risers_m: the lowest and the highest [m].
      rounds: how often each motion is laid, over different stairs.

    Raises:
      InputError: as `over_ground`.
    """
    prepared = PreparedRobot.of(robot)
    meter = QualityMeter(robot)
    grounds = [stairs(risers_m, np.random.default_rng((seed, i))) for i in range(rounds * _GROUNDS)]
    rng = np.random.default_rng(seed)
    low, high = _SPEEDS_MPS
    walks = [motion for motion in motions.motions if low <= mean_speed(motion) <= high]
    names = set(motions.names)
    results = []
    for index, (i, motion) in product(range(rounds), enumerate(walks)):
        contacts = meter.contacts(motion)
        ground = grounds[index * _GROUNDS + i % _GROUNDS]
        qpos = _along_x(motion.qpos)
        places = rng.uniform(0.0, PERIOD_M, _PLACES)
        climbs = np.ptp(ground.height_at(qpos[:, 0] + places[:, None]), axis=1)
        qpos[:, 0] += places[climbs.argmax()]
        name = unused_name(motion.name + SUFFIX, names)
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
