"""What stands between a policy and the drives. Read this before you trust it.

Three things, all on the controller's side; a robot has its own protection besides:

- `safe_target`: where a joint may be sent, so that the drive's torque stays below a share of its
  limit and the joint within its range.
- `ramped`: commands stay in the range that the policy was trained in, and change gradually.
- `Guard.trip`: everything that ends the run in damping, and why.

Units: rad, rad/s, Nm, s, degrees Celsius. Arrays (nu,) in the order of the bundle's joints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from npmp import ranges
from npmp.deploy.bundle import GRAVITY, BundleContract
from npmp.deploy.robot import FloatArray, State
from npmp.deploy.wire import AHEAD_S

ROUNDING = 1e-13  # of means in double precision


@dataclass(frozen=True)
class GuardConfig:
    """What the robot is held to. Raises ValueError for values out of range."""

    state_age_s: float = 0.1  # sensor readings may be this old
    # and the IMU's the same for so long, under new times: none is without noise
    frozen_s: float = 0.5
    missed_deadlines: int = 5  # so many in a row are too many
    # of the trunk's vertical from the world's; walking was trained within it
    tilt_deg: float = 45.0
    joint_margin_rad: float = 0.15  # beyond the joint's range
    velocity_share: float = 1.2  # of the joint's velocity limit
    velocity_impossible: float = 3.0  # times that limit no drive can reach: not even once
    gyro_radps: float = 35.0  # of any axis; more than IMUs measure
    accelerometer_g: float = 20.0  # of any axis, as a mean over a control step
    torque_share: float = 0.8  # of the joint's torque limit: for targets, and for what is measured
    # velocity and torque may be above their share for less than this, less the time below
    overload_s: float = 0.2
    temperature_c: float = 70.0  # of any motor
    command_ramp_s: float = 1.0  # from zero to the end of a command's range

    def __post_init__(self) -> None:
        ranges.above_zero(
            self,
            "state_age_s",
            "frozen_s",
            "tilt_deg",
            "velocity_share",
            "overload_s",
            "command_ramp_s",
        )
        ranges.at_least_one(self, "missed_deadlines")
        ranges.not_negative(self, "joint_margin_rad")
        ranges.above_zero(
            self,
            "torque_share",
            "temperature_c",
            "velocity_impossible",
            "gyro_radps",
            "accelerometer_g",
        )
        ranges.share(self, "torque_share")


@dataclass(frozen=True)
class Limits:
    """The bundle's limits as arrays."""

    kp: FloatArray  # (nu,)
    kd: FloatArray  # (nu,)
    torque: FloatArray  # (nu,) the share that is used, of the limit
    lower: FloatArray  # (nu,)
    upper: FloatArray  # (nu,)
    velocity: FloatArray  # (nu,) the share of the limit that is allowed
    impossible: FloatArray  # (nu,) a velocity that no drive can reach
    command: FloatArray  # (c, 2)

    @staticmethod
    def of(contract: BundleContract, config: GuardConfig) -> Limits:
        lower, upper = np.array(contract.joint_range, dtype=float).T
        fastest = np.array(contract.velocity_limit, dtype=float)
        velocity, impossible = fastest * config.velocity_share, fastest * config.velocity_impossible
        torque = np.array(contract.torque_limit, dtype=float) * config.torque_share
        command = np.array(contract.command_range, dtype=float).reshape(-1, 2)
        kp, kd = np.array(contract.kp), np.array(contract.kd)
        return Limits(kp, kd, torque, lower, upper, velocity, impossible, command)


def safe_target(target: FloatArray, state: State, limits: Limits) -> FloatArray:
    """The nearest target (nu,) within the joints' ranges at which the drives, as the state is, stay
    below the torque.

    torque = kp (target - q) - kd v, so |torque| <= limit where target is in q + (kd v -+ limit) /
    kp. Where a joint is so far out of its range that both cannot be had, the torque's limit counts,
    but no target is further out than the joint itself, however fast it is.

    Raises:
      ValueError: for a target of another width or that is not finite.
    """
    if target.shape != limits.lower.shape or not np.isfinite(target).all():
        raise ValueError(f"a target of {target.shape}, or one that is not finite")
    inside = np.clip(target, limits.lower, limits.upper)
    damping = limits.kd * state.joint_vel
    lowest = state.joint_pos + (damping - limits.torque) / limits.kp
    highest = state.joint_pos + (damping + limits.torque) / limits.kp
    within = np.clip(inside, lowest, highest)
    return np.clip(
        within, np.minimum(limits.lower, state.joint_pos), np.maximum(limits.upper, state.joint_pos)
    )


def checked_command(wanted: ArrayLike, limits: Limits) -> FloatArray:
    """A command (c,) within the bundle's ranges.

    Raises:
      ValueError: for one of another width or that is not finite.
    """
    command = np.asarray(wanted, dtype=np.float64)
    if command.shape != limits.command.shape[:1] or not np.isfinite(command).all():
        raise ValueError(
            f"a command of {len(limits.command)} finite numbers is expected, got {wanted!r:.80}"
        )
    return np.clip(command, *limits.command.T)


def ramped(
    before: FloatArray, wanted: FloatArray, limits: Limits, dt: float, ramp_s: float
) -> FloatArray:
    """The command (c,) one control step of dt [s] after `before`, on its way to `wanted`, which is
    in its range."""
    step = np.abs(limits.command).max(1) * dt / ramp_s
    return before + np.clip(wanted - before, -step, step)


