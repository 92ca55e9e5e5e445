"""How well a model predicts the torques and currents of a log: one step ahead, and free-running."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from npmp.actuators.fitting import HUBER, gains_of, inputs_of
from npmp.actuators.log import ActuatorLog, Float32s, Floats, Trace
from npmp.actuators.models import MLP, ActuatorModel, Memory, reference
from npmp.actuators.pendulum import Pendulums

HORIZONS_S = (0.1, 0.25, 0.5, 1.0, 2.0)  # of rollouts that begin at measured torques
NEAR_S = 0.05  # of a rollout's end that count as its error then
STARTS = 20  # rollouts from a trace, evenly apart
DRAWS = 64  # latents of N(0, I) that an actuator's log is held against
MOMENTS = 100_000  # at which the latents of known actuators are tried
MOMENTS_OF_DRAWS = 20_000  # and the draws: they are many
# of telling, and how their figures begin
WAYS = {"one_step": "", "rollout": "rollout_", "baseline": "baseline_"}


@dataclass(frozen=True)
class Prediction:
    """Torques of one trace, (T,) [Nm]."""

    trace: Trace
    one_step: Float32s  # given the measured torques before
    rollout: Float32s  # given the model's own, from the trace's first torque on
    baseline: Float32s  # of the best constant gains
    # (T,) [A] by the same three names; none where model or log tells no current
    currents: Mapping[str, Float32s] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """A model on a log."""

    figures: dict[str, Any]
    predictions: list[Prediction]


@torch.no_grad()
def evaluate(model: ActuatorModel, log: ActuatorLog) -> Evaluation:
    """Judge a model; of a vae, with the mean latent of an actuator that it was fitted to, and of
    others with 0.

    Where the log tells its pendulums, a model that knows its rotor is judged by the torque that
    reaches them: of what it drives with, the share that accelerates the rotor is theirs to tell, as
    in a simulator.

    Raises:
      InputError: for a log at another rate, or without what the model takes.
    """
    model.check_rate(log.rate_hz)
    contract = model.contract
    one_step, rollout, moments = _predict(model, [(trace, 0, len(trace)) for trace in log.traces])
    predictions = []
    for i, (trace, count) in enumerate(zip(log.traces, moments, strict=True)):
        told = one_step[:count, i].numpy(), rollout[:count, i].numpy()
        torques, currents = (
            dict(zip(WAYS, (*(values[:, k] for values in told), _static(law, trace)), strict=True))
            if law
            else {}
            for k, law in enumerate((contract.baseline, contract.current_baseline))
        )
        predictions.append(
            Prediction(trace, **torques, currents=currents if "current" in trace.others else {})
        )
    figures: dict[str, Any] = _figures(predictions)
    figures |= {"rollout_rmse_nm_after_s": _over_seconds(model, log), "kind": contract.kind}
    if log.has_pendulums:
        figures["position_mae_rad"] = float(position_errors(model, log).mean())
    figures |= {"rate_hz": log.rate_hz, "seconds": round(log.seconds, 3)}
    if isinstance(model, MLP) and model.codes is not None:
        figures["latents"] = _latents(model, log)
    for what, names in (("actuators", log.actuators), ("recordings", log.recordings)):
        chosen = {
            name: [p for p in predictions if getattr(p.trace, what[:-1]) == name] for name in names
        }
        figures[what] = {name: _figures(some) for name, some in chosen.items()}
    return Evaluation(figures, predictions)


@torch.no_grad()
def position_errors(
    model: ActuatorModel, log: ActuatorLog, told: Callable[[Floats, Floats], Floats] | None = None
) -> Floats:
    """Of every recording (N,) [rad], by how much the position is off in the mean that a simulated
    pendulum, the log's, reaches from the commands alone.

    told(position, velocity): the velocities (N,) [rad/s] that the model is told, where these are
    not the simulated
      ones; called once a sample.
    """
    pendulums, contract = Pendulums(log), model.contract
    # voltage and the like stay as they were in the mean
    others = torch.tensor(contract.input_mean[2:])
    kp, kd, limit = np.array([gains_of(trace) for trace in log.traces]).T
    memory: Memory | None = None

    def accelerate(t: int, q: Floats, v: Floats) -> Floats:
        nonlocal memory
        effort, measured = pendulums.command[t] - q, v if told is None else told(q, v)
        if contract.gains:
            effort = reference(effort, measured, kp, kd, limit, pendulums.feedforward[t])
        moving = torch.from_numpy(np.stack((effort, measured), -1)).float()
        inputs = torch.cat((moving, others.expand(len(moving), -1)), -1)
        if memory is None:
            memory = _begin(
                model, list(log.traces), inputs, torch.from_numpy(pendulums.torque).float()
            )
        torque, memory = model.step(inputs, memory)
        driven = torque.double().numpy() - pendulums.gravity * np.sin(q)
        accelerations: Floats = driven / (pendulums.inertia + model.armature)
        return accelerations

    errors: Floats = np.abs(pendulums.off(accelerate)).sum(0) / pendulums.there.sum(0)
    return errors


Part = tuple[Trace, int, int]  # of a trace, from a moment to before another


def _predict(model: ActuatorModel, parts: list[Part]) -> tuple[Tensor, Tensor, list[int]]:
    """Torques, and currents where the model tells them, (T, N, 1 or 2) [Nm, A] of N parts of traces
    one step ahead and on the model's own, T those of the longest, and how many moments count of
    each."""
    inputs, torque, counts = _side_by_side(model, parts)
    memory = _begin(model, [trace for trace, _, _ in parts], inputs[0], torque[0])
    rolled = _told(model, inputs, memory)
    if model.recursive:
        return _told(model, inputs, memory, torque), rolled, counts
    rolled[..., 0] = _past_the_rotor(model, parts, rolled[..., 0])
    return rolled, rolled, counts


def _side_by_side(model: ActuatorModel, parts: list[Part]) -> tuple[Tensor, Tensor, list[int]]:
    """Inputs (T, N, C), torques (T, N) and lengths; shorter parts go on as they ended."""
    inputs = [
        torch.from_numpy(inputs_of(trace.part(first, last), model.contract))
        for trace, first, last in parts
    ]
    torque = [torch.from_numpy(trace.torque[first:last]) for trace, first, last in parts]
    counts = [len(values) for values in torque]
    clamped = [torch.arange(max(counts)).clamp(max=count - 1) for count in counts]
    wide = torch.stack([values[at] for values, at in zip(inputs, clamped, strict=True)], 1)
    return (
        wide,
        torch.stack([values[at] for values, at in zip(torque, clamped, strict=True)], 1),
        counts,
    )


def _past_the_rotor(model: ActuatorModel, parts: list[Part], torque: Tensor) -> Tensor:
    """Torques (T, N) [Nm] of a model without those that accelerate its rotor, where parts tell the
    pendulum that it turns."""
    if not model.armature or not all(math.isfinite(trace.inertia) for trace, _, _ in parts):
        return torque
    passed = torque.clone()
    for i, (trace, first, last) in enumerate(parts):
        load = torch.from_numpy(trace.gravity * np.sin(trace.others["position"][first:last]))
        share = trace.inertia / (trace.inertia + model.armature)
        passed[: len(load), i] = load + share * (torque[: len(load), i] - load)
    return passed


def _begin(model: ActuatorModel, traces: list[Trace], inputs: Tensor, torque: Tensor) -> Memory:
    memory = model.begin(inputs, torque)
    if not isinstance(model, MLP) or model.codes is None:
        return memory
    known = model.contract.actuators
    codes = [
        model.codes[known.index(trace.actuator), 0] if trace.actuator in known else memory.latent[i]
        for i, trace in enumerate(traces)
    ]
    return memory._replace(latent=torch.stack(codes))


def _static(law: list[float], trace: Trace) -> Float32s:
    """What constant gains tell (T,)."""
    a, b, c = law
    return (a * trace.position_error - b * trace.velocity + c).astype(np.float32)


def _told(
    model: ActuatorModel, inputs: Tensor, memory: Memory, torque: Tensor | None = None
) -> Tensor:
    """What a model tells of samples, (T, N, 1 or 2) [Nm, A], each given its own torques before, or
    measured ones (T, N)."""
    told, scale = [], model.contract.torque_scale
    for t, sample in enumerate(inputs):
        value, current, memory = model.step_with_current(sample, memory)
        if torque is not None:
            memory = memory._replace(
                kept=torch.cat((memory.kept[:, :-1], torque[t].unsqueeze(-1) / scale), 1)
            )
        told.append(torch.stack((value,) if current is None else (value, current), -1))
    return torch.stack(told)


def _figures(predictions: list[Prediction]) -> dict[str, float]:
    """Root mean squares over all moments."""
    torques = [
        {way: getattr(p, way) for way in WAYS} | {"measured": p.trace.torque} for p in predictions
    ]
    found = _rmse(torques, "rmse_nm", "torque_std_nm")
    if all(p.currents for p in predictions):
        currents = [{**p.currents, "measured": p.trace.others["current"]} for p in predictions]
        found |= _rmse(currents, "current_rmse_a", "current_std_a")
    return found


def _rmse(told: list[dict[str, Float32s]], name: str, spread: str) -> dict[str, float]:
    """Of all traces, what was `measured` and told of it in each of `WAYS`."""
    measured = np.concatenate([one["measured"] for one in told]).astype(np.float64)
    errors = {way: np.concatenate([one[way] for one in told]) - measured for way in WAYS}
    found = {
        f"{WAYS[way]}{name}": float(np.sqrt(np.mean(np.square(error))))
        for way, error in errors.items()
    }
    return found | {spread: float(measured.std())}


def _over_seconds(model: ActuatorModel, log: ActuatorLog) -> dict[str, float]:
    """The error so many seconds after a measured torque, over starts all along the log; of horizons
    that fit into half a trace at least."""
    longest = max(len(trace) for trace in log.traces) / log.rate_hz
    horizons = [seconds for seconds in HORIZONS_S if seconds <= 0.5 * longest]
    if not horizons:
        return {}
    most, near = round(horizons[-1] * log.rate_hz), max(1, round(NEAR_S * log.rate_hz))
    parts = [
        (trace, int(first), int(first) + most)
        for trace in log.traces
        if len(trace) >= most
        for first in np.unique(np.linspace(0, len(trace) - most, STARTS).astype(int))
    ]
    inputs, torque, _ = _side_by_side(model, parts)
    told, _ = model.rollout(
        inputs, _begin(model, [trace for trace, _, _ in parts], inputs[0], torque[0])
    )
    error = (_past_the_rotor(model, parts, told) - torque).square()
    ends = {seconds: max(1, round(seconds * log.rate_hz)) for seconds in horizons}
    return {
        f"{seconds:g}": float(error[max(0, at - near) : at].mean().sqrt())
        for seconds, at in ends.items()
    }


# --- what latents are worth


def _latents(model: MLP, log: ActuatorLog) -> dict[str, Any]:
    """Whether latents tell actuators apart, and whether samples of N(0, I) spread as they do.

    For every trace, and for all traces of an actuator together, the actuator is found whose
    latent's loss is least, the loss of the fit: a few shocks would outweigh all else in squares
    (`told_apart`, `told_apart_by_all_traces`: the share that is the right one). `nats_per_sample`:
    of every actuator's log, the log-likelihood per moment of normal errors around the best of
    `DRAWS` samples of N(0, I), errors as large as the model's were in the fit.
    """
    assert model.codes is not None
    known, actuators = model.contract.actuators, [trace.actuator for trace in log.traces]
    drawn = torch.randn(DRAWS, model.latent_dim, generator=torch.Generator().manual_seed(0))
    scale = model.contract.torque_scale

    def lost(told: Tensor, torque: Tensor) -> Tensor:
        return huber_loss(told / scale, torque / scale, delta=HUBER, reduction="none")

    def squared(told: Tensor, torque: Tensor) -> Tensor:
        return (told - torque).square()  # [Nm^2]

    of_known = _errors(model, log, model.codes[:, 0], MOMENTS, lost)
    of_drawn = _errors(model, log, drawn, MOMENTS_OF_DRAWS, squared)
    own = [(i, known.index(name)) for i, name in enumerate(actuators) if name in known]
    found: dict[str, Any] = {"draws": DRAWS, "nats_per_sample": {}, "rmse_nm_of_the_best_draw": {}}
    if own:
        found["told_apart"] = float(np.mean([int(of_known[:, i].argmin()) == k for i, k in own]))
        found["told_apart_by_chance"] = 1.0 / len(known)
        mine = {
            name: [i for i, other in enumerate(actuators) if other == name]
            for name in known
            if name in actuators
        }
        right = [
            int(of_known[:, at].mean(1).argmin()) == known.index(name) for name, at in mine.items()
        ]
        found["told_apart_by_all_traces"] = float(np.mean(right))
    variance = float(model.contract.training.get("variance", model.contract.torque_scale**2))
    for name in log.actuators:
        its = torch.tensor([actuator == name for actuator in actuators])
        best = float(of_drawn[:, its].mean(1).min())
        found["nats_per_sample"][name] = -0.5 * (
            best / variance + math.log(2.0 * math.pi * variance)
        )
        found["rmse_nm_of_the_best_draw"][name] = math.sqrt(best)
    return found


def _errors(
    model: MLP,
    log: ActuatorLog,
    codes: Tensor,
    moments: int,
    measure: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """A measure of torques told and measured [Nm] with each of K latents, its mean (K, traces) over
    moments of the whole log, spread evenly."""
    longest = max(len(trace) for trace in log.traces)
    number, lags = (
        min(max(16, moments // len(log.traces)), longest),
        np.array(model.contract.net.lags),
    )
    windows, torques = [], []
    for trace in log.traces:
        at = np.linspace(0, len(trace) - 1, number).astype(int)
        windows.append(inputs_of(trace, model.contract)[np.maximum(at[:, None] - lags, 0)])
        torques.append(trace.torque[at])
    seen, torque = (
        model.scaled(torch.from_numpy(np.concatenate(windows))),
        torch.from_numpy(np.stack(torques)),
    )
    errors = []
    for code in codes:
        told = model.answer(seen, code.expand(len(seen), -1)).unflatten(0, torque.shape)
        errors.append(measure(told * model.contract.torque_scale, torque).mean(-1))
    return torch.stack(errors)
