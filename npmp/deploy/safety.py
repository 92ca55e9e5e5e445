"""What stands between a policy and the drives. Read this before you trust it.

Three things, all on the controller's side; a robot has its own protection besides:

- `safe_drive`: where a joint may be sent, so that the drive's torque stays below a share of its
  limit and the joint within its range.
- `checked_command`, `ramped`: commands stay in the range that the policy was trained in, and
  velocities that are asked for change gradually.
- `Watchdog.trip`: everything that ends the run in damping, and why.

Units: rad, rad/s, Nm, s, degrees Celsius. Arrays (nu,) in the order of the bundle's joints.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from npmp.core import ranges
from npmp.deploy.contract import GRAVITY, BundleContract
from npmp.deploy.robot import FloatArray, State

# readings may be this far in the future [s] [D]
AHEAD_S = 0.05
# of means in double precision
ROUNDING = 1e-13
FROZEN_S = 0.5  # the IMU's readings the same for longer, under new times: none is without noise [D]
# by so much a joint must have moved, by its target or by its velocity over the last TURNED_S
# [rad, s] [D]; its angle may then be the same for STUCK_S [s] [D]
STUCK_RAD = 0.1
TURNED_S = 1.0
STUCK_S = 0.2
# two readings may be so much further apart than their times say [s] [D]
JUMP_S = 0.002
# a motor may warm by this [degrees Celsius] within WARMER_S [s]; looked at so often, and not over
# less [s] [D]
WARMER = 15.0
WARMER_S = 5.0
WARMTH_EVERY_S = 0.5
# what no sensor of a sound robot says, not even once: times a joint's velocity and torque limit,
# any axis of the gyro [rad/s] (IMUs measure up to 2000 degrees/s), of the accelerometer [g] [D]
IMPOSSIBLE_JOINT = 3.0
IMPOSSIBLE_GYRO = 35.0
IMPOSSIBLE_ACCELEROMETER = 20.0
# The IMU must agree with itself, in means over IMU_S: the accelerometer with GRAVITY up within
# MOST_ACCELERATION [m/s2], as no robot gains 5 m/s in a second; the gyro with how `up` turns,
# within MOST_TURN [rad/s] and MOST_TURN_SHARE of what it says [D]
IMU_S = 1.0
MOST_ACCELERATION = 5.0
MOST_TURN = 0.3
MOST_TURN_SHARE = 0.75


@dataclass(frozen=True)
class SafetyConfig:
    """What the robot is held to. Raises ValueError for values out of range."""

    # sensor readings may be this old [D]
    state_age_s: float = 0.1
    # control steps in a row that begin half a period late or are slept through [D]
    missed_deadlines: int = 5
    # of the trunk's vertical from the world's [P: where episodes of walking fail]
    tilt_deg: float = 45.0
    # beyond a joint's range [D]
    joint_margin_rad: float = 0.15
    # of a joint's velocity limit, for longer than overload_s [D]
    velocity_share: float = 1.2
    # of a joint's torque limit: no target asks for more, no joint may measure more [R: practice]
    torque_share: float = 0.8
    # velocity and torque may be above their share for less than this, less the time below [D]
    overload_s: float = 0.2
    # of any motor, where it is measured [D]
    temperature_c: float = 70.0
    # from zero to the end of the range of a velocity that is asked for [D]
    command_ramp_s: float = 1.0

    def __post_init__(self) -> None:
        ranges.above_zero(self, "state_age_s", "tilt_deg", "velocity_share", "torque_share")
        ranges.above_zero(self, "overload_s", "temperature_c", "command_ramp_s")
        ranges.at_least_one(self, "missed_deadlines")
        ranges.not_negative(self, "joint_margin_rad")
        ranges.share(self, "torque_share")


class Limits:
    """The bundle's limits as arrays, by the shares of them that are used."""

    def __init__(self, contract: BundleContract, config: SafetyConfig):
        self.kp, self.kd = contract.per_joint("kp"), contract.per_joint("kd")  # (nu,)
        strongest = contract.per_joint("torque_limit")
        self.torque = strongest * config.torque_share  # (nu,)
        self.lower, self.upper = contract.joint_range  # (nu,)
        fastest = contract.per_joint("velocity_limit")
        self.velocity = fastest * config.velocity_share  # (nu,)
        self.impossible = IMPOSSIBLE_JOINT * np.stack((fastest, strongest))  # (2, nu)
        self.command = contract.command_range  # (2, c)
        # (c,) [1/s] largest change of commands; a measured place, as a ball's, has no limit
        ramp = np.abs(self.command).max(0, initial=0.0) / config.command_ramp_s
        is_velocity = [command.unit.endswith("/s") for command in contract.commands]
        self.command_rate = np.where(is_velocity, ramp, np.inf)


