"""Fitting the closed form of a servo to torques, or to the motion of pendulums."""

from __future__ import annotations

import math
from dataclasses import astuple, fields, replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.signal import lfilter

from npmp.actuators import models
from npmp.actuators.actuator_log import MIN_SAMPLES, ActuatorLog, Floats, Trace
from npmp.actuators.pendulum import Pendulums
from npmp.actuators.servo import (
    PDParameters,
    advance_bristle,
    initial_deflection,
    joint_torque,
    lag_fraction,
    motor_target,
)

# most samples of a log that the closed form is fitted to
MAX_SAMPLES = 200_000
# relative standard deviation of each parameter over the starts of further searches [D]
START_SPREAD = 0.03
# longest simulated segment of a pendulum's motion [samples] [D]
MAX_STRETCH = 2000
PARAMETERS = [entry.name for entry in fields(PDParameters)]
# share of the squared torques that a limit must explain [D]
LIMIT_SHARE = 1e-4


def constant_gains(error: Floats, velocity: Floats, torque: NDArray[Any]) -> Floats:
    """The best a, b, c of torque = a error - b velocity + c, by least squares, of (T,) each."""
    matrix = np.stack([error, -velocity, np.ones_like(error)], -1)
    return np.asarray(np.linalg.lstsq(matrix, torque, rcond=None)[0])


class _Range(NamedTuple):
    """Start and bounds of the parameters, (P,) each."""

    start: Floats
    low: Floats
    high: Floats


def fit_servo(model: models.PD, log: ActuatorLog, searches: int) -> None:
    """Fit the parameters to the log's torques, or to the motion of its pendulums, in place."""
    contract = model.contract
    share = min(1.0, MAX_SAMPLES / sum(len(trace) for trace in log.traces))
    parts = []
    for trace in log.traces:
        count = math.ceil(share * len(trace))
        first = (len(trace) - count) // 2
        parts.append(trace.part(first, first + count))
    motions = [ServoMotion(part, contract) for part in parts]
    limits = _parameter_range(contract, motions)
    if log.has_pendulums:
        stretches = tuple(
            part.part(at, at + MAX_STRETCH)
            for part in parts
            for at in range(0, len(part) - MIN_SAMPLES + 1, MAX_STRETCH)
        )
        values = _fit_motion(contract, replace(log, traces=stretches), limits, searches)
        model.values.copy_(torch.from_numpy(values))
    else:
        delay, values = _fit_torque(motions, limits)
        model.delay.fill_(delay)
        model.values.copy_(torch.tensor(astuple(PDParameters(*values))))


def _fit_torque(motions: list[ServoMotion], limits: _Range) -> tuple[int, Floats]:
    """The delay [samples] and parameters (11,) by nonlinear least squares for every delay."""
    # without a torque limit
    unlimited_range = _Range(*(values.copy() for values in limits))
    for values, factor in zip(unlimited_range, (1.0, 0.9, 1.1), strict=True):
        values[PARAMETERS.index("limit")] = factor * models.NO_LIMIT

    def solve(delay: int, within: _Range) -> tuple[float, int, Floats]:
        result = least_squares(
            lambda values: np.concatenate([motion.errors(values, delay) for motion in motions]),
            within.start,
            bounds=within[1:],
            x_scale=np.maximum(np.abs(within.start), 1e-3),
            max_nfev=60,
        )
        return float(result.cost), delay, result.x

    cost = itemgetter(0)
    delays = range(models.MAX_DELAY + 1)
    unlimited = min((solve(delay, unlimited_range) for delay in delays), key=cost)
    # the start is constant gains, so the result is at least as good
    plain = dict(zip(PARAMETERS, unlimited_range.start)) | {"lag_s": 1e-4}
    plain |= dict.fromkeys(("limit_slope", "coulomb", "stiction", "load", "load_at_rest"), 0.0)
    plain_range = unlimited_range._replace(
        start=np.maximum(list(plain.values()), limits.low + 1e-12)
    )
    unlimited = min(
        unlimited, *(solve(delay, plain_range) for delay in {0, unlimited[1]}), key=cost
    )
    # fit a torque limit only if the log has one
    limited = solve(unlimited[1], limits)
    needed = LIMIT_SHARE * sum(0.5 * float(motion.torque @ motion.torque) for motion in motions)
    _, delay, values = limited if limited[0] < unlimited[0] - needed else unlimited
    return delay, values


def _fit_motion(
    contract: models.ActuatorContract, log: ActuatorLog, within: _Range, searches: int
) -> Floats:
    """The parameters (12,), with the armature, that reproduce the pendulums' motion.

    Torques hardly determine a joint at rest, which moves by little more than the encoders'
    resolution. The lag includes the delay. The first search starts at a guess from `within`, the
    range for torques; further ones near it (`START_SPREAD`), as friction causes many local minima.
    """
    pendulums = Pendulums(log)
    inertia = float(pendulums.inertia.mean())
    guess, low, high = (
        np.append(values, x * inertia) for values, x in zip(within, (0.5, 0.0, 10.0), strict=True)
    )
    p = PDParameters(*guess)
    # gears take about half of the motor's torque; lag and slope are free in a second step
    start = replace(
        p,
        stiffness=2.0 * p.stiffness,
        lag_s=PDParameters(*low).lag_s,
        limit_slope=0.0,
        coulomb=0.1 * p.coulomb,
        stiction=0.1 * p.stiction,
        stribeck=0.3 * p.stribeck,
        load=0.3,
    )
    sizes = replace(
        p,
        stiffness=2.0 * p.stiffness,
        damping=100.0 * p.limit_slope,
        offset=p.coulomb,
        limit_slope=10.0 * p.limit_slope,
        load=0.5,
        load_at_rest=0.5,
    )
    size = np.array(astuple(sizes))
    first = np.array(astuple(start))
    late = np.isin(PARAMETERS, ["lag_s", "limit_slope"])
    rng = np.random.default_rng(0)
    best = first
    least_cost = math.inf
    for search in range(searches):
        trial = first * (1.0 + START_SPREAD * rng.normal(size=len(first))) if search else first
        values = np.clip(trial, low + 1e-12, high)
        cost = math.inf
        for free in (~late, np.ones_like(late)):
            bounds = _Range(values, low, high)
            values[free], cost = _fit_pendulums(pendulums, contract, bounds, free, size)
        if cost < least_cost:
            best = values
            least_cost = cost
    return best


