"""The schema of robot.yaml, which adds values that models lack; checked before the model is
read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mocap_data.errors import InputError, unknown
from npmp.core import ranges
from npmp.core.settings import from_mapping

Point = tuple[float, float, float]
# a number, "model" for the model's own value, or one of these per joint
Gain = float | str | Mapping[str, float | str]
MODEL = "model"
CONES = {"pyramidal": mujoco.mjtCone.mjCONE_PYRAMIDAL, "elliptic": mujoco.mjtCone.mjCONE_ELLIPTIC}
# keys of `Description` for adapted models only; other MJCFs have these values themselves
_ADAPTED = ("physics_rate_hz", "imu")


@dataclass(frozen=True)
class JointEntry:
    """A joint's home pose and limits [rad], and its drive's speed limit [rad/s]."""

    home: float
    lower: float
    upper: float
    velocity: float

    def __post_init__(self) -> None:
        ranges.above_zero(self, "velocity")
        if not self.lower <= self.home <= self.upper or self.lower == self.upper:
            raise ValueError(
                f"home={self.home:g}: must be within lower {self.lower:g} and upper {self.upper:g}"
            )


@dataclass(frozen=True)
class Place:
    """A point [m] in the frame of a body."""

    body: str
    position: Point


@dataclass(frozen=True)
class MarkerEntry(Place):
    """A point that recordings are matched to."""

    # weight of its error in retargeting, relative to the other markers
    weight: float = 1.0

    def __post_init__(self) -> None:
        ranges.above_zero(self, "weight")


@dataclass(frozen=True)
class FeetEntry:
    """Contact spheres: radius, and their centres in the foot bodies' frames [m]."""

    bodies: tuple[str, ...]
    radius: float
    # one sphere a foot; for a sole, the middle of its points
    offset: Point
    # points of soles, equally many for every foot
    points: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    # feet that are only shapes in the model, and the places of these
    at: Mapping[str, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ranges.above_zero(self, "radius")
        if not self.bodies:
            raise ValueError("bodies must name at least one foot")
        if len({len(sole) for sole in self.points.values()}) > 1 or () in self.points.values():
            counts = ", ".join(f"{body} {len(sole)}" for body, sole in self.points.items())
            raise ValueError(f"points: every foot must have equally many, at least one: {counts}")


@dataclass(frozen=True)
class SymmetryEntry:
    """A mirror: the axis across its plane, and parts of names that swap."""

    normal: str
    swap: tuple[tuple[str, str], ...]
    # largest distance of a marker [m] or an axis [1] from its exact image
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        ranges.above_zero(self, "tolerance")
        if self.normal not in ("x", "y", "z"):
            raise ValueError(f"normal={self.normal!r}: must be x, y or z")
        parts = [part for pair in self.swap for part in set(pair)]
        if len(set(parts)) < len(parts):
            raise ValueError(f"swap={list(self.swap)}: a part of a name is swapped twice")


@dataclass(frozen=True)
class DrivesEntry:
    """Position control by joint: kp [Nm/rad], kd [Nm s/rad], torque limit [Nm]."""

    kp: Gain = MODEL
    kd: Gain = MODEL
    torque_limit: Gain = MODEL
    # [kg m2] of the rotors, at the joints
    armature: Gain = MODEL


@dataclass(frozen=True)
class Description:
    """A robot.yaml."""

    name: str
    mjcf: str
    control_rate_hz: float
    joints: Mapping[str, JointEntry]
    feet: FeetEntry
    markers: Mapping[str, MarkerEntry]
    symmetries: Mapping[str, SymmetryEntry]
    imu_site: str = "imu"
    source: str = ""
    licence: str = ""
    # pairs of bodies whose overlap is not a self-collision, and their mirror images
    ignore_collisions: tuple[tuple[str, str], ...] = ()
    # position control of a model to adapt (`npmp.robots.adapt`)
    drives: DrivesEntry | str | None = None
    physics_rate_hz: float | None = None
    # place of the site to add where the model has none
    imu: Place | None = None

    def __post_init__(self) -> None:
        ranges.above_zero(self, "control_rate_hz", "physics_rate_hz")
        if isinstance(self.drives, str) and self.drives != MODEL:
            raise ValueError(f"drives={self.drives!r}: must be '{MODEL}' or a mapping")


def read_description(content: Any, where: str) -> Description:
    """The content of a robot.yaml. Raises InputError."""
    try:
        description = from_mapping(Description, content, at="robot")
    except InputError as error:
        # YAML 1.1 reads 5e-06 as text
        power = re.search(r"got '([-+]?\d+)([eE][-+]?\d+)'", str(error))
        hint = f"; a power of ten needs a dot in YAML: {power[1]}.0{power[2]}" if power else ""
        raise InputError(f"{where}: {error}{hint}") from None
    keys = [key for key in _ADAPTED if key in content]
    if description.drives is None and keys:
        raise InputError(
            f"{where}: {keys[0]} needs `drives:`; without it the model's own value is used"
        )
    return description


def one_of(value: str, choices: Iterable[str], kind: str, where: str) -> str:
    """A name that is one of the choices, of a kind ("body", "site"). Raises InputError."""
    if value not in choices:
        raise InputError(f"{where}: {unknown(kind, value, choices)}")
    return value


def match_names(table: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    """Raise InputError unless the table's keys are exactly these names."""
    for name in names:
        if name not in table:
            raise InputError(f"{where} lacks '{name}'")
    for key in table:
        one_of(key, tuple(names), "name", where)


def frozen(values: ArrayLike, dtype: type = np.float64) -> NDArray[Any]:
    """A read-only copy."""
    copy: NDArray[Any] = np.array(values, dtype)
    copy.flags.writeable = False
    return copy
