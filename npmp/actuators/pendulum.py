"""A known pendulum that a joint moves: where a log tells it, a model can be tried and fitted by the
motion it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npmp.actuators.log import ActuatorLog, Floats, Trace

FASTEST = 100.0  # rad/s, of a simulated pendulum: a model that drives it faster has failed


class Pendulums:
    """N recordings side by side, the last moment of shorter ones repeated.

    position, command, feedforward: (T, N) [rad, rad, effort]. velocity: (N,) [rad/s] at the first
    moment. there: (T, N), whether a moment is of the recording. inertia, gravity: (N,) [kg m^2,
    Nm].
    """

    def __init__(self, log: ActuatorLog):
        """log: with `has_pendulums`."""
        self.traces, self.rate_hz = log.traces, log.rate_hz
        lengths = np.array([len(trace) for trace in log.traces])
        at = np.minimum(np.arange(lengths.max())[:, None], lengths - 1)

        def column(of: Callable[[Trace], Any]) -> Floats:
            wide = [
                np.broadcast_to(of(trace), len(trace))[at[:, i]]
                for i, trace in enumerate(log.traces)
            ]
            return np.stack(wide, 1).astype(np.float64)

        self.position = column(lambda trace: trace.others["position"])
        self.command = self.position + column(lambda trace: trace.position_error)
        self.feedforward = column(lambda trace: trace.others.get("feedforward", 0.0))
        self.velocity = np.array([trace.velocity[0] for trace in log.traces], np.float64)
        self.torque = np.array([trace.torque[0] for trace in log.traces], np.float64)
        self.there: NDArray[np.bool_] = np.arange(len(at))[:, None] < lengths
        self.inertia, self.gravity = (
            np.array([getattr(trace, name) for trace in log.traces], np.float64)
            for name in ("inertia", "gravity")
        )

    def off(
        self, accelerate: Callable[[int, Floats, Floats], Floats], shape: tuple[int, ...] = ()
    ) -> Floats:
        """By how much simulated pendulums are off (T, *shape, N) [rad], from each recording's first
        moment on by its commands alone; 0 where a recording has ended.

        accelerate(t, position, velocity): (*shape, N) [rad/s^2], called once a sample, the first
        being 0.
        """
        q = np.zeros((*shape, len(self.traces))) + self.position[0]
        v = np.zeros_like(q) + self.velocity
        found = np.zeros((len(self.position), *q.shape))
        for t, there in enumerate(self.there):
            found[t] = (q - self.position[t]) * there
            v = (v + accelerate(t, q, v) / self.rate_hz).clip(-FASTEST, FASTEST)
            q = q + v / self.rate_hz
        return found
