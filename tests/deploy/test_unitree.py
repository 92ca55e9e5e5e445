"""Unitree's messages, and the Go2 and the G1 behind them."""

from __future__ import annotations

import copy
import json
import os
import struct
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mocap_data.errors import InputError
from npmp.deploy.bundle import Bundle
from npmp.deploy.controller import Controller, ControllerConfig, ControlMode
from npmp.deploy.robot import RobotStopped, State
from npmp.deploy.safety import SafetyConfig, Watchdog
from npmp.deploy.unitree import (
    CHECK_MODE,
    LOOPBACK,
    MOTORS,
    RELEASE_MODE,
    DdsConnection,
    UnitreeRobot,
    observe,
    stick_command,
    unitree_damper,
)
from npmp.deploy.unitree_messages import (
    FIELDS,
    MessageLayout,
    checksum,
    dds_type,
    fields,
    with_values,
)
from npmp.experiments import deploy
from tests.deploy.standins import Standing, contract_of

ROBOTS = sorted(MOTORS)
layout_of = cache(MessageLayout)
# bytes in C's memory [R: unitree_sdk2]
SIZES = {"unitree_go.LowCmd": 812, "unitree_go.LowState": 1180}
SIZES |= {"unitree_hg.LowCmd": 1004, "unitree_hg.LowState": 2092}


class FakeConnection:
    """Keeps the sent messages; receives those in `incoming`."""

    def __init__(self, local: bool = False):
        self.local, self.incoming, self.sent = local, list[Any](), list[list[Any]]()
        self.foreign = 0
        self.programs = 1

    def receive(self) -> list[Any]:
        came, self.incoming = self.incoming, []
        return came

    def send(self, values: list[Any]) -> None:
        self.sent.append(list(values))

    def foreign_commands(self) -> int:
        return self.foreign

    def publishers(self) -> int:
        return self.programs


def state_of(name: str, tick: Any = 1, **changed: Any) -> tuple[Any, ...]:
    """A LowState at rest and upright: motor k at 0.01 k rad; changed: fields by name."""
    layout = layout_of(f"{MOTORS[name][0]}.LowState")
    values: list[Any] = [0] * layout.width
    given: dict[str, Any] = {"imu_state.quaternion": [1.0, 0.0, 0.0, 0.0], "tick": [tick]}
    given["imu_state.accelerometer"] = [0.0, 0.0, 9.81]
    if "mode_machine" in layout.at:
        given["mode_machine"] = [5]
    count = len(values[layout.at["motor_state.q"]])
    given["motor_state.q"] = [0.01 * k for k in range(count)]
    for field, numbers in (given | changed).items():
        values[layout.at[field]] = numbers
    if "crc" not in changed:
        values[layout.at["crc"]] = [layout.crc(values)]
    return tuple(values)


def at_home(name: str, tick: Any = 1, **changed: Any) -> tuple[Any, ...]:
    """A LowState at rest in the home pose."""
    contract, motors = contract_of(name), MOTORS[name][1]
    layout = layout_of(f"{MOTORS[name][0]}.LowState")
    angles = [0.0] * len(range(*layout.at["motor_state.q"].indices(layout.width)))
    for joint, angle in zip(contract.joint_names, contract.home_pose):
        angles[motors.index(joint)] = angle
    return state_of(name, tick, **{"motor_state.q": angles} | changed)


def robot_of(name: str, **line: Any) -> UnitreeRobot:
    return UnitreeRobot(contract_of(name), FakeConnection(**line))


def read(robot: UnitreeRobot, *states: Any) -> State | None:
    robot.connection.incoming += states  # type: ignore[attr-defined]
    return robot.read()


# --- messages


