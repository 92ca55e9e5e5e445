"""How well a model tells the torques of a log: one step ahead, and on its own output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from npmp.actuators.fitting import inputs_of
from npmp.actuators.log import ActuatorLog, Trace
from npmp.actuators.models import MLP, ActuatorModel, Memory

HORIZONS_S = (0.1, 0.5, 1.0, 2.0)  # of rollouts that begin at measured torques


@dataclass(frozen=True)
class Prediction:
    """Torques of one trace, (T,) [Nm]."""

    trace: Trace
    one_step: NDArray[np.float32]  # given the measured torques before
    rollout: NDArray[np.float32]  # given the model's own, from the trace's first torque on
    baseline: NDArray[np.float32]  # of the best constant gains


@dataclass(frozen=True)
class Evaluation:
    """A model on a log."""

    figures: dict[str, Any]
    predictions: list[Prediction]


@torch.no_grad()
def evaluate(model: ActuatorModel, log: ActuatorLog) -> Evaluation:
    """Judge a model; of a vae, with the mean latent of an actuator that it was fitted to, and of others with 0.

    Raises:
      InputError: for a log at another rate, or without what the model takes.
    """
    model.check_rate(log.rate_hz)
    contract = model.contract
    a, b, c = contract.baseline
    predictions = []
    # traces of one length go together
    for length in sorted({len(trace) for trace in log.traces}):
        traces = [trace for trace in log.traces if len(trace) == length]
        inputs = torch.stack([torch.from_numpy(inputs_of(trace, contract)) for trace in traces], 1)
        torque = torch.stack([torch.from_numpy(trace.torque) for trace in traces], 1)
        memory = _begin(model, traces, inputs[0], torque[0])
        rolled, _ = model.rollout(inputs, memory)
        ahead = _one_step(model, inputs, torque, memory)
        for i, trace in enumerate(traces):
            static = a * inputs[:, i, 0] - b * inputs[:, i, 1] + c
            predictions.append(Prediction(trace, ahead[:, i].numpy(), rolled[:, i].numpy(), static.numpy()))
    order = {id(trace): i for i, trace in enumerate(log.traces)}
    predictions.sort(key=lambda one: order[id(one.trace)])
    figures = _figures(predictions) | {"rollout_rmse_nm_after_s": _over_seconds(model, log)}
    figures |= {"kind": contract.kind, "rate_hz": log.rate_hz, "seconds": round(log.seconds, 3)}
    for what, names in (("actuators", log.actuators), ("recordings", log.recordings)):
        chosen = {name: [p for p in predictions if getattr(p.trace, what[:-1]) == name] for name in names}
        figures[what] = {name: _figures(some) for name, some in chosen.items()}
    return Evaluation(figures, predictions)


def _begin(model: ActuatorModel, traces: list[Trace], inputs: Tensor, torque: Tensor) -> Memory:
    memory = model.begin(inputs, torque)
    if not isinstance(model, MLP) or model.codes is None:
        return memory
    known = model.contract.actuators
    codes = [model.codes[known.index(t.actuator), 0] if t.actuator in known else memory.latent[i] for i, t in enumerate(traces)]
    return memory._replace(latent=torch.stack(codes))


def _one_step(model: ActuatorModel, inputs: Tensor, torque: Tensor, memory: Memory) -> Tensor:
    """Torques (T, N), each given the measured ones before."""
    told, scale = [], model.contract.torque_scale
    for sample, measured in zip(inputs, torque, strict=True):
        value, memory = model.step(sample, memory)
        memory = memory._replace(kept=torch.cat((memory.kept[:, :-1], measured.unsqueeze(-1) / scale), 1))
        told.append(value)
    return torch.stack(told)


def _figures(predictions: list[Prediction]) -> dict[str, float]:
    """Root mean squares over all moments."""
    measured = np.concatenate([p.trace.torque for p in predictions])

    def rmse(name: str) -> float:
        told = np.concatenate([getattr(p, name) for p in predictions])
        return float(np.sqrt(np.mean(np.square(told.astype(np.float64) - measured))))

    return {
        "rmse_nm": rmse("one_step"),
        "rollout_rmse_nm": rmse("rollout"),
        "baseline_rmse_nm": rmse("baseline"),
        "torque_std_nm": float(measured.std()),
    }


def _over_seconds(model: ActuatorModel, log: ActuatorLog) -> dict[str, float]:
    """The error so many seconds after a measured torque, mean over starts all along the log."""
    contract, most = model.contract, round(HORIZONS_S[-1] * log.rate_hz)
    windows = [(t, k) for t in log.traces for k in range(0, len(t) - most, max(most // 2, len(t) // 20))]
    if not windows:
        return {}
    inputs = torch.stack([torch.from_numpy(inputs_of(t, contract)[k : k + most]) for t, k in windows], 1)
    torque = torch.stack([torch.from_numpy(t.torque[k : k + most]) for t, k in windows], 1)
    told, _ = model.rollout(inputs, _begin(model, [t for t, _ in windows], inputs[0], torque[0]))
    error = (told - torque).square()
    found = {}
    for seconds in HORIZONS_S:
        at = round(seconds * log.rate_hz)
        near = error[max(0, at - round(0.05 * log.rate_hz)) : at]
        found[f"{seconds:g}"] = float(near.mean().sqrt())
    return found
