"""The limits and watchdogs between a policy and the drives.

They run in the controller, in addition to the robot's own protection:

- `safe_drive`: limits targets so that the drive's torque stays below a share of its limit and the
  joint within its range.
- `clip_command`, `ramp_command`: keep commands in the range of training, and velocity commands
  continuous; `slow_command`: limits velocity commands without terrain readings.
- `Watchdog.trip`: all conditions that damp the robot.

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

# largest time of a state ahead of the clock [s] [D]
AHEAD_S = 0.05
# relative rounding of means in double precision
ROUNDING = 1e-13
# time for which IMU readings may be equal; those of a live IMU are noisy [s] [D]
FROZEN_S = 0.5
# movement that a constant angle contradicts, of its target or integrated velocity [rad] [D]
STUCK_RAD = 0.1
# time over which the velocity is integrated [s] [D]
TURNED_S = 1.0
# time for which an angle may be constant during this movement [s] [D]
STUCK_S = 0.2
# tolerance of the time between two readings, for jumps of an angle [s] [D]
JUMP_S = 0.002
# largest temperature rise of a motor within WARMER_S [degrees Celsius] [D]
WARMER = 15.0
# time of this rise [s] [D]
WARMER_S = 5.0
# largest velocity command without terrain readings, relative to its range: a foot meets an unseen
# step slowly, yet the robot can leave the place [D]
BLIND_SHARE = 0.25
# time between two samples of the temperature [s] [D]
WARMTH_EVERY_S = 0.5
# multiple of a joint's velocity or torque limit that trips at once [D]
IMPOSSIBLE_JOINT = 3.0
# gyro reading that trips at once, on any axis; IMUs measure up to 2000 degrees/s [rad/s] [D]
IMPOSSIBLE_GYRO = 35.0
# accelerometer reading that trips at once, on any axis [g] [D]
IMPOSSIBLE_ACCELEROMETER = 20.0
# time of the running means in which the IMU must be consistent [s] [D]
IMU_S = 1.0
# largest error of the accelerometer; no robot gains 5 m/s in a second [m/s2] [D]
MAX_ACCELERATION = 5.0
# largest error of the gyro [rad/s] [D]
MAX_TURN = 0.3
# largest error of the gyro relative to its reading [D]
MAX_TURN_SHARE = 0.75


@dataclass(frozen=True)
class SafetyConfig:
    """Limits of the watchdog, the targets and the commands.

    Raises:
      ValueError: for values out of range.
    """

    # largest age of a state [D]
    state_age_s: float = 0.1
    # control steps in a row that begin half a period late or are skipped [D]
    missed_deadlines: int = 5
    # largest angle between the trunk's and the world's vertical [P: end of walking episodes]
    tilt_deg: float = 45.0
    # largest angle beyond a joint's range [D]
    joint_margin_rad: float = 0.15
    # share of a joint's velocity limit, for longer than overload_s [D]
    velocity_share: float = 1.2
    # share of a joint's torque limit, for targets and for measurements longer than overload_s [R:
    # practice]
    torque_share: float = 0.8
    # time above the share of velocity or torque, minus the time below [D]
    overload_s: float = 0.2
    # largest temperature of any motor, if measured [D]
    temperature_c: float = 70.0
    # time of a velocity command from zero to the end of its range [D]
    command_ramp_s: float = 1.0

    def __post_init__(self) -> None:
        ranges.above_zero(self, "state_age_s", "tilt_deg", "velocity_share", "torque_share")
        ranges.above_zero(self, "overload_s", "temperature_c", "command_ramp_s")
        ranges.at_least_one(self, "missed_deadlines")
        ranges.not_negative(self, "joint_margin_rad")
        ranges.share(self, "torque_share")


class Limits:
    """The bundle's limits times the shares of the configuration, as arrays."""

    def __init__(self, contract: BundleContract, config: SafetyConfig):
        # (nu,) each
        self.kp = contract.per_joint("kp")
        self.kd = contract.per_joint("kd")
        self.lower, self.upper = contract.joint_range
        torque_limit = contract.per_joint("torque_limit")
        velocity_limit = contract.per_joint("velocity_limit")
        self.torque = torque_limit * config.torque_share
        self.velocity = velocity_limit * config.velocity_share
        # (2, nu) velocity and torque
        self.impossible = IMPOSSIBLE_JOINT * np.stack((velocity_limit, torque_limit))
        # (2, c)
        self.command = contract.command_range
        # (c,) largest rate of change [1/s]; measured positions, such as a ball's, are not limited
        ramp = np.abs(self.command).max(0, initial=0.0) / config.command_ramp_s
        is_velocity = [command.unit.endswith("/s") for command in contract.commands]
        self.command_rate = np.where(is_velocity, ramp, np.inf)


