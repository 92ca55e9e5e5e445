"""Schedules: values as functions of a run's progress in [0, 1]."""

from __future__ import annotations

PRIOR_POWER = 0.2  # [robot-NPMP]


def linear(ends: tuple[float, float], progress: float) -> float:
    """Linear interpolation from ends[0] to ends[1], clamped."""
    return ends[0] + (ends[1] - ends[0]) * min(max(progress, 0.0), 1.0)


def prior_weight(progress: float, beta: float, ramp: float) -> float:
    """Weight of the KL to the prior: beta (1 - (1 - min(1, progress / ramp))^0.2) [robot-NPMP].

    Rises slowly at first and steeply at the end of the ramp (a share of the run); constant if ramp
    is 0.
    """
    done = min(1.0, progress / ramp) if ramp > 0.0 else 1.0
    return beta * (1.0 - (1.0 - done) ** PRIOR_POWER)