def _fit_pendulums(
    pendulums: Pendulums,
    contract: models.ActuatorContract,
    within: _Range,
    free: NDArray[np.bool_],
    size: Floats,
) -> tuple[Floats, float]:
    """The free parameters (F,) by least squares of the pendulums' positions, and the cost."""
    values = within.start
    low = within.low[free]
    high = within.high[free]
    steps = 1e-3 * size[free]

    def errors(x: Floats) -> Floats:
        """Position errors (samples, P) [rad] of free parameters (F, P)."""
        full = np.repeat(values[:, None], x.shape[1], 1)
        full[free] = x
        p = PDParameters(*full[..., None])
        rate = contract.rate_hz
        fraction = lag_fraction(p.lag_s, rate)
        motor = np.zeros(0)
        deflection = np.zeros(0)

        def accelerate(t: int, q: Floats, v: Floats) -> Floats:
            """Accelerations under a `PD` without delay."""
            nonlocal motor, deflection
            target = motor_target(p, pendulums.effort(t, q, v, contract), v)
            if t == 0:
                motor = target
                deflection = initial_deflection(p, target, v, pendulums.torque)
            motor = motor + fraction * (target - motor)
            deflection, friction = advance_bristle(deflection, v, rate)
            torque = joint_torque(p, motor, v, friction)
            return pendulums.acceleration(torque, q, p.armature)

        residuals: Floats = np.moveaxis(pendulums.errors(accelerate, x.shape[1:]), 1, -1)
        return residuals[pendulums.valid]

    def jacobian(x: Floats) -> Floats:
        step = np.where(x + steps < high, steps, -steps)
        residuals = errors(np.concatenate((x[:, None], x[:, None] + np.diag(step)), 1))
        return (residuals[:, 1:] - residuals[:, :1]) / step

    best = least_squares(
        lambda x: errors(x[:, None])[:, 0],
        values[free],
        jacobian,
        (low, high),
        x_scale=size[free],
        max_nfev=40,
    )
    return best.x, float(best.cost)


class ServoMotion:
    """The closed form's inputs of a trace, (T,) each; `friction` is a share of its limit."""

    def __init__(self, trace: Trace, contract: models.ActuatorContract):
        self.effort, self.velocity = models.inputs_of(trace, contract).astype(np.float64).T
        self.torque = trace.torque.astype(np.float64)
        self.rate_hz = contract.rate_hz
        self.friction = np.zeros_like(self.velocity)
        deflection = np.float64(0.0)
        for t, velocity in enumerate(self.velocity):
            deflection, self.friction[t] = advance_bristle(deflection, velocity, self.rate_hz)

    def motor(self, p: PDParameters, delay: int) -> Floats:
        """The motor's torque (T,) [Nm] before its limit, from the first measured torque on."""
        fraction = lag_fraction(p.lag_s, self.rate_hz)
        delayed = self.effort[: len(self.effort) - delay]
        effort = np.concatenate((np.repeat(self.effort[:1], delay), delayed))
        target = motor_target(p, effort, self.velocity)
        start = [(1.0 - fraction) * self.torque[0]]
        return np.asarray(lfilter([fraction], [1.0, fraction - 1.0], target, zi=start)[0])

    def errors(self, values: Floats, delay: int) -> Floats:
        """Predicted minus measured torques (T,) [Nm] of parameters (11,)."""
        p = PDParameters(*values)
        motor = self.motor(p, delay)
        return joint_torque(p, motor, self.velocity, self.friction) - self.torque


def _parameter_range(contract: models.ActuatorContract, motions: list[ServoMotion]) -> _Range:
    """Start and bounds of all parameters but the armature, which torques do not determine."""
    effort, velocity, torque = (
        np.concatenate([getattr(motion, name) for motion in motions])
        for name in ("effort", "velocity", "torque")
    )
    fastest = max(float(np.abs(velocity).max()), 1e-3)
    largest = float(np.abs(torque).max())
    a, b, c = constant_gains(effort, velocity, torque)
    spread = contract.torque_scale
    rate = contract.rate_hz
    inf = np.inf
    table = {
        "stiffness": (max(a, 1e-3 * spread / contract.input_scale[0]), 0.0, inf),
        "damping": (max(b, 0.0), 0.0, inf),
        "offset": (c, -10.0 * spread, 10.0 * spread),
        "lag_s": (1.0 / rate, 1e-6, 0.5),
        "limit": (1.5 * largest, 0.2 * largest, 10.0 * largest),
        "limit_slope": (0.1 * spread / fastest, 0.0, inf),
        "coulomb": (0.1 * spread, 0.0, 5.0 * spread),
        "stiction": (0.1 * spread, 0.0, 5.0 * spread),
        "stribeck": (0.1 * fastest, 1e-3 * fastest, 10.0 * fastest),
        "load": (0.1, 0.0, 1.0),
        "load_at_rest": (0.1, 0.0, 1.0),
    }
    start, low, high = np.array([table[name] for name in PARAMETERS[:-1]]).T
    return _Range(np.clip(start, low + 1e-12, high), low, high)
