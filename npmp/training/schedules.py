"""Values that change with the share of the run that is done."""

from __future__ import annotations


def linear(ends: tuple[float, float], progress: float) -> float:
    """From the first to the second value as progress goes from 0 to 1, and no further."""
    return ends[0] + (ends[1] - ends[0]) * min(max(progress, 0.0), 1.0)


def prior_weight(progress: float, beta: float, power: float, ramp: float) -> float:
    """The weight of the KL to the prior when a share of the run is done: beta (1 - (1 - min(1,
    progress / ramp))^power).

    robot-NPMP's schedule: slow at first, steep at the end of the ramp (a share of the run).
    """
    return beta * (1.0 - (1.0 - min(1.0, progress / ramp)) ** power)
