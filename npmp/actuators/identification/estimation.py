"""Parameters of joints from their motions: least squares over open-loop simulations, with priors.

The residuals are simulated minus logged angles (and torques, if logged) over the joint's noise,
which is larger for residuals that are correlated in time; and Gaussian priors. The Jacobian is by
finite differences in one batch of simulations: limbs do not affect each other, so one parameter of
each changes at a time. Errors are those of the linear model at the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from npmp.actuators.actuator_log import JointRecording, StandLog
from npmp.actuators.identification.stand import BIAS, DAMPING, DELAY, KD, KINDS, KP, Floats, Stand
from npmp.core import ranges

# step of the finite differences, in units of each parameter
_STEP = 1e-4
# tolerances between differences of two step sizes: share of the slope, and noises per unit; a
# thousand samples of the latter weigh less than any prior
_JUMP = 0.01
_ROUNDING = 0.01
# initial and least noise of angles [rad]; least noise of torques over the initial one
_NOISE = 1e-3
_LEAST_NOISE = 1e-6
# initial noise of torques over the torque limit
_TORQUE_NOISE = 0.02


@dataclass(frozen=True)
class ParameterPrior:
    """Standard deviations about the model's values. Raises ValueError below zero."""

    # share of the model's value, as of uniform +-20 %
    kp: float = 0.12
    # share of the model's value, as of uniform +-20 %
    kd: float = 0.12
    # [rad], as of uniform +-0.05
    bias: float = 0.03

    def __post_init__(self) -> None:
        ranges.not_negative(self, "kp", "kd", "bias")


@dataclass(frozen=True)
class IdentificationConfig:
    """Settings of the estimation. Raises ValueError for values out of range."""

    prior: ParameterPrior = field(default_factory=ParameterPrior)
    # [s] ignored at a recording's start, at most half of it
    settle_s: float = 2.0
    # largest delay [s]
    longest_delay_s: float = 0.1
    # iterations of least squares, at most, in each of two rounds
    iterations: int = 30

    def __post_init__(self) -> None:
        ranges.not_negative(self, "settle_s")
        ranges.above_zero(self, "longest_delay_s")
        ranges.at_least_one(self, "iterations")
        if self.longest_delay_s > 0.9:
            raise ValueError(f"longest_delay_s={self.longest_delay_s:g}: must be at most 0.9 [s]")


@dataclass(frozen=True)
class Identified:
    """Parameters (n, 7) of joints in the order of `KINDS`, and their uncertainty.

    covariance (n, 7, 7): zero for parameters that were not fitted. prior (n, 7): standard
    deviations, infinite without a prior. condition (n,): of each joint's normalized Jacobian; large
    where parameters have nearly the same effect. rms (n,) [rad]: of the angles' residuals.
    correlation_time (n,) [samples]: 1 for white residuals. saturated (n,): share of the simulated
    physics steps at which drives are at their torque limit. torques: whether the log has torques.
    """

    joints: tuple[str, ...]
    nominal: Floats
    estimate: Floats
    covariance: Floats
    prior: Floats
    condition: Floats
    rms_before: Floats
    rms_after: Floats
    correlation_time: Floats
    saturated: Floats
    torques: bool = False

    @property
    def error(self) -> Floats:
        """(n, 7) standard errors."""
        return np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))

    def correlation(self, joint: int) -> Floats:
        """(7, 7) correlations of a joint's parameters; zero for those that were not fitted."""
        size = np.where(self.error[joint] > 0.0, self.error[joint], 1.0)
        return np.asarray(self.covariance[joint] / np.outer(size, size))

    def most_correlated(self, joint: int) -> tuple[str, str, float]:
        """The two most correlated parameters of a joint, and their correlation."""
        upper = np.triu(self.correlation(joint), 1)
        first, second = np.unravel_index(int(np.argmax(np.abs(upper))), upper.shape)
        return KINDS[first], KINDS[second], float(upper[first, second])