def safe_drive(
    target: FloatArray, kp: FloatArray, kd: FloatArray, state: State, limits: Limits
) -> tuple[FloatArray, FloatArray]:
    """The nearest target (nu,) within the joints' ranges at which the drives, as the state is, stay
    below the torque, and the kd (nu,) that goes with it.

    torque = kp (target - q) - kd v, so |torque| <= limit where target is in q + (kd v -+ limit) /
    kp. Where a joint is so far out of its range that both cannot be had, the torque's limit counts,
    but no target is further out than the joint itself, however fast it is. It then brakes with
    less than kd.

    Raises:
      ValueError: for a target of another width or that is not finite.
    """
    if target.shape != limits.lower.shape or not np.isfinite(target).all():
        raise ValueError(f"a target of {target.shape}, or one that is not finite")
    inside = np.clip(target, limits.lower, limits.upper)
    damping = kd * state.joint_vel
    lowest = state.joint_pos + (damping - limits.torque) / kp
    highest = state.joint_pos + (damping + limits.torque) / kp
    within = np.clip(inside, lowest, highest)
    sent = np.clip(
        within, np.minimum(limits.lower, state.joint_pos), np.maximum(limits.upper, state.joint_pos)
    )

    stiff = kp * (sent - state.joint_pos)
    torque = stiff - damping
    above = (np.abs(torque) > limits.torque) & (state.joint_vel != 0.0)
    velocity = np.where(above, state.joint_vel, 1.0)
    braking = (stiff - np.sign(torque) * limits.torque) / velocity
    return sent, np.where(above, np.clip(braking, 0.0, kd), kd)


def checked_command(wanted: ArrayLike, limits: Limits) -> FloatArray:
    """A command (c,) within the bundle's ranges.

    Raises:
      ValueError: for one of another width or that is not finite.
    """
    command = np.asarray(wanted, dtype=np.float64)
    count = len(limits.command_rate)
    if command.shape != (count,) or not np.isfinite(command).all():
        raise ValueError(f"a command of {count} finite numbers is expected, got {wanted!r:.80}")
    return np.clip(command, *limits.command)


def ramped(before: FloatArray, wanted: FloatArray, limits: Limits, dt: float) -> FloatArray:
    """The command (c,) one control step of dt [s] after `before`, on its way to `wanted`, which is
    in its range."""
    step = limits.command_rate * dt
    return before + np.clip(wanted - before, -step, step)


