"""Simulation of a log's pendulums under a model's torques."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npmp.actuators.actuator_log import ActuatorLog, Floats, Trace
from npmp.actuators.models import ActuatorContract, gains_of, reference

# largest speed of a simulated pendulum [rad/s]
MAX_SPEED = 100.0


class Pendulums:
    """N recordings in parallel, the last sample of shorter ones repeated.

    position, command, feedforward: (T, N) [rad, rad, effort]. velocity, torque: (N,) [rad/s, Nm]
    at the first sample. valid: (T, N), false for repeated samples. inertia, gravity: (N,) [kg m^2,
    Nm].
    """

    def __init__(self, log: ActuatorLog):
        """log: with `has_pendulums`."""
        self.traces = log.traces
        self.rate_hz = log.rate_hz
        lengths = np.array([len(trace) for trace in log.traces])
        at = np.minimum(np.arange(lengths.max())[:, None], lengths - 1)

        def column(values_of: Callable[[Trace], Any]) -> Floats:
            columns = (np.broadcast_to(values_of(trace), len(trace)) for trace in log.traces)
            padded = [values[at[:, i]] for i, values in enumerate(columns)]
            return np.stack(padded, 1).astype(np.float64)

        self.position = column(lambda trace: trace.others["position"])
        self.command = self.position + column(lambda trace: trace.position_error)
        self.feedforward = column(lambda trace: trace.others.get("feedforward", 0.0))
        self.velocity = column(lambda t: t.velocity)[0]
        self.torque = column(lambda t: t.torque)[0]
        self.inertia = column(lambda t: t.inertia)[0]
        self.gravity = column(lambda t: t.gravity)[0]
        self.valid: NDArray[np.bool_] = np.arange(len(at))[:, None] < lengths
        self._gains = np.array([gains_of(trace) for trace in log.traces]).T

    def effort(self, t: int, q: Floats, v: Floats, contract: ActuatorContract) -> Floats:
        """The first input of a model (..., N) at positions [rad] and velocities [rad/s]."""
        error: Floats = self.command[t] - q
        if not contract.gains:
            return error
        kp, kd, limit = self._gains
        return reference(error, v, kp, kd, limit, self.feedforward[t])

    def acceleration(self, torque: Floats, q: Floats, armature: Any) -> Floats:
        """Accelerations (..., N) [rad/s^2] under torques [Nm] at positions [rad].

        armature: inertia of the rotor [kg m^2].
        """
        return (torque - self.gravity * np.sin(q)) / (self.inertia + armature)

    def errors(
        self, accelerate: Callable[[int, Floats, Floats], Floats], shape: tuple[int, ...] = ()
    ) -> Floats:
        """Position errors (T, *shape, N) [rad] of simulations from each recording's first sample; 0
        after a recording's end.

        accelerate(t, position, velocity): (*shape, N) [rad/s^2], called once a sample.
        """
        q = np.zeros((*shape, len(self.traces))) + self.position[0]
        v = np.zeros_like(q) + self.velocity
        errors = np.zeros((len(self.position), *q.shape))
        for t, valid in enumerate(self.valid):
            errors[t] = (q - self.position[t]) * valid
            v = (v + accelerate(t, q, v) / self.rate_hz).clip(-MAX_SPEED, MAX_SPEED)
            q = q + v / self.rate_hz
        return errors
