"""Fitting a model of actuators to a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mocap_data.errors import InputError, check_available
from npmp.actuators import models
from npmp.actuators.actuator_log import CHANNELS, ActuatorLog, Float32s
from npmp.actuators.importers import smoothed
from npmp.actuators.servo import joint_torque, limit_torque
from npmp.actuators.servo_fit import ServoMotion, constant_gains, fit_servo
from npmp.core import ranges
from npmp.core.seeding import seeded

# share of the torque's standard deviation above which errors count linearly, as logs contain shocks
# [D]
HUBER = 0.1
# weight decay of AdamW [D]
WEIGHT_DECAY = 1e-2
# weight of a vae's KL to N(0, I), per actuator [D]
LATENT_KL = 1e-5
# sizes of a model without networks
SMALL = models.ActuatorNetConfig(lags=(0,), width=1, latent_dim=1)

# called after each update with (update, updates, loss)
Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class FitConfig:
    """Settings of a fit. Raises ValueError for values out of range."""

    net: models.ActuatorNetConfig = field(default_factory=models.ActuatorNetConfig)
    # gradient steps [D]
    updates: int = 2000
    # samples per update; for a conv, four times the unrolls [robot-NPMP: 16]
    batch: int = 256
    # samples of a conv's unroll through time [robot-NPMP: 1600; D]
    unroll: int = 12
    # initial learning rate of a cosine schedule to 0 [robot-NPMP: 1e-3; D]
    learning_rate: float = 3e-3
    # weight of the squared torques of a hybrid's network [D]
    correction: float = 1.0
    # starts of a closed form's fit to a pendulum's motion [D]
    searches: int = 6

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "updates", "batch", "unroll", "searches")
        ranges.above_zero(self, "learning_rate")
        ranges.not_negative(self, "correction")


def static_law(log: ActuatorLog, outputs: Float32s | None = None) -> list[float]:
    """The baseline: the best constant a, b, c of torque = a error - b velocity + c.

    outputs: (T,) of all traces, to fit in place of the torque.
    """
    error, velocity, torque = (
        np.concatenate([getattr(trace, name) for trace in log.traces]).astype(np.float64)
        for name in ("position_error", "velocity", "torque")
    )
    return constant_gains(error, velocity, torque if outputs is None else outputs).tolist()


def contract_of(
    kind: str, log: ActuatorLog, net: models.ActuatorNetConfig, channels: list[str]
) -> models.ActuatorContract:
    """The contract of a model of a log, with the log's scales."""
    width = 2 + len(channels)
    blank = models.ActuatorContract(
        kind,
        log.rate_hz,
        log.actuators,
        channels,
        gains=log.has_gains,
        input_scale=[1.0] * width,
        input_mean=[0.0] * width,
        torque_scale=1.0,
        baseline=static_law(log),
        net=SMALL if kind == "pd" else net,
        licence=log.licence,
    )
    columns = [models.inputs_of(trace, blank) for trace in log.traces]
    inputs = np.concatenate(columns).astype(np.float64)
    torque = np.concatenate([trace.torque for trace in log.traces])
    if float(np.ptp(torque)) == 0.0:
        raise InputError(
            f"torque: constant {torque[0]:g} Nm in the whole log; expected one that varies"
        )
    samples: Counter[tuple[float, float, float]] = Counter()
    for trace in log.traces if log.has_gains else ():
        samples[models.gains_of(trace)] += len(trace)
    kp, kd, limit = samples.most_common(1)[0][0] if samples else (1.0, 0.0, models.NO_LIMIT)
    currents: dict[str, Any] = {}
    if kind == "conv" and all("current" in trace.others for trace in log.traces):
        current = np.concatenate([trace.others["current"] for trace in log.traces])
        currents["current_scale"] = max(float(current.std()), 1e-9)
        currents["current_baseline"] = static_law(log, current)
    return replace(
        blank,
        kp=kp,
        kd=kd,
        limit=limit,
        input_scale=[max(float(value), 1e-6) for value in inputs.std(0)],
        input_mean=[0.0, 0.0, *inputs[:, 2:].mean(0).tolist()],
        torque_scale=max(float(torque.std()), 1e-9),
        largest=float(np.abs(torque).max()),
        **currents,
    )


