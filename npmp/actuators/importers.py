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
GRAVITY = 9.81
SMOOTHED_S = 0.08  # over which a pendulum's acceleration is fitted: encoders count in steps of 0.09 degrees


def hwangbo(path: Path) -> ActuatorLog:
    """The knee of an ANYmal (Hwangbo et al. 2019): position_error, velocity, torque of the series spring, 400 Hz."""
    arrays = _with(path, "rate_hz", "position_error", "velocity", "torque")
    found = {name: arrays[name].astype(np.float32) for name in ("position_error", "velocity", "torque")}
    return ActuatorLog(float(arrays["rate_hz"]), (Trace("motion", "LH_KFE", **found),), "none stated", "Hwangbo et al. 2019")


def sage(path: Path) -> ActuatorLog:
    """A SO-101 arm of Feetech STS3215 servos (isaac-sim2real/sage): NAME/{command, position, velocity, torque}.

    Its torque is the current's magnitude times a constant, never below zero. A servo of this kind drives towards its
    command, so it is given the sign of the position error; what exceeds the servo's stall torque is cut there. A command
    holds until the next.
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
        torque = np.minimum(np.abs(measured["torque"]), STS3215_STALL_NM) * np.sign(error)
        columns = {"position_error": error, "velocity": measured["velocity"], "torque": torque}
        columns["position"] = measured["position"]
        even = {key: on_grid(time, values.astype(np.float64), rate, f"{path}: {name}") for key, values in columns.items()}
        traces += [_trace(name, joint, {key: values[:, i] for key, values in even.items()}) for i, joint in enumerate(joints)]
    return ActuatorLog(rate, tuple(traces), "Apache-2.0", "isaac-sim2real/sage")


def bam(path: Path) -> ActuatorLog:
    """A Dynamixel XL330 that swings a pendulum (Rhoban/bam), with the .json beside the .npz that tells of each.

    The servo measures no torque. What it put on the pendulum follows from how the pendulum moved: m l^2 a + m g l sin(q),
    a mass on a light arm that hangs at q = 0, its acceleration a from a cubic fitted over 80 ms. kp is the
    firmware's, in its own unit.
    """
    arrays = _with(path)
    described = read_json(path.with_suffix(".json"))
    if not isinstance(described, list):
        raise InputError(f"{path.with_suffix('.json')}: a list with an entry per log is expected")
    traces = []
    rate = 0.0
    for entry in described:
        try:
            log, trajectory = str(entry["log"]), str(entry["trajectory"])
            mass, length, kp = (float(entry[key]) for key in ("mass", "length", "kp"))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path.with_suffix('.json')}: log, trajectory, mass, length, kp are needed ({error})") from error
        if f"{log}/timestamp" not in arrays:
            continue
        time = _of(path, arrays, log, "timestamp")
        rate = rate or float(np.round(1.0 / np.median(np.diff(time)) / 10.0) * 10.0)
        where = f"{path}: {log}"
        keys = ("position", "goal_position", "input_volts", "temp")
        even = {key: on_grid(time, _of(path, arrays, log, key).astype(np.float64)[:, None], rate, where)[:, 0] for key in keys}
        position, velocity, acceleration = smoothed(even["position"], rate)
        torque = mass * length**2 * acceleration + mass * GRAVITY * length * np.sin(position)
        columns = {
            "position_error": even["goal_position"] - even["position"],
            "velocity": velocity,
            "torque": torque,
            "position": even["position"],
            "voltage": even["input_volts"],
            "temperature": even["temp"],
        }
        traces.append(_trace(f"{log}_{trajectory}", str(entry.get("motor", "xl330")), columns, kp))
    return ActuatorLog(rate, tuple(traces), "Apache-2.0", "Rhoban/bam")


IMPORTERS: dict[str, Callable[[Path], ActuatorLog]] = {"hwangbo": hwangbo, "sage": sage, "bam": bam}


def smoothed(position: NDArray[np.float64], rate_hz: float) -> tuple[NDArray[np.float64], ...]:
    """Angles (T,), velocities and accelerations of cubics fitted over `SMOOTHED_S` around every moment."""
    from scipy.signal import savgol_filter

    window = min(2 * round(SMOOTHED_S * rate_hz / 2) + 1, (len(position) - 1) // 2 * 2 + 1)
    if window < 5:
        raise InputError(f"{len(position)} moments are too few to tell accelerations")
    return tuple(savgol_filter(position, window, 3, deriv=n, delta=1.0 / rate_hz) for n in range(3))


def _trace(recording: str, actuator: str, columns: dict[str, NDArray[np.float64]], kp: float = math.nan) -> Trace:
    values = {key: column.astype(np.float32) for key, column in columns.items()}
    needed = {key: values.pop(key) for key in ("position_error", "velocity", "torque")}
    return Trace(recording, actuator, **needed, others=values, kp=kp)


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
