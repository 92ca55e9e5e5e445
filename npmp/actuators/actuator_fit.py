"""Fitting a model of actuators to a log."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, fields, replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.signal import lfilter
from torch import Tensor, nn

from mocap_data.errors import InputError, check_available
from npmp.actuators import models
from npmp.actuators.actuator_log import CHANNELS, SHORTEST, ActuatorLog, Float32s, Floats, Trace
from npmp.actuators.importers import smoothed
from npmp.actuators.pendulum import Pendulums
from npmp.core import ranges
from npmp.core.seeding import seeded

# of the torque's spread: larger errors count linearly, as logs hold shocks [D]
HUBER = 0.1
# samples that the closed form is fitted to at most: it has eleven numbers
MOST_SAMPLES = 200_000
# of AdamW [D]
WEIGHT_DECAY = 1e-2
# weight of a vae's KL to N(0, I), per actuator: samples are many, actuators few [D]
LATENT_KL = 1e-5
# spread (standard deviation) of each parameter over the starts of further searches [D]
APART = 0.03
# samples of a pendulum's motion in a row that it is fitted to at most: it takes a step for each [D]
SWING = 2000
PARAMETERS = [entry.name for entry in fields(models.PDParameters)]
# share of the torque's squares that a limit must explain, where a log shows one [D]
LIMITED = 1e-4
# of a model without networks
SMALL = models.ActuatorNetConfig(lags=(0,), width=1, latent_dim=1)

# called with (update, updates, loss) after each update
Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class FitConfig:
    """How a model is fitted. Raises ValueError for values out of range."""

    net: models.ActuatorNetConfig = field(default_factory=models.ActuatorNetConfig)
    # gradient steps [D]
    updates: int = 2000
    # samples; of a conv, a quarter as many unrolls [robot-NPMP: 16]
    batch: int = 256
    # samples of an unroll of a conv through time; short ones did better [robot-NPMP: 1600; D]
    unroll: int = 12
    # at first; it falls to 0 as a cosine [robot-NPMP: 1e-3; D]
    learning_rate: float = 3e-3
    # weight of the squared torques that a hybrid's network adds [D]
    correction: float = 1.0
    # fits of a closed form to a pendulum's motion, from as many starts; the best stays [D]
    searches: int = 6

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "updates", "batch", "unroll", "searches")
        ranges.above_zero(self, "learning_rate")
        ranges.not_negative(self, "correction")


def static_law(log: ActuatorLog, outputs: Float32s | None = None) -> list[float]:
    """The best constant a, b, c of torque = a error - b velocity + c, by least squares: the
    baseline. outputs: fitted instead of the torque, all traces in a row.
    """
    error, velocity, torque = (
        np.concatenate([getattr(trace, name) for trace in log.traces]).astype(np.float64)
        for name in ("position_error", "velocity", "torque")
    )
    return _constant_gains(error, velocity, torque if outputs is None else outputs).tolist()


def _constant_gains(error: Floats, velocity: Floats, torque: NDArray[Any]) -> Floats:
    """a, b, c as in `static_law`, of (T,) each."""
    matrix = np.stack([error, -velocity, np.ones_like(error)], -1)
    return np.asarray(np.linalg.lstsq(matrix, torque, rcond=None)[0])


def contract_of(
    kind: str, log: ActuatorLog, net: models.ActuatorNetConfig, channels: list[str]
) -> models.ActuatorContract:
    """The contract of a model of this log, its scales those of the log."""
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
            f"nothing can be learned from this log: its torque is {torque[0]:g} Nm all the time"
        )
    used: Counter[tuple[float, float, float]] = Counter()
    for trace in log.traces if log.has_gains else ():
        used[models.gains_of(trace)] += len(trace)
    kp, kd, limit = used.most_common(1)[0][0] if used else (1.0, 0.0, models.NO_LIMIT)
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
      channels: further inputs, of `CHANNELS`; None: effort and velocity alone.
      seed: the same one gives the same model on a CPU.
      about: added to the contract's record of the training.

    Raises:
      InputError: for channels that the log lacks or the kind does not take, torques that are all
        the same, a vae of one actuator, recordings shorter than an unroll, or weights that are no
        longer finite.
    """
    config = config or FitConfig()
    check_available("channel", channels or [], CHANNELS)
    if channels and kind in ("pd", "hybrid"):
        raise InputError(
            f"a model={kind} takes effort and velocity alone; channels= is for mlp, conv and vae"
        )
    contract = contract_of(kind, log, config.net, channels or [])
    contract.training.update(source=log.source, seed=seed, **(about or {}))
    if kind == "vae" and len(log.actuators) < 2:
        raise InputError(f"a vae needs two actuators; this log has one, {log.actuators[0]}")
    with seeded(seed):
        model = models.make(contract)
    descent = _Descent(config, torch.Generator().manual_seed(seed + 1), progress)
    if isinstance(model, models.PD):
        _fit_pd(model, log, config.searches)
        if isinstance(model, models.Hybrid):
            _fit_correction(model, log, descent)
    elif isinstance(model, models.MLP):
        _fit_samples(model, log, descent)
    else:
        _fit_unrolled(model, log, descent)
    if not all(bool(values.isfinite().all()) for values in model.state_dict().values()):
        raise InputError(
            f"the fit diverged (weights not finite); lower learning_rate={config.learning_rate:g}"
        )
    return model.eval()


