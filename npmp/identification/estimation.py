"""Parameters of joints from what they did: least squares over whole simulated motions, with what
was known before.

The residuals are the encoders' readings (and torques, where they were logged) against a simulation
in open loop, each over its joint's own scatter, which counts for more the longer residuals resemble
themselves; beside them stand the priors, Gaussian, of what the motions alone may not tell. The
Jacobian is by differences, all of them one batch of simulations: limbs do not feel each other, so
one parameter of each is changed at a time. Errors are those of the linear model at the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import least_squares

from npmp import ranges
from npmp.actuators.log import Recording, StandLog
from npmp.identification.stand import KINDS, Floats, Stand

_DAMPING, _DELAY, _BIAS, _KP, _KD = (
    KINDS.index(name) for name in ("damping", "delay_s", "bias", "kp", "kd")
)
_STEP = 1e-4  # of the differences, in units of each parameter
_JUMP = 0.01  # of a slope: by how much differences of two sizes may disagree
# scatters per unit: so much they always may; a thousand moments of it weigh less than any prior
_ROUNDING = 0.01
_NOISE = 1e-3  # rad: what is taken for the scatter of angles until it is known
_LEAST_NOISE = 1e-6  # rad; of torques, of what was taken for theirs
_TORQUE_NOISE = 0.02  # of the torque limit, likewise


@dataclass(frozen=True)
class Prior:
    """What is known before: standard deviations about the model's own values. Raises ValueError
    below zero."""

    kp: float = 0.12  # of itself: +-20 %, uniform
    kd: float = 0.12
    bias: float = 0.03  # rad: +-0.05, uniform

    def __post_init__(self) -> None:
        ranges.not_negative(self, "kp", "kd", "bias")


@dataclass(frozen=True)
class IdentificationConfig:
    """Raises ValueError for numbers out of range."""

    prior: Prior = field(default_factory=Prior)
    settle_s: float = 2.0  # s at a recording's start that do not count, at most half of it
    longest_delay_s: float = 0.1  # s
    iterations: int = 30  # at most, in each of two rounds

    def __post_init__(self) -> None:
        ranges.not_negative(self, "settle_s")
        ranges.above_zero(self, "longest_delay_s")
        ranges.at_least_one(self, "iterations")
        if self.longest_delay_s > 0.9:
            raise ValueError(f"longest_delay_s must be at most 0.9, got {self.longest_delay_s:g}")


@dataclass(frozen=True)
class Identified:
    """Parameters (n, 7) of joints in the order of `KINDS`, and how well they are known.

    covariance (n, 7, 7): of each joint's, zero where a parameter was not looked for. prior (n, 7):
    standard deviations before, infinite where nothing was known. condition (n,): of each joint's
    motions by its parameters, of unit length each; large where they do nearly the same. rms (n,)
    [rad]: of the angles' residuals.
    """

    joints: tuple[str, ...]
    nominal: Floats
    estimate: Floats
    covariance: Floats
    prior: Floats
    condition: Floats
    rms_before: Floats
    rms_after: Floats
    correlation_time: Floats  # (n,) samples over which residuals resemble themselves; 1: white
    # (n,) share of the physics steps at which drives give all their torque, in simulation
    saturated: Floats
    torques: bool = False  # whether the log had them

    @property
    def error(self) -> Floats:
        """(n, 7) standard errors."""
        return np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))

    def correlation(self, joint: int) -> Floats:
        """(7, 7) of a joint's parameters; zero beside those that were not looked for."""
        size = np.where(self.error[joint] > 0.0, self.error[joint], 1.0)
        return np.asarray(self.covariance[joint] / np.outer(size, size))


