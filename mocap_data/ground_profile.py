"""GroundProfile: the ground under a reference motion, which varies along x only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mocap_data.arrays import Array, read_only, require_moderate, set_fields

# [m] distance between the heights of a profile: the width of a riser in plan
CELL_M = 0.05
# points of the lower side of a sphere that `height_at` compares with the ground
_SAMPLES = 33


@dataclass(frozen=True, eq=False)
class GroundProfile:
    """Heights along x, `CELL_M` apart from x = 0, linear between them, periodic; equal for all y.

    Raises:
      InputError: heights that are no numbers (P,), or too large.
    """

    # (P,) [m]
    heights: Array

    def __post_init__(self) -> None:
        heights = read_only(self.heights, shape="(P,)", label="ground")
        require_moderate(heights, "ground")
        set_fields(self, heights=heights)

    @property
    def period_m(self) -> float:
        """Length after which the heights repeat [m]."""
        return len(self.heights) * CELL_M

    def height_at(self, x: Array, radius: float = 0.0) -> Array:
        """Height of the ground (...) [m] at x (...) [m]; with a radius [m] that of the lowest point
        of a sphere which touches the ground from above."""
        points = np.arange(len(self.heights)) * CELL_M
        if radius == 0.0:
            return np.interp(x, points, self.heights, period=self.period_m)
        beside = radius * np.sin(np.linspace(-0.5 * np.pi, 0.5 * np.pi, _SAMPLES))
        rise = np.sqrt(np.maximum(radius**2 - beside**2, 0.0)) - radius
        ground = np.interp(x[..., None] + beside, points, self.heights, period=self.period_m)
        return np.asarray((ground + rise).max(axis=-1))

    def reversed(self) -> GroundProfile:
        """The profile along -x."""
        return GroundProfile(np.roll(self.heights[::-1], 1))
