"""The control loop: absolute deadlines around a state machine that knows no clock.

    passive --first state--> stand --stood up--> policy --time is over--> damping
       \\_______________________\\____________________\\______any trip______/

`next_mode` is the whole table of transitions. `Controller` says what to write in each mode; `drive`
calls it in time. A damped robot stays damped: a new run is a person's decision.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from npmp.core import ranges
from npmp.deploy.contract import BundleContract
from npmp.deploy.deadman import Deadman
from npmp.deploy.onnx_policy import Readings
from npmp.deploy.robot import FloatArray, RobotInterface, RobotStopped, State
from npmp.deploy.safety import SafetyConfig, Watchdog, checked_command, ramped, safe_drive

TIME_IS_OVER = "the time is over"
SETTLE_S = 2.0  # so long at most joints may take to come home after `stand_s` [D]
OF_DRIVER = "raised by the robot's driver"  # a note of such exceptions


class ControlMode(IntEnum):
    """What the controller does: nothing, stand up, what the policy says, damp."""

    PASSIVE = 0
    STAND = 1
    POLICY = 2
    DAMPING = 3


# in which targets are sent
DRIVEN = (ControlMode.STAND, ControlMode.POLICY)


@dataclass(frozen=True)
class ControllerConfig:
    """How the robot is brought to its feet. Raises ValueError for values out of range."""

    # so long the first state is waited for [D]
    connect_s: float = 20.0
    # from where the joints are to the home pose [R: 2 s elsewhere]
    stand_s: float = 3.0
    # so near to home they must be, each [D]
    settle_rad: float = 0.25
    # of a target per control step, so that a lost datagram costs a fraction of it [D]
    writes: int = 4
    # so long damping is repeated before the loop ends [D]
    damping_s: float = 0.5

    def __post_init__(self) -> None:
        ranges.above_zero(self, "connect_s", "stand_s", "settle_rad", "damping_s")
        ranges.at_least_one(self, "writes")


class ActingPolicy(Protocol):
    """An `OnnxPolicy`, or what stands in for one."""

    def reset(self) -> None: ...

    def act(self, readings: Readings, command: FloatArray) -> FloatArray: ...


class Output(NamedTuple):
    """What is to be written now. In passive mode nothing is, in damping `stop`."""

    mode: ControlMode
    target: FloatArray  # (nu,) as it is sent
    proposed: FloatArray  # (nu,) as the policy, or standing up, wanted it
    command: FloatArray  # (c,) as the policy observed it


def next_mode(mode: ControlMode, *, trip: bool, seen: bool, stood: bool, over: bool) -> ControlMode:
    """The mode after `mode`.

    trip: a watchdog tripped. seen: a state has come. stood: the robot is in its home pose. over:
    the time is.
    """
    if trip or over or mode is ControlMode.DAMPING:
        return ControlMode.DAMPING
    if mode is ControlMode.PASSIVE and seen:
        return ControlMode.STAND
    if mode is ControlMode.STAND and stood:
        return ControlMode.POLICY
    return mode


class Controller:
    """The state machine. Time comes as an argument; a control step is one call of `step`."""

    def __init__(
        self,
        contract: BundleContract,
        policy: ActingPolicy,
        config: ControllerConfig,
        safety: SafetyConfig,
    ):
        self.contract = contract
        self.policy = policy
        self.config = config
        self.watchdog = Watchdog(contract, safety)
        self.limits = self.watchdog.limits
        self.dt = 1.0 / contract.control_rate_hz
        self.home = contract.home_pose
        self.mode = ControlMode.PASSIVE
        self.reason = ""
        self.state: State | None = None
        self.asked = self._nothing()  # (c,) the command, within its ranges
        self.command = self.asked  # (c,) and ramped
        self.began = 0.0  # when the mode was entered [s]; set by the first `watch`
        self.risen_from = self.home  # where the joints were when standing up began
        self.target = self.home
        self.history: list[tuple[float, ControlMode, str]] = []

    def _nothing(self) -> FloatArray:
        return checked_command(np.zeros(len(self.contract.commands)), self.limits)

    def watch(
        self,
        now: float,
        state: State | None,
        missed: int,
        *,
        stopped: str = "",
        over: str = "",
        begins: bool = True,
    ) -> ControlMode:
        """Take a state (None: nothing new), judge it, and change the mode where it must be.

        Args:
          now: [s]. missed: deadlines in a row. stopped: why the robot has stopped by itself. over:
            why the run ends well. begins: a control step does. It damps at any time, and goes on to
            another mode only there.
        """
        self.state = self.state if state is None else state
        if not self.history:
            self._enter(ControlMode.PASSIVE, now)
        if self.state is None and not stopped:
            late = now - self.began > self.config.connect_s
            trip = f"no state within {self.config.connect_s:g} s" if late else ""
        else:
            target = self.target if self.mode in DRIVEN else None
            trip = stopped or self.watchdog.trip(now, self.state, missed, target)
            allowed = self.config.stand_s + SETTLE_S
            late = self.mode is ControlMode.STAND and now - self.began > allowed
            if not trip and late and not self._stood(now):
                trip = f"not in its home pose after {allowed:g} s"
        self.move_on(now, trip, over, begins)
        return self.mode

    def move_on(self, now: float, trip: str, over: str = "", begins: bool = True) -> None:
        """Go to the next mode; trip: why to damp, "" for no reason; over: why the run ends well."""
        seen = begins and self.state is not None
        # not of a state that is refused
        stood = begins and not trip and self._stood(now)
        mode = next_mode(self.mode, trip=bool(trip), seen=seen, stood=stood, over=bool(over))
        if mode is not self.mode:
            self._enter(mode, now, trip or over)

    def _enter(self, mode: ControlMode, now: float, reason: str = "") -> None:
        self.mode = mode
        self.reason = reason
        self.began = now
        self.history.append((now, mode, reason))
        if mode is ControlMode.STAND and self.state is not None:
            self.risen_from = self.state.joint_pos
        if mode is ControlMode.POLICY:
            self.policy.reset()
            self.command = self._nothing()

    def _stood(self, now: float) -> bool:
        standing = self.mode is ControlMode.STAND and now - self.began >= self.config.stand_s
        if not standing or self.state is None:
            return False
        return bool(np.abs(self.state.joint_pos - self.home).max() <= self.config.settle_rad)

    def step(self, now: float, asked: ArrayLike) -> Output:
        """What to write in this control step, after `watch`; asked: the command (c,)."""
        proposed = self.target
        try:
            self.asked = checked_command(asked, self.limits)
            if self.mode is ControlMode.STAND:
                share = min(1.0, (now - self.began + self.dt) / self.config.stand_s)
                proposed = self.risen_from + share * (self.home - self.risen_from)
            elif self.mode is ControlMode.POLICY and (state := self.state) is not None:
                self.command = ramped(self.command, self.asked, self.limits, self.dt)
                seen = Readings(state.joint_pos, state.gyro, state.accelerometer, state.up)
                proposed = self.policy.act(seen, self.command)
            self.target, _ = self.safe(proposed)
        except Exception as error:  # onnxruntime's are RuntimeErrors
            why = str(error) if isinstance(error, ValueError) else repr(error)
            self.move_on(now, f"the policy or its command: {why}")
            proposed = self.target
        return Output(self.mode, self.target, proposed, self.command)

    def safe(self, proposed: FloatArray) -> tuple[FloatArray, FloatArray]:
        """A target and kd, (nu,) each, as they may be sent in the newest state. Raises ValueError
        for a target that is none."""
        kp, kd = self.limits.kp, self.limits.kd
        if self.mode not in DRIVEN or self.state is None:
            return proposed, kd
        return safe_drive(proposed, kp, kd, self.state, self.limits)


def missed_deadlines(late_s: ArrayLike, dt: float) -> NDArray[np.int64]:
    """How many deadlines were missed by more than half a period of dt [s] where a control step
    begins so late: its own, and those of the steps that were slept through."""
    return np.maximum(0, np.ceil(np.asarray(late_s) / dt - 0.5)).astype(np.int64)


class LoopClock(Protocol):
    """Time [s], and waiting until it."""

    def now(self) -> float: ...

    def wait_until(self, time_s: float) -> None: ...


class SystemClock:
    """time.monotonic."""

    now = staticmethod(time.monotonic)

    def wait_until(self, time_s: float) -> None:
        if (left := time_s - time.monotonic()) > 0:
            time.sleep(left)


class ControlStep(NamedTuple):
    """What a control step was, for the log."""

    now: float  # when it began [s]
    late: float  # after the first deadline since the step before [s]
    work: float  # until its target was written [s]
    state: State | None
    asked: FloatArray  # (c,) the command before the ramp, within its ranges
    output: Output


def drive(
    robot: RobotInterface,
    controller: Controller,
    *,
    seconds: float,
    clock: LoopClock,
    asked: Callable[[float], FloatArray],
    note: Callable[[ControlStep], None],
    stop: Callable[[], str] = str,
    deadman: Deadman | None = None,
) -> BaseException | None:
    """Run until the robot is damped: after `seconds` of policy, by a watchdog, or as `stop` says.

    Deadlines lie on a grid from the start on, so lateness does not add up. Between control steps
    the robot is read and watched, and its last target repeated, as far as it still is safe. What
    the policy has taken longer for than readings may be old is not written. `missed_deadlines`
    counts what a late step misses.

    Args:
      asked: the command at a time since the start [s]. note: takes every control step. deadman:
        what damps the robot should the loop fall silent; released once the robot is damped.

    Returns: the first exception of the robot's driver, which damps the robot by whatever of its
      methods still works, or of `asked`, `note` and `stop`, which damp it, too; None for none.
    """
    loop = _Loop(robot, controller, seconds, clock, asked, note, stop, deadman)
    config = controller.config
    writes = config.writes
    dt = controller.dt
    tick = 0
    last = -1
    missed = 0
    was_collecting = gc.isenabled()
    gc.disable()  # a collection may take longer than a step
    try:
        while True:
            try:
                clock.wait_until(loop.start + tick * dt / writes)
                now = clock.now()
                # what was slept through is left out
                tick = max(tick, int((now - loop.start) * writes / dt))
                begins = tick // writes > last
                late = now - (loop.start + (last + 1) * dt)
                if begins:
                    more = int(missed_deadlines(late, dt))
                    last = tick // writes
                    missed = missed + more if more else 0
                loop.turn(now, late, missed, begins=begins, ends=loop.start + (last + 1) * dt)
            except BaseException as error:  # whatever ends the process ends in damping
                loop.failure = loop.failure or error
                controller.move_on(clock.now(), f"{error!r:.200}")
                loop.damp()
            damping = controller.mode is ControlMode.DAMPING
            if damping and clock.now() - controller.began > config.damping_s:
                break
            tick += 1
    finally:
        if loop.damp() and deadman is not None:
            deadman.release()
        if was_collecting:
            gc.enable()
    return loop.failure


@dataclass
class _Loop:
    """What `drive` was given, turn by turn. Exceptions of the robot's driver are reasons to damp
    it; the first is kept."""

    robot: RobotInterface
    controller: Controller
    seconds: float
    clock: LoopClock
    asked: Callable[[float], FloatArray]
    note: Callable[[ControlStep], None]
    stop: Callable[[], str]
    deadman: Deadman | None = None
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self.start = self.clock.now()
        self.output: Output | None = None

    def turn(self, now: float, late: float, missed: int, *, begins: bool, ends: float) -> None:
        """Read, watch and write once, with a control step in between where one begins."""
        controller = self.controller
        clock = self.clock
        # before it reads commands that are not its own
        taken = "" if controller.mode is ControlMode.PASSIVE else self.beat()
        state, stopped = self.read()
        stopped = taken or stopped
        acted = controller.mode is ControlMode.POLICY and now - controller.began >= self.seconds
        over = TIME_IS_OVER if acted else self.stop()
        # reading may have taken long
        seen = clock.now()
        controller.watch(seen, state, missed, stopped=stopped, over=over, begins=begins)
        if begins:
            self.output = controller.step(seen, self.asked(now - self.start))
            # while a policy thinks, what it saw grows old
            controller.watch(clock.now(), None, missed, begins=False)
        self.write(clock.now(), ends)
        if begins and self.output is not None:
            work = clock.now() - now
            state = controller.state
            self.note(ControlStep(now, late, work, state, controller.asked, self.output))

    def read(self) -> tuple[State | None, str]:
        """The newest state, a copy whatever the driver does with its arrays, and why the robot
        cannot go on."""
        try:
            state = self.robot.read()
            if state is None:
                return None, ""
            if not isinstance(state, State):
                raise TypeError(f"read() returned {type(state).__name__}, not a State or None")
            time_s, *parts = state
            arrays = [None if part is None else np.array(part, np.float64) for part in parts]
            return State(float(time_s), *arrays), ""  # type: ignore[arg-type]
        except BaseException as error:  # whatever a driver raises, SystemExit(0) too
            return None, self._noted(error)

    def write(self, now: float, ends: float) -> None:
        """Tell the robot what the controller's mode wants. ends: when the control period does [s].

        What is safe changes as the joints move. Drivers get copies, which they may convert in
        place.
        """
        controller = self.controller
        output = self.output
        mode = controller.mode
        limits = controller.limits
        if mode is ControlMode.DAMPING:
            self.damp()
            return
        if output is None or ControlMode.PASSIVE in (mode, output.mode):
            return
        first_order = controller.contract.hold == "first_order" or mode is ControlMode.STAND
        left_s = max(0.0, ends - now) if first_order else 0.0
        target, kd = controller.safe(output.proposed)
        if taken := self.beat():
            controller.move_on(now, taken)
            self.damp()
            return
        try:
            self.robot.write(target.copy(), limits.kp.copy(), kd.copy(), left_s)
        except BaseException as error:
            controller.move_on(now, self._noted(error))
            self.damp()

    def beat(self) -> str:
        """Say that the loop is alive. Returns: why it must not write any more."""
        return "" if self.deadman is None else self.deadman.beat()

    def damp(self) -> bool:
        """Whether the robot took it."""
        self.beat()
        try:
            self.robot.stop()
        except BaseException as error:  # it is called again
            self._noted(error)
            return False
        return True

    def _noted(self, error: BaseException) -> str:
        if isinstance(error, RobotStopped):
            return str(error) or "the robot has stopped by itself"
        error.add_note(OF_DRIVER)
        self.failure = self.failure or error
        return f"the robot's driver: {error!r:.200}"