def fit(
    kind: str,
    log: ActuatorLog,
    config: FitConfig | None = None,
    *,
    channels: list[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    about: dict[str, Any] | None = None,
) -> models.ActuatorModel:
    """A model of the actuators of a log.

    Args:
      kind: pd, hybrid, mlp, conv or vae.
      channels: further inputs, of `CHANNELS`; None: only effort and velocity.
      seed: the same one gives the same model on a CPU.
      about: entries of the contract's training record.

    Raises:
      InputError: for channels that the log lacks or the kind does not take, constant torques, a vae
        of one actuator, recordings shorter than an unroll, or weights that are not finite.
    """
    config = config or FitConfig()
    check_available("channel", channels or [], CHANNELS)
    if channels and kind in ("pd", "hybrid"):
        raise InputError(
            f"channels={channels}: not for model={kind}; expected model=mlp, conv or vae"
        )
    contract = contract_of(kind, log, config.net, channels or [])
    contract.training.update(source=log.source, seed=seed, **(about or {}))
    if kind == "vae" and len(log.actuators) < 2:
        raise InputError(f"model=vae: one actuator, {log.actuators[0]}; expected at least two")
    with seeded(seed):
        model = models.make(contract)
    descent = _Descent(config, torch.Generator().manual_seed(seed + 1), progress)
    if isinstance(model, models.PD):
        fit_servo(model, log, config.searches)
        if isinstance(model, models.Hybrid):
            _fit_correction(model, log, descent)
    elif isinstance(model, models.MLP):
        _fit_samples(model, log, descent)
    else:
        _fit_unrolled(model, log, descent)
    if not all(bool(values.isfinite().all()) for values in model.state_dict().values()):
        raise InputError(f"learning_rate={config.learning_rate:g}: the fit diverged; lower it")
    return model.eval()


@dataclass(frozen=True)
class _Descent:
    """Gradient descent on losses of random samples."""

    config: FitConfig
    generator: torch.Generator
    progress: Progress | None

    def random_indices(self, below: int, count: int) -> Tensor:
        """Random indices (count,)."""
        return torch.randint(below, (count,), generator=self.generator)

    def signs(self, count: int) -> Tensor:
        """Random factors (count,) +-1 that mirror the samples of a joint."""
        return self.random_indices(2, count) * 2.0 - 1.0

    def run(self, model: models.ActuatorModel, loss: Callable[[], Tensor]) -> None:
        """AdamW with a cosine schedule to zero."""
        config = self.config
        weights = list(model.parameters())
        optimizer = torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=WEIGHT_DECAY)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.updates)
        for i in range(config.updates):
            optimizer.zero_grad(set_to_none=True)
            value = loss()
            value.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            if self.progress is not None:
                self.progress(i + 1, config.updates, value.item())


class _Samples:
    """Concatenated traces: scaled inputs (N, C) and outputs (N, 1 or 2); for each sample's trace
    the first index, the index after its last, and the actuator (N,)."""

    def __init__(self, model: models.ActuatorModel, log: ActuatorLog):
        contract = model.contract
        traces = log.traces
        lengths = torch.tensor([len(trace) for trace in traces])
        ends = lengths.cumsum(0)
        inputs = [torch.from_numpy(models.inputs_of(trace, contract)) for trace in traces]
        self.inputs = model.scaled(torch.cat(inputs))
        torque = torch.cat([torch.from_numpy(trace.torque) for trace in traces])
        outputs = [torque / contract.torque_scale]
        if contract.current_scale:
            current = torch.cat([torch.from_numpy(trace.others["current"]) for trace in traces])
            outputs.append(current / contract.current_scale)
        self.outputs = torch.stack(outputs, -1)
        self.begin = torch.repeat_interleave(ends - lengths, lengths)
        self.end = torch.repeat_interleave(ends, lengths)
        numbers = torch.tensor([contract.actuators.index(trace.actuator) for trace in traces])
        self.actuator = torch.repeat_interleave(numbers, lengths)

    def mirrored(self, at: Tensor, sign: Tensor) -> Tensor:
        """Inputs (n, lags, C) at indices (n, lags), effort and velocity times a sign (n,)."""
        factors = torch.ones(len(sign), 1, self.inputs.shape[1])
        factors[..., :2] = sign[:, None, None]
        return self.inputs[at] * factors

    def before(self, at: Tensor, lags: Tensor) -> Tensor:
        """Indices (*at.shape, lags) of the samples `lags` before `at`, within the trace."""
        return torch.maximum(at.unsqueeze(-1) - lags, self.begin[at].unsqueeze(-1))