def test_the_checksum_is_a_crc_of_words_with_the_highest_bit_first() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, 40, np.uint32)
    crc = 0xFFFFFFFF
    for word in words[:-1].tolist():
        for bit in range(31, -1, -1):
            flip = (crc >> 31) ^ (word >> bit & 1)
            crc = ((crc << 1) & 0xFFFFFFFF) ^ (0x04C11DB7 * flip)
    assert checksum(words.astype("<u4").tobytes()) == crc


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_a_message_is_packed_as_dds_and_as_c_pack_it(name: str, size: int) -> None:
    pytest.importorskip("cyclonedds")
    layout, kind = MessageLayout(name), dds_type(name)
    assert layout.memory.size == size
    rng = np.random.default_rng(0)
    values = [rng.integers(1, 100).item() for _ in range(layout.width)]

    def filled(which: str, left: list[Any]) -> list[Any]:
        made = []
        for _, count, inner in fields(which):
            one = [
                dds_type(inner)(*filled(inner, left)) if inner in FIELDS else left.pop(0)
                for _ in range(count)
            ]
            made.append(one[0] if count == 1 else one)
        return made

    by_fields = kind.__idl__.serialize(kind(*filled(name, list(values))))
    assert with_values(kind, values).serialize() == by_fields
    assert list(kind.deserialize(by_fields).values) == values
    assert kind.deserialize(by_fields[:-8]).values is None


# --- from the robot


@pytest.mark.parametrize("name", ROBOTS)
def test_joints_come_in_the_order_of_the_bundle(name: str) -> None:
    robot, motors = robot_of(name), MOTORS[name][1]
    state = read(robot, state_of(name))
    assert state is not None and state.temperature is not None
    expected = [0.01 * motors.index(joint) for joint in contract_of(name).joint_names]
    assert state.joint_pos == pytest.approx(expected)
    assert state.up == pytest.approx([0, 0, 1]) and abs(state.time_s - time.monotonic()) < 1.0
    assert read(robot) is None


def test_inertial_readings_are_means_over_a_control_period() -> None:
    robot = robot_of("unitree_go2")
    ticks = range(100, 140, 2)  # 500 Hz; the last 20 ms are those from 120 on
    half = np.sqrt(0.5)
    turned = [half, half, 0.0, 0.0]  # 90 degrees about X: Z is to the left, so up is +Y
    states = [
        state_of(
            "unitree_go2", t, **{"imu_state.gyroscope": [t, 0, 0], "imu_state.quaternion": turned}
        )
        for t in ticks
    ]
    state = read(robot, *states)
    assert state is not None
    assert state.gyro[0] == pytest.approx(np.mean([t for t in ticks if t > 138 - 20]))
    assert state.up == pytest.approx([0, 1, 0])


def test_a_motor_of_a_g1_is_as_warm_as_its_warmer_sensor() -> None:
    robot, layout = robot_of("unitree_g1"), MessageLayout("unitree_hg.LowState")
    place = layout.at["motor_state.temperature"]
    values = list(state_of("unitree_g1", crc=[0]))
    values[place.start : place.start + 2] = [40, 55]  # of the first motor
    values[layout.at["crc"]] = [layout.crc(values)]
    state = read(robot, tuple(values))
    assert state is not None and state.temperature is not None
    assert state.temperature[0] == 55 and state.temperature[1:].max() == 0


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"crc": [1]}, "checksum"),
        ({"imu_state.quaternion": [np.nan] * 4}, "quaternion"),
        ({"tick": 4}, "out of order"),
        ({"tick": 0}, "out of order"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], why: str) -> None:
    robot = robot_of("unitree_go2")
    assert read(robot, state_of("unitree_go2", 5)) is not None
    assert read(robot, state_of("unitree_go2", **{"tick": 6, **changed})) is None
    assert robot.rejected == {why: 1}


def test_simulators_need_no_checksum_and_no_clock() -> None:
    robot = robot_of("unitree_go2", local=True)
    for _ in range(2):
        state = read(robot, state_of("unitree_go2", crc=[0], tick=0))
        assert state is not None and abs(state.time_s - time.monotonic()) < 1.0


