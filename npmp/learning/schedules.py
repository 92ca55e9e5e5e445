"""Values that change with the share of the run that is done."""

from __future__ import annotations

PRIOR_POWER = 0.2  # [robot-NPMP]


def linear(ends: tuple[float, float], progress: float) -> float:
    """From the first to the second value as progress goes from 0 to 1, and no further."""
    return ends[0] + (ends[1] - ends[0]) * min(max(progress, 0.0), 1.0)


def prior_weight(progress: float, beta: float, ramp: float) -> float:
    """The KL's weight when a share of the run is done: beta (1 - (1 - min(1, progress /
    ramp))^0.2).

    robot-NPMP's schedule: slow at first, steep at the end of the ramp (a share of the run). Without
    a ramp it is constant.
    """
    done = min(1.0, progress / ramp) if ramp > 0.0 else 1.0
    return beta * (1.0 - (1.0 - done) ** PRIOR_POWER)
