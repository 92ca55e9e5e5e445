"""Errors of a model's torques and currents on a log: one step ahead, and free-running."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npmp.actuators.actuator_log import ActuatorLog, Float32s, Floats, Trace
from npmp.actuators.models import MLP, ActuatorModel, Memory, inputs_of
from npmp.actuators.pendulum import Pendulums

# [s] times of a rollout at which its error is reported
HORIZONS_S = (0.1, 0.25, 0.5, 1.0, 2.0)
# [s] before a horizon over which its error is averaged
AVERAGED_S = 0.05
# rollouts per trace, evenly spaced
STARTS = 20
# kind of prediction -> prefix of its figures
PREFIXES = {"one_step": "", "rollout": "rollout_", "baseline": "baseline_"}


@dataclass(frozen=True)
class Prediction:
    """Torques of one trace, (T,) [Nm]."""

    trace: Trace
    # from the measured past torques
    one_step: Float32s
    # from the model's own past torques
    rollout: Float32s
    # errors of the best constant gains
    baseline: Float32s
    # currents (T,) [A] by the same three names; empty if model or log has none
    currents: Mapping[str, Float32s] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """A model's figures and predictions on a log."""

    figures: dict[str, Any]
    predictions: list[Prediction]


@torch.no_grad()
def evaluate(model: ActuatorModel, log: ActuatorLog) -> Evaluation:
    """Compare a model's torques and currents with a log's.

    A vae's latent is the mean of a fitted actuator, 0 for others. If the log has pendulums, the
    torque that accelerates a model's rotor is subtracted, as in a simulator.

    Raises:
      InputError: for a log at another rate, or without an input of the model.
    """
    model.check_rate(log.rate_hz)
    predictions = _predictions(model, list(log.traces))
    figures: dict[str, Any] = _figures(predictions)
    figures |= {
        "rollout_rmse_nm_after_s": _rmse_by_horizon(model, log),
        "kind": model.contract.kind,
        "rate_hz": log.rate_hz,
        "seconds": round(log.seconds, 3),
    }
    if log.has_pendulums:
        figures["position_mae_rad"] = float(position_errors(model, log).mean())
    for key, names in (("actuator", log.actuators), ("recording", log.recordings)):
        figures[f"{key}s"] = {
            name: _figures([p for p in predictions if getattr(p.trace, key) == name])
            for name in names
        }
    return Evaluation(figures, predictions)


@torch.no_grad()
def position_errors(model: ActuatorModel, log: ActuatorLog) -> Floats:
    """Mean absolute position errors (N,) [rad] of the log's N pendulums, simulated from the
    commands."""
    pendulums = Pendulums(log)
    contract = model.contract
    # voltage and temperature stay at their means
    others = torch.tensor(contract.input_mean[2:])
    memory: Memory | None = None

    def accelerate(t: int, q: Floats, v: Floats) -> Floats:
        nonlocal memory
        effort = pendulums.effort(t, q, v, contract)
        moving = torch.from_numpy(np.stack((effort, v), -1)).float()
        inputs = torch.cat((moving, others.expand(len(moving), -1)), -1)
        if memory is None:
            first = torch.from_numpy(pendulums.torque).float()
            memory = _begin(model, list(log.traces), inputs, first)
        torque, memory = model.step(inputs, memory)
        return pendulums.acceleration(torque.double().numpy(), q, model.armature)

    return np.abs(pendulums.errors(accelerate)).sum(0) / pendulums.valid.sum(0)


def _predictions(model: ActuatorModel, traces: list[Trace]) -> list[Prediction]:
    inputs, torque = _padded(model, traces)
    memory = _begin(model, traces, inputs[0], torque[0])
    one_step = rollout = _run(model, inputs, memory)
    if model.recursive:
        one_step = _run(model, inputs, memory, torque)
    else:
        rollout[..., 0] = _without_rotor(model, traces, rollout[..., 0])

    def of_trace(i: int, output: int, gains: list[float]) -> dict[str, Float32s]:
        samples = len(traces[i])
        return {
            "one_step": one_step[:samples, i, output].numpy(),
            "rollout": rollout[:samples, i, output].numpy(),
            "baseline": _constant_gains(gains, traces[i]),
        }

    predictions = []
    for i, trace in enumerate(traces):
        currents = {}
        if model.contract.current_baseline and "current" in trace.others:
            currents = of_trace(i, 1, model.contract.current_baseline)
        torques = of_trace(i, 0, model.contract.baseline)
        predictions.append(Prediction(trace, **torques, currents=currents))
    return predictions