class _Problem:
    """The residuals of a log as a function of the free parameters x, each in its own unit."""

    def __init__(
        self, stand: Stand, recordings: Sequence[JointRecording], config: IdentificationConfig
    ):
        self.stand = stand
        self.recordings = recordings
        self.config = config
        number = len(stand.joints)
        nominal = stand.nominal
        first = round(config.settle_s * stand.rate_hz) + 1
        self._counted = [slice(min(first, len(r.command) // 2), None) for r in recordings]
        self.torques = all(recording.torque is not None for recording in recordings)
        self.prior = np.full_like(nominal, np.inf)
        self.prior[:, BIAS] = config.prior.bias
        self.prior[:, KP] = config.prior.kp * nominal[:, KP]
        self.prior[:, KD] = config.prior.kd * nominal[:, KD]
        self.free = self.prior > 0.0
        # without torques damping includes kd: angles depend only on their sum
        self.free[:, KD] &= self.torques
        # index in x of each parameter, -1 for fixed ones
        self.column = np.full(self.free.shape, -1)
        self.column[self.free] = np.arange(self.free.sum())
        # [Nm s/rad]
        critical = 2.0 * np.sqrt(nominal[:, KP] * stand.inertia)
        friction = np.minimum(0.05 * stand.torque_limit, 0.1 * nominal[:, KP])
        steps = np.full(number, 1.0 / stand.rate_hz)
        bias = np.full(number, 0.05)
        units = (stand.inertia, critical, friction, steps, bias, nominal[:, KP], critical)
        self.unit = np.stack(units, -1)
        top = np.full_like(nominal, np.inf)
        top[:, DELAY] = config.longest_delay_s
        bottom = np.zeros_like(nominal)
        bottom[:, BIAS] = -np.inf
        bottom[:, KP] = 0.05 * nominal[:, KP]
        if not self.torques:
            bottom[:, DAMPING] = -0.95 * nominal[:, KD]
        self.bounds = (bottom / self.unit)[self.free], (top / self.unit)[self.free]
        self.noise = np.full(number, _NOISE)
        self.torque_noise = _TORQUE_NOISE * np.minimum(stand.torque_limit, nominal[:, KP])
        self.least_torque_noise = _LEAST_NOISE * self.torque_noise

    def parameters(self, x: Floats) -> Floats:
        """(..., F) -> (..., n, 7)."""
        nominal = self.stand.nominal
        full = np.broadcast_to(nominal, (*x.shape[:-1], *nominal.shape)).copy()
        full[..., self.free] = x * self.unit[self.free]
        return full

    def errors(self, values: Floats) -> tuple[Floats, Floats | None]:
        """Simulated minus measured angles (m, S, n) [rad] and torques [Nm] of parameters (m, n, 7)
        over all S samples."""
        angles = []
        torques = []
        for recording, counted in zip(self.recordings, self._counted, strict=True):
            motion = self.stand.replay(values, recording, torque=self.torques)
            reading = motion.position + values[:, None, :, BIAS]
            angles.append((reading - recording.position)[:, counted])
            if motion.torque is not None and recording.torque is not None:
                torques.append((motion.torque - recording.torque)[:, counted])
        return np.concatenate(angles, 1), np.concatenate(torques, 1) if torques else None

    def scaled(self, values: Floats) -> Floats:
        """`errors` over their noise, (m, S', n)."""
        angles, torques = self.errors(values)
        scaled = angles / self.noise
        if torques is None:
            return scaled
        return np.concatenate((scaled, torques / self.torque_noise), 1)

    def residuals(self, x: Floats) -> Floats:
        """(R,): scaled errors, then the priors'."""
        values = self.parameters(x[None])
        has_prior = np.isfinite(self.prior) & self.free
        of_priors = (values[0] - self.stand.nominal)[has_prior] / self.prior[has_prior]
        return np.concatenate((self.scaled(values).ravel(), of_priors))

    def jacobian(self, x: Floats) -> Floats:
        """(R, F): of the errors by differences, of the priors exactly."""
        prior = self.prior[self.free]
        of_priors = np.diag(self.unit[self.free] / np.where(np.isfinite(prior), prior, 1.0))
        slopes = self.derivatives(x).reshape(-1, len(x))
        return np.concatenate((slopes, of_priors[np.isfinite(prior)]))

    def derivatives(self, x: Floats, size: float = _STEP) -> Floats:
        """(S', n, F): of the scaled errors, by differences of `size` units."""
        # parameters (column, limb) that change in one simulation
        groups: dict[tuple[int, int], list[tuple[int, NDArray[np.intp]]]] = {}
        for tree in self.stand.trees:
            for (place, kind), c in np.ndenumerate(self.column[tree]):
                if c >= 0:
                    groups.setdefault((place, kind), []).append((c, tree))
        # away from a bound
        step = np.where(x + size < self.bounds[1], size, -size)
        # the last row is x itself
        moved = np.repeat(x[None], len(groups) + 1, 0)
        for row, changes in zip(moved, groups.values(), strict=False):
            for c, _ in changes:
                row[c] += step[c]
        errors = self.scaled(self.parameters(moved))
        slopes = np.zeros((*errors.shape[1:], len(x)))
        for other, changes in zip(errors, groups.values(), strict=False):
            for c, tree in changes:
                slopes[:, tree, c] = (other[:, tree] - errors[-1][:, tree]) / step[c]
        return slopes

    def start(self) -> Floats:
        """The model's parameters, off the bounds, with each joint's best delay in whole samples."""
        values = self.stand.nominal.copy()
        values[:, :3] = np.maximum(values[:, :3], 0.05 * self.unit[:, :3])
        delays = np.arange(0.0, self.config.longest_delay_s, 1.0 / self.stand.rate_hz)
        candidates = np.repeat(values[None], len(delays), 0)
        candidates[..., DELAY] = delays[:, None]
        best = np.argmin(np.square(self.errors(candidates)[0]).sum(1), 0)
        values[:, DELAY] = np.maximum(delays[best], 0.05 / self.stand.rate_hz)
        return np.asarray((values / self.unit)[self.free])


def identify(stand: Stand, log: StandLog, config: IdentificationConfig | None = None) -> Identified:
    """Parameters of a stand's joints from a log at the stand's rate, in two rounds: the second uses
    the noise of the first's residuals."""
    config = config or IdentificationConfig()
    problem = _Problem(stand, log.recordings, config)
    x = problem.start()
    for _ in range(2):
        inside = np.clip(x, problem.bounds[0] + 1e-6, problem.bounds[1] - 1e-6)
        limits = {"max_nfev": config.iterations, "ftol": 1e-5, "xtol": 1e-6}
        x = least_squares(
            problem.residuals, inside, problem.jacobian, problem.bounds, method="trf", **limits
        ).x
        errors = problem.errors(problem.parameters(x[None]))
        residuals = [part[0] for part in errors if part is not None]
        times = [np.array([_correlation_time(column) for column in part.T]) for part in residuals]
        # correlated residuals have less information
        problem.noise = np.maximum(_rms(residuals[0]), _LEAST_NOISE) * np.sqrt(times[0])
        if problem.torques:
            noise = np.maximum(_rms(residuals[1]), problem.least_torque_noise)
            problem.torque_noise = noise * np.sqrt(times[1])
    covariance, condition = _uncertainty(problem, x)
    estimate = problem.parameters(x)
    # negative damping: the drive's kd is less than the model's
    surplus = np.minimum(estimate[:, DAMPING], 0.0)
    estimate[:, KD] += surplus
    estimate[:, DAMPING] -= surplus
    return Identified(
        joints=stand.joints,
        nominal=stand.nominal,
        estimate=estimate,
        covariance=covariance,
        prior=problem.prior,
        condition=condition,
        rms_before=_rms(problem.errors(stand.nominal[None])[0][0]),
        rms_after=_rms(residuals[0]),
        correlation_time=np.max(times, 0),
        saturated=_saturated(stand, log.recordings, estimate),
        torques=problem.torques,
    )


def _uncertainty(problem: _Problem, x: Floats) -> tuple[Floats, Floats]:
    """`Identified.covariance` and `Identified.condition`."""
    # a joint that sticks or a drive at its limit makes motions jump, and differences large: samples
    # at which two step sizes disagree are ignored
    slopes = problem.derivatives(x)
    wider = problem.derivatives(x, 10.0 * _STEP)
    usual = np.abs(wider) + np.sqrt(np.square(wider).mean(0))
    jumps = np.abs(slopes - wider) > _ROUNDING + _JUMP * usual
    slopes[jumps.any(-1)] = 0.0
    # 0 without a prior
    precision = np.square(problem.unit[problem.free] / problem.prior[problem.free])
    flat = slopes.reshape(-1, len(x))
    inverse = np.linalg.pinv(flat.T @ flat + np.diag(precision), hermitian=True)
    number, kinds = problem.free.shape
    covariance = np.zeros((number, kinds, kinds))
    condition = np.zeros(number)
    for j in range(number):
        free = np.flatnonzero(problem.free[j])
        columns = problem.column[j, free]
        unit = problem.unit[j, free]
        covariance[j][np.ix_(free, free)] = inverse[np.ix_(columns, columns)] * np.outer(unit, unit)
        length = np.linalg.norm(flat[:, columns], axis=0)
        normalized = flat[:, columns[length > 0.0]] / length[length > 0.0]
        condition[j] = np.linalg.cond(normalized) if normalized.size else np.inf
    return covariance, condition


def _saturated(stand: Stand, recordings: Sequence[JointRecording], values: Floats) -> Floats:
    """The share (n,) of physics steps at which drives with parameters (n, 7) are at their limit."""
    at_limit = []
    for recording in recordings:
        motion = stand.replay(values[None], recording, torque=True, every_step=True)
        assert motion.torque is not None  # for the type checker
        at_limit.append(np.abs(motion.torque[0]) >= stand.torque_limit)
    return np.asarray(np.concatenate(at_limit).mean(0))


def _rms(values: Floats) -> Floats:
    """(S, n) -> (n,)."""
    return np.asarray(np.sqrt(np.square(values).mean(0)))


def _correlation_time(values: Floats) -> float:
    """Sokal's integrated autocorrelation time [samples] of a series (S,): 1 + 2 sum of its
    autocorrelations, up to the first insignificant one; 1 for white noise."""
    size = len(values)
    power = np.abs(np.fft.rfft(values - values.mean(), 2 * size)) ** 2
    correlation = np.fft.irfft(power)[: size // 2]
    if not correlation[0] > 0.0:
        return 1.0
    correlation = correlation / correlation[0]
    # two standard deviations of white noise's autocorrelation
    end = int(np.argmax(correlation < 2.0 / np.sqrt(size)))
    return float(1.0 + 2.0 * correlation[1:end].sum()) if end > 1 else 1.0
