"""Public logs of actuators, as logs of our format. Every reader says what it had to assume."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError
from mocap_data.outside import read_json
from npmp.actuators.log import ActuatorLog, Trace, on_grid, read_arrays

STS3215_STALL_NM = 2.94  # at 12 V; currents of the public logs make more at times, which are no torques
# The log's torques are whole multiples of this: a count of the servo's register of its current, which is of 6.5 mA.
STS3215_NM_PER_COUNT, STS3215_A_PER_COUNT = 0.022814, 0.0065
GRAVITY = 9.81
XL330_DUTY_PER_RAD = 4096 / (2.0 * math.pi) / 256.0 / 885.0  # counts per rad, kp's divisor, full load; as logged
PENDULUM = ("position", "goal_position", "input_volts", "temp", "load")
SMOOTHED_S = 0.08  # over which a pendulum's acceleration is fitted: encoders count in steps of 0.09 degrees


def hwangbo(path: Path) -> ActuatorLog:
    """The knee of an ANYmal (Hwangbo et al. 2019): position_error, velocity, torque of the series spring."""
    arrays = _with(path, "rate_hz", "position_error", "velocity", "torque")
    found = {name: arrays[name].astype(np.float32) for name in ("position_error", "velocity", "torque")}
    trace = Trace("motion", "LH_KFE", **found)
    return ActuatorLog(float(arrays["rate_hz"]), (trace,), "none stated", "Hwangbo et al. 2019")


def sage(path: Path) -> ActuatorLog:
    """A SO-101 arm of Feetech STS3215 servos (isaac-sim2real/sage): NAME/{command, position, velocity, torque}.

    Its torque is the current's magnitude times a constant, never below zero. A servo of this kind drives towards its
    command, so it is given the sign of the position error; what exceeds the servo's stall torque is cut there. The
    current is what the servo's register counted, with the same sign, not cut. A command holds until the next.
    """
    arrays = _with(path, "joints")
    joints = [str(name) for name in arrays["joints"]]
    names = sorted({key.rpartition("/")[0] for key in arrays} - {""})
    steps = [float(np.median(np.diff(_of(path, arrays, name, "time_s")))) for name in names]
    rate = float(np.round(1.0 / np.median(steps)))
    traces = []
    for name in names:
        time, told = (_of(path, arrays, name, key) for key in ("time_s", "command_time_s"))
        latest = np.clip(np.searchsorted(told, time, side="right") - 1, 0, len(told) - 1)
        measured = {key: _of(path, arrays, name, key) for key in ("position", "velocity", "torque")}
        error = _of(path, arrays, name, "command")[latest] - measured["position"]
        drawn, sign = np.abs(measured["torque"]), np.sign(error)
        torque = np.minimum(drawn, STS3215_STALL_NM) * sign
        columns = {"position_error": error, "velocity": measured["velocity"], "torque": torque}
        columns["position"] = measured["position"]
        columns["current"] = drawn / STS3215_NM_PER_COUNT * STS3215_A_PER_COUNT * sign
        where = f"{path}: {name}"
        even = {key: on_grid(time, values.astype(np.float64), rate, where) for key, values in columns.items()}
        for i, joint in enumerate(joints):
            traces.append(_trace(name, joint, {key: values[:, i] for key, values in even.items()}))
    return ActuatorLog(rate, tuple(traces), "Apache-2.0", "isaac-sim2real/sage")


def bam(path: Path) -> ActuatorLog:
    """A Dynamixel XL330 that swings a pendulum (Rhoban/bam), with the .json beside the .npz that tells of each.

    The servo measures no torque. What it put on the pendulum follows from how the pendulum moved:
    m l^2 a + m g l sin(q), a mass on a light arm that hangs at q = 0, its acceleration a from a cubic fitted over
    80 ms around each moment. Its velocity must not come from there: several of them would tell a model that
    acceleration, moments ahead included. It is a difference of positions measured before (`causal_velocity`).

    `load` is the share of the supply that the firmware put on the motor, of 885, below zero as 16 bits write it: kp of
    the position error in its own counts, within 1. From where it stays 0 the motor is switched off; a recording ends
    there.
    """
    arrays = _with(path)
    described = read_json(path.with_suffix(".json"))
    if not isinstance(described, list):
        raise InputError(f"{path.with_suffix('.json')}: a list with an entry per log is expected")
    steps = [float(np.median(np.diff(arrays[key]))) for key in arrays if key.endswith("/timestamp")]
    rate = float(np.round(1.0 / np.median(steps))) if steps else 0.0
    traces = []
    for entry in described:
        try:
            log, trajectory, motor = str(entry["log"]), str(entry["trajectory"]), str(entry.get("motor", "xl330"))
            mass, length, kp = (float(entry[key]) for key in ("mass", "length", "kp"))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            needed = "log, trajectory, mass, length, kp are needed"
            raise InputError(f"{path.with_suffix('.json')}: {needed} ({error})") from error
        if f"{log}/timestamp" not in arrays:
            continue
        time = _of(path, arrays, log, "timestamp")
        found = {key: _of(path, arrays, log, key).astype(np.float64) for key in PENDULUM}
        stop = int(np.flatnonzero(found["load"]).max(initial=0)) + 1
        where = f"{path}: {log}"
        even = {key: on_grid(time[:stop], found[key][:stop, None], rate, where)[:, 0] for key in PENDULUM[:4]}
        position, _, acceleration = smoothed(even["position"], rate)
        columns = {
            "position_error": even["goal_position"] - even["position"],
            "velocity": causal_velocity(even["position"], rate),
            "torque": mass * length**2 * acceleration + mass * GRAVITY * length * np.sin(position),
            "position": even["position"],
            "voltage": even["input_volts"],
            "temperature": even["temp"],
        }
        name = f"{log}_{trajectory}_kp{kp:g}"
        gains = {"kp": kp * XL330_DUTY_PER_RAD, "kd": 0.0, "limit": 1.0}
        known = {"inertia": mass * length**2, "gravity": mass * GRAVITY * length}
        traces.append(_trace(name, motor, columns, **gains, **known))
    return ActuatorLog(rate, tuple(traces), "Apache-2.0", "Rhoban/bam")


IMPORTERS: dict[str, Callable[[Path], ActuatorLog]] = {"hwangbo": hwangbo, "sage": sage, "bam": bam}


def smoothed(position: NDArray[np.float64], rate_hz: float) -> tuple[NDArray[np.float64], ...]:
    """Angles (T,), velocities and accelerations of cubics fitted over `SMOOTHED_S` around every moment."""
    from scipy.signal import savgol_filter

    window = min(2 * _half(rate_hz) + 1, (len(position) - 1) // 2 * 2 + 1)
    if window < 5:
        raise InputError(f"{len(position)} moments are too few to tell accelerations")
    return tuple(savgol_filter(position, window, 3, deriv=n, delta=1.0 / rate_hz) for n in range(3))


def causal_velocity(position: NDArray[np.float64], rate_hz: float) -> NDArray[np.float64]:
    """Of angles (T,), their rise over the `SMOOTHED_S` before every moment, as a robot could measure it; over what
    there is at first, and 0 at the first moment. It is late by half of that."""
    at = np.arange(len(position))
    steps = np.minimum(at, 2 * _half(rate_hz))
    rise: NDArray[np.float64] = (position - position[at - steps]) * rate_hz / np.maximum(steps, 1)
    return rise


def _half(rate_hz: float) -> int:
    """Samples in half of `SMOOTHED_S`."""
    return round(SMOOTHED_S * rate_hz / 2)


def _trace(recording: str, actuator: str, columns: dict[str, NDArray[np.float64]], **constants: float) -> Trace:
    values = {key: column.astype(np.float32) for key, column in columns.items()}
    error, velocity, torque = (values.pop(key) for key in ("position_error", "velocity", "torque"))
    return Trace(recording, actuator, error, velocity, torque, others=values, **constants)


def _with(path: Path, *names: str) -> dict[str, Any]:
    """The arrays of a file that must hold these. Raises InputError."""
    arrays = read_arrays(path)
    if missing := [name for name in names if name not in arrays]:
        raise InputError(f"{path} has no {', no '.join(missing)}; is it another set?")
    return arrays


def _of(path: Path, arrays: dict[str, Any], recording: str, name: str) -> NDArray[Any]:
    if f"{recording}/{name}" not in arrays:
        raise InputError(f"{path} has no {recording}/{name}")
    values: NDArray[Any] = arrays[f"{recording}/{name}"]
    return values