def test_the_age_of_a_state_is_by_the_robots_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes later than the fastest message did was measured earlier; a clock that jumps stops
    it."""
    robot, now = robot_of("unitree_go2"), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert read(robot, state_of("unitree_go2", 1000)) is not None
    now[0] = 100.050
    late = read(robot, state_of("unitree_go2", 1002))
    assert late is not None and now[0] - late.time_s == pytest.approx(0.048, abs=1e-5)
    now[0] = 100.052
    with pytest.raises(RobotStopped, match="jumped by 60"):
        read(robot, state_of("unitree_go2", 61_002))


@pytest.mark.parametrize(("byte", "bit"), [(2, 0x08), (3, 0x02)])
def test_the_remotes_button_stops_it(byte: int, bit: int) -> None:
    remote = [0] * 40
    remote[byte] = bit
    pressed, released = state_of("unitree_g1", wireless_remote=remote), state_of("unitree_g1", 2)
    with pytest.raises(RobotStopped, match="remote"):
        read(robot_of("unitree_g1"), pressed, released)


def test_another_program_that_commands_it_stops_it() -> None:
    """Not its own controller before we let go of it."""
    robot, kp = robot_of("unitree_go2"), np.full(12, 20.0)
    robot.connection.foreign = 3  # type: ignore[attr-defined]
    assert read(robot, state_of("unitree_go2")) is not None
    robot.write(np.zeros(12), kp, kp, 0.1)
    with pytest.raises(RobotStopped, match="rt/lowcmd"):
        read(robot, state_of("unitree_go2", 2))


def test_another_robot_that_joins_stops_it() -> None:
    robot = robot_of("unitree_go2")
    assert read(robot, state_of("unitree_go2")) is not None
    robot.connection.programs = 2  # type: ignore[attr-defined]
    with pytest.raises(RobotStopped, match="rt/lowstate"):
        read(robot, state_of("unitree_go2", 2))


def motor_states(name: str, field: str, values: list[int], tick: int = 1) -> tuple[Any, ...]:
    """A LowState with a field of the first motors set, 0 for the others."""
    layout = layout_of(f"{MOTORS[name][0]}.LowState")
    every = len(range(*layout.at[f"motor_state.{field}"].indices(layout.width)))
    return state_of(name, tick, **{f"motor_state.{field}": values + [0] * (every - len(values))})


@pytest.mark.parametrize(
    ("code", "driven", "message"),
    [
        (0, True, ""),
        (0x10, False, "left_hip_yaw_joint: error code 0x10"),
        # that it hears no commands is so before it is driven
        (0x40000000, False, ""),
        (0x40000000, True, "left_hip_yaw_joint: error code 0x40000000"),
    ],
)
def test_the_error_of_a_motor_stops_it(code: int, driven: bool, message: str) -> None:
    robot = robot_of("unitree_g1")
    robot.driven_since = time.monotonic() - 2.0 if driven else np.inf
    state = motor_states("unitree_g1", "motorstate", [0, 0, code])
    if message:
        with pytest.raises(RobotStopped, match=message):
            read(robot, state)
    else:
        assert read(robot, state) is not None


def test_a_motor_that_leaves_its_mode_stops_it() -> None:
    """Simulators say 0 of all of them, and so does a robot that is not driven yet."""
    robot = robot_of("unitree_go2")
    assert read(robot, motor_states("unitree_go2", "mode", [1] * 6)) is not None
    robot.driven_since = time.monotonic() - 2.0
    assert read(robot, motor_states("unitree_go2", "mode", [0] * 12, 2)) is not None
    assert read(robot, motor_states("unitree_go2", "mode", [1] * 12, 3)) is not None
    with pytest.raises(RobotStopped, match="FR_calf_joint: mode 0"):
        read(robot, motor_states("unitree_go2", "mode", [1, 1, 0, *[1] * 9], 4))


def test_a_motor_that_loses_messages_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One now and then is a line that is lossy."""
    robot, now = robot_of("unitree_go2"), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for k in range(50):
        now[0] = 100.0 + 0.1 * k
        lost = motor_states("unitree_go2", "lost", [0, 4_000_000_000 + k], 100 * k + 1)
        assert read(robot, lost) is not None
    # begins anew
    assert read(robot, motor_states("unitree_go2", "lost", [0, 3], 4902)) is not None
    with pytest.raises(RobotStopped, match="FR_thigh_joint: lost 22 messages"):
        read(robot, motor_states("unitree_go2", "lost", [0, 25], 4903))


@pytest.mark.parametrize(("kind", "whole"), [(5, True), (11, True), (4, False), (6, False)])
def test_a_g1_whose_joints_do_not_all_move_is_not_believed(kind: int, whole: bool) -> None:
    robot = robot_of("unitree_g1")
    assert (read(robot, state_of("unitree_g1", mode_machine=[kind])) is not None) is whole
    assert whole or [*robot.rejected] == [f"mode_machine {kind}: not a G1 with 29 moving joints"]


