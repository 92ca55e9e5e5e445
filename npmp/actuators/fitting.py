"""Fitting a model of actuators to a log."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.signal import lfilter
from torch import Tensor, nn

from mocap_data.errors import InputError
from npmp import ranges
from npmp.actuators.log import ActuatorLog, Trace
from npmp.actuators.models import (
    MOST_DELAY,
    PD,
    SLIDES,
    MLP,
    WINDOW,
    ActuatorContract,
    ActuatorModel,
    ActuatorNetConfig,
    Memory,
    PDParameters,
    make,
    share,
)
from npmp.nets.init import seeded

HUBER = 0.1  # of the torque's spread: beyond it errors count linearly, as logs hold shocks [D]
LATENT_KL = 1e-3  # weight of a vae's KL to N(0, I), per actuator [D]


@dataclass(frozen=True)
class FitConfig:
    """How a model is fitted. Raises ValueError for values out of range."""

    net: ActuatorNetConfig = field(default_factory=ActuatorNetConfig)
    updates: int = 2000  # gradient steps; of a conv, which unrolls, a fifth
    batch: int = 256  # samples; of a conv, 16 unrolls [robot-NPMP]
    unroll_s: float = 0.25  # of a conv, through time [robot-NPMP: 4 s; D]
    learning_rate: float = 3e-3  # falling to 0 as a cosine [robot-NPMP: 1e-3; D]
    weight_decay: float = 1e-2  # [D]

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "updates", "batch")
        ranges.above_zero(self, "unroll_s", "learning_rate")
        ranges.not_negative(self, "weight_decay")


def inputs_of(trace: Trace, contract: ActuatorContract) -> NDArray[np.float32]:
    """A trace's inputs (T, C) as a model takes them.

    Raises:
      InputError: where the trace lacks one of them.
    """
    effort = trace.position_error
    if contract.gains:
        if not math.isfinite(trace.kp):
            raise InputError(f"{trace.recording}, {trace.actuator} does not tell kp, which this model takes")
        effort = effort * np.float32(trace.kp)
    if missing := [name for name in contract.channels if name not in trace.others]:
        raise InputError(f"{trace.recording}, {trace.actuator} has no {', '.join(missing)}, which this model takes")
    return np.stack([effort, trace.velocity, *(trace.others[name] for name in contract.channels)], -1)


def static_law(log: ActuatorLog, *, gains: bool) -> list[float]:
    """The best constant a, b, c of torque = a effort - b velocity + c, by least squares: the yardstick."""
    effort = np.concatenate([t.position_error * (t.kp if gains else 1.0) for t in log.traces])
    velocity, torque = (np.concatenate([getattr(t, name) for t in log.traces]) for name in ("velocity", "torque"))
    matrix = np.stack([effort, -velocity, np.ones_like(effort)], -1).astype(np.float64)
    return [float(value) for value in np.linalg.lstsq(matrix, torque.astype(np.float64), rcond=None)[0]]


def contract_of(kind: str, log: ActuatorLog, net: ActuatorNetConfig, channels: list[str], training: dict[str, Any]) -> ActuatorContract:
    """What a model of this log says of itself, its scales those of the log."""
    gains = log.has_gains and len({trace.kp for trace in log.traces}) > 1
    blank = ActuatorContract(kind, log.rate_hz, log.actuators, channels, gains, [1.0] * (2 + len(channels)), [0.0] * (2 + len(channels)), 1.0, [0.0] * 3, net)
    inputs = np.concatenate([inputs_of(trace, blank) for trace in log.traces]).astype(np.float64)
    torque = np.concatenate([trace.torque for trace in log.traces])
    mean = [0.0, 0.0, *inputs[:, 2:].mean(0).tolist()]
    scale = [max(float(value), 1e-6) for value in inputs.std(0)]
    return ActuatorContract(
        kind, log.rate_hz, log.actuators, channels, gains, scale, mean, max(float(torque.std()), 1e-9),
        static_law(log, gains=gains), net, log.licence, {"source": log.source, **training},
    )  # fmt: skip


def fit(
    kind: str, log: ActuatorLog, config: FitConfig | None = None, *, channels: list[str] | None = None, seed: int = 0,
    progress: Callable[[int, int, float], None] | None = None, about: dict[str, Any] | None = None,
) -> ActuatorModel:  # fmt: skip
    """A model of the actuators of a log.

    Args:
      kind: pd, mlp, conv or vae.
      channels: inputs besides effort and velocity, of those that the log has; None: none.
      seed: the same one gives the same model on a CPU.
      progress: told of (update, updates, loss) now and then.

    Raises:
      InputError: for channels that the log lacks, or a vae of one actuator.
    """
    config = config or FitConfig()
    contract = contract_of(kind, log, config.net, channels or [], {"seed": seed, **(about or {})})
    if kind == "vae" and len(log.actuators) < 2:
        raise InputError(f"a vae tells actuators apart; this log has one, {log.actuators[0]}")
    with seeded(seed):
        model = make(contract)
    generator = torch.Generator().manual_seed(seed + 1)
    if isinstance(model, PD):
        _fit_pd(model, log)
    elif kind == "conv":
        _fit_unrolled(model, log, config, generator, progress)
    else:
        _fit_samples(model, log, config, generator, progress)
    return model.eval()


class _Samples:
    """All traces in one row: inputs (N, C) and torques (N,), scaled, and for each sample where its trace begins."""

    def __init__(self, model: ActuatorModel, log: ActuatorLog):
        contract = model.contract
        inputs = [torch.from_numpy(inputs_of(trace, contract)) for trace in log.traces]
        lengths = torch.tensor([len(part) for part in inputs])
        ends = lengths.cumsum(0)
        self.inputs = model.scaled(torch.cat(inputs))
        self.torque = torch.cat([torch.from_numpy(trace.torque) for trace in log.traces]) / contract.torque_scale
        self.begin = torch.repeat_interleave(ends - lengths, lengths)
        self.end = torch.repeat_interleave(ends, lengths)
        numbers = torch.tensor([contract.actuators.index(trace.actuator) for trace in log.traces])
        self.actuator = torch.repeat_interleave(numbers, lengths)

    def before(self, at: Tensor, lags: Tensor) -> Tensor:
        """Indices of the samples `lags` before those at `at`, (*at.shape, lags); a trace's first stands for earlier
        ones."""
        return torch.maximum(at.unsqueeze(-1) - lags, self.begin[at].unsqueeze(-1))


def _descending(weights: list[nn.Parameter], config: FitConfig, updates: int) -> tuple[Any, Any]:
    """Adam with a rate that falls to zero as a cosine."""
    optimizer = torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=config.weight_decay)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)


def _step(loss: Tensor, weights: list[nn.Parameter], optimizer: Any, schedule: Any) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer.step()
    schedule.step()


def _fit_samples(
    model: ActuatorModel, log: ActuatorLog, config: FitConfig, generator: torch.Generator, progress: Any
) -> None:
    """One step ahead, samples drawn at random; of a vae, with a code drawn around each actuator's."""
    assert isinstance(model, MLP)  # for the type checker
    samples, lags = _Samples(model, log), torch.tensor(config.net.lags)
    weights = list(model.parameters())
    optimizer, schedule = _descending(weights, config, config.updates)
    for i in range(config.updates):
        at = torch.randint(len(samples.torque), (config.batch,), generator=generator)
        code, kl = model.draw_codes(samples.actuator[at], generator)
        told = model.answer(samples.inputs[samples.before(at, lags)], code)
        loss = nn.functional.huber_loss(told, samples.torque[at], delta=HUBER) + LATENT_KL * kl
        _step(loss, weights, optimizer, schedule)
        if progress is not None and (i + 1) % 100 == 0:
            progress(i + 1, config.updates, loss.item())