class Guard:
    """Watchdogs. It remembers for how long joints have been too fast or too strong, and readings
    the same."""

    def __init__(self, contract: BundleContract, config: GuardConfig):
        self.config, self.limits, self.names = (
            config,
            Limits.of(contract, config),
            contract.joint_names,
        )
        self.looked: float | None = None  # when, the last time [s]
        # a copy of the IMU's newest readings, as drivers may fill their arrays anew, and when they
        # first came [s]
        self.unchanged: tuple[FloatArray, float] | None = None
        # (nu,) [s], less time below
        self.above_s = {word: np.zeros(len(self.names)) for word in ("fast", "strong")}

    def trip(self, now: float, state: State | None, missed: int) -> str:
        """Why the robot must be damped, "" where all is well.

        Args:
          now: time [s]. state: the newest, None for none yet. missed: deadlines missed in a row.
        """
        if state is None:
            return "no state"
        return (
            self._malformed(state)
            or self._timing(now - state.time_s, missed)
            or self._frozen(state)
            or self._absurd(state)
            or self._posture(state)
            or self._overload(now, state)
        )

    def _malformed(self, state: State) -> str:
        joints = len(self.names)
        widths = (joints, joints, joints, 3, 3, 3)
        for name, values, width in zip(State._fields[1:7], state[1:7], widths):
            if np.shape(values) != (width,) or not np.isfinite(values).all():
                return f"{name} is not {width} finite numbers"
        hot = state.temperature
        if hot is not None and (np.shape(hot) != (joints,) or not np.isfinite(hot).all()):
            return f"temperature is not {joints} finite numbers"
        return "" if math.isfinite(state.time_s) else "time_s is not finite"

    def _timing(self, age: float, missed: int) -> str:
        if not age <= self.config.state_age_s:
            return f"the state is {1e3 * age:.0f} ms old"
        if age < -AHEAD_S:
            return f"the state is from {-1e3 * age:.0f} ms ahead"
        if missed >= self.config.missed_deadlines:
            return f"{missed} deadlines missed in a row"
        return ""

    def _frozen(self, state: State) -> str:
        """A driver that sends its last frame again and again is not alive, whatever times it writes
        on it. Joints at rest may say the same for long; an IMU does not."""
        sensed = np.concatenate((state.gyro, state.accelerometer, state.up))
        # not to the last bit: the mean of one frame depends there on how often it is in it
        if (
            self.unchanged is None
            or (np.abs(sensed - self.unchanged[0]) > ROUNDING * (1.0 + np.abs(sensed))).any()
        ):
            self.unchanged = sensed, state.time_s
        if (lasted := state.time_s - self.unchanged[1]) > self.config.frozen_s:
            return f"the IMU's readings have been the same for {lasted:.2f} s"
        return ""

    def _absurd(self, state: State) -> str:
        """What no sensor of a sound robot says, not even once."""
        speed = np.abs(state.joint_vel)
        worst = int((speed / self.limits.impossible).argmax())
        if speed[worst] > self.limits.impossible[worst]:
            return f"{self.names[worst]} moves by {speed[worst]:.3g} rad/s, as no drive can"
        if (turn := np.abs(state.gyro).max()) > self.config.gyro_radps:
            return f"the gyro says {turn:.3g} rad/s"
        if (force := np.abs(state.accelerometer).max() / GRAVITY) > self.config.accelerometer_g:
            return f"the accelerometer says {force:.3g} g"
        return ""

    def _posture(self, state: State) -> str:
        length = float(np.linalg.norm(state.up))
        if not 0.5 < length < 1.5:
            return f"up has length {length:.2f}, not 1"
        tilt = math.degrees(math.acos(min(1.0, max(-1.0, float(state.up[2]) / length))))
        if tilt > self.config.tilt_deg:
            return f"tilted by {tilt:.0f} degrees"
        beyond = np.maximum(
            self.limits.lower - state.joint_pos, state.joint_pos - self.limits.upper
        )
        worst = int(beyond.argmax())
        if beyond[worst] > self.config.joint_margin_rad:
            return f"{self.names[worst]} is {beyond[worst]:.2f} rad beyond its range"
        if state.temperature is not None and state.temperature.max() > self.config.temperature_c:
            hottest = int(state.temperature.argmax())
            return (
                f"the motor of {self.names[hottest]} has {state.temperature[hottest]:.0f} degrees"
            )
        return ""

    def _overload(self, now: float, state: State) -> str:
        """What has been above its limit for too long. Time below is taken off, so that one good
        sample excuses nothing."""
        passed, self.looked = max(0.0, now - (now if self.looked is None else self.looked)), now
        for word, values, limit in (
            ("fast", state.joint_vel, self.limits.velocity),
            ("strong", state.joint_torque, self.limits.torque),
        ):
            above = np.abs(values) > 1.001 * limit  # targets are sent up to the limit itself
            spent = self.above_s[word] = np.maximum(
                0.0, self.above_s[word] + np.where(above, passed, -passed)
            )
            worst = int(spent.argmax())
            if spent[worst] >= self.config.overload_s - 1e-9:
                return f"{self.names[worst]} is too {word} for {self.config.overload_s:g} s"
        return ""
