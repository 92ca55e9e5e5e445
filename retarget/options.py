"""The settings of retargeting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from mocap_data.arrays import set_fields
from mocap_data.errors import InputError, check_available
from npmp.core import ranges

Settings = TypeVar("Settings")
AUTO = "auto"
# [Hz] low-pass of the root's path; it halves the root's angular acceleration
ROOT_CUTOFF_HZ = 5.0
# share of the robot's joint speed limits that a motion may use
SPEED_SHARE = 0.95


@dataclass(frozen=True)
class Options:
    """How to retarget.

    Raises:
      InputError: a value out of range.
    """

    # frames per second of the result; None: the robot's control rate
    rate_hz: float | None = None
    # factor on lengths; "auto" or None: legs as long as the robot's, of animals if longer
    scale_body: float | str | None = AUTO
    # skeleton of the recordings: a file (npmp inspect writes one) or a name; None: by names and
    # shape
    skeleton: str | None = None
    # [Hz] low-pass of the markers; None: none
    marker_cutoff_hz: float | None = 8.0

    def __post_init__(self) -> None:
        ranges.above_zero(self, "rate_hz", "marker_cutoff_hz")
        scale = AUTO if self.scale_body is None else self.scale_body
        if scale != AUTO and (isinstance(scale, str) or not 0.0 < scale < math.inf):
            raise InputError(f"scale_body={scale}: must be '{AUTO}' or above 0")
        rate = None if self.rate_hz is None else float(self.rate_hz)
        set_fields(self, scale_body=scale, rate_hz=rate)


def from_mapping(kind: type[Settings], values: Mapping[str, Any], label: str) -> Settings:
    """A dataclass of settings from a mapping; `label` is a setting's name in an error.

    Raises:
      InputError: an unknown name.
    """
    check_available(label, values, [entry.name for entry in fields(kind)])  # type: ignore[arg-type]
    return kind(**values)