def _padded(model: ActuatorModel, traces: list[Trace]) -> tuple[Tensor, Tensor]:
    """Inputs (T, N, C) and torques (T, N), the last sample of shorter traces repeated."""
    longest = np.arange(max(map(len, traces)))
    at = [np.minimum(longest, len(trace) - 1) for trace in traces]
    pairs = zip(traces, at, strict=True)
    both = [(inputs_of(trace, model.contract)[i], trace.torque[i]) for trace, i in pairs]
    inputs, torques = (torch.from_numpy(np.stack(column, 1)) for column in zip(*both, strict=True))
    return inputs, torques


def _without_rotor(model: ActuatorModel, traces: list[Trace], torque: Tensor) -> Tensor:
    """Torques (T, N) [Nm] without those that accelerate the rotor, if the traces have pendulums."""
    if not model.armature or not all(math.isfinite(trace.inertia) for trace in traces):
        return torque
    of_load = torque.clone()
    for i, trace in enumerate(traces):
        load = torch.from_numpy(trace.gravity * np.sin(trace.others["position"]))
        share = trace.inertia / (trace.inertia + model.armature)
        of_load[: len(load), i] = load + share * (torque[: len(load), i] - load)
    return of_load


def _begin(model: ActuatorModel, traces: list[Trace], inputs: Tensor, torque: Tensor) -> Memory:
    """The memory at the first sample; for a vae with the latents of fitted actuators."""
    memory = model.begin(inputs, torque)
    if isinstance(model, MLP) and model.codes is not None:
        actuators = model.contract.actuators
        for i, trace in enumerate(traces):
            if trace.actuator in actuators:
                memory.latent[i] = model.codes[actuators.index(trace.actuator), 0]
    return memory


def _constant_gains(gains: list[float], trace: Trace) -> Float32s:
    """The prediction (T,) of constant gains a, b, c."""
    a, b, c = gains
    return (a * trace.position_error - b * trace.velocity + c).astype(np.float32)


def _run(
    model: ActuatorModel, inputs: Tensor, memory: Memory, torque: Tensor | None = None
) -> Tensor:
    """Predictions (T, N, 1 or 2) [Nm, A] of inputs (T, N, C), free-running, or from measured past
    torques (T, N)."""
    predicted = []
    scale = model.contract.torque_scale
    for t, sample in enumerate(inputs):
        value, current, memory = model.step_with_current(sample, memory)
        if torque is not None:
            measured = torque[t].unsqueeze(-1) / scale
            memory = memory._replace(kept=torch.cat((memory.kept[:, :-1], measured), 1))
        predicted.append(torch.stack((value,) if current is None else (value, current), -1))
    return torch.stack(predicted)


def _figures(predictions: list[Prediction]) -> dict[str, float]:
    """RMS errors and standard deviations over all samples."""
    torques: list[tuple[Mapping[str, Any], Float32s]]
    torques = [(vars(p), p.trace.torque) for p in predictions]
    kinds = [("rmse_nm", "torque_std_nm", torques)]
    if all(p.currents for p in predictions):
        currents = [(p.currents, p.trace.others["current"]) for p in predictions]
        kinds.append(("current_rmse_a", "current_std_a", [*currents]))
    figures = {}
    for name, spread, pairs in kinds:
        measured = np.concatenate([values for _, values in pairs]).astype(np.float64)
        for kind, prefix in PREFIXES.items():
            error = np.concatenate([predicted[kind] for predicted, _ in pairs]) - measured
            figures[prefix + name] = float(np.sqrt(np.mean(np.square(error))))
        figures[spread] = float(measured.std())
    return figures


def _rmse_by_horizon(model: ActuatorModel, log: ActuatorLog) -> dict[str, float]:
    """RMS errors [Nm] at the `HORIZONS_S` up to half of the longest trace, over rollouts from
    evenly spaced starts."""
    longest = max(len(trace) for trace in log.traces) / log.rate_hz
    horizons = [seconds for seconds in HORIZONS_S if seconds <= 0.5 * longest]
    if not horizons:
        return {}
    most = round(horizons[-1] * log.rate_hz)
    averaged = max(1, round(AVERAGED_S * log.rate_hz))
    parts = [
        trace.part(first, first + most)
        for trace in log.traces
        if len(trace) >= most
        for first in np.unique(np.linspace(0, len(trace) - most, STARTS).astype(int))
    ]
    inputs, torque = _padded(model, parts)
    predicted, _ = model.rollout(inputs, _begin(model, parts, inputs[0], torque[0]))
    error = (_without_rotor(model, parts, predicted) - torque).square()
    ends = {seconds: max(1, round(seconds * log.rate_hz)) for seconds in horizons}
    return {
        f"{seconds:g}": float(error[max(0, at - averaged) : at].mean().sqrt())
        for seconds, at in ends.items()
    }