def _huber(predicted: Tensor, measured: Tensor) -> Tensor:
    return nn.functional.huber_loss(predicted, measured, delta=HUBER)


def _fit_samples(model: models.MLP, log: ActuatorLog, descent: _Descent) -> None:
    """One step ahead, on random samples; a vae samples its actuators' latents."""
    config = descent.config
    samples = _Samples(model, log)
    lags = torch.tensor(config.net.lags)
    count = len(samples.outputs)

    def loss() -> Tensor:
        at = descent.random_indices(count, config.batch)
        latent, kl = model.sample_latents(samples.actuator[at], descent.generator)
        sign = descent.signs(config.batch)
        predicted = model.predict(samples.mirrored(samples.before(at, lags), sign), latent)
        return _huber(predicted, samples.outputs[at, 0] * sign) + LATENT_KL * kl

    descent.run(model, loss)
    if model.codes is not None:
        model.standardize_latents()


def _fit_unrolled(model: models.ActuatorModel, log: ActuatorLog, descent: _Descent) -> None:
    """Through time on the model's own outputs, from measured torques."""
    config = descent.config
    samples = _Samples(model, log)
    at = torch.arange(len(samples.outputs))
    starts = at[at + config.unroll <= samples.end]
    if not len(starts):
        raise InputError(f"unroll={config.unroll}: longer than every recording [samples]")
    past = torch.arange(models.WINDOW, 0, -1)
    ahead = torch.arange(config.unroll)

    def loss() -> Tensor:
        first = starts[descent.random_indices(len(starts), max(1, config.batch // 4))]
        earlier = samples.before(first, past)
        within = first.unsqueeze(-1) + ahead
        sign = descent.signs(len(first))
        outputs = samples.outputs[earlier, 0] * sign.unsqueeze(-1)
        no_latent = outputs.new_zeros(len(first), 0)
        memory = models.Memory(samples.mirrored(earlier, sign), outputs, no_latent)
        predicted = []
        for sample in samples.mirrored(within, sign).unbind(1):
            output, memory = model.advance(sample, memory)
            predicted.append(output)
        return _huber(torch.stack(predicted, 1), samples.outputs[within] * sign[:, None, None])

    descent.run(model, loss)


def _fit_correction(model: models.Hybrid, log: ActuatorLog, descent: _Descent) -> None:
    """The network, to the residual torques of the fitted closed form on random samples; its squared
    torques cost."""
    contract = model.contract
    p = model.parameters_of
    config = descent.config
    columns = []
    for trace in log.traces:
        torque = trace.torque.astype(np.float64)
        # as in their simulation: velocities without lag, and the rotor's share of torques
        if log.has_pendulums:
            position = trace.others["position"].astype(np.float64)
            velocity = smoothed(position, contract.rate_hz)[1].astype(np.float32)
            trace = replace(trace, velocity=velocity)
            torque += p.armature / trace.inertia * (torque - trace.gravity * np.sin(position))
        motion = ServoMotion(trace, contract)
        velocity = motion.velocity
        motor = motion.motor(p, int(model.delay))
        limited = limit_torque(p, motor, velocity)
        closed = joint_torque(p, motor, velocity, motion.friction)
        columns.append(np.stack((limited, velocity, motion.friction, closed, torque - closed)))
    *inputs, residual = torch.from_numpy(np.concatenate(columns, 1)).float()

    def loss() -> Tensor:
        at = descent.random_indices(len(residual), config.batch)
        correction = model.correction(*(values[at] for values in inputs))
        error = _huber(correction, residual[at] / contract.torque_scale)
        return error + config.correction * correction.square().mean()

    descent.run(model, loss)
