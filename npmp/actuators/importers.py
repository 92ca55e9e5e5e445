"""Readers of public actuator recordings; each documents its assumptions."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mocap_data.errors import InputError
from mocap_data.input_files import read_json
from mocap_data.npz import load_npz, names_in_npz
from npmp.actuators.actuator_log import (
    MIN_SAMPLES,
    REQUIRED,
    ActuatorLog,
    Floats,
    Trace,
    check_rate,
    resample,
)

# stall torque at 12 V; larger currents in the log do not correspond to torques
STS3215_STALL_NM = 2.94
# the log's torques are multiples of one count of the servo's current register
STS3215_NM_PER_COUNT = 0.022814
STS3215_A_PER_COUNT = 0.0065
# the joint whose positions and commands are shares of its range, in steps of 1 / 1523
# Those of other joints are encoder counts, 4096 a turn. Its velocities are in rad/s.
SO101_JAW = "Jaw"
# range of the jaw [rad]
SO101_JAW_RAD = 2.0 * math.pi * 1523 / 4096
GRAVITY = 9.81
# share of the full load per rad and unit of kp: counts per rad, divisor of kp, full load
XL330_DUTY_PER_RAD = 4096 / (2.0 * math.pi) / 256.0 / 885.0
# rate of the network in its published use
ANYDRIVE_HZ = 200.0
# inertia of a swinging shank and of a loaded leg [kg m^2] [D]
ANYDRIVE_INERTIA = (0.03, 1.0)
ANYDRIVE_JOINTS = 16
PENDULUM = ("position", "goal_position", "input_volts", "temp", "load")
# window of the fit of a pendulum's acceleration; encoders resolve 0.09 degrees [s]
SMOOTHED_S = 0.08


def hwangbo(path: Path) -> ActuatorLog:
    """The knee of an ANYmal (Hwangbo et al. 2019): position_error, velocity, torque of the series
    spring."""
    arrays = _arrays(path, "rate_hz", *REQUIRED)
    (rate_hz,) = _measured(path, {"rate_hz": np.ravel(arrays["rate_hz"])}, "rate_hz", (1,))
    trace = Trace.of("motion", "LH_KFE", {k: _measured(path, arrays, k, (None,)) for k in REQUIRED})
    return ActuatorLog(rate_hz, (trace,), "none stated", "Hwangbo et al. 2019")


def sage(path: Path) -> ActuatorLog:
    """A SO-101 arm of Feetech STS3215 servos (isaac-sim2real/sage): NAME/{command, position,
    velocity, torque}.

    A command was sent after the servos were read, so the error is relative to the command before.

    The log's torque is the current's magnitude times a constant. Such a servo drives towards its
    command, so the torque gets the error's sign, and is cut at the stall torque. The current is the
    servo's register with the same sign, not cut; at rest it grows as the square of the error, so it
    is the supply's, not the motor's. The jaw's shares of its range become rad.
    """
    arrays = _arrays(path, "joints")
    joints = [str(name) for name in np.ravel(arrays["joints"])]
    names = sorted({key.rpartition("/")[0] for key in arrays} - {""})
    times = [_measured(path, arrays, f"{name}/time_s", (None,)) for name in names]
    rate = _rate(path, times)
    radians = np.where(np.array(joints) == SO101_JAW, SO101_JAW_RAD, 1.0)
    traces = []
    for name, time in zip(names, times):
        sent = _measured(path, arrays, f"{name}/command_time_s", (None,))
        command = radians * _measured(path, arrays, f"{name}/command", (len(sent), len(joints)))
        before = np.clip(np.searchsorted(sent, time) - 1, 0, len(sent) - 1)
        measured = {
            key: _measured(path, arrays, f"{name}/{key}", (len(time), len(joints)))
            for key in ("position", "velocity", "torque")
        }
        position = radians * measured["position"]
        error = command[before] - position
        magnitude = np.abs(measured["torque"])
        columns = {
            "position_error": error,
            "velocity": measured["velocity"],
            "torque": np.minimum(magnitude, STS3215_STALL_NM) * np.sign(error),
            "position": position,
            "current": magnitude / STS3215_NM_PER_COUNT * STS3215_A_PER_COUNT * np.sign(error),
        }
        where = f"{path}: {name}"
        even = {key: resample(time, values, rate, where) for key, values in columns.items()}
        for i, joint in enumerate(joints):
            of_joint = {key: values[:, i] for key, values in even.items()}
            traces.append(Trace.of(name, joint, of_joint))
    return ActuatorLog(rate, tuple(traces), "Apache-2.0", "isaac-sim2real/sage")


def bam(path: Path) -> ActuatorLog:
    """A Dynamixel XL330 that swings a pendulum (Rhoban/bam), described by a .json beside the .npz.

    The torque follows from the pendulum's motion: m l^2 a + m g l sin(q), a mass on a light arm
    that hangs at q = 0, with the acceleration a of `smoothed`. The velocity is `causal_velocity`:
    a smoothed one would contain the acceleration of later samples.

    `load` is the share of the supply on the motor. A recording ends where it stays 0, as the motor
    is switched off.
    """
    arrays = _arrays(path)
    described = read_json(path.with_suffix(".json"))
    if not isinstance(described, list):
        raise InputError(f"{path.with_suffix('.json')}: expected a list with an entry per log")
    stamps = [key for key in arrays if key.endswith("/timestamp")]
    rate = _rate(path, [_measured(path, arrays, key, (None,)) for key in stamps])
    traces = []
    for entry in described:
        try:
            log = str(entry["log"])
            trajectory = str(entry["trajectory"])
            motor = str(entry.get("motor", "xl330"))
            mass, length, kp = (float(entry[key]) for key in ("mass", "length", "kp"))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path.with_suffix('.json')}: expected log, trajectory, mass, length, kp ({error})"
            ) from error
        if f"{log}/timestamp" not in arrays:
            continue
        time = _measured(path, arrays, f"{log}/timestamp", (None,))
        measured = {key: _measured(path, arrays, f"{log}/{key}", time.shape) for key in PENDULUM}
        stop = int(np.flatnonzero(measured["load"]).max(initial=0)) + 1
        where = f"{path}: {log}"
        even = {
            key: resample(time[:stop], measured[key][:stop, None], rate, where)[:, 0]
            for key in PENDULUM[:4]
        }
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
        constants = {"inertia": mass * length**2, "gravity": mass * GRAVITY * length}
        traces.append(Trace.of(name, motor, columns, **gains, **constants))
    return ActuatorLog(rate, tuple(traces), "Apache-2.0", "Rhoban/bam")


def anydrive(path: Path) -> ActuatorLog:
    """A log simulated with a published network of ETH's ANYdrive 3 (leggedrobotics/legged_gym).

    The network, an LSTM learned from a recording, runs at 200 Hz. It moves joints with the inertias
    of legs for 30 s each, under random loads. Targets are random, at the frequencies of a gait, and
    jump once per second.
    """
    network = anydrive_network(path)
    rng = np.random.default_rng(0)
    inertia = np.geomspace(*ANYDRIVE_INERTIA, ANYDRIVE_JOINTS)
    steps = round(30 * ANYDRIVE_HZ)
    count = len(inertia)
    target = _wandering(rng, steps, count, (0.5, 8.0)) * 0.35
    target += 0.3 * np.repeat(rng.uniform(-1.0, 1.0, (30, count)), round(ANYDRIVE_HZ), 0)
    load = _wandering(rng, steps, count, (0.2, 20.0)) * rng.uniform(0.0, 15.0, count)
    position = target[0].copy()
    velocity = np.zeros(count)
    rows = []
    for goal, pull in zip(target, load):
        error = goal - position
        torque = network(error, velocity)
        rows.append((error, velocity, torque, position))
        velocity = velocity + (torque + pull) / inertia / ANYDRIVE_HZ
        position = position + velocity / ANYDRIVE_HZ
    names = ("position_error", "velocity", "torque", "position")
    traces = tuple(
        Trace.of(f"inertia_{heavy:.3f}", "anydrive", dict(zip(names, columns)))
        for heavy, columns in zip(inertia, np.array(rows).transpose(2, 1, 0))
    )
    source = "a network of leggedrobotics/legged_gym"
    return ActuatorLog(ANYDRIVE_HZ, traces, "BSD-3-Clause", source)


def anydrive_network(path: Path) -> Callable[[Floats, Floats], Floats]:
    """The network with its memory: position errors (n,) [rad] and velocities [rad/s] of a sample ->
    torques (n,) [Nm].

    Raises:
      InputError: for a file that holds another network.
    """
    required = ("in_scale", "out_scale", "linear.weight", "linear.bias", "lstm.weight_hh_l0")
    arrays = _arrays(path, *required)
    layers = sum(key.startswith("lstm.weight_hh_l") for key in arrays)
    try:
        keys = [k for k in arrays if k.startswith(("lstm.", "linear.")) or k == "in_scale"]
        weights = {key: arrays[key].astype(np.float32, casting="same_kind") for key in keys}
        lstm = torch.nn.LSTM(2, arrays["lstm.weight_hh_l0"].shape[1], layers)
        linear = torch.nn.Linear(lstm.hidden_size, 1)
        in_scale = torch.tensor(weights.pop("in_scale")).reshape(2)
        net = torch.nn.ModuleDict({"lstm": lstm, "linear": linear})
        net.load_state_dict({key: torch.tensor(values) for key, values in weights.items()})
        out_scale = float(np.asarray(arrays["out_scale"]).item())
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{path}: expected the network of an ANYdrive: {error}") from error
    memory: tuple[torch.Tensor, torch.Tensor] | None = None

    @torch.no_grad()
    def step(error: Floats, velocity: Floats) -> Floats:
        nonlocal memory
        inputs = torch.tensor(np.stack((error, velocity), -1), dtype=torch.float32)
        hidden, memory = lstm((inputs * in_scale).unsqueeze(0), memory)
        return out_scale * linear(hidden)[0, :, 0].double().numpy()

    return step


def _wandering(
    rng: np.random.Generator, steps: int, count: int, band_hz: tuple[float, float]
) -> Floats:
    """Random signals (steps, count) of standard deviation 1: sums of ten sines between two
    frequencies, slower ones larger."""
    low, high = np.log(band_hz)
    hz = np.exp(rng.uniform(low, high, (10, count)))
    phase = 2.0 * math.pi * rng.uniform(size=(10, count))
    weight = hz**-0.5
    time = np.arange(steps)[:, None, None] / ANYDRIVE_HZ
    total: Floats = (weight * np.sin(2.0 * math.pi * hz * time + phase)).sum(1)
    return total / np.sqrt(0.5 * (weight**2).sum(0))


IMPORTERS = {reader.__name__: reader for reader in (hwangbo, sage, bam, anydrive)}


def smoothed(position: Floats, rate_hz: float) -> tuple[Floats, ...]:
    """Angles (T,), velocities and accelerations of cubics fitted over `SMOOTHED_S` around every
    sample."""
    from scipy.signal import savgol_filter

    window = min(_steps(rate_hz) + 1, (len(position) - 1) // 2 * 2 + 1)
    if window < 5:
        raise InputError(f"{len(position)} samples, expected at least 9 for accelerations")
    return tuple(savgol_filter(position, window, 3, deriv=n, delta=1.0 / rate_hz) for n in range(3))


def causal_velocity(position: Floats, rate_hz: float) -> Floats:
    """Causal velocities (T,): differences of angles (T,) over at most `SMOOTHED_S` before every
    sample, with a lag of half of it."""
    at = np.arange(len(position))
    steps = np.minimum(at, _steps(rate_hz))
    return (position - position[at - steps]) * rate_hz / np.maximum(steps, 1)


def _steps(rate_hz: float) -> int:
    """Periods in `SMOOTHED_S`, an even number."""
    return 2 * round(SMOOTHED_S * rate_hz / 2)


def _rate(path: Path, times: list[Floats]) -> float:
    """The rate [Hz], a whole number, of recordings with these times [s]."""
    step = float(np.median([np.median(np.diff(time)) for time in times])) if times else 0.0
    if not step > 0.0:
        raise InputError(f"{path}: its times must rise")
    return check_rate(float(np.round(1.0 / step)), str(path))


def _arrays(path: Path, *names: str) -> dict[str, Any]:
    """The arrays of a file that must hold these. Raises InputError where one is missing."""
    arrays = load_npz(path, names_in_npz(path))
    if missing := [name for name in names if name not in arrays]:
        raise InputError(f"{path} lacks {', '.join(missing)}; is it another recording?")
    return arrays


def _measured(
    path: Path, arrays: dict[str, Any], name: str, shape: tuple[int | None, ...]
) -> Floats:
    """An array of finite numbers of a shape; None stands for any length.

    Raises:
      InputError: for a missing array, or one of another shape or type.
    """
    if name not in arrays:
        raise InputError(f"{path} lacks {name}")
    values = np.asarray(arrays[name])
    valid = len(values.shape) == len(shape) and all(
        size >= MIN_SAMPLES if length is None else size == length
        for size, length in zip(values.shape, shape, strict=True)
    )
    if values.dtype.kind not in "fiu" or not valid or not np.isfinite(values).all():
        expected = ", ".join("T" if length is None else str(length) for length in shape)
        raise InputError(
            f"{path}: {name} is {values.dtype} {list(values.shape)}, expected finite numbers "
            f"({expected}), T at least {MIN_SAMPLES}"
        )
    return values.astype(np.float64)
