"""How to retarget: the options of every function of the pipeline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from mocap_data.errors import InputError, unknown

Kind = TypeVar("Kind")
AUTO = "auto"
# At weight 1 the regularizer of eq. 8 holds the trunk near its usual height (RMS marker error of
# five walks: 1.5 cm with it, 1.35 cm with weight 3). Knees, elbows and hands say where limbs point
# (legs of 61 walks of people on OP3: 7.2 degrees off with weight 1, 4.8 with 4, the RMS error is
# the same).
WEIGHTS = {"trunk": 3.0, "limbs": 4.0}
_POSITIVE = (
    "rate_hz", "regularization", "foot_weight", "marker_cutoff_hz", "root_cutoff_hz", "joint_speed_share",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """How to retarget.

    rate_hz: of the result; the robot's control rate when None. Markers are brought to it before
    anything is solved. scale_body: factor on the recording's lengths; "auto": the one that makes
    its legs as long as the robot's,
        where they are longer. None is "auto".
    regularization: weight of the joints' distance from the home pose, eq. 8 [m^2 / rad^2].
    weights: factors on the weights of markers in eq. 8, by marker or part ("foot", "knee", "trunk",
    "feet",
        "limbs"); 1 for those not named. None: `WEIGHTS`.
    rounds: alternations of poses and offsets.
    iterations: at most, of Levenberg-Marquardt, for the final poses.
    lock_feet: hold standing feet still and level (see `ground` and `foot_locking`).
    marker_cutoff_hz: low-pass of the markers before anything else; None for none.
    root_cutoff_hz: low-pass of the root's path; None for none. On a minute of walking 5 Hz halves
    the root's
        angular and nearly halves its linear acceleration and leaves the RMS marker error as it is.
    foot_weight: of a foot in the final poses (eq. 8, which the offsets come from, has 1): a
    standing foot shall stay
        where it is, and where the legs cannot reach it is the trunk that gives way.
    joint_speed_share: of the robot's joint speed limits that the motion may use; None leaves speeds
    as they are. free_arms: limbs without feet give way, towards home, where they would be in the
    robot's other parts.
    """

    rate_hz: float | None = None
    scale_body: float | str | None = AUTO
    regularization: float = 0.01
    weights: Mapping[str, float] | None = None
    rounds: int = 6
    iterations: int = 30
    lock_feet: bool = True
    marker_cutoff_hz: float | None = 8.0
    root_cutoff_hz: float | None = 5.0
    foot_weight: float = 100.0
    joint_speed_share: float | None = 0.95
    free_arms: bool = True

    def __post_init__(self) -> None:
        require(self, *_POSITIVE, positive=True)
        if self.rounds < 0 or self.iterations < 1:
            raise InputError("rounds must be at least 0 and iterations at least 1")
        scale = AUTO if self.scale_body is None else self.scale_body
        object.__setattr__(self, "scale_body", scale)
        if scale != AUTO and not (
            not isinstance(scale, str) and math.isfinite(scale) and scale > 0.0
        ):
            raise InputError(f"scale_body must be '{AUTO}' or a positive number; it is {scale!r}")
        if self.weights is not None:
            plain = {str(key): float(value) for key, value in self.weights.items()}
            for key, value in plain.items():
                if not (math.isfinite(value) and value >= 0.0):
                    raise InputError(f"weights: that of '{key}' must be 0 or more; it is {value}")
            object.__setattr__(self, "weights", plain)

    @classmethod
    def given(cls, options: Mapping[str, Any]) -> Options:
        """Options from keyword arguments.

        Raises:
          InputError: for one that does not exist.
        """
        return by_name(cls, options, "retargeting option")


def require(settings: object, *names: str, positive: bool = False) -> None:
    """Refuse fields that are no finite numbers of at least zero, or above it; None is a choice.
    Raises InputError."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not (
            math.isfinite(value) and (value > 0.0 if positive else value >= 0.0)
        ):
            raise InputError(
                f"{name} must be {'positive' if positive else 'at least 0'}; it is {value}"
            )


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