def safe_drive(
    target: FloatArray, kp: FloatArray, kd: FloatArray, state: State, limits: Limits
) -> tuple[FloatArray, FloatArray]:
    """The nearest target (nu,) within the joints' ranges and the torque limits at this state, and
    the kd (nu,) to go with it.

    torque = kp (target - q) - kd v, so |torque| <= limit for targets in q + (kd v -+ limit) / kp.
    If both limits conflict for a joint beyond its range, the torque limit takes precedence. The
    target is then not further out than the joint, which brakes with a smaller kd.

    Raises:
      ValueError: for a wrong width or a value that is not finite.
    """
    if target.shape != limits.lower.shape or not np.isfinite(target).all():
        raise ValueError(f"target: expected {limits.lower.shape} finite numbers")
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


def clip_command(values: ArrayLike, limits: Limits) -> FloatArray:
    """A command (c,) clipped to the bundle's ranges.

    Raises:
      ValueError: for a wrong width or a value that is not finite.
    """
    command = np.asarray(values, dtype=np.float64)
    count = len(limits.command_rate)
    if command.shape != (count,) or not np.isfinite(command).all():
        raise ValueError(f"command={values!r:.80}: expected {count} finite numbers")
    return np.clip(command, *limits.command)


def ramp_command(
    command: FloatArray, requested: FloatArray, limits: Limits, dt: float
) -> FloatArray:
    """The command (c,) after a control step of dt [s] towards the requested one."""
    step = limits.command_rate * dt
    return command + np.clip(requested - command, -step, step)


def slow_command(command: FloatArray, limits: Limits) -> FloatArray:
    """A command (c,) for walking without terrain readings: velocities are at most `BLIND_SHARE` of
    their range."""
    share = np.where(np.isfinite(limits.command_rate), BLIND_SHARE, 1.0)
    return np.clip(np.clip(command, *(share * limits.command)), *limits.command)