def _fit_unrolled(
    model: ActuatorModel, log: ActuatorLog, config: FitConfig, generator: torch.Generator, progress: Any
) -> None:
    """On the model's own outputs, through time, from measured torques."""
    samples = _Samples(model, log)
    steps = round(config.unroll_s * log.rate_hz)
    at = torch.arange(len(samples.torque))
    starts = at[at + steps <= samples.end]
    if not len(starts):
        raise InputError(f"no recording is as long as an unroll of {config.unroll_s:g} s")
    updates, past = max(1, config.updates // 5), torch.arange(WINDOW, 0, -1)
    weights = list(model.parameters())
    optimizer, schedule = _descending(weights, config, updates)
    for i in range(updates):
        first = starts[torch.randint(len(starts), (16,), generator=generator)]
        earlier = samples.before(first, past)
        memory = Memory(samples.inputs[earlier], samples.torque[earlier], samples.inputs.new_zeros(len(first), 0))
        ahead = first.unsqueeze(-1) + torch.arange(steps)
        told = []
        for sample in samples.inputs[ahead].unbind(1):
            torque, memory = model.advance(sample, memory)
            told.append(torque)
        loss = nn.functional.huber_loss(torch.stack(told, 1), samples.torque[ahead], delta=HUBER)
        _step(loss, weights, optimizer, schedule)
        if progress is not None and (i + 1) % 20 == 0:
            progress(i + 1, updates, loss.item())


MOST_SAMPLES = 200_000  # that the closed form is fitted to: it has nine numbers


def _fit_pd(model: PD, log: ActuatorLog) -> None:
    """Nonlinear least squares over the parameters, for every delay; the best one stays."""
    contract = model.contract
    kept, count = [], 0
    for trace in log.traces:
        kept.append((inputs_of(trace, contract).astype(np.float64), trace.torque.astype(np.float64)))
        count += len(trace)
        if count > MOST_SAMPLES:
            break
    a, b, c = contract.baseline
    spread, fastest = contract.torque_scale, max(float(np.abs(v[:, 1]).max()) for v, _ in kept)
    largest = max(float(np.abs(torque).max()) for _, torque in kept)
    begin = np.array(astuple(PDParameters(abs(a) or 1e-3, max(b, 0.0), c, 1.0 / contract.rate_hz, 2.0 * largest, 0.1 * spread, 0.1 * spread, 0.1 * spread, 0.1 * max(fastest, 1e-3))))
    low = np.array([0.0, 0.0, -10 * spread, 1e-6, 0.2 * largest, 0.0, 0.0, 0.0, 1e-3 * max(fastest, 1e-3)])
    high = np.array([np.inf, np.inf, 10 * spread, 0.5, 10 * largest, np.inf, 5 * spread, 5 * spread, 10 * max(fastest, 1e-3)])
    begin = np.clip(begin, low + 1e-12, high)
    found = []
    for delay in range(MOST_DELAY + 1):
        result = least_squares(_pd_residuals, begin, bounds=(low, high), x_scale=np.maximum(np.abs(begin), 1e-3), max_nfev=60, args=(kept, delay, contract.rate_hz))
        found.append((float(result.cost), delay, result.x))
    _, delay, best = min(found, key=lambda entry: entry[0])
    model.delay.fill_(delay)
    model.values.copy_(torch.from_numpy(best))


def _pd_residuals(values: NDArray[np.float64], traces: list[Any], delay: int, rate_hz: float) -> NDArray[np.float64]:
    """What `PD` says less what was measured, of all traces; the lag begins where the torque does."""
    p = PDParameters(*values)
    part = share(p.lag_s, rate_hz)
    residuals = []
    for inputs, torque in traces:
        effort, velocity = inputs[:, 0], inputs[:, 1]
        asked = np.concatenate((np.repeat(effort[:1], delay), effort[: len(effort) - delay]))
        wanted = p.stiffness * asked - p.damping * velocity + p.offset
        motor, _ = lfilter([part], [1.0, part - 1.0], wanted, zi=[(1.0 - part) * torque[0]])
        limit = np.maximum(p.limit - p.limit_slope * np.abs(velocity), 0.0)
        friction = (p.coulomb + p.stiction * np.exp(-((velocity / p.stribeck) ** 2))) * np.tanh(velocity / SLIDES)
        residuals.append(np.clip(motor, -limit, limit) - friction - torque)
    return np.concatenate(residuals)
