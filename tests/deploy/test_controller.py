"""The state machine and the loop, in virtual time."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from npmp.deploy.controller import (
    Controller,
    ControllerConfig,
    ControlMode,
    ControlStep,
    drive,
    missed_deadlines,
    next_mode,
)
from npmp.deploy.onnx_policy import Readings
from npmp.deploy.robot import FloatArray, RobotStopped, State
from npmp.deploy.safety import SafetyConfig
from tests.deploy.standins import HOME, Standing, state_of, two_joints


@pytest.mark.parametrize(
    ("mode", "events", "after"),
    [
        ("PASSIVE", "", "PASSIVE"),
        ("PASSIVE", "has_state", "STAND"),
        ("PASSIVE", "standing", "PASSIVE"),
        ("STAND", "has_state", "STAND"),
        ("STAND", "has_state standing", "POLICY"),
        ("POLICY", "has_state standing", "POLICY"),
        ("DAMPING", "has_state standing", "DAMPING"),
        *((mode.name, event, "DAMPING") for mode in ControlMode for event in ("trip", "finished")),
    ],
)
def test_the_table_of_modes(mode: str, events: str, after: str) -> None:
    names = ("trip", "has_state", "standing", "finished")
    happened = {name: name in events for name in names}
    assert next_mode(ControlMode[mode], **happened) is ControlMode[after]


METHODS = ("read", "write", "stop")


class Ideal:
    """A robot whose joints are where they are told to be, and its clock. `fault` changes what it
    gives."""

    def __init__(self) -> None:
        self.time, self.pos = 0.0, np.zeros(2)
        self.written: list[tuple[float, FloatArray, float]] = []
        self.stops = 0
        self.stalls: dict[int, float] = {}  # by how much a wait is too long
        self.waits = 0
        self.failure: Exception | None = None  # what `drive` returned

    def now(self) -> float:
        return self.time

    def wait_until(self, time_s: float) -> None:
        self.time = max(self.time, time_s) + self.stalls.pop(self.waits, 0.0)
        self.waits += 1

    def read(self) -> State | None:
        return state_of(self.time, joint_pos=self.pos)

    def write(self, target: FloatArray, kp: FloatArray, kd: FloatArray, duration_s: float) -> None:
        self.written.append((self.time, target, duration_s))
        self.pos = target

    def stop(self) -> None:
        self.stops += 1


def controller(pose: FloatArray = HOME, **settings: float) -> Controller:
    return Controller(two_joints(), Standing(pose), ControllerConfig(**settings), SafetyConfig())  # type: ignore[arg-type]


def run(
    robot: Ideal,
    machine: Controller,
    seconds: float = 1.0,
    command: object = (0.5, 0.0),
    deadman: Any = None,
) -> list[ControlStep]:
    steps: list[ControlStep] = []
    robot.failure = drive(
        robot,
        machine,
        seconds=seconds,
        clock=robot,
        record=steps.append,
        command=lambda _: np.array(command, dtype=float),
        deadman=deadman,
    )
    return steps


def test_a_run_in_order() -> None:
    robot, machine = Ideal(), controller()
    steps = run(robot, machine)
    times = [(round(at, 6), mode) for at, mode, _ in machine.history]
    # stands up for 3 s, then 1 s of policy
    assert times == [
        (0.0, ControlMode.PASSIVE),
        (0.0, ControlMode.STAND),
        (3.0, ControlMode.POLICY),
        (4.0, ControlMode.DAMPING),
    ]
    assert machine.reason == "the time is over" and robot.stops > 0 and gc.isenabled()
    policy = machine.policy
    assert isinstance(policy, Standing)
    assert (policy.resets, policy.acts) == (1, 50)
    assert len({step.now for step in steps}) == len(steps) == 226  # 4.5 s of 50 Hz, with both ends
    assert policy.commands[0] == pytest.approx([0.03, 0.0])  # ramp_command: 1.5 m/s in 1 s
    assert policy.commands[-1] == pytest.approx([0.5, 0.0])
    # every target is written four times, the last one with what is left of the control period
    durations = [left for at, _, left in robot.written if 3.5 <= at < 3.52 - 1e-9]
    assert durations == pytest.approx([0.02, 0.015, 0.01, 0.005])


def test_a_repeated_target_is_limited_anew() -> None:
    """While the joints do not move, 8 Nm of at most 10 are at 0.8 rad; once they have moved by 0.1,
    at 0.9."""
    robot, machine = Ideal(), controller(np.array([0.95, -0.1]))
    robot.write = lambda target, kp, kd, left: robot.written.append((robot.time, target, left))  # type: ignore[method-assign]
    robot.pos = HOME - np.array([0.1, 0.0])
    read = robot.read

    def moves() -> State | None:
        robot.pos = HOME - np.array([0.1 if robot.time < 3.01 - 1e-9 else 0.0, 0.0])
        return read()

    robot.read = moves  # type: ignore[method-assign]
    run(robot, machine, 0.02)
    sent = [target[0] for at, target, _ in robot.written if at > 3.0 - 1e-9]
    assert sent == pytest.approx([0.8, 0.8, 0.9, 0.9])


def test_it_stands_up_along_a_line() -> None:
    robot, joints = Ideal(), np.zeros(2)
    robot.pos = np.array([0.4, -0.4])

    def read() -> State:
        joints[:] = robot.pos  # a driver may fill the same array again and again
        return state_of(robot.time, joint_pos=joints, gyro=np.array([0.0, 0.0, 1e-6 * robot.time]))

    robot.read = read  # type: ignore[method-assign]
    steps = [
        step for step in run(robot, controller(), 0.1) if step.output.mode is ControlMode.STAND
    ]
    # after half of the 3 s half of the way from (0.4, -0.4) to (0.1, -0.1)
    assert steps[74].output.target == pytest.approx([0.25, -0.25])
    assert steps[-1].output.target == pytest.approx(HOME)


def test_a_robot_that_does_not_stand_up_is_damped() -> None:
    robot, machine = Ideal(), controller()
    robot.write = lambda *_: None  # type: ignore[method-assign]
    # one joint is; encoders are not still
    robot.read = lambda: state_of(robot.time, joint_pos=np.array([0.4, -0.1]) + 1e-6 * robot.time)  # type: ignore[method-assign]
    run(robot, machine)
    assert machine.reason == "not in its home pose after 5 s"
    assert machine.began == pytest.approx(5.0, abs=0.02)


def test_a_malformed_state_damps_a_robot_that_stands_up_late() -> None:
    machine = controller()
    for at in (0.0, 0.02, 3.5):
        machine.watch(at, state_of(at, joint_pos=HOME + 0.5 + 1e-3 * at), 0)
    assert machine.mode is ControlMode.STAND
    assert machine.watch(3.52, state_of(3.52, joint_pos=np.zeros(3)), 0) is ControlMode.DAMPING


@pytest.mark.parametrize("returned", [{"joint_pos": HOME}, state_of(gyro=["x"] * 3)])
def test_a_driver_that_returns_no_state_is_damped(returned: object) -> None:
    robot, machine = Ideal(), controller()
    robot.read = lambda: returned  # type: ignore[method-assign, assignment, return-value]
    run(robot, machine)
    assert isinstance(robot.failure, TypeError | ValueError) and machine.mode is ControlMode.DAMPING


@pytest.mark.parametrize(("method", "always"), [("read", True), *((m, False) for m in METHODS)])
def test_a_driver_that_fails_is_damped_until_the_end(method: str, always: bool) -> None:
    """And whatever of it works goes on to be told to stop."""
    robot, machine = Ideal(), controller()
    works, failed = getattr(robot, method), []

    def fails(*arguments: object) -> object:
        if always or ((robot.time > 5.0 or method == "stop") and not failed):
            failed.append(robot.time)
            raise OSError("no bus")
        return works(*arguments)

    setattr(robot, method, fails)
    run(robot, machine, seconds=3.0)
    assert isinstance(robot.failure, OSError) and machine.mode is ControlMode.DAMPING
    assert robot.stops > 90 and gc.isenabled()  # again and again, for half a second
    if method != "stop":
        assert machine.reason == "the robot's driver: OSError('no bus')"
        # nothing more is driven
        assert all(at <= failed[0] + 1e-9 for at, _, _ in robot.written)


def test_a_driver_may_convert_what_it_is_given_in_place() -> None:
    robot, machine = Ideal(), controller()
    gains, writes = [], robot.write

    def write(target: FloatArray, kp: FloatArray, kd: FloatArray, duration_s: float) -> None:
        gains.append((*kp, *kd))
        kp *= 2.0
        kd *= 2.0
        writes(target, kp, kd, duration_s)

    robot.write = write  # type: ignore[method-assign]
    run(robot, machine, seconds=0.5)
    assert set(gains) == {(10.0, 10.0, 1.0, 1.0)}


def test_without_a_state_nothing_is_written() -> None:
    robot, machine = Ideal(), controller(connect_s=0.5)
    robot.read = lambda: None  # type: ignore[method-assign]
    run(robot, machine)
    assert not robot.written
    assert machine.reason == "no state within 0.5 s"


def raises(error: Exception) -> Callable[[float], State]:
    def read(time_s: float) -> State:
        raise error

    return read


@pytest.mark.parametrize(
    ("fault", "reason", "within_s"),
    [
        (lambda _: None, "the state is", 0.11),
        (raises(RobotStopped("emergency stop")), "emergency stop", 0.005),
        (raises(RobotStopped()), "the robot has stopped by itself", 0.005),
        (
            lambda t: state_of(t, joint_pos=np.zeros(3)),
            "joint_pos: expected 2 finite numbers",
            0.005,
        ),
        (lambda t: state_of(t, up=np.array([1.0, 0.0, 0.0])), "tilted by 90 degrees", 0.005),
    ],
    ids=["stale", "stopped", "stopped without a word", "malformed", "tilted"],
)
@pytest.mark.parametrize(("mode", "begins"), [(ControlMode.STAND, 1.0), (ControlMode.POLICY, 3.5)])
def test_a_fault_damps_and_stays_damped(
    fault: Callable[[float], State | None],
    reason: str,
    within_s: float,
    mode: ControlMode,
    begins: float,
) -> None:
    robot, machine = Ideal(), controller()
    reads = robot.read
    robot.read = lambda: fault(robot.time) if robot.time >= begins else reads()  # type: ignore[method-assign]
    run(robot, machine)
    assert machine.reason.startswith(reason) and robot.failure is None
    assert machine.history[-2][1] is mode
    assert machine.began <= begins + within_s
    assert max(at for at, _, _ in robot.written) < machine.began  # nothing is written any more
    assert machine.watch(robot.time + 1.0, state_of(robot.time + 1.0), 0) is ControlMode.DAMPING


@pytest.mark.parametrize(
    ("pose", "command"),
    [(np.full(2, math.nan), (0.0, 0.0)), (np.zeros(3), (0.0, 0.0)), (HOME, (math.nan, 0.0))],
)
def test_a_policy_or_command_that_is_none_damps(pose: FloatArray, command: object) -> None:
    robot, machine = Ideal(), controller(pose)
    run(robot, machine, command=command)
    assert machine.mode is ControlMode.DAMPING and machine.reason != "the time is over"
    assert np.isfinite([target for _, target, _ in robot.written]).all()


@pytest.mark.parametrize("error", [RuntimeError("no memory"), KeyError("obs")])
def test_whatever_a_policy_raises_damps_for_the_whole_time(error: Exception) -> None:
    robot, machine = Ideal(), controller()

    def fails(*_: object) -> FloatArray:
        raise error

    machine.policy.act = fails  # type: ignore[method-assign]
    run(robot, machine)
    assert machine.mode is ControlMode.DAMPING
    assert machine.reason == f"the policy or its command: {error!r}" and robot.stops > 90


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), ZeroDivisionError()])
@pytest.mark.parametrize("at", ["read", "command", "record", "stop_reason", "wait_until"])
def test_whatever_ends_the_process_damps_for_the_whole_time(error: BaseException, at: str) -> None:
    """Once, in the middle of the run, of the driver and of what `drive` is given."""
    robot, machine, steps = Ideal(), controller(), list[ControlStep]()
    raised = []

    def once(works: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            if robot.time > 3.5 and not raised:
                raised.append(robot.time)
                raise error
            return works(*args)

        return call

    functions = {"command": lambda _: np.zeros(2), "record": steps.append, "stop_reason": str}
    if at in functions:
        functions[at] = once(functions[at])
    else:
        setattr(robot, at, once(getattr(robot, at)))
    assert drive(robot, machine, seconds=3.0, clock=robot, **functions) is error  # type: ignore[arg-type]
    assert machine.mode is ControlMode.DAMPING and repr(error) in machine.reason
    assert robot.stops > 90 and robot.time == pytest.approx(raised[0] + 0.5, abs=0.03)


def test_what_a_driver_writes_while_the_policy_thinks_is_not_acted_on() -> None:
    robot, joints = Ideal(), np.zeros(2)

    class Overtaken(Standing):
        def act(self, readings: Readings, command: FloatArray) -> FloatArray:
            joints[:] = math.nan  # by the driver's thread
            return super().act(readings, command)

    def read() -> State:
        joints[:] = robot.pos
        return state_of(robot.time, joint_pos=joints, gyro=np.array([0.0, 0.0, 1e-6 * robot.time]))

    robot.read = read  # type: ignore[method-assign]
    machine = Controller(two_joints(), Overtaken(HOME), ControllerConfig(), SafetyConfig())
    run(robot, machine)
    assert machine.reason == "the time is over"
    assert np.isfinite([target for _, target, _ in robot.written]).all()


def test_deadlines() -> None:
    robot, machine = Ideal(), controller()
    robot.stalls = {700: 0.055, 709: 0.012}  # at 3.5 s and 3.6 s, where control steps begin
    steps = run(robot, machine)
    late = {round(step.now, 3): round(step.late, 3) for step in steps if step.late > 1e-6}
    # one step for the three that were due at 3.555 s; the grid stays, so lateness does not add up
    assert late == {3.555: 0.055, 3.612: 0.012}
    assert machine.reason == "the time is over"
    assert all(b.now - a.now < 0.09 for a, b in itertools.pairwise(steps))


def test_missing_deadlines_in_a_row_damps() -> None:
    robot, machine = Ideal(), controller()
    robot.stalls = dict.fromkeys(range(650, 2000), 0.032)
    run(robot, machine)
    assert machine.reason == "5 deadlines missed in a row"


@pytest.mark.parametrize(
    ("stall", "reason"), [(0.089, "the time is over"), (0.091, "5 deadlines missed in a row")]
)
def test_a_long_stall_misses_every_deadline_in_it(stall: float, reason: str) -> None:
    """Deadlines lie at 0, 20, 40, 60 and 80 ms, missed after half a period more: the last at 90."""
    robot, machine = Ideal(), controller()
    robot.stalls = {700: stall}
    steps = run(robot, machine)
    assert machine.reason == reason
    missed = missed_deadlines([step.late for step in steps], 0.02)
    assert missed.sum() == (4 if stall < 0.09 else 5)


class Thinks(Standing):
    """A policy that takes its time, the tenth step another."""

    def __init__(self, robot: Ideal, usual_s: float, tenth_s: float):
        super().__init__(HOME)
        self.robot, self.usual_s, self.tenth_s = robot, usual_s, tenth_s

    def act(self, readings: Readings, command: FloatArray) -> FloatArray:
        self.robot.time += self.tenth_s if self.acts == 9 else self.usual_s
        return super().act(readings, command)


def test_a_policy_that_thinks_for_too_long_is_not_obeyed() -> None:
    """0.12 s after its readings the joints may be anywhere; 0.08 s after them it is late, and that
    is all."""
    for tenth_s, reason in ((0.12, "the state is 120 ms old"), (0.08, "the time is over")):
        robot = Ideal()
        machine = Controller(
            two_joints(), Thinks(robot, 0.0, tenth_s), ControllerConfig(), SafetyConfig()
        )
        run(robot, machine)
        assert machine.reason == reason
        thought = [at for at, _, _ in robot.written if 3.18 + 1e-6 < at < 3.18 + tenth_s + 1e-6]
        assert bool(thought) == (tenth_s < 0.1)


def test_drives_have_what_is_left_of_the_period_once_the_policy_has_thought() -> None:
    robot = Ideal()
    run(
        robot,
        Controller(two_joints(), Thinks(robot, 0.012, 0.012), ControllerConfig(), SafetyConfig()),
    )
    durations = [left for at, _, left in robot.written if 3.5 <= at < 3.52 - 1e-9]
    # told at 12 ms, for 10 and at 15 ms again
    assert durations == pytest.approx([0.008, 0.008, 0.005])


def test_a_signal_damps() -> None:
    robot, machine = Ideal(), controller()
    steps: list[ControlStep] = []
    drive(
        robot,
        machine,
        seconds=9.0,
        clock=robot,
        record=steps.append,
        command=lambda _: np.zeros(2),
        stop_reason=lambda: "SIGINT" if robot.time > 3.2 else "",
    )
    assert (machine.mode, machine.reason) == (ControlMode.DAMPING, "SIGINT")
    assert machine.began == pytest.approx(3.205)
