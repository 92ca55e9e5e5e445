"""The control loop: a state machine without a clock, and a loop with absolute deadlines.

    passive --state--> stand --standing--> policy --finished--> damping
       \\_________________\\___________________\\_____trip_____/

`next_mode` is the table of transitions. `Controller` determines what to write in each mode; `drive`
calls it in time. A damped robot stays damped until a person starts a new run.
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
from npmp.deploy.safety import (
    SafetyConfig,
    Watchdog,
    clip_command,
    ramp_command,
    safe_drive,
    slow_command,
)
from npmp.deploy.terrain_input import TerrainInput

TIME_IS_OVER = "the time is over"
# time after `stand_s` in which the joints must reach the home pose [s] [D]
SETTLE_S = 2.0
# note on exceptions of the robot's driver
OF_DRIVER = "raised by the robot's driver"


class ControlMode(IntEnum):
    """Write nothing, stand up, follow the policy, or damp."""

    PASSIVE = 0
    STAND = 1
    POLICY = 2
    DAMPING = 3


# the modes that write targets
DRIVEN = (ControlMode.STAND, ControlMode.POLICY)


@dataclass(frozen=True)
class ControllerConfig:
    """Settings of standing up and of the rate of writing.

    Raises:
      ValueError: for values out of range.
    """

    # time-out of the first state [D]
    connect_s: float = 20.0
    # duration of standing up, from the initial to the home pose [R: 2 s elsewhere]
    stand_s: float = 3.0
    # largest distance of a joint from the home pose after standing up [D]
    settle_rad: float = 0.25
    # writes of a target per control step, so that a lost datagram costs a fraction of it [D]
    writes: int = 4
    # duration of damping before the loop ends [D]
    damping_s: float = 0.5

    def __post_init__(self) -> None:
        ranges.above_zero(self, "connect_s", "stand_s", "settle_rad", "damping_s")
        ranges.at_least_one(self, "writes")


class ActingPolicy(Protocol):
    """An `OnnxPolicy`, or a substitute."""

    def reset(self) -> None: ...

    def act(self, readings: Readings, command: FloatArray) -> FloatArray:
        """command: (c + t,), then the heights and depths of the terrain."""


class Output(NamedTuple):
    """The result of a control step. Nothing is written in passive mode, `stop` in damping."""

    mode: ControlMode
    target: FloatArray  # (nu,) within the limits
    proposed: FloatArray  # (nu,) before the limits
    command: FloatArray  # (c,) as the policy observes it


def next_mode(
    mode: ControlMode, *, trip: bool, has_state: bool, standing: bool, finished: bool
) -> ControlMode:
    """The mode after `mode`.

    trip: a watchdog tripped. has_state: a state has arrived. standing: the robot is in its home
    pose. finished: the run is to end.
    """
    if trip or finished or mode is ControlMode.DAMPING:
        return ControlMode.DAMPING
    if mode is ControlMode.PASSIVE and has_state:
        return ControlMode.STAND
    if mode is ControlMode.STAND and standing:
        return ControlMode.POLICY
    return mode


class Controller:
    """The state machine. Time is an argument; `step` is called once per control step."""

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
        self.terrain = TerrainInput(contract)
        self.dt = 1.0 / contract.control_rate_hz
        self.home = contract.home_pose
        self.mode = ControlMode.PASSIVE
        # reason for entering the mode
        self.reason = ""
        self.state: State | None = None
        # (c,) command within its ranges, before and after the ramp
        self.requested = self._zero_command()
        self.command = self.requested
        # time of entering the mode [s]; set by the first `watch`
        self.began = 0.0
        # (nu,) joint positions at the begin of standing up
        self.start_pose = self.home
        self.target = self.home
        self.history: list[tuple[float, ControlMode, str]] = []
        # times [s] and messages on terrain sensors
        self.messages: list[tuple[float, str]] = []

    def _zero_command(self) -> FloatArray:
        return clip_command(np.zeros(len(self.contract.commands)), self.limits)

    def watch(
        self,
        now: float,
        state: State | None,
        missed: int,
        *,
        stopped: str = "",
        finished: str = "",
        step_begins: bool = True,
    ) -> ControlMode:
        """Check a new state (None: no new one), and change the mode if necessary.

        Args:
          now: [s]. missed: deadlines in a row. stopped: why the robot has stopped by itself.
            finished: why the run ends well. step_begins: whether a control step begins; other modes
            than damping are entered only then.
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
            if not trip and late and not self._is_standing(now):
                trip = f"not in its home pose after {allowed:g} s"
        self.transition(now, trip, finished, step_begins)
        return self.mode

    def transition(
        self, now: float, trip: str, finished: str = "", step_begins: bool = True
    ) -> None:
        """Enter the next mode. trip: why to damp; finished: why the run ends well; "" for no
        reason."""
        # a state that tripped is not evaluated
        standing = step_begins and not trip and self._is_standing(now)
        mode = next_mode(
            self.mode,
            trip=bool(trip),
            has_state=step_begins and self.state is not None,
            standing=standing,
            finished=bool(finished),
        )
        if mode is not self.mode:
            self._enter(mode, now, trip or finished)

    def _enter(self, mode: ControlMode, now: float, reason: str = "") -> None:
        self.mode = mode
        self.reason = reason
        self.began = now
        self.history.append((now, mode, reason))
        if mode is ControlMode.STAND and self.state is not None:
            self.start_pose = self.state.joint_pos
        if mode is ControlMode.POLICY:
            self.policy.reset()
            self.terrain.reset()
            self.command = self._zero_command()

    def _is_standing(self, now: float) -> bool:
        raised = self.mode is ControlMode.STAND and now - self.began >= self.config.stand_s
        if not raised or self.state is None:
            return False
        return bool(np.abs(self.state.joint_pos - self.home).max() <= self.config.settle_rad)

    def step(self, now: float, command: ArrayLike) -> Output:
        """The output of this control step, after `watch`. command: (c,)."""
        proposed = self.target
        try:
            self.requested = clip_command(command, self.limits)
            if self.mode is ControlMode.STAND:
                share = min(1.0, (now - self.began + self.dt) / self.config.stand_s)
                proposed = self.start_pose + share * (self.home - self.start_pose)
            elif self.mode is ControlMode.POLICY and (state := self.state) is not None:
                proposed = self._act(now, state)
            self.target, _ = self.safe(proposed)
        except Exception as error:  # onnxruntime's are RuntimeErrors
            message = str(error) if isinstance(error, ValueError) else repr(error)
            self.transition(now, f"the policy or its command: {message}")
            proposed = self.target
        return Output(self.mode, self.target, proposed, self.command)

    def _act(self, now: float, state: State) -> FloatArray:
        """The policy's target (nu,) at a state; ramps the command."""
        terrain = self.terrain.observe(now, state.joint_pos)
        slow = self.terrain.slow
        requested = slow_command(self.requested, self.limits) if slow else self.requested
        self.command = ramp_command(self.command, requested, self.limits, self.dt)
        readings = Readings(state.joint_pos, state.gyro, state.accelerometer, state.up)
        return self.policy.act(readings, np.concatenate((self.command, terrain)))

    def safe(self, proposed: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Target and kd, (nu,) each, within the limits at the newest state. Raises ValueError as
        `safe_drive`."""
        kp = self.limits.kp
        kd = self.limits.kd
        if self.mode not in DRIVEN or self.state is None:
            return proposed, kd
        return safe_drive(proposed, kp, kd, self.state, self.limits)


def missed_deadlines(late_s: ArrayLike, dt: float) -> NDArray[np.int64]:
    """The number of deadlines missed by more than half a period of dt [s] when a control step
    begins so late: its own, and those of skipped steps."""
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
    """A control step, for the log."""

    now: float  # its begin [s]
    late: float  # begin after the first deadline since the last step [s]
    work: float  # time until its target was written [s]
    state: State | None
    requested: FloatArray  # (c,) command before the ramp, within its ranges
    output: Output


def drive(
    robot: RobotInterface,
    controller: Controller,
    *,
    seconds: float,
    clock: LoopClock,
    command: Callable[[float], FloatArray],
    record: Callable[[ControlStep], None],
    stop_reason: Callable[[], str] = str,
    report: Callable[[str], None] = lambda message: None,
    deadman: Deadman | None = None,
) -> BaseException | None:
    """Run until the robot is damped: after `seconds` of policy, by a watchdog, or by `stop_reason`.

    Deadlines lie on a grid from the start, so lateness does not accumulate. Between control steps
    the robot is read and watched, and its last target is written again within the limits. The
    output of a policy that takes longer than the limit of the state's age is not written.
    `missed_deadlines` counts the deadlines that a late step misses.

    Args:
      command: (c,) at a time since the start [s]. record: called with every control step.
        stop_reason: why to end the run, "" to go on. report: called with messages on terrain
        sensors; must not block. deadman: damps the robot if the loop falls silent; released once
        the robot is damped.

    Returns: the first exception, None for none. Exceptions of the robot's driver damp the robot by
      those of its methods that still work; exceptions of `command`, `record`, `stop_reason` and
      `report` damp it as well.
    """
    loop = _Loop(robot, controller, seconds, clock, command, record, stop_reason, report, deadman)
    config = controller.config
    writes = config.writes
    dt = controller.dt
    tick = 0
    last_step = -1
    missed = 0
    was_collecting = gc.isenabled()
    gc.disable()  # a collection may take longer than a step
    try:
        while True:
            try:
                clock.wait_until(loop.start + tick * dt / writes)
                now = clock.now()
                # skips the ticks that have passed
                tick = max(tick, int((now - loop.start) * writes / dt))
                step_begins = tick // writes > last_step
                late = now - (loop.start + (last_step + 1) * dt)
                if step_begins:
                    more = int(missed_deadlines(late, dt))
                    last_step = tick // writes
                    missed = missed + more if more else 0
                step_ends = loop.start + (last_step + 1) * dt
                loop.tick(now, late, missed, step_begins=step_begins, step_ends=step_ends)
            except BaseException as error:  # damp whatever ends the process
                loop.failure = loop.failure or error
                controller.transition(clock.now(), f"{error!r:.200}")
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
    """The arguments of `drive`, and one tick of its loop. Exceptions of the robot's driver damp the
    robot; the first is kept."""

    robot: RobotInterface
    controller: Controller
    seconds: float
    clock: LoopClock
    command: Callable[[float], FloatArray]
    record: Callable[[ControlStep], None]
    stop_reason: Callable[[], str]
    report: Callable[[str], None]
    deadman: Deadman | None = None
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self.start = self.clock.now()
        self.output: Output | None = None
        self.controller.terrain.connect(self.robot)

    def tick(
        self, now: float, late: float, missed: int, *, step_begins: bool, step_ends: float
    ) -> None:
        """Read, watch and write once; compute a control step if one begins."""
        controller = self.controller
        clock = self.clock
        # before it reads the deadman's own commands as another program's
        taken_over = "" if controller.mode is ControlMode.PASSIVE else self.beat()
        state, stopped = self.read(terrain=step_begins)
        stopped = taken_over or stopped
        acted = controller.mode is ControlMode.POLICY and now - controller.began >= self.seconds
        finished = TIME_IS_OVER if acted else self.stop_reason()
        # reading may have taken long
        read_at = clock.now()
        controller.watch(
            read_at, state, missed, stopped=stopped, finished=finished, step_begins=step_begins
        )
        if step_begins:
            self.output = controller.step(read_at, self.command(now - self.start))
            # the state ages while the policy computes
            controller.watch(clock.now(), None, missed, step_begins=False)
        self.write(clock.now(), step_ends)
        if step_begins and self.output is not None:
            work = clock.now() - now
            step = ControlStep(now, late, work, controller.state, controller.requested, self.output)
            self.record(step)
            for message in controller.terrain.take_messages():
                controller.messages.append((now, message))
                self.report(message)

    def read(self, *, terrain: bool) -> tuple[State | None, str]:
        """A copy of the newest state, as the driver may reuse its arrays, and why the robot cannot
        go on. terrain: whether to read the terrain sensors as well."""
        try:
            if terrain:
                self.controller.terrain.poll(self.robot)
            state = self.robot.read()
            if state is None:
                return None, ""
            if not isinstance(state, State):
                raise TypeError(f"read() returned {type(state).__name__}, expected State or None")
            time_s, *parts = state
            arrays = [None if part is None else np.array(part, np.float64) for part in parts]
            return State(float(time_s), *arrays), ""  # type: ignore[arg-type]
        except BaseException as error:  # whatever a driver raises, SystemExit(0) too
            return None, self._driver_failed(error)

    def write(self, now: float, step_ends: float) -> None:
        """Write what the controller's mode requires. step_ends: of the control period [s].

        The limits are applied again, as they depend on the state. Drivers get copies, which they
        may convert in place.
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
        interpolated = controller.contract.hold == "first_order" or mode is ControlMode.STAND
        duration_s = max(0.0, step_ends - now) if interpolated else 0.0
        target, kd = controller.safe(output.proposed)
        if taken_over := self.beat():
            controller.transition(now, taken_over)
            self.damp()
            return
        try:
            self.robot.write(target.copy(), limits.kp.copy(), kd.copy(), duration_s)
        except BaseException as error:
            controller.transition(now, self._driver_failed(error))
            self.damp()

    def beat(self) -> str:
        """Signal the deadman that the loop is alive. Returns why it must not write any more."""
        return "" if self.deadman is None else self.deadman.beat()

    def damp(self) -> bool:
        """Damp the robot; whether its driver succeeded."""
        self.beat()
        try:
            self.robot.stop()
        except BaseException as error:  # it is called repeatedly
            self._driver_failed(error)
            return False
        return True

    def _driver_failed(self, error: BaseException) -> str:
        """Keep the driver's first exception; returns the reason to damp."""
        if isinstance(error, RobotStopped):
            return str(error) or "the robot has stopped by itself"
        error.add_note(OF_DRIVER)
        self.failure = self.failure or error
        return f"the robot's driver: {error!r:.200}"