class Watchdog:
    """Says why a robot must be damped. It remembers for how long joints have been too fast or too
    strong, readings the same, and how far the IMU disagrees with itself."""

    def __init__(self, contract: BundleContract, config: SafetyConfig):
        self.config = config
        self.limits = Limits(contract, config)
        self.names = contract.joint_names
        self.period = 1.0 / contract.control_rate_hz
        self.looked: float | None = None  # when, the last time [s]
        # a copy of the IMU's newest readings, as drivers may fill their arrays anew, and when they
        # first came [s]
        self.unchanged: tuple[FloatArray, float] | None = None
        # the newest reading; of the angles that stay the same (nu,): their targets when they and
        # their torques began to [rad], the sum of their velocities since [rad]; (2, nu) by how much
        # velocity and target should have moved them [rad]; (nu,) for how long that has been too
        # much [s]
        self.before: State | None = None
        self.target: FloatArray | None = None
        self.turned = np.zeros(len(self.names))
        self.due = np.zeros((2, len(self.names)))
        self.stuck_s = np.zeros(len(self.names))
        # when and (nu,) how warm the motors were
        self.warmth: deque[tuple[float, FloatArray]] = deque(
            maxlen=round(WARMER_S / WARMTH_EVERY_S)
        )
        # (nu,) [s], less time below
        self.above_s = {word: np.zeros(len(self.names)) for word in ("fast", "strong")}
        # when and (3,) where `up` was a control period ago, and since when that is compared [s]
        self.last_up: tuple[float, FloatArray] | None = None
        self.compared_s = 0.0
        # running means: (3,) [m/s2]; [rad/s] of the gyro's part that turns `up`, and of its error
        self.acceleration = np.zeros(3)
        self.turn = 0.0
        self.turn_error = 0.0

    def trip(
        self, now: float, state: State | None, missed: int, target: FloatArray | None = None
    ) -> str:
        """Why the robot must be damped, "" where all is well.

        Args:
          now: time [s]. state: the newest, None for none yet. missed: deadlines missed in a row.
            target: (nu,) where the joints were sent last [rad], None where they were not.
        """
        if state is None:
            return "no state"
        return (
            self._malformed(state)
            or self._timing(now - state.time_s, missed)
            or self._frozen(state)
            or self._impossible(state)
            or self._moved(state, target)
            or self._posture(state)
            or self._warming(state)
            or self._overload(now, state)
            or self._disagreement(state)
        )

    def _malformed(self, state: State) -> str:
        joints = len(self.names)
        widths = dict(zip(State._fields[1:], (joints, joints, joints, 3, 3, 3, joints)))
        if state.temperature is None:
            del widths["temperature"]
        for name, width in widths.items():
            values = getattr(state, name)
            if np.shape(values) != (width,) or not np.isfinite(values).all():
                return f"{name} is not {width} finite numbers"
        return "" if math.isfinite(state.time_s) else "time_s is not finite"

    def _timing(self, age: float, missed: int) -> str:
        if not age <= self.config.state_age_s:
            return f"the state is {1e3 * age:.0f} ms old"
        if age < -AHEAD_S:
            ahead = f"{-1e3 * age:.0f} ms ahead"
            return f"the state is from {ahead}; time_s must be of time.monotonic()"
        if missed >= self.config.missed_deadlines:
            return f"{missed} deadlines missed in a row"
        return ""

    def _frozen(self, state: State) -> str:
        """A driver that sends its last frame again and again is not alive, whatever times it writes
        on it. Joints at rest may say the same for long; an IMU does not."""
        sensed = np.concatenate((state.gyro, state.accelerometer, state.up))
        # not to the last bit: the mean of one frame depends there on how often it is in it
        tolerance = ROUNDING * (1.0 + np.abs(sensed))
        if self.unchanged is None or (np.abs(sensed - self.unchanged[0]) > tolerance).any():
            self.unchanged = sensed, state.time_s
        if (lasted := state.time_s - self.unchanged[1]) > FROZEN_S:
            return f"the IMU's readings have been the same for {lasted:.2f} s"
        return ""

    def _impossible(self, state: State) -> str:
        """What no sensor of a sound robot says, not even once."""
        measured = np.abs(np.array((state.joint_vel, state.joint_torque), np.float64))
        what, worst = np.unravel_index((measured / self.limits.impossible).argmax(), measured.shape)
        if (value := measured[what, worst]) > self.limits.impossible[what, worst]:
            does = f"has {value:.3g} Nm" if what else f"moves by {value:.3g} rad/s"
            return f"{self.names[worst]} {does}, as no drive can"
        if (turn := np.abs(state.gyro).max()) > IMPOSSIBLE_GYRO:
            return f"the gyro says {turn:.3g} rad/s"
        if (force := np.abs(state.accelerometer).max() / GRAVITY) > IMPOSSIBLE_ACCELEROMETER:
            return f"the accelerometer says {force:.3g} g"
        return ""

    def _moved(self, state: State, target: FloatArray | None) -> str:
        """Angles that jump, or stay the same to the last bit although they should not. Encoders at
        rest may repeat themselves, as those of a joint at its stop, whose torque follows its
        target."""
        before = self.before
        self.before = state._replace(
            joint_pos=np.array(state.joint_pos, np.float64),
            joint_torque=np.array(state.joint_torque, np.float64),
        )
        if before is None:
            return ""

        dt = max(0.0, state.time_s - before.time_s)
        step = np.abs(state.joint_pos - before.joint_pos)
        beyond = step - self.limits.impossible[0] * (dt + JUMP_S)
        if beyond.max() > 0.0:
            worst = int(beyond.argmax())
            return (
                f"{self.names[worst]} jumps by {step[worst]:.2f} rad within {1e3 * dt:.0f} ms, as "
                "no joint can"
            )

        same = step <= ROUNDING * (1.0 + np.abs(state.joint_pos))
        change = np.abs(state.joint_torque - before.joint_torque)
        steady = same & (change <= ROUNDING * (1.0 + np.abs(state.joint_torque)))
        # some sensors of velocity are a little off zero at rest
        turning = state.joint_vel - self.turned / TURNED_S
        self.turned = np.where(same, self.turned + dt * turning, 0.0)
        shift = np.zeros(len(self.names))
        if target is None:
            self.target = None
        else:
            self.target = np.where(steady, target if self.target is None else self.target, target)
            shift = np.abs(target - self.target)
        due = np.maximum(self.due, (np.abs(self.turned), shift))
        self.due = np.where((same, steady), due, 0.0)
        most = self.due.max(0)
        self.stuck_s = np.where(most > STUCK_RAD, self.stuck_s + dt, 0.0)
        worst = int(self.stuck_s.argmax())
        if self.stuck_s[worst] > STUCK_S:
            return (
                f"{self.names[worst]} stays at {state.joint_pos[worst]:.3f} rad, while its target "
                f"or velocity moves it by {most[worst]:.2f} rad"
            )
        return ""

    def _warming(self, state: State) -> str:
        if state.temperature is None:
            return ""
        while self.warmth and state.time_s - self.warmth[0][0] > WARMER_S:
            self.warmth.popleft()
        for at, warmth in reversed(self.warmth):
            if state.time_s - at < WARMTH_EVERY_S:
                continue
            # some sensors say 0 until their motor answers
            change = np.where(warmth > 0.0, state.temperature - warmth, 0.0)
            if change.max() > WARMER:
                worst = int(change.argmax())
                return (
                    f"the motor of {self.names[worst]} goes from {warmth[worst]:.0f} to "
                    f"{state.temperature[worst]:.0f} degrees within {state.time_s - at:.1f} s"
                )
        if not self.warmth or state.time_s - self.warmth[-1][0] >= WARMTH_EVERY_S:
            self.warmth.append((state.time_s, np.array(state.temperature, np.float64)))
        return ""

    def _posture(self, state: State) -> str:
        length = float(np.linalg.norm(state.up))
        if not 0.5 < length < 1.5:
            return f"up has length {length:.2f}, not 1"
        tilt = math.degrees(math.acos(min(1.0, max(-1.0, float(state.up[2]) / length))))
        if tilt > self.config.tilt_deg:
            return f"tilted by {tilt:.0f} degrees"
        place = state.joint_pos
        limits = self.limits
        beyond = np.maximum(limits.lower - place, place - limits.upper)
        worst = int(beyond.argmax())
        if beyond[worst] > self.config.joint_margin_rad:
            return f"{self.names[worst]} is {beyond[worst]:.2f} rad beyond its range"
        if state.temperature is not None and state.temperature.max() > self.config.temperature_c:
            hottest = self.names[int(state.temperature.argmax())]
            return f"the motor of {hottest} has {state.temperature.max():.0f} degrees"
        return ""

    def _overload(self, now: float, state: State) -> str:
        """What has been above its limit for too long. Time below is taken off, so that one good
        sample excuses nothing."""
        passed = max(0.0, now - (now if self.looked is None else self.looked))
        self.looked = now
        for word, values, limit in (
            ("fast", state.joint_vel, self.limits.velocity),
            ("strong", state.joint_torque, self.limits.torque),
        ):
            above = np.abs(values) > 1.001 * limit  # targets are sent up to the limit itself
            spent = np.maximum(0.0, self.above_s[word] + np.where(above, passed, -passed))
            self.above_s[word] = spent
            worst = int(spent.argmax())
            if spent[worst] >= self.config.overload_s - 1e-9:
                return f"{self.names[worst]} is too {word} for {self.config.overload_s:g} s"
        return ""

    def _disagreement(self, state: State) -> str:
        """A wrong unit, sign or axis of the IMU: in the mean over a second the accelerometer reads
        what holds the robot up, and `up` turns as the gyro says, d up/dt = up x gyro."""
        began, before = self.last_up or (-math.inf, state.up)
        dt = state.time_s - began
        if 0.0 <= dt < 0.9 * self.period:  # gyro and accelerometer are means over a whole one
            return ""
        self.last_up = state.time_s, state.up.copy()
        if not 0.0 <= dt < 2.5 * self.period:
            return ""
        self.compared_s = self.compared_s + dt
        weight = dt / IMU_S
        turn = np.cross(before + state.up, state.gyro) / 2.0
        error = float(np.linalg.norm((state.up - before) / dt - turn))
        self.acceleration += weight * (state.accelerometer - GRAVITY * state.up - self.acceleration)
        self.turn += weight * (float(np.linalg.norm(turn)) - self.turn)
        self.turn_error += weight * (error - self.turn_error)
        if self.compared_s < IMU_S:
            return ""
        if (off := float(np.linalg.norm(self.acceleration))) > MOST_ACCELERATION:
            return (
                f"the accelerometer is off {GRAVITY} up by {off:.1f} m/s2 in the mean; "
                "check its unit, sign and axes"
            )
        if self.turn_error > max(MOST_TURN, MOST_TURN_SHARE * self.turn):
            return (
                f"the gyro differs by {self.turn_error:.1f} rad/s in the mean from how the "
                "vertical turns; check its unit, sign and axes"
            )
        return ""