@dataclass(frozen=True)
class _Descent:
    """Gradient descent on losses whose samples are drawn anew for every update."""

    config: FitConfig
    generator: torch.Generator
    progress: Progress | None

    def drawn(self, below: int, count: int) -> Tensor:
        """Random indices (count,)."""
        return torch.randint(below, (count,), generator=self.generator)

    def signs(self, count: int) -> Tensor:
        """Factors (count,): -1 turns a joint around, half of them, as a joint has no side."""
        return self.drawn(2, count) * 2.0 - 1.0

    def run(self, model: models.ActuatorModel, loss: Callable[[], Tensor]) -> None:
        """AdamW, at a learning rate that falls to zero as a cosine."""
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
    """All traces in one row: inputs (N, C) and outputs (N, 1 or 2), scaled; the first index of
    each sample's trace, the index after its last, and its actuator's number (N,)."""

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

    def turned(self, at: Tensor, sign: Tensor) -> Tensor:
        """Inputs (n, lags, C) at indices (n, lags), effort and velocity times a sign (n,)."""
        factors = torch.ones(len(sign), 1, self.inputs.shape[1])
        factors[..., :2] = sign[:, None, None]
        return self.inputs[at] * factors

    def before(self, at: Tensor, lags: Tensor) -> Tensor:
        """Indices of the samples `lags` before those at `at`, (*at.shape, lags); a trace's first
        stands for earlier ones."""
        return torch.maximum(at.unsqueeze(-1) - lags, self.begin[at].unsqueeze(-1))


def _huber(predicted: Tensor, measured: Tensor) -> Tensor:
    return nn.functional.huber_loss(predicted, measured, delta=HUBER)


def _fit_samples(model: models.MLP, log: ActuatorLog, descent: _Descent) -> None:
    """One step ahead, samples drawn at random; a vae draws a code around each actuator's."""
    config = descent.config
    samples = _Samples(model, log)
    lags = torch.tensor(config.net.lags)
    count = len(samples.outputs)

    def loss() -> Tensor:
        at = descent.drawn(count, config.batch)
        code, kl = model.draw_codes(samples.actuator[at], descent.generator)
        sign = descent.signs(config.batch)
        predicted = model.answer(samples.turned(samples.before(at, lags), sign), code)
        return _huber(predicted, samples.outputs[at, 0] * sign) + LATENT_KL * kl

    descent.run(model, loss)
    if model.codes is not None:
        model.standardize_codes()


