"""The settings of retargeting by points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from mocap_data.arrays import set_fields
from mocap_data.errors import InputError, unknown

Kind = TypeVar("Kind")
AUTO = "auto"
# RMS marker error of five dog walks: 1.5 cm with a trunk of weight 1, 1.35 cm with 3; legs of 61
# walks of people on OP3: 7.2 degrees off with limbs of weight 1, 4.8 with 4
WEIGHTS = {"trunk": 3.0, "limbs": 4.0}


@dataclass(frozen=True)
class Options:
    """How to retarget.

    Raises:
      InputError: for a value out of range.
    """

    # frames per second of the result; None: the robot's control rate
    rate_hz: float | None = None
    # factor on the recording's lengths; "auto" or None: its legs as long as the robot's, if longer
    scale_body: float | str | None = AUTO
    # weight of the joints' distance from the home pose, eq. 8 [m^2 / rad^2]
    regularization: float = 0.01
    # factors by marker or part ("foot", "knee", "trunk", "feet", "limbs"); None: `WEIGHTS`
    weights: Mapping[str, float] | None = None
    # alternations of poses and offsets
    rounds: int = 6
    # at most, of Levenberg-Marquardt, for the final poses
    iterations: int = 30
    # hold standing feet still and level (see `ground` and `foot_locking`)
    lock_feet: bool = True
    # low-pass of the markers before anything else; None: none
    marker_cutoff_hz: float | None = 8.0
    # low-pass of the root's path; None: none. 5 Hz halves the root's angular acceleration
    root_cutoff_hz: float | None = 5.0
    # of a foot in the final poses; the offsets come from eq. 8, which has 1
    foot_weight: float = 100.0
    # of the robot's joint speed limits that the motion may use; None: any speed
    joint_speed_share: float | None = 0.95
    # move limbs without feet towards home where they would be in the robot's other parts
    free_arms: bool = True

    def __post_init__(self) -> None:
        require(self, "rate_hz", "regularization", "foot_weight", positive=True)
        require(self, "marker_cutoff_hz", "root_cutoff_hz", "joint_speed_share", positive=True)
        if self.rounds < 0 or self.iterations < 1:
            raise InputError("rounds must be at least 0 and iterations at least 1")
        scale = AUTO if self.scale_body is None else self.scale_body
        if scale != AUTO and (isinstance(scale, str) or not 0.0 < scale < math.inf):
            raise InputError(f"scale_body must be '{AUTO}' or a positive number; it is {scale!r}")
        set_fields(self, scale_body=scale)
        if self.weights is not None:
            weights = {str(key): float(value) for key, value in self.weights.items()}
            for key, value in weights.items():
                if not 0.0 <= value < math.inf:
                    raise InputError(f"weights: that of '{key}' must be 0 or more; it is {value}")
            set_fields(self, weights=weights)


def require(settings: object, *names: str, positive: bool = False) -> None:
    """Refuse fields that are no finite numbers of at least zero, or above it; None is a choice.

    Raises:
      InputError: naming the field.
    """
    for name in names:
        value = getattr(settings, name)
        if value is None or (0.0 < value < math.inf) or (value == 0.0 and not positive):
            continue
        wanted = "positive" if positive else "at least 0"
        raise InputError(f"{name} must be {wanted}; it is {value}")


def by_name(kind: type[Kind], given: Mapping[str, Any], what: str) -> Kind:
    """A dataclass of options from those given by name.

    Raises:
      InputError: for a name that it does not have.
    """
    known = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise unknown(what, name, known)
    return kind(**given)