def test_the_sticks_ask_for_the_ends_of_the_ranges() -> None:
    robot, remote = robot_of("unitree_go2"), bytearray(40)
    within = np.array([[-0.5, -0.3, -1.0], [1.5, 0.2, 2.0]])
    assert stick_command(robot, within).tolist() == [0, 0, 0]
    for place, pushed in ((20, -1.0), (4, -0.5), (8, 7.0)):  # back, left, right
        struct.pack_into("<f", remote, place, pushed)
    read(robot, state_of("unitree_go2", wireless_remote=list(remote)))
    assert stick_command(robot, within) == pytest.approx([-0.5, 0.1, -1.0])
    struct.pack_into("<f", remote, 20, np.nan)
    read(robot, state_of("unitree_go2", 2, wireless_remote=list(remote)))
    assert stick_command(robot, within)[0] == 0.0


# --- to the robot


@pytest.mark.parametrize("name", ROBOTS)
def test_a_command_is_in_the_order_of_the_motors(name: str) -> None:
    robot, contract, layout = (
        robot_of(name),
        contract_of(name),
        MessageLayout(f"{MOTORS[name][0]}.LowCmd"),
    )
    kind = {"mode_machine": [5]} if name == "unitree_g1" else {}
    read(robot, at_home(name, **kind))
    numbers = np.arange(len(contract.joints), dtype=np.float64)
    target = contract.home_pose + 1e-4 * numbers
    kp, kd = 100.0 + numbers, 200.0 + numbers
    robot.write(target, kp, kd, 0.0)
    robot.stop()
    robot.write(target, kp, kd, 0.0)  # nothing, once it is stopped
    sent, stopped = robot.connection.sent  # type: ignore[attr-defined]
    for motor, joint in enumerate(MOTORS[name][1]):
        k = contract.joint_names.index(joint)
        result = [
            sent[layout.at[f"motor_cmd.{field}"]][motor] for field in ("mode", "q", "kp", "kd")
        ]
        assert result == [1, target[k], kp[k], kd[k]]
    assert sum(sent[layout.at["motor_cmd.mode"]]) == len(contract.joints)
    assert sent[layout.at["crc"]] == [layout.crc(sent)]
    assert not any(stopped[layout.at["motor_cmd.kp"]])
    assert sorted(stopped[layout.at["motor_cmd.kd"]])[-len(target) :] == sorted(robot.kd)
    if kind:
        assert sent[layout.at["mode_machine"]] == [5]
    else:
        assert sent[layout.at["head"]] == [0xFE, 0xEF] and sent[layout.at["level_flag"]] == [0xFF]


def test_setpoints_are_sent_half_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    robot, layout, now = robot_of("unitree_go2"), MessageLayout("unitree_go.LowCmd"), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    one = np.ones(12)
    robot.write(0 * one, one, one, 0.02)
    for write in range(1, 4):  # towards 1 within 20 ms, every 5
        now[0] = 0.005 * write
        robot.write(one, one, one, 0.025 - now[0])
    asked = [sent[layout.at["motor_cmd.q"]][0] for sent in robot.connection.sent]  # type: ignore[attr-defined]
    assert asked == pytest.approx([0.0, 0.125, 0.375, 0.625])