class _Problem:
    """The residuals of a log as a function of the free parameters x, each in its own unit."""

    def __init__(self, stand: Stand, recordings: Sequence[Recording], config: IdentificationConfig):
        self.stand, self.recordings, self.config = stand, recordings, config
        number, nominal = len(stand.joints), stand.nominal
        first = round(config.settle_s * stand.rate_hz) + 1
        self._counted = [
            slice(min(first, len(recording.command) // 2), None) for recording in recordings
        ]
        self.torques = all(recording.torque is not None for recording in recordings)
        known, none = config.prior, np.full(number, np.inf)
        given = (
            none,
            none,
            none,
            none,
            np.full(number, known.bias),
            known.kp * nominal[:, _KP],
            known.kd * nominal[:, _KD],
        )
        self.prior = np.stack(given, -1)
        self.free = self.prior > 0.0
        # else damping stands for both: only their sum shows in the angles
        self.free[:, _KD] &= self.torques
        critical = 2.0 * np.sqrt(nominal[:, _KP] * stand.inertia)  # damping [Nm s/rad]
        friction = np.minimum(0.05 * stand.torque_limit, 0.1 * nominal[:, _KP])
        steps = np.full(number, 1.0 / stand.rate_hz)
        units = (
            stand.inertia,
            critical,
            friction,
            steps,
            np.full(number, 0.05),
            nominal[:, _KP],
            critical,
        )
        self.unit = np.stack(units, -1)
        top = np.full_like(nominal, np.inf)
        top[:, _DELAY] = config.longest_delay_s
        bottom = np.zeros_like(nominal)
        bottom[:, _BIAS], bottom[:, _KP] = -np.inf, 0.05 * nominal[:, _KP]
        if not self.torques:
            bottom[:, _DAMPING] = -0.95 * nominal[:, _KD]
        self.bounds = (bottom / self.unit)[self.free], (top / self.unit)[self.free]
        self.noise = np.full(number, _NOISE)
        self.torque_noise = _TORQUE_NOISE * np.minimum(stand.torque_limit, nominal[:, _KP])
        self.least_torque_noise = _LEAST_NOISE * self.torque_noise

    def parameters(self, x: Floats) -> Floats:
        """(..., F) -> (..., n, 7)."""
        full = np.broadcast_to(
            self.stand.nominal, (*x.shape[:-1], *self.stand.nominal.shape)
        ).copy()
        full[..., self.free] = x * self.unit[self.free]
        return full

    def misses(self, values: Floats) -> tuple[Floats, Floats | None]:
        """What simulations of parameters (m, n, 7) miss: angles (m, S, n) [rad] and torques [Nm], S
        moments in all."""
        angles, torques = [], []
        for recording, counted in zip(self.recordings, self._counted, strict=True):
            speed = None if recording.velocity is None else recording.velocity[0]
            motion = self.stand.run(
                values, recording.command, recording.position[0], speed, torque=self.torques
            )
            read = motion.position + values[:, None, :, _BIAS]
            angles.append((read - recording.position)[:, counted])
            if motion.torque is not None and recording.torque is not None:
                torques.append((motion.torque - recording.torque)[:, counted])
        return np.concatenate(angles, 1), np.concatenate(torques, 1) if torques else None

    def scaled(self, values: Floats) -> Floats:
        """`misses` over their scatter, (m, S', n)."""
        angles, torques = self.misses(values)
        whole = angles / self.noise
        return whole if torques is None else np.concatenate((whole, torques / self.torque_noise), 1)

    def residuals(self, x: Floats) -> Floats:
        """(R,): misses, then the priors."""
        values = self.parameters(x[None])
        return np.concatenate((self.scaled(values).ravel(), self._beside(values[0])))

    def _beside(self, values: Floats) -> Floats:
        """The priors' residuals."""
        known = np.isfinite(self.prior) & self.free
        return np.asarray((values - self.stand.nominal)[known] / self.prior[known])

    def jacobian(self, x: Floats) -> Floats:
        """(R, F): of the misses by differences, of the priors exactly."""
        known = np.isfinite(self.prior[self.free])
        of_priors = np.diag(self.unit[self.free] / np.where(known, self.prior[self.free], 1.0))[
            known
        ]
        return np.concatenate((self.derivatives(x).reshape(-1, len(x)), of_priors))

    def derivatives(self, x: Floats, size: float = _STEP) -> Floats:
        """(S', n, F): of the scaled misses, by differences of `size` units."""
        column = np.full(self.free.shape, -1)
        column[self.free] = np.arange(len(x))
        trees = self.stand.trees
        together = [  # parameters (column, limb) that change in one simulation
            [
                (int(c), tree)
                for tree in trees
                if place < len(tree) and (c := column[tree[place], kind]) >= 0
            ]
            for place in range(max(map(len, trees)))
            for kind in range(len(KINDS))
        ]
        together = [changes for changes in together if changes]
        step = np.where(x + size < self.bounds[1], size, -size)  # away from a bound
        moved = np.repeat(x[None], len(together) + 1, 0)
        for row, changes in zip(moved, together, strict=False):
            for c, _ in changes:
                row[c] += step[c]
        found = self.scaled(self.parameters(moved))  # the last row is x itself
        slopes = np.zeros((*found.shape[1:], len(x)))
        for other, changes in zip(found, together, strict=False):
            for c, tree in changes:
                slopes[:, tree, c] = (other[:, tree] - found[-1][:, tree]) / step[c]
        return slopes

    def start(self) -> Floats:
        """The model's own parameters, off the bounds, with the delay of whole samples that fits
        each joint best."""
        values = self.stand.nominal.copy()
        values[:, :3] = np.maximum(values[:, :3], 0.05 * self.unit[:, :3])
        delays = np.arange(0.0, self.config.longest_delay_s, 1.0 / self.stand.rate_hz)
        tried = np.repeat(values[None], len(delays), 0)
        tried[..., _DELAY] = delays[:, None]
        best = np.argmin(np.square(self.misses(tried)[0]).sum(1), 0)
        values[:, _DELAY] = np.maximum(delays[best], 0.05 / self.stand.rate_hz)
        return np.asarray((values / self.unit)[self.free])


def identify(stand: Stand, log: StandLog, config: IdentificationConfig | None = None) -> Identified:
    """Parameters of a stand's joints from a log of theirs, at the stand's rate.

    In two rounds: the second knows each joint's scatter, and how long it resembles itself, from the
    first.
    """
    config = config or IdentificationConfig()
    problem = _Problem(stand, log.recordings, config)
    x = problem.start()
    for _ in range(2):
        x = _optimum(problem, x)
        missed = [
            part[0] for part in problem.misses(problem.parameters(x[None])) if part is not None
        ]
        times = [np.array([_correlation_time(column) for column in part.T]) for part in missed]
        # what resembles itself tells less, beside the priors and in the errors alike
        problem.noise = np.maximum(_rms(missed[0]), _LEAST_NOISE) * np.sqrt(times[0])
        if problem.torques:
            problem.torque_noise = np.maximum(
                _rms(missed[1]), problem.least_torque_noise
            ) * np.sqrt(times[1])
    covariance, condition = _certainty(problem, x)
    estimate = problem.parameters(x)
    surplus = np.minimum(estimate[:, _DAMPING], 0.0)  # a drive damps less than the model's
    estimate[:, _KD] += surplus
    estimate[:, _DAMPING] -= surplus
    return Identified(
        stand.joints,
        stand.nominal,
        estimate,
        covariance,
        problem.prior,
        condition,
        _rms(problem.misses(stand.nominal[None])[0][0]),
        _rms(missed[0]),
        np.max(times, 0),
        _saturated(stand, log.recordings, estimate),
        problem.torques,
    )


def _optimum(problem: _Problem, x: Floats) -> Floats:
    """A round from x on."""
    inside = np.clip(x, problem.bounds[0] + 1e-6, problem.bounds[1] - 1e-6)
    limits = {"max_nfev": problem.config.iterations, "ftol": 1e-5, "xtol": 1e-6}
    found = least_squares(
        problem.residuals, inside, problem.jacobian, problem.bounds, method="trf", **limits
    )
    return np.asarray(found.x)


def _certainty(problem: _Problem, x: Floats) -> tuple[Floats, Floats]:
    """Covariances (n, 7, 7) of each joint's parameters, and the condition number of its motions by
    them (n,)."""
    # motions jump a little where a joint sticks or a drive is at its limit; a jump makes
    # differences large, the more so the smaller they are, and would be taken for knowledge: moments
    # where two sizes disagree count for nothing
    slopes, wider = problem.derivatives(x), problem.derivatives(x, 10.0 * _STEP)
    usual = np.abs(wider) + np.sqrt(np.square(wider).mean(0))
    jumps = np.abs(slopes - wider) > _ROUNDING + _JUMP * usual
    slopes[jumps.any(-1)] = 0.0
    known = np.isfinite(problem.prior[problem.free])
    precision = np.where(known, problem.unit[problem.free] / problem.prior[problem.free], 0.0) ** 2
    flat = slopes.reshape(-1, len(x))
    all_of = np.linalg.pinv(flat.T @ flat + np.diag(precision), hermitian=True)
    number, kinds = problem.free.shape
    covariance, condition = np.zeros((number, kinds, kinds)), np.zeros(number)
    column = np.full(problem.free.shape, -1)
    column[problem.free] = np.arange(len(x))
    for j in range(number):
        own, free = column[j][problem.free[j]], np.flatnonzero(problem.free[j])
        unit = problem.unit[j, free]
        covariance[j][np.ix_(free, free)] = all_of[np.ix_(own, own)] * np.outer(unit, unit)
        length = np.linalg.norm(flat[:, own], axis=0)
        seen = flat[:, own[length > 0.0]] / length[length > 0.0]
        condition[j] = np.linalg.cond(seen) if seen.size else np.inf
    return covariance, condition


def _saturated(stand: Stand, recordings: Sequence[Recording], values: Floats) -> Floats:
    """The share (n,) of physics steps at which drives of parameters (n, 7) are at their limit."""
    at_limit = []
    for recording in recordings:
        speed = None if recording.velocity is None else recording.velocity[0]
        start = recording.position[0]
        motion = stand.run(
            values[None], recording.command, start, speed, torque=True, every_step=True
        )
        assert motion.torque is not None  # for the type checker: it was asked for
        at_limit.append(np.abs(motion.torque[0]) >= stand.torque_limit)
    return np.asarray(np.concatenate(at_limit).mean(0))


def _rms(values: Floats) -> Floats:
    """(S, n) -> (n,)."""
    return np.asarray(np.sqrt(np.square(values).mean(0)))


def _correlation_time(values: Floats) -> float:
    """Samples over which a series (S,) resembles itself: 1 + 2 sum of its autocorrelations until
    the first below zero; 1 for white noise (Sokal's integrated autocorrelation time, cut there)."""
    size = len(values)
    power = np.abs(np.fft.rfft(values - values.mean(), 2 * size)) ** 2
    correlation = np.fft.irfft(power)[: size // 2]
    if not correlation[0] > 0.0:
        return 1.0
    correlation = correlation / correlation[0]
    # below what chance makes of white noise it counts as none
    end = int(np.argmax(correlation < 2.0 / np.sqrt(size)))
    return float(1.0 + 2.0 * correlation[1:end].sum()) if end > 1 else 1.0
