"""Fitting a model of actuators to a log."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.signal import lfilter
from torch import Tensor, nn

from mocap_data.errors import InputError, unknown
from npmp import ranges
from npmp.actuators.importers import smoothed
from npmp.actuators.log import CHANNELS, SHORTEST, ActuatorLog, Float32s, Floats, Trace
from npmp.actuators.models import (
    MLP,
    MOST_DELAY,
    NO_LIMIT,
    PD,
    WINDOW,
    ActuatorContract,
    ActuatorModel,
    ActuatorNetConfig,
    Hybrid,
    Memory,
    PDParameters,
    delivered,
    given_at,
    gives,
    limited,
    make,
    reference,
    share,
    wanted,
)
from npmp.actuators.pendulum import Pendulums
from npmp.nets.init import seeded

HUBER = 0.1  # of the torque's spread: beyond it errors count linearly, as logs hold shocks [D]
MOST_SAMPLES = 200_000  # that the closed form is fitted to: it has eleven numbers
APART = 0.03  # of each parameter, by how much further searches begin elsewhere [D]
# samples of a pendulum's motion in a row that it is fitted to at most: it takes a step for each [D]
SWING = 2000
LIMIT = [entry.name for entry in fields(PDParameters)].index("limit")
LIMITED = 1e-4  # of the torque's squares that a limit must explain, where a log shows one [D]
SMALL = ActuatorNetConfig(lags=(0,), width=1, latent_dim=1)  # of a model without networks

Progress = Callable[[int, int, float], None]  # told of (update, updates, loss) now and then


@dataclass(frozen=True)
class FitConfig:
    """How a model is fitted. Raises ValueError for values out of range."""

    net: ActuatorNetConfig = field(default_factory=ActuatorNetConfig)
    updates: int = 2000  # gradient steps [D]
    batch: int = 256  # samples; of a conv, a quarter as many unrolls [robot-NPMP: 16]
    # samples, of a conv, through time: more of short ones did better [robot-NPMP: 1600; D]
    unroll: int = 12
    learning_rate: float = 3e-3  # falling to 0 as a cosine [robot-NPMP: 1e-3; D]
    weight_decay: float = 1e-2  # [D]
    # weight of a vae's KL to N(0, I), per actuator: samples are many, actuators few [D]
    latent_kl: float = 1e-5
    correction: float = 1.0  # weight of the squares of what a hybrid's network adds [D]
    # half of all samples with error, velocity and torque turned around: a joint has no side [D]
    mirror: bool = True
    # of a closed form's parameters by a pendulum's motion, from other beginnings; the best stays
    # [D]
    searches: int = 6

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "updates", "batch", "unroll", "searches")
        ranges.above_zero(self, "learning_rate")
        ranges.not_negative(self, "weight_decay", "latent_kl", "correction")


def inputs_of(trace: Trace, contract: ActuatorContract) -> Float32s:
    """A trace's inputs (T, C) as a model takes them.

    Raises:
      InputError: where the trace lacks one of them.
    """
    where = f"{trace.recording}, {trace.actuator}"
    effort = trace.position_error
    if contract.gains:
        if not math.isfinite(trace.kp):
            raise InputError(f"{where} does not tell kp, which this model takes")
        effort = reference(
            effort, trace.velocity, *gains_of(trace), trace.others.get("feedforward", 0.0)
        )
    if missing := [name for name in contract.channels if name not in trace.others]:
        raise InputError(f"{where} has no {', '.join(missing)}, which this model takes")
    columns = (effort, trace.velocity, *(trace.others[name] for name in contract.channels))
    return np.stack(columns, -1).astype(np.float32)


def gains_of(trace: Trace) -> tuple[float, float, float]:
    """kp, kd and limit of a trace that has kp; kd is 0 and the limit none where it has none."""
    kd, limit = (
        value if math.isfinite(value) else other
        for value, other in ((trace.kd, 0.0), (trace.limit, NO_LIMIT))
    )
    return trace.kp, kd, limit


def static_law(log: ActuatorLog, told: Float32s | None = None) -> list[float]:
    """The best constant a, b, c of torque = a error - b velocity + c, by least squares: the
    yardstick.

    told: what is told instead of the torque, of all traces in a row.
    """
    error, velocity, torque = (
        np.concatenate([getattr(trace, name) for trace in log.traces]).astype(np.float64)
        for name in ("position_error", "velocity", "torque")
    )
    matrix = np.stack([error, -velocity, np.ones_like(error)], -1)
    return [
        float(value)
        for value in np.linalg.lstsq(matrix, torque if told is None else told, rcond=None)[0]
    ]


def contract_of(
    kind: str,
    log: ActuatorLog,
    net: ActuatorNetConfig,
    channels: list[str],
    training: dict[str, Any],
) -> ActuatorContract:
    """What a model of this log says of itself, its scales those of the log."""
    width = 2 + len(channels)
    blank = ActuatorContract(
        kind,
        log.rate_hz,
        log.actuators,
        channels,
        log.has_gains,
        [1.0] * width,
        [0.0] * width,
        1.0,
        static_law(log),
        net=SMALL if kind == "pd" else net,
        licence=log.licence,
        training={"source": log.source, **training},
    )
    inputs = np.concatenate([inputs_of(trace, blank) for trace in log.traces]).astype(np.float64)
    torque = np.concatenate([trace.torque for trace in log.traces])
    if float(np.ptp(torque)) == 0.0:
        raise InputError(
            f"nothing can be learned from this log: its torque is {torque[0]:g} Nm all the time"
        )
    used: Counter[tuple[float, float, float]] = Counter()
    for trace in log.traces if log.has_gains else ():
        used[gains_of(trace)] += len(trace)
    kp, kd, limit = used.most_common(1)[0][0] if used else (1.0, 0.0, NO_LIMIT)
    tells = kind == "conv" and all("current" in trace.others for trace in log.traces)
    current = np.concatenate([trace.others["current"] for trace in log.traces]) if tells else None
    return replace(
        blank,
        kp=kp,
        kd=kd,
        limit=limit,
        input_scale=[max(float(value), 1e-6) for value in inputs.std(0)],
        input_mean=[0.0, 0.0, *inputs[:, 2:].mean(0).tolist()],
        torque_scale=max(float(torque.std()), 1e-9),
        largest=float(np.abs(torque).max()),
        current_scale=0.0 if current is None else max(float(current.std()), 1e-9),
        current_baseline=[] if current is None else static_law(log, current),
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
) -> ActuatorModel:
    """A model of the actuators of a log.

    Args:
      kind: pd, hybrid, mlp, conv or vae.
      channels: inputs besides effort and velocity, of `CHANNELS` and of those that the log has;
        None: none.
      seed: the same one gives the same model on a CPU.
      about: more for the contract's record of the training.

    Raises:
      InputError: for channels that the log lacks or the kind does not take, torques that are all
        the same, a vae of one actuator, recordings shorter than an unroll, or where the weights
        become no numbers.
    """
    config = config or FitConfig()
    for name in channels or []:
        if name not in CHANNELS:
            raise unknown("channel", name, CHANNELS)
    if channels and kind in ("pd", "hybrid"):
        raise InputError(
            f"a model={kind} takes effort and velocity alone; channels= is for mlp, conv and vae"
        )
    contract = contract_of(kind, log, config.net, channels or [], {"seed": seed, **(about or {})})
    if kind == "vae" and len(log.actuators) < 2:
        raise InputError(f"a vae tells actuators apart; this log has one, {log.actuators[0]}")
    with seeded(seed):
        model = make(contract)
    generator = torch.Generator().manual_seed(seed + 1)
    if isinstance(model, PD):
        _fit_pd(model, log, config.searches)
        if isinstance(model, Hybrid):
            _fit_correction(model, log, config, generator, progress)
    elif isinstance(model, MLP):
        _fit_samples(model, log, config, generator, progress)
    else:
        _fit_unrolled(model, log, config, generator, progress)
    if not all(bool(values.isfinite().all()) for values in model.state_dict().values()):
        raise InputError(
            f"the fit diverged (weights not finite); lower learning_rate={config.learning_rate:g}"
        )
    return model.eval()


class _Samples:
    """All traces in one row: inputs (N, C) and outputs (N, 1 or 2), scaled, and where each sample's
    trace begins and ends."""

    def __init__(self, model: ActuatorModel, log: ActuatorLog):
        contract = model.contract
        inputs = [torch.from_numpy(inputs_of(trace, contract)) for trace in log.traces]
        lengths = torch.tensor([len(part) for part in inputs])
        ends = lengths.cumsum(0)
        self.inputs = model.scaled(torch.cat(inputs))
        outputs = [
            torch.cat([torch.from_numpy(trace.torque) for trace in log.traces])
            / contract.torque_scale
        ]
        if contract.current_scale:
            current = torch.cat([torch.from_numpy(trace.others["current"]) for trace in log.traces])
            outputs.append(current / contract.current_scale)
        self.outputs = torch.stack(outputs, -1)
        self.begin = torch.repeat_interleave(ends - lengths, lengths)
        self.end = torch.repeat_interleave(ends, lengths)
        numbers = torch.tensor([contract.actuators.index(trace.actuator) for trace in log.traces])
        self.actuator = torch.repeat_interleave(numbers, lengths)

    def sides(
        self, number: int, generator: torch.Generator, *, mirror: bool
    ) -> tuple[Tensor, Tensor]:
        """Factors of inputs (number, C) and of outputs (number,), half of them those that turn a
        joint around."""
        sign = torch.ones(number)
        if mirror:
            sign = torch.randint(0, 2, (number,), generator=generator) * 2.0 - 1.0
        of_inputs = torch.ones(number, self.inputs.shape[1])
        of_inputs[:, :2] = sign.unsqueeze(-1)
        return of_inputs, sign

    def before(self, at: Tensor, lags: Tensor) -> Tensor:
        """Indices of the samples `lags` before those at `at`, (*at.shape, lags); a trace's first
        stands for earlier ones."""
        return torch.maximum(at.unsqueeze(-1) - lags, self.begin[at].unsqueeze(-1))


def _descend(
    model: ActuatorModel,
    loss: Callable[[], Tensor],
    config: FitConfig,
    updates: int,
    progress: Progress | None,
) -> None:
    """Adam on a loss that is drawn anew every time, at a rate that falls to zero as a cosine."""
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(
        weights, lr=config.learning_rate, weight_decay=config.weight_decay
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for i in range(updates):
        optimizer.zero_grad(set_to_none=True)
        value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress(i + 1, updates, value.item())


def _fit_samples(
    model: MLP,
    log: ActuatorLog,
    config: FitConfig,
    generator: torch.Generator,
    progress: Progress | None,
) -> None:
    """One step ahead, samples drawn at random; a vae draws a code around each actuator's."""
    samples, lags = _Samples(model, log), torch.tensor(config.net.lags)

    def loss() -> Tensor:
        at = torch.randint(len(samples.outputs), (config.batch,), generator=generator)
        code, kl = model.draw_codes(samples.actuator[at], generator)
        turn, sign = samples.sides(config.batch, generator, mirror=config.mirror)
        told = model.answer(samples.inputs[samples.before(at, lags)] * turn.unsqueeze(1), code)
        off = nn.functional.huber_loss(told, samples.outputs[at, 0] * sign, delta=HUBER)
        return off + config.latent_kl * kl

    _descend(model, loss, config, config.updates, progress)
    if model.codes is not None:
        model.standardize_codes()
        with torch.no_grad():
            at = torch.arange(0, len(samples.outputs), max(1, len(samples.outputs) // MOST_SAMPLES))
            told = model.answer(
                samples.inputs[samples.before(at, lags)], model.codes[samples.actuator[at], 0]
            )
            off = (told - samples.outputs[at, 0]) * model.contract.torque_scale
        # [Nm^2], of what the latents do not tell
        model.contract.training["variance"] = float(off.square().mean())


def _fit_unrolled(
    model: ActuatorModel,
    log: ActuatorLog,
    config: FitConfig,
    generator: torch.Generator,
    progress: Progress | None,
) -> None:
    """On the model's own outputs, through time, from measured torques."""
    samples = _Samples(model, log)
    at = torch.arange(len(samples.outputs))
    starts = at[at + config.unroll <= samples.end]
    if not len(starts):
        raise InputError(f"no recording is as long as an unroll of {config.unroll} samples")
    past, ahead = torch.arange(WINDOW, 0, -1), torch.arange(config.unroll)

    def loss() -> Tensor:
        first = starts[
            torch.randint(len(starts), (max(1, config.batch // 4),), generator=generator)
        ]
        earlier, within = samples.before(first, past), first.unsqueeze(-1) + ahead
        turn, sign = samples.sides(len(first), generator, mirror=config.mirror)
        kept, none = (
            samples.outputs[earlier, 0] * sign.unsqueeze(-1),
            samples.inputs.new_zeros(len(first), 0),
        )
        memory = Memory(samples.inputs[earlier] * turn.unsqueeze(1), kept, none)
        told = []
        for sample in (samples.inputs[within] * turn.unsqueeze(1)).unbind(1):
            output, memory = model.advance(sample, memory)
            told.append(output)
        measured = samples.outputs[within] * sign[:, None, None]
        return nn.functional.huber_loss(torch.stack(told, 1), measured, delta=HUBER)

    _descend(model, loss, config, config.updates, progress)


def _fit_correction(
    model: Hybrid,
    log: ActuatorLog,
    config: FitConfig,
    generator: torch.Generator,
    progress: Progress | None,
) -> None:
    """What the closed form, fitted before, leaves of the torques, samples drawn at random; large
    corrections cost."""
    contract, p = model.contract, model.parameters_of
    columns = []
    for trace in log.traces:
        torque = trace.torque.astype(np.float64)
        # as in their simulation: velocities that are not late, and the rotor's share of torques
        if log.has_pendulums:
            position = trace.others["position"].astype(np.float64)
            trace = replace(
                trace, velocity=smoothed(position, contract.rate_hz)[1].astype(np.float32)
            )
            torque += p.armature / trace.inertia * (torque - trace.gravity * np.sin(position))
        moves = _Moves(trace, contract)
        motor = _motor(p, moves, int(model.delay), contract.rate_hz)
        told = delivered(p, motor, moves.velocity, moves.borne)
        columns.append(
            (limited(p, motor, moves.velocity), moves.velocity, moves.borne, told, torque - told)
        )
    *sees, missing = torch.from_numpy(
        np.concatenate([np.stack(values) for values in columns], 1)
    ).float()

    def loss() -> Tensor:
        at = torch.randint(len(missing), (config.batch,), generator=generator)
        added = model.left(*(values[at] for values in sees))
        off = nn.functional.huber_loss(added, missing[at] / contract.torque_scale, delta=HUBER)
        return off + config.correction * added.square().mean()

    _descend(model, loss, config, config.updates, progress)


# --- the closed form


def _fit_pd(model: PD, log: ActuatorLog, searches: int) -> None:
    """Nonlinear least squares over the parameters, for every delay; the best one stays. Where the
    log tells the pendulums that the joint moved, the motion is fitted instead."""
    contract = model.contract
    some = min(1.0, MOST_SAMPLES / sum(len(trace) for trace in log.traces))
    parts = [_middle(trace, math.ceil(some * len(trace))) for trace in log.traces]
    kept = [_Moves(part, contract) for part in parts]
    begin, low, high = _pd_range(contract, kept)
    if log.has_pendulums:
        stretches = [
            part.part(at, at + SWING)
            for part in parts
            for at in range(0, len(part) - SHORTEST + 1, SWING)
        ]
        motion = _fit_motion(
            contract, replace(log, traces=tuple(stretches)), (begin, low, high), searches
        )
        model.values.copy_(torch.from_numpy(motion))
        return
    free = begin.copy(), low.copy(), high.copy()
    # where no torque of the log reaches it
    for values, limit in zip(free, (1.0, 0.9, 1.1), strict=True):
        values[LIMIT] = limit * NO_LIMIT

    def fitted(delay: int, start: tuple[Floats, ...]) -> tuple[float, int, Floats]:
        result = least_squares(
            _pd_residuals,
            start[0],
            bounds=start[1:],
            x_scale=np.maximum(np.abs(start[0]), 1e-3),
            max_nfev=60,
            args=(kept, delay, contract.rate_hz),
        )
        return float(result.cost), delay, result.x

    unlimited = min(
        (fitted(delay, free) for delay in range(MOST_DELAY + 1)), key=lambda entry: entry[0]
    )
    # constant gains are a servo without lag and friction; from there it ends no worse than they
    plain = {
        "lag_s": 1e-4,
        "limit_slope": 0.0,
        "coulomb": 0.0,
        "stiction": 0.0,
        "load": 0.0,
        "load_at_rest": 0.0,
    }
    bare = (
        np.maximum(np.array(astuple(replace(PDParameters(*free[0]), **plain))[:-1]), low + 1e-12),
        *free[1:],
    )
    unlimited = min(
        unlimited, *(fitted(delay, bare) for delay in {0, unlimited[1]}), key=lambda entry: entry[0]
    )
    limited = fitted(unlimited[1], (begin, low, high))
    explained = LIMITED * sum(0.5 * float(part.torque @ part.torque) for part in kept)
    _, delay, best = limited if limited[0] < unlimited[0] - explained else unlimited
    model.delay.fill_(delay)
    model.values.copy_(torch.tensor(astuple(PDParameters(*best))))


def _fit_motion(
    contract: ActuatorContract, log: ActuatorLog, within: tuple[Floats, ...], searches: int
) -> Floats:
    """The parameters, an armature among them, whose pendulums swing as the recorded ones did, from
    the commands alone. Torques of measured motion would tell little of a joint at rest: it gives by
    hardly more than encoders see. A delay is not looked for, the lag stands for it.

    within: where the other parameters begin when torques are fitted, and their range. searches: the
    first from there, the others from as near as `APART`: friction gives such a search many ends,
    and rounding alone leads to others.
    """
    pendulums = Pendulums(log)
    inertia = float(pendulums.inertia.mean())
    given, low, high = (
        np.append(values, x * inertia) for values, x in zip(within, (0.5, 0.0, 10.0), strict=True)
    )
    p, least = PDParameters(*given), PDParameters(*low)
    # gears take about half of what the motor makes; lag and slope are let free once all else is
    # about right
    begin = replace(
        p,
        stiffness=2.0 * p.stiffness,
        lag_s=least.lag_s,
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
    size, first = np.array(astuple(sizes)), np.array(astuple(begin))
    apart = np.isin([entry.name for entry in fields(p)], ["lag_s", "limit_slope"])
    rng, best, least_cost = np.random.default_rng(0), first, math.inf
    for search in range(searches):
        near = first * (1.0 + APART * rng.normal(size=len(first))) if search else first
        values, cost = np.clip(near, low + 1e-12, high), math.inf
        for free in (~apart, np.ones_like(apart)):
            values[free], cost = _least_off(pendulums, contract, values, free, (low, high), size)
        if cost < least_cost:
            best, least_cost = values, cost
    return best


def _least_off(
    pendulums: Pendulums,
    contract: ActuatorContract,
    values: Floats,
    free: NDArray[np.bool_],
    within: tuple[Floats, Floats],
    size: Floats,
) -> tuple[Floats, float]:
    """Those of the parameters (12,) that are free, by least squares of the pendulums' positions,
    and half of these."""
    low, high, steps = within[0][free], within[1][free], 1e-3 * size[free]

    def off(some: Floats) -> Floats:
        """Of free parameters (F, P), (moments, P) [rad]."""
        all_of_them = np.repeat(values[:, None], some.shape[1], 1)
        all_of_them[free] = some
        errors = pendulums.off(_swing(all_of_them[..., None], pendulums, contract), some.shape[1:])
        found: Floats = np.moveaxis(errors, 1, -1)[pendulums.there]
        return found

    def slopes(some: Floats) -> Floats:
        step = np.where(some + steps < high, steps, -steps)
        found = off(np.concatenate((some[:, None], some[:, None] + np.diag(step)), 1))
        return (found[:, 1:] - found[:, :1]) / step

    best = least_squares(
        lambda some: off(some[:, None])[:, 0],
        values[free],
        slopes,
        (low, high),
        x_scale=size[free],
        max_nfev=40,
    )
    return best.x, float(best.cost)


def _swing(
    values: Floats, pendulums: Pendulums, contract: ActuatorContract
) -> Callable[[int, Floats, Floats], Floats]:
    """How `PD` of parameters (12, P, 1) and no delay accelerates pendulums, as `Pendulums.off` asks
    it."""
    p, rate = PDParameters(*values), contract.rate_hz
    kp, kd, limit = np.array([gains_of(trace) for trace in pendulums.traces]).T
    part = share(p.lag_s, rate)
    motor = given = np.zeros(0)

    def accelerate(t: int, q: Floats, v: Floats) -> Floats:
        nonlocal motor, given
        effort = pendulums.command[t] - q
        if contract.gains:
            effort = reference(effort, v, kp, kd, limit, pendulums.feedforward[t])
        if t == 0:
            motor = wanted(p, effort, v)
            given = given_at(p, motor, v, pendulums.torque)
        motor = motor + part * (wanted(p, effort, v) - motor)
        given, borne = gives(given, v, rate)
        torque = delivered(p, motor, v, borne) - pendulums.gravity * np.sin(q)
        told: Floats = torque / (pendulums.inertia + p.armature)
        return told

    return accelerate


class _Moves:
    """A trace as the closed form takes it, (T,) each; `borne` is the share of its friction."""

    def __init__(self, trace: Trace, contract: ActuatorContract):
        self.effort, self.velocity = inputs_of(trace, contract).astype(np.float64).T
        self.torque = trace.torque.astype(np.float64)
        self.borne, given = np.zeros_like(self.velocity), np.float64(0.0)
        for t, velocity in enumerate(self.velocity):
            given, self.borne[t] = gives(given, velocity, contract.rate_hz)


def _middle(trace: Trace, count: int) -> Trace:
    """So many moments from the middle of a trace."""
    first = (len(trace) - count) // 2
    return trace.part(first, first + count)


def _pd_range(contract: ActuatorContract, kept: list[_Moves]) -> tuple[Floats, ...]:
    """Where the parameters begin, and between which values they lie."""
    spread = contract.torque_scale
    effort, velocity, torque = (
        np.concatenate([getattr(part, name) for part in kept])
        for name in ("effort", "velocity", "torque")
    )
    fastest, largest = max(float(np.abs(velocity).max()), 1e-3), float(np.abs(torque).max())
    a, b, c = np.linalg.lstsq(
        np.stack([effort, -velocity, np.ones_like(effort)], -1), torque, rcond=None
    )[0]
    some = 0.1 * spread
    begin = PDParameters(
        max(a, 1e-3 * spread / contract.input_scale[0]),
        max(b, 0.0),
        c,
        1.0 / contract.rate_hz,
        1.5 * largest,
        0.1 * spread / fastest,
        some,
        some,
        0.1 * fastest,
        0.1,
        0.1,
    )
    low = PDParameters(0.0, 0.0, -10 * spread, 1e-6, 0.2 * largest, 0.0, 0.0, 0.0, 1e-3 * fastest)
    high = PDParameters(
        np.inf,
        np.inf,
        10 * spread,
        0.5,
        10 * largest,
        np.inf,
        5 * spread,
        5 * spread,
        10 * fastest,
        1.0,
        1.0,
    )
    # of torques: they tell nothing of the armature
    least, most = (np.array(astuple(p)[:-1]) for p in (low, high))
    return np.clip(np.array(astuple(begin)[:-1]), least + 1e-12, most), least, most


def _pd_residuals(values: Floats, traces: list[_Moves], delay: int, rate_hz: float) -> Floats:
    """Predicted less measured torques of all traces; the lag begins where the torque does."""
    p = PDParameters(*values)
    return np.concatenate(
        [
            delivered(p, _motor(p, trace, delay, rate_hz), trace.velocity, trace.borne)
            - trace.torque
            for trace in traces
        ]
    )


def _motor(p: PDParameters, moves: _Moves, delay: int, rate_hz: float) -> Floats:
    """The motor's torque (T,) [Nm] before its limit."""
    part = share(p.lag_s, rate_hz)
    asked = np.concatenate(
        (np.repeat(moves.effort[:1], delay), moves.effort[: len(moves.effort) - delay])
    )
    start = [(1.0 - part) * moves.torque[0]]
    motor, _ = lfilter([part], [1.0, part - 1.0], wanted(p, asked, moves.velocity), zi=start)
    return np.asarray(motor)