@pytest.mark.parametrize(("passed", "commands"), [(0.04, 1), (0.06, 0)])
def test_no_command_is_sent_that_the_process_slept_over(
    passed: float, commands: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its computation and the line; another process may have damped the robot by then."""
    robot = robot_of("unitree_go2")
    one = np.ones(12)
    times = iter([100.0, 100.0 + passed])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    robot.write(one, one, one, 0.0)
    assert len(robot.connection.sent) == commands  # type: ignore[attr-defined]


@pytest.fixture
def damped(monkeypatch: pytest.MonkeyPatch) -> FakeConnection:
    """The line of a `unitree_damper`, to which a robot listens."""
    line = FakeConnection()
    line.commands = SimpleNamespace(get_matched_subscriptions=lambda: [1])  # type: ignore[attr-defined]
    monkeypatch.setattr("npmp.deploy.unitree.DdsConnection", lambda *_: line)
    monkeypatch.setattr("npmp.deploy.unitree.DISCOVERY_S", 0.0)
    return line


def test_the_damper_of_a_g1_sends_its_kind(damped: FakeConnection) -> None:
    stop = unitree_damper(contract_of("unitree_g1"), "eth0")
    damped.incoming.append(state_of("unitree_g1", mode_machine=[11]))
    stop()
    (sent,) = damped.sent
    at = layout_of("unitree_hg.LowCmd").at
    assert sent[at["mode_machine"]] == [11] and not any(sent[at["motor_cmd.kp"]])


def test_the_damper_damps_whatever_fails_while_it_reads(
    damped: FakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise OSError("no network")

    stop = unitree_damper(contract_of("unitree_go2"), "eth0")
    monkeypatch.setattr(damped, "receive", fails)
    stop()
    assert len(damped.sent) == 1


@pytest.mark.parametrize("name", ROBOTS)
def test_the_torque_limit_holds_for_what_is_sent_half_way(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joints at 10 rad/s there and back, targets from one end of their ranges to the other every
    20 ms, five writes on the way: kp (sent - angle) - kd velocity within 0.8 of the limit."""
    contract, robot, now = contract_of(name), robot_of(name), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    machine = Controller(contract, Standing(contract.home_pose), ControllerConfig(), SafetyConfig())
    machine.mode = ControlMode.POLICY
    layout, motors = MessageLayout(f"{MOTORS[name][0]}.LowCmd"), robot.order
    limit, (low, high) = contract.per_joint("torque_limit"), contract.joint_range
    middle, swing = (low + high) / 2.0, (high - low) / 2.0
    rng, worst, stiff = np.random.default_rng(0), 0.0, 0.0
    for k in range(400):
        now[0] = 100.0 + 0.004 * k
        phase = 10.0 / swing * now[0]
        pos, vel = middle + swing * np.sin(phase), 10.0 * np.cos(phase)
        machine.state = robot.last_state = State(now[0], pos, vel, 0 * pos, *np.zeros((3, 3)))
        if k % 5 == 0:
            proposed = np.where(rng.random(len(limit)) < 0.5, low, high)
        target, kd = machine.safe(proposed)
        robot.write(target, machine.limits.kp, kd, 0.02 - 0.004 * (k % 5))
        sent = {
            part: np.array(robot.connection.sent[-1][layout.at[f"motor_cmd.{part}"]])[motors]  # type: ignore[attr-defined]
            for part in ("q", "kp", "kd")
        }
        share = np.abs(sent["kp"] * (sent["q"] - pos) - sent["kd"] * vel) / limit
        worst, stiff = max(worst, share.max()), max(stiff, sent["kp"].min())
    assert stiff > 0.0 and worst == pytest.approx(0.8)


def test_a_hostile_robot_is_refused_or_damped() -> None:
    """1,000 states with random numbers in one field, right checksums, new ticks."""
    rng, at = np.random.default_rng(0), MessageLayout("unitree_go.LowState").at
    worst = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e4]
    result = {"rejected": 0, "damped": 0}
    for k in range(1000):
        robot = robot_of("unitree_go2")
        watchdog = Watchdog(contract_of("unitree_go2"), SafetyConfig())
        field = ("imu_state.quaternion", "imu_state.gyroscope", "imu_state.accelerometer")[k % 3]
        if k % 2:
            field = ("motor_state.q", "motor_state.dq", "motor_state.tau_est")[k % 3]
        base = at_home("unitree_go2")
        numbers = list(base[at[field]])
        numbers[rng.integers(min(len(numbers), 12))] = worst[rng.integers(len(worst))]
        state = read(robot, at_home("unitree_go2", **{field: numbers}))
        if state is None:
            result["rejected"] += 1
        else:
            assert watchdog.trip(time.monotonic(), state, 0), (field, numbers)
            result["damped"] += 1
    assert min(result.values()) > 50