class Watchdog:
    """Decides whether to damp the robot, from the newest state and those before."""

    def __init__(self, contract: BundleContract, config: SafetyConfig):
        self.config = config
        self.limits = Limits(contract, config)
        self.names = contract.joint_names
        joints = len(self.names)
        self.period = 1.0 / contract.control_rate_hz
        # time of the last check [s]
        self.checked_s: float | None = None
        # copy of the IMU's readings (9,), and when they first had these values [s]
        self.unchanged: tuple[FloatArray, float] | None = None
        # the last state
        self.previous: State | None = None
        # (nu,) targets since which angle and torque are equal [rad]
        self.target: FloatArray | None = None
        # (nu,) integral of the velocity while the angle is equal [rad]
        self.turned = np.zeros(joints)
        # (2, nu) movement due by velocity and by target while the angle is equal [rad]
        self.due = np.zeros((2, joints))
        # (nu,) time for which too much movement is due [s]
        self.stuck_s = np.zeros(joints)
        # times [s] and temperatures (nu,)
        self.warmth: deque[tuple[float, FloatArray]] = deque(
            maxlen=round(WARMER_S / WARMTH_EVERY_S)
        )
        # (nu,) time above the limit, minus the time below [s]
        self.overload_s = {"velocity": np.zeros(joints), "torque": np.zeros(joints)}
        # time [s] and `up` (3,) a control period ago, and the total time compared [s]
        self.last_up: tuple[float, FloatArray] | None = None
        self.compared_s = 0.0
        # running means: acceleration (3,) [m/s2]; the gyro's part that turns `up`, and its error
        # [rad/s]
        self.acceleration = np.zeros(3)
        self.turn = 0.0
        self.turn_error = 0.0

    def trip(
        self, now: float, state: State | None, missed: int, target: FloatArray | None = None
    ) -> str:
        """The reason to damp the robot, "" for none.

        Args:
          now: time [s]. state: the newest, None for none yet. missed: deadlines missed in a row.
            target: (nu,) the last target [rad], None for none.
        """
        if state is None:
            return "no state"
        return (
            self._malformed(state)
            or self._timing(now - state.time_s, missed)
            or self._frozen(state)
            or self._impossible(state)
            or self._stuck(state, target)
            or self._posture(state)
            or self._heating(state)
            or self._overload(now, state)
            or self._inconsistent(state)
        )

    def _malformed(self, state: State) -> str:
        joints = len(self.names)
        widths = dict(zip(State._fields[1:], (joints, joints, joints, 3, 3, 3, joints)))
        if state.temperature is None:
            del widths["temperature"]
        for name, width in widths.items():
            values = getattr(state, name)
            if np.shape(values) != (width,) or not np.isfinite(values).all():
                return f"{name}: expected {width} finite numbers"
        return (
            ""
            if math.isfinite(state.time_s)
            else f"time_s={state.time_s}: expected a finite number"
        )

    def _timing(self, age: float, missed: int) -> str:
        if not age <= self.config.state_age_s:
            return f"the state is {1e3 * age:.0f} ms old"
        if age < -AHEAD_S:
            return (
                f"the state is {-1e3 * age:.0f} ms ahead of the clock; time_s must be of "
                "time.monotonic()"
            )
        if missed >= self.config.missed_deadlines:
            return f"{missed} deadlines missed in a row"
        return ""

    def _frozen(self, state: State) -> str:
        """Detects a driver that repeats its last frame under new times: joints at rest may repeat
        their readings, an IMU does not."""
        readings = np.concatenate((state.gyro, state.accelerometer, state.up))
        # the last bit of a mean of equal frames depends on their number
        tolerance = ROUNDING * (1.0 + np.abs(readings))
        if self.unchanged is None or (np.abs(readings - self.unchanged[0]) > tolerance).any():
            self.unchanged = readings, state.time_s
        if (lasted := state.time_s - self.unchanged[1]) > FROZEN_S:
            return f"the IMU's readings have been equal for {lasted:.2f} s"
        return ""

    def _impossible(self, state: State) -> str:
        """Detects readings beyond what the robot or its sensors can reach."""
        limits = self.limits.impossible
        measured = np.abs(np.array((state.joint_vel, state.joint_torque), np.float64))
        row, worst = np.unravel_index((measured / limits).argmax(), measured.shape)
        if (value := measured[row, worst]) > limits[row, worst]:
            reading = f"torque {value:.3g} Nm" if row else f"velocity {value:.3g} rad/s"
            return f"{self.names[worst]}: impossible {reading}"
        if (turn := np.abs(state.gyro).max()) > IMPOSSIBLE_GYRO:
            return f"gyro: impossible {turn:.3g} rad/s"
        if (force := np.abs(state.accelerometer).max() / GRAVITY) > IMPOSSIBLE_ACCELEROMETER:
            return f"accelerometer: impossible {force:.3g} g"
        return ""

    def _stuck(self, state: State, target: FloatArray | None) -> str:
        """Detects angles that jump, or stay equal to the last bit while they should move. Encoders
        may repeat their readings at rest, and at a joint's stop, where the torque follows the
        target."""
        previous = self.previous
        self.previous = state._replace(
            joint_pos=np.array(state.joint_pos, np.float64),
            joint_torque=np.array(state.joint_torque, np.float64),
        )
        if previous is None:
            return ""

        dt = max(0.0, state.time_s - previous.time_s)
        step = np.abs(state.joint_pos - previous.joint_pos)
        beyond = step - self.limits.impossible[0] * (dt + JUMP_S)
        if beyond.max() > 0.0:
            worst = int(beyond.argmax())
            return f"{self.names[worst]}: jumped by {step[worst]:.2f} rad in {1e3 * dt:.0f} ms"

        equal = step <= ROUNDING * (1.0 + np.abs(state.joint_pos))
        change = np.abs(state.joint_torque - previous.joint_torque)
        steady = equal & (change <= ROUNDING * (1.0 + np.abs(state.joint_torque)))
        # leaky, as some velocity sensors have an offset at rest
        rate = state.joint_vel - self.turned / TURNED_S
        self.turned = np.where(equal, self.turned + dt * rate, 0.0)
        shift = np.zeros(len(self.names))
        if target is None:
            self.target = None
        else:
            self.target = np.where(steady, target if self.target is None else self.target, target)
            shift = np.abs(target - self.target)
        due = np.maximum(self.due, (np.abs(self.turned), shift))
        self.due = np.where((equal, steady), due, 0.0)
        largest = self.due.max(0)
        self.stuck_s = np.where(largest > STUCK_RAD, self.stuck_s + dt, 0.0)
        worst = int(self.stuck_s.argmax())
        if self.stuck_s[worst] > STUCK_S:
            return (
                f"{self.names[worst]}: stuck at {state.joint_pos[worst]:.3f} rad while its target "
                f"or velocity moved by {largest[worst]:.2f} rad"
            )
        return ""

    def _heating(self, state: State) -> str:
        if state.temperature is None:
            return ""
        while self.warmth and state.time_s - self.warmth[0][0] > WARMER_S:
            self.warmth.popleft()
        for at, warmth in reversed(self.warmth):
            if state.time_s - at < WARMTH_EVERY_S:
                continue
            # some sensors report 0 until their motor responds
            change = np.where(warmth > 0.0, state.temperature - warmth, 0.0)
            if change.max() > WARMER:
                worst = int(change.argmax())
                return (
                    f"{self.names[worst]}: motor heated from {warmth[worst]:.0f} to "
                    f"{state.temperature[worst]:.0f} degrees in {state.time_s - at:.1f} s"
                )
        if not self.warmth or state.time_s - self.warmth[-1][0] >= WARMTH_EVERY_S:
            self.warmth.append((state.time_s, np.array(state.temperature, np.float64)))
        return ""

    def _posture(self, state: State) -> str:
        length = float(np.linalg.norm(state.up))
        if not 0.5 < length < 1.5:
            return f"up: length {length:.2f}, expected 1"
        tilt = math.degrees(math.acos(min(1.0, max(-1.0, float(state.up[2]) / length))))
        if tilt > self.config.tilt_deg:
            return f"tilted by {tilt:.0f} degrees"
        below = self.limits.lower - state.joint_pos
        above = state.joint_pos - self.limits.upper
        beyond = np.maximum(below, above)
        worst = int(beyond.argmax())
        if beyond[worst] > self.config.joint_margin_rad:
            return f"{self.names[worst]}: {beyond[worst]:.2f} rad beyond its range"
        if state.temperature is not None and state.temperature.max() > self.config.temperature_c:
            hottest = self.names[int(state.temperature.argmax())]
            return f"{hottest}: motor at {state.temperature.max():.0f} degrees"
        return ""

    def _overload(self, now: float, state: State) -> str:
        """Detects a velocity or torque above its limit for too long. Time below is subtracted, so
        that a single good sample does not reset the time above."""
        passed = max(0.0, now - (now if self.checked_s is None else self.checked_s))
        self.checked_s = now
        for name, values, limit in (
            ("velocity", state.joint_vel, self.limits.velocity),
            ("torque", state.joint_torque, self.limits.torque),
        ):
            above = np.abs(values) > 1.001 * limit  # targets reach the limit itself
            spent = np.maximum(0.0, self.overload_s[name] + np.where(above, passed, -passed))
            self.overload_s[name] = spent
            worst = int(spent.argmax())
            if spent[worst] >= self.config.overload_s - 1e-9:
                return f"{self.names[worst]}: {name} above its limit for {spent[worst]:.2g} s"
        return ""

    def _inconsistent(self, state: State) -> str:
        """Detects a wrong unit, sign or axis of the IMU: averaged over a second the accelerometer
        reads GRAVITY up, and the gyro satisfies d up/dt = up x gyro."""
        last_s, last_up = self.last_up or (-math.inf, state.up)
        dt = state.time_s - last_s
        if 0.0 <= dt < 0.9 * self.period:  # gyro and accelerometer are means over a full period
            return ""
        self.last_up = state.time_s, state.up.copy()
        if not 0.0 <= dt < 2.5 * self.period:
            return ""
        self.compared_s = self.compared_s + dt
        weight = dt / IMU_S
        turn = np.cross(last_up + state.up, state.gyro) / 2.0
        error = float(np.linalg.norm((state.up - last_up) / dt - turn))
        self.acceleration += weight * (state.accelerometer - GRAVITY * state.up - self.acceleration)
        self.turn += weight * (float(np.linalg.norm(turn)) - self.turn)
        self.turn_error += weight * (error - self.turn_error)
        if self.compared_s < IMU_S:
            return ""
        difference = float(np.linalg.norm(self.acceleration))
        if difference > MAX_ACCELERATION:
            return (
                f"accelerometer: mean differs by {difference:.1f} m/s2 from {GRAVITY} up; check "
                "its unit, sign and axes"
            )
        if self.turn_error > max(MAX_TURN, MAX_TURN_SHARE * self.turn):
            return (
                f"gyro: mean differs by {self.turn_error:.1f} rad/s from the rotation of up; check "
                "its unit, sign and axes"
            )
        return ""
