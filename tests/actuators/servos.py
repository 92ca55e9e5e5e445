"""Simulated servos whose numbers are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from npmp.actuators import ActuatorLog, Trace
from npmp.actuators.models import ActuatorContract, ActuatorNetConfig, make
from npmp.actuators.servo import (
    PDParameters,
    advance_bristle,
    joint_torque,
    lag_fraction,
    motor_target,
)

RATE = 200.0


def moves(samples: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Position errors [rad] and velocities [rad/s] (T,): sums of sines of 0.3 to 8 Hz."""
    rng = np.random.default_rng(seed)
    time = np.arange(samples) / RATE

    def wave() -> NDArray[np.float64]:
        return np.sin(2 * np.pi * rng.uniform(0.3, 8.0) * time + rng.uniform(0, 6))

    error, velocity = (sum(size * wave() for _ in range(5)) for size in (0.04, 0.8))
    return np.asarray(error, np.float32), np.asarray(velocity, np.float32)


def servo(
    p: PDParameters,
    delay: int = 0,
    *,
    name: str = "one",
    samples: int = 1500,
    seed: int = 0,
    noise: float = 0.0,
) -> Trace:
    """A trace of a servo of these numbers, its torque begun at rest."""
    error, velocity = moves(samples, seed)
    asked = np.concatenate((np.repeat(error[:1], delay), error[: samples - delay]))
    motor, given, torques = float(motor_target(p, asked[:1], velocity[:1])[0]), np.float64(0.0), []
    for e, v in zip(asked, velocity, strict=True):
        motor += lag_fraction(p.lag_s, RATE) * (float(motor_target(p, e, v)) - motor)
        given, borne = advance_bristle(given, v, RATE)
        torques.append(float(joint_torque(p, np.array(motor), np.array(v), borne)))
    torque = np.array(torques) + noise * np.random.default_rng(seed + 1).normal(size=samples)
    return Trace(f"motion_{seed}", name, error, velocity, torque.astype(np.float32))


def swung(p: PDParameters, size: float, samples: int = 250) -> Trace:
    """A pendulum of 0.005 kg m^2 and 0.5 Nm that a servo of these numbers swings at 100 Hz: raised,
    held, let down, by a command of this size [rad]."""
    command = size * np.interp(np.arange(samples), [0, 60, 110, 200], [0.0, 1.0, 1.0, -0.3])
    q = v = np.float64(0.0)
    motor, given, positions, velocities, torques = np.float64(0.0), np.float64(0.0), [], [], []
    for asked in command:
        positions.append(q)
        velocities.append(v)
        motor += lag_fraction(p.lag_s, 100.0) * (motor_target(p, asked - q, v) - motor)
        given, borne = advance_bristle(given, v, 100.0)
        acceleration = (joint_torque(p, motor, v, borne) - 0.5 * np.sin(q)) / (0.005 + p.armature)
        torques.append(0.005 * acceleration + 0.5 * np.sin(q))
        v += acceleration / 100.0
        q += v / 100.0
    position, velocity = np.array(positions, np.float32), np.array(velocities, np.float32)
    columns = (command - position).astype(np.float32), velocity, np.array(torques, np.float32)
    others = {"position": position}
    return Trace(f"swung_{size:g}", "one", *columns, others, inertia=0.005, gravity=0.5)


def log_of(*traces: Trace, rate_hz: float = RATE) -> ActuatorLog:
    return ActuatorLog(rate_hz, traces, "CC0-1.0", "simulated")


def save_knee(folder: Path, **told: float) -> None:
    """An untrained model of convolutions, for joints at 400 Hz."""
    scales, law, net = ([0.1, 1.0], [0.0, 0.0], 10.0), [50.0, 1.0, 0.0], ActuatorNetConfig(width=4)
    torch.manual_seed(1)
    contract = ActuatorContract("conv", 400.0, ["knee"], [], False, *scales, law, net=net, **told)
    make(contract).save(folder)