def test_a_look_says_what_is_wrong_and_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npmp.deploy.unitree.OBSERVE_S", 0.5)
    robot = robot_of("unitree_go2")
    watchdog = Watchdog(contract_of("unitree_go2"), SafetyConfig())
    assert observe(robot, watchdog) == ([], "no state within 0.5 s")
    robot.connection.incoming.append(state_of("unitree_go2"))  # type: ignore[attr-defined]
    lines, wrong = observe(robot, watchdog)
    assert "beyond its range" in wrong and any("FL_hip_joint 0.030 rad" in line for line in lines)
    assert robot.connection.sent == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["robot=unitree_go2"], "needs interface="),
        (["robot=sim", "command=remote"], "command=remote"),
        (["robot=unitree_g1", "interface=lo"], "the bundle is for 'unitree_go2'"),
    ],
)
def test_settings_of_another_robot_are_refused(
    settings: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Stand:
        contract = contract_of("unitree_go2")

        def policy(self) -> Standing:
            return Standing(self.contract.home_pose)

    monkeypatch.setattr(Bundle, "read", staticmethod(lambda folder: Stand()))
    monkeypatch.setattr(deploy, "unitree_robot", lambda *_, **__: pytest.fail("it was reached"))
    assert deploy.main(["bundle", *settings, f"out={tmp_path / 'run'}"]) == 2
    assert message in capsys.readouterr().err


# --- over DDS


def test_messages_and_calls_cross_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A robot on another thread: it publishes its state, hears commands, lets go when told."""
    domain = pytest.importorskip("cyclonedds.domain")
    # where no simulator listens, nor another run of this test
    number = 100 + os.getpid() % 100
    monkeypatch.setattr("npmp.deploy.unitree.SIMULATED_DOMAIN", number)
    try:
        line = DdsConnection("unitree_go", LOOPBACK)
    except InputError as error:
        pytest.skip(str(error))
    there = copy.copy(line)
    there.participant = domain.DomainParticipant(number)
    there.commands = there._writer("lowcmd", line.command_type)
    states = there._writer("lowstate", dds_type("unitree_go.LowState"))
    commands = there._reader("lowcmd", dds_type("unitree_go.LowCmd"))
    requests = there._reader("api/motion_switcher/request", dds_type("unitree_api.Request"))
    answers = there._writer("api/motion_switcher/response", dds_type("unitree_api.Response"))
    asked, heard, over = list[int](), list[Any](), threading.Event()
    header, status = dds_type("unitree_api.ResponseHeader"), dds_type("unitree_api.ResponseStatus")

    def lives() -> None:
        tick, mode = 0, "normal"
        while not over.wait(0.005):
            tick += 5
            states.write(
                with_values(dds_type("unitree_go.LowState"), state_of("unitree_go2", tick))
            )
            heard.extend(commands.take(64))
            for request in requests.take(64):
                if not hasattr(request, "header"):  # of one who has asked and gone
                    continue
                asked.append(request.header.identity.api_id)
                mode = "" if asked[-1] == RELEASE_MODE else mode
                message = json.dumps({"form": "0", "name": mode})
                head = header(request.header.identity, status(0))
                answers.write(dds_type("unitree_api.Response")(head, message, []))

    thread = threading.Thread(target=lives)
    thread.start()
    try:
        monkeypatch.setattr("npmp.deploy.unitree.RELEASE_S", 0.0)
        assert line.onboard(release=False) == "normal"
        assert line.onboard(release=True) == ""
        assert asked == [CHECK_MODE, CHECK_MODE, RELEASE_MODE, CHECK_MODE]
        robot, state, until = UnitreeRobot(contract_of("unitree_go2"), line), None, 20.0
        began = time.monotonic()
        while (state is None or not heard) and time.monotonic() - began < until:
            state = robot.read() or state
            robot.stop()
            time.sleep(0.01)
        assert line.foreign_commands() == 0
        # from another process, by another line
        program = (
            "from npmp.deploy import unitree; from tests.deploy.standins import contract_of; "
            f"unitree.SIMULATED_DOMAIN = {number}; "
            "unitree.unitree_damper(contract_of('unitree_go2'), 'lo')()"
        )
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60.0)
        while not (foreign := line.foreign_commands()) and time.monotonic() - began < until:
            time.sleep(0.01)
    finally:
        over.set()
        thread.join()
    assert state is not None and not robot.rejected
    assert heard[0].values[:3] == (0xFE, 0xEF, 0xFF) and foreign == 1
    # the same command of both
    damped = [one.values for one in heard if hasattr(one, "values")]
    assert damped[0] == damped[-1]
