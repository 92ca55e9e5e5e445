"""Simulated servos whose numbers are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from npmp.actuators import ActuatorLog, Trace
from npmp.actuators.models import PDParameters, delivered, share, wanted

RATE = 200.0


def moves(samples: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Position errors [rad] and velocities [rad/s] (T,): sums of sines of 0.3 to 8 Hz."""
    rng = np.random.default_rng(seed)
    time = np.arange(samples) / RATE
    error, velocity = (
        sum(size * np.sin(2 * np.pi * rng.uniform(0.3, 8.0) * time + rng.uniform(0, 6)) for _ in range(5))
        for size in (0.04, 0.8)
    )
    return np.asarray(error, np.float32), np.asarray(velocity, np.float32)


def servo(
    p: PDParameters, delay: int = 0, *, name: str = "one", samples: int = 1500, seed: int = 0, noise: float = 0.0
) -> Trace:
    """A trace of a servo of these numbers, its torque begun at rest."""
    error, velocity = moves(samples, seed)
    asked = np.concatenate((np.repeat(error[:1], delay), error[: samples - delay]))
    motor, torques = float(wanted(p, asked[:1], velocity[:1])[0]), []
    for e, v in zip(asked, velocity, strict=True):
        motor += share(p.lag_s, RATE) * (float(wanted(p, e, v)) - motor)
        torques.append(float(delivered(p, np.array(motor), np.array(v))))
    torque = np.array(torques) + noise * np.random.default_rng(seed + 1).normal(size=samples)
    return Trace(f"motion_{seed}", name, error, velocity, torque.astype(np.float32))


def log_of(*traces: Trace, rate_hz: float = RATE) -> ActuatorLog:
    return ActuatorLog(rate_hz, traces, "CC0-1.0", "simulated")