def _fit_unrolled(model: models.ActuatorModel, log: ActuatorLog, descent: _Descent) -> None:
    """On the model's own outputs, through time, from measured torques."""
    config = descent.config
    samples = _Samples(model, log)
    at = torch.arange(len(samples.outputs))
    starts = at[at + config.unroll <= samples.end]
    if not len(starts):
        raise InputError(f"no recording is as long as an unroll of {config.unroll} samples")
    past = torch.arange(models.WINDOW, 0, -1)
    ahead = torch.arange(config.unroll)

    def loss() -> Tensor:
        first = starts[descent.drawn(len(starts), max(1, config.batch // 4))]
        earlier = samples.before(first, past)
        within = first.unsqueeze(-1) + ahead
        sign = descent.signs(len(first))
        kept = samples.outputs[earlier, 0] * sign.unsqueeze(-1)
        memory = models.Memory(samples.turned(earlier, sign), kept, kept.new_zeros(len(first), 0))
        predicted = []
        for sample in samples.turned(within, sign).unbind(1):
            output, memory = model.advance(sample, memory)
            predicted.append(output)
        return _huber(torch.stack(predicted, 1), samples.outputs[within] * sign[:, None, None])

    descent.run(model, loss)


def _fit_correction(model: models.Hybrid, log: ActuatorLog, descent: _Descent) -> None:
    """The network, to what the fitted closed form leaves of the torques, samples drawn at random;
    large corrections cost."""
    contract = model.contract
    p = model.parameters_of
    config = descent.config
    columns = []
    for trace in log.traces:
        torque = trace.torque.astype(np.float64)
        # as in their simulation: velocities that are not late, and the rotor's share of torques
        if log.has_pendulums:
            position = trace.others["position"].astype(np.float64)
            velocity = smoothed(position, contract.rate_hz)[1].astype(np.float32)
            trace = replace(trace, velocity=velocity)
            torque += p.armature / trace.inertia * (torque - trace.gravity * np.sin(position))
        moves = _Moves(trace, contract)
        motor = moves.motor(p, int(model.delay))
        v = moves.velocity
        limited = models.limited(p, motor, moves.velocity)
        closed = models.delivered(p, motor, v, moves.borne)
        columns.append(np.stack((limited, v, moves.borne, closed, torque - closed)))
    *observed, missing = torch.from_numpy(np.concatenate(columns, 1)).float()

    def loss() -> Tensor:
        at = descent.drawn(len(missing), config.batch)
        added = model.left(*(values[at] for values in observed))
        error = _huber(added, missing[at] / contract.torque_scale)
        return error + config.correction * added.square().mean()

    descent.run(model, loss)


# --- the closed form


class _Range(NamedTuple):
    """Of the closed form's parameters, (P,) each: where they begin, and their bounds."""

    begin: Floats
    low: Floats
    high: Floats


def _fit_pd(model: models.PD, log: ActuatorLog, searches: int) -> None:
    """Nonlinear least squares over the parameters, for every delay; the best one stays. Where the
    log has pendulums, their motion is fitted instead of torques."""
    contract = model.contract
    some = min(1.0, MOST_SAMPLES / sum(len(trace) for trace in log.traces))
    parts = []
    for trace in log.traces:
        count = math.ceil(some * len(trace))
        first = (len(trace) - count) // 2
        parts.append(trace.part(first, first + count))
    moves = [_Moves(part, contract) for part in parts]
    whole = _pd_range(contract, moves)
    if log.has_pendulums:
        stretches = tuple(
            part.part(at, at + SWING)
            for part in parts
            for at in range(0, len(part) - SHORTEST + 1, SWING)
        )
        motion = _fit_motion(contract, replace(log, traces=stretches), whole, searches)
        model.values.copy_(torch.from_numpy(motion))
        return
    # without the limit, where no torque of the log reaches it
    free = _Range(*(values.copy() for values in whole))
    for values, factor in zip(free, (1.0, 0.9, 1.1), strict=True):
        values[PARAMETERS.index("limit")] = factor * models.NO_LIMIT

    def fitted(delay: int, within: _Range) -> tuple[float, int, Floats]:
        result = least_squares(
            lambda values: np.concatenate([part.missed(values, delay) for part in moves]),
            within.begin,
            bounds=within[1:],
            x_scale=np.maximum(np.abs(within.begin), 1e-3),
            max_nfev=60,
        )
        return float(result.cost), delay, result.x

    cost = itemgetter(0)
    unlimited = min((fitted(delay, free) for delay in range(models.MOST_DELAY + 1)), key=cost)
    # constant gains are a servo without lag and friction; from there it ends no worse than they
    plain = dict(zip(PARAMETERS, free.begin)) | {"lag_s": 1e-4}
    plain |= dict.fromkeys(("limit_slope", "coulomb", "stiction", "load", "load_at_rest"), 0.0)
    bare = free._replace(begin=np.maximum(list(plain.values()), whole.low + 1e-12))
    unlimited = min(unlimited, *(fitted(delay, bare) for delay in {0, unlimited[1]}), key=cost)
    bounded = fitted(unlimited[1], whole)
    explained = LIMITED * sum(0.5 * float(part.torque @ part.torque) for part in moves)
    _, delay, best = bounded if bounded[0] < unlimited[0] - explained else unlimited
    model.delay.fill_(delay)
    model.values.copy_(torch.tensor(astuple(models.PDParameters(*best))))


def _fit_motion(
    contract: models.ActuatorContract, log: ActuatorLog, within: _Range, searches: int
) -> Floats:
    """The parameters (12,), an armature among them, whose pendulums swing as the recorded ones,
    from the commands alone.

    Torques determine little of a joint at rest: it gives by hardly more than encoders resolve. A
    delay is not fitted, the lag stands for it. The first search begins at a guess from `within`,
    the range for torques; further ones as near as `APART`: friction gives the search many ends, and
    rounding alone leads to others.
    """
    pendulums = Pendulums(log)
    inertia = float(pendulums.inertia.mean())
    guess, low, high = (
        np.append(values, x * inertia) for values, x in zip(within, (0.5, 0.0, 10.0), strict=True)
    )
    p = models.PDParameters(*guess)
    # gears take about half of the motor's torque; lag and slope are free once all else is about
    # right
    begin = replace(
        p,
        stiffness=2.0 * p.stiffness,
        lag_s=models.PDParameters(*low).lag_s,
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
    first = np.array(astuple(begin))
    late = np.isin(PARAMETERS, ["lag_s", "limit_slope"])
    rng = np.random.default_rng(0)
    best = first
    least_cost = math.inf
    for search in range(searches):
        near = first * (1.0 + APART * rng.normal(size=len(first))) if search else first
        values = np.clip(near, low + 1e-12, high)
        cost = math.inf
        for free in (~late, np.ones_like(late)):
            bounds = _Range(values, low, high)
            values[free], cost = _fit_swings(pendulums, contract, bounds, free, size)
        if cost < least_cost:
            best = values
            least_cost = cost
    return best


def _fit_swings(
    pendulums: Pendulums,
    contract: models.ActuatorContract,
    within: _Range,
    free: NDArray[np.bool_],
    size: Floats,
) -> tuple[Floats, float]:
    """The free ones of the parameters (12,) by least squares of the pendulums' positions, and the
    cost: half of these squares."""
    values = within.begin
    low = within.low[free]
    high = within.high[free]
    steps = 1e-3 * size[free]

    def errors(some: Floats) -> Floats:
        """Of free parameters (F, P), (samples, P) [rad]."""
        full = np.repeat(values[:, None], some.shape[1], 1)
        full[free] = some
        p = models.PDParameters(*full[..., None])
        rate = contract.rate_hz
        part = models.share(p.lag_s, rate)
        motor = given = np.zeros(0)

        def accelerate(t: int, q: Floats, v: Floats) -> Floats:
            """Of pendulums under a `PD` without delay."""
            nonlocal motor, given
            target = models.wanted(p, pendulums.effort(t, q, v, contract), v)
            if t == 0:
                motor = target
                given = models.given_at(p, target, v, pendulums.torque)
            motor = motor + part * (target - motor)
            given, borne = models.gives(given, v, rate)
            return pendulums.acceleration(models.delivered(p, motor, v, borne), q, p.armature)

        residuals: Floats = np.moveaxis(pendulums.errors(accelerate, some.shape[1:]), 1, -1)
        return residuals[pendulums.there]

    def slopes(some: Floats) -> Floats:
        step = np.where(some + steps < high, steps, -steps)
        residuals = errors(np.concatenate((some[:, None], some[:, None] + np.diag(step)), 1))
        return (residuals[:, 1:] - residuals[:, :1]) / step

    best = least_squares(
        lambda some: errors(some[:, None])[:, 0],
        values[free],
        slopes,
        (low, high),
        x_scale=size[free],
        max_nfev=40,
    )
    return best.x, float(best.cost)


class _Moves:
    """A trace as the closed form takes it, (T,) each; `borne` is the share of its friction."""

    def __init__(self, trace: Trace, contract: models.ActuatorContract):
        self.effort, self.velocity = models.inputs_of(trace, contract).astype(np.float64).T
        self.torque = trace.torque.astype(np.float64)
        self.rate_hz = contract.rate_hz
        self.borne = np.zeros_like(self.velocity)
        deflection = np.float64(0.0)
        for t, velocity in enumerate(self.velocity):
            deflection, self.borne[t] = models.gives(deflection, velocity, self.rate_hz)

    def motor(self, p: models.PDParameters, delay: int) -> Floats:
        """The motor's torque (T,) [Nm] before its limit; the lag begins where the torque does."""
        part = models.share(p.lag_s, self.rate_hz)
        late = self.effort[: len(self.effort) - delay]
        effort = np.concatenate((np.repeat(self.effort[:1], delay), late))
        target = models.wanted(p, effort, self.velocity)
        start = [(1.0 - part) * self.torque[0]]
        return np.asarray(lfilter([part], [1.0, part - 1.0], target, zi=start)[0])

    def missed(self, values: Floats, delay: int) -> Floats:
        """Predicted less measured torques (T,) [Nm] of parameters."""
        p = models.PDParameters(*values)
        motor = self.motor(p, delay)
        return models.delivered(p, motor, self.velocity, self.borne) - self.torque


def _pd_range(contract: models.ActuatorContract, moves: list[_Moves]) -> _Range:
    """Of all parameters but the armature, which torques do not determine."""
    effort, velocity, torque = (
        np.concatenate([getattr(part, name) for part in moves])
        for name in ("effort", "velocity", "torque")
    )
    fastest = max(float(np.abs(velocity).max()), 1e-3)
    largest = float(np.abs(torque).max())
    a, b, c = _constant_gains(effort, velocity, torque)
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
    begin, low, high = np.array([table[name] for name in PARAMETERS[:-1]]).T
    return _Range(np.clip(begin, low + 1e-12, high), low, high)
