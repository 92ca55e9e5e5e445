"""The simulated robot's computer and its line, stepped without real time; hostile datagrams; and
kill -9 with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from npmp import robots
from npmp.deploy.controller import Controller, ControllerConfig, ControlMode, drive
from npmp.deploy.robot_server import (
    Lockstep,
    LossyLink,
    RobotServer,
    SimulatedConfig,
    make_server,
    spawn,
)
from npmp.deploy.run_log import DeployLogger
from npmp.deploy.safety import SafetyConfig
from npmp.deploy.simulated import SimulatedRobot
from npmp.deploy.wire import HEADER, Kind, Outbox, RemoteRobot, identity
from tests.deploy.standins import Standing, contract_of
from tests.deploy.test_wire import resealed

FAR = 1e9


def test_a_line_delays_loses_and_keeps_order() -> None:
    rng = np.random.default_rng(0)
    link = LossyLink(SimulatedConfig(latency_ms=10.0), rng)
    link.put(b"a", 1.0)
    assert list(link.due(1.0099)) == [] and list(link.due(1.0101)) == [b"a"]
    link = LossyLink(SimulatedConfig(loss=0.25), rng)
    for _ in range(1000):
        link.put(b"a", 0.0)
    assert 700 < len(list(link.due(0.0))) < 800
    for keeps_order in (True, False):
        link = LossyLink(SimulatedConfig(jitter_ms=20.0, keeps_order=keeps_order), rng)
        for k in range(100):
            link.put(bytes([k]), 1e-3 * k)
        came = b"".join(link.due(1.0))
        assert sorted(came) == list(range(100)) and (list(came) == sorted(came)) is keeps_order


def server(name: str = "anymal_b", **settings: float) -> RobotServer:
    return make_server(robots.load(name), "imu", SimulatedConfig(**settings), seed=0)  # type: ignore[arg-type]


def test_silence_damps_within_50_ms() -> None:
    robot = robots.load("anymal_b")
    found, outbox = server(), Outbox(identity(robot.name, robot.model_sha256), 12)
    body = np.concatenate((robot.home_joints, robot.kp, robot.kd, [0.0]))
    now = 10.0
    while now < 10.2:  # no command has come yet: it waits
        found.tick(now := now + 0.0025)
    assert found.stopped is None
    found.take(outbox.pack(Kind.COMMAND, body, now), now)
    heard = now = now + 0.0025
    found.tick(now)
    while found.stopped is None:
        found.tick(now := now + 0.0025)
    at, why = found.stopped
    # a step of 2.5 ms before 50 ms are over, as the command may have lain there for a step
    assert at - heard == pytest.approx(0.0475) and why == "no command for 47.5 ms"
    assert (found.simulated.model.actuator_gainprm[:, 0] == 0).all()
    found.take(outbox.pack(Kind.COMMAND, body, now), now)  # what has damped stays so
    found.tick(now)
    assert (found.simulated.model.actuator_gainprm[:, 0] == 0).all()


def test_before_the_first_command_it_waits() -> None:
    found = server(deadman_ms=3.0)
    found.tick(10.0)
    assert found.stopped is None


def test_ctrl_c_is_not_for_the_robot() -> None:
    """It reaches the processes of the terminal's session."""
    robot = spawn("anymal_b", "imu", SimulatedConfig(), ("127.0.0.1", 9), seed=0)
    try:
        assert os.getsid(robot.pid) == robot.pid != os.getsid(0)
    finally:
        robot.kill()
        robot.communicate()


def hostile(rng: np.random.Generator, good: bytes, kinds: int = 9) -> bytes:
    """A datagram that no sender of ours makes: spoiled bytes, NaN, wrong widths, old sequences,
    another robot; the last kind is well formed, with absurd numbers."""
    kind, count = rng.integers(kinds), (len(good) - HEADER.size - 4) // 8
    place = HEADER.size + 8 * int(rng.integers(count))
    if kind == 0:
        return rng.bytes(int(rng.integers(0, 1500)))
    if kind == 1:
        return good[: int(rng.integers(len(good)))]
    if kind == 2:
        at = int(rng.integers(len(good)))
        return good[:at] + bytes([good[at] ^ int(rng.integers(1, 256))]) + good[at + 1 :]
    if kind == 3:
        return resealed(good, place, np.float64(rng.choice([np.nan, np.inf, -np.inf])).tobytes())
    if kind == 4:
        return resealed(good, 20, rng.bytes(5) + bytes(3))  # an old sequence
    if kind == 5:
        return resealed(good, 12, rng.bytes(8))
    if kind == 6:
        # long ago, or to come
        return resealed(good, 28, np.float64(rng.uniform(-FAR, FAR)).tobytes())
    if kind == 7:
        return resealed(good[:place] + good[-4:], 0, b"N")
    numbers = rng.uniform(-1, 1, count) * 10.0 ** rng.uniform(-3, 300, count)
    return resealed(good, HEADER.size, numbers.tobytes())


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_a_thousand_hostile_commands_do_no_harm(name: str) -> None:
    robot, rng = robots.load(name), np.random.default_rng(1)
    found, joints = server(name), len(robot.joint_names)
    outbox = Outbox(identity(robot.name, robot.model_sha256), joints)
    body = np.concatenate((robot.home_joints, robot.kp, robot.kd, [0.0]))
    now, model, data = 10.0, found.simulated.model, found.simulated.data
    absurd = 0
    for _ in range(1000):
        spoiled = hostile(rng, outbox.pack(Kind.COMMAND, body, now))
        before = found.inbox.refused.total()
        found.take(spoiled, now)
        if rng.random() < 0.2:  # the controller goes on speaking
            found.take(outbox.pack(Kind.COMMAND, body, now), now)
        found.tick(now := now + found.simulated.dt)
        absurd += found.inbox.refused.total() == before
        assert (np.abs(data.actuator_force) <= robot.torque_limit * (1 + 1e-9)).all()
        assert ((robot.joint_lower <= data.ctrl) & (data.ctrl <= robot.joint_upper)).all()
        assert (model.actuator_gainprm[:, 0] >= 0).all()
        assert (model.actuator_gainprm[:, 0] <= 2 * robot.kp + 1e-9).all()
        assert (-model.actuator_biasprm[:, 2] >= 0).all()
        assert (
            -model.actuator_biasprm[:, 2] <= 2 * np.maximum(robot.kd, 0.01 * robot.kp) + 1e-9
        ).all()
        assert np.isfinite(data.qpos).all()
    assert found.inbox.refused.total() == 1000 - absurd
    assert 70 < absurd < 160  # one kind of nine is well formed, and was held to the limits
    assert {"too short", "damaged", "not finite", "out of order", "another robot", "stale"} <= set(
        found.inbox.refused
    )


def driven(
    name: str, seconds: float, stand_s: float, logger: DeployLogger | None = None, **settings: float
) -> Iterator[tuple[Controller, Lockstep, RemoteRobot]]:
    """Stand up and stand, in simulated time: before, and after it."""
    contract, robot = contract_of(name), robots.load(name)
    line = Lockstep(server(name, **settings))
    name_of, joints = identity(robot.name, robot.model_sha256), len(robot.joint_names)
    remote = RemoteRobot(name_of, joints, line, line.now)
    policy = Standing(robot.home_joints)
    controller = Controller(contract, policy, ControllerConfig(stand_s=stand_s), SafetyConfig())
    yield controller, line, remote
    note = (lambda step: None) if logger is None else logger.note
    zero = np.zeros(2)
    drive(remote, controller, seconds=seconds, clock=line, note=note, asked=lambda _: zero)
    yield controller, line, remote


def test_a_thousand_hostile_states_are_ignored() -> None:
    """The controller's end; absurd readings that are well formed damp, see below."""
    rng, robot, injected = np.random.default_rng(2), robots.load("anymal_b"), 0
    logger = DeployLogger(contract_of(), "sim")
    run = driven("anymal_b", 5.0, 0.5, logger)
    _, line, _ = next(run)
    wait = line.wait_until

    def inject(time_s: float) -> None:
        nonlocal injected
        if injected < 1000:
            state = line.server.outbox.state(line.server.simulated.sense(line.now()))
            line.arrived.append(hostile(rng, state, 8))
            injected += 1
        wait(time_s)

    line.wait_until = inject  # type: ignore[method-assign]
    controller, _, remote = next(run)
    assert injected == 1000 and remote.inbox.refused.total() == 1000
    assert controller.reason == "the time is over"
    assert line.server.torque <= 1.0 and line.server.upright > 0.98
    log = logger.log({})
    sent = log.columns["target"][log.acting]
    assert (sent >= robot.joint_lower).all() and (sent <= robot.joint_upper).all()


@pytest.mark.parametrize(
    "field", ["joint_pos", "joint_torque", "joint_vel", "up", "gyro", "accelerometer"]
)
def test_an_absurd_reading_damps(field: str) -> None:
    contract, robot = contract_of(), robots.load("anymal_b")
    controller = Controller(
        contract, Standing(robot.home_joints), ControllerConfig(), SafetyConfig()
    )
    state = SimulatedRobot(robot).sense(0.0)
    for k in range(12):
        spoiled = state._replace(
            time_s=0.02 * k, **{field: np.full_like(getattr(state, field), 1e6)}
        )
        mode = controller.watch(0.02 * k, spoiled, 0)
    assert mode is ControlMode.DAMPING


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_it_stands_up_and_stands_on_a_bad_line(name: str) -> None:
    *_, (controller, line, _) = driven(name, 1.0, 1.5, jitter_ms=20.0, loss=0.01)
    assert controller.reason == "the time is over"
    assert line.server.stopped is not None and line.server.stopped[1] == "stop command"
    assert line.server.upright > 0.95


def test_a_line_that_is_too_slow_damps() -> None:
    *_, (controller, _, _) = driven("anymal_b", 1.0, 1.5, latency_ms=110.0)
    assert controller.reason.startswith("the state is 1")


CONTROLLER = """
import numpy as np, sys
from npmp import robots
from npmp.deploy.wire import RemoteRobot, Udp, identity
import time
robot = robots.load("anymal_b")
name = identity(robot.name, robot.model_sha256)
line = Udp(name, 12)
print(line.address[1], flush=True)
remote = RemoteRobot(name, 12, line)
while True:
    if remote.read() is not None:
        remote.write(robot.home_joints, robot.kp, robot.kd, 0.02)
        if line.peer: print("driving", flush=True)
    time.sleep(0.005)
"""


def test_killing_the_controller_damps_the_robot() -> None:
    # ten times what is usual: a busy machine may keep the controller silent for long
    deadman_ms = 500.0
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER], stdout=subprocess.PIPE, text=True
    )
    assert controller.stdout is not None
    port = int(controller.stdout.readline())
    robot = spawn(
        "anymal_b", "imu", SimulatedConfig(deadman_ms=deadman_ms), ("127.0.0.1", port), seed=0
    )
    try:
        for _ in range(40):  # 0.2 s of driving
            assert controller.stdout.readline() == "driving\n"
        killed = time.monotonic()
        os.kill(controller.pid, signal.SIGKILL)
        said, _ = robot.communicate(timeout=10)
    finally:
        controller.kill()
        controller.wait()
        robot.kill()
    found = json.loads(said)
    silent_ms = float(found["stopped_why"].split()[3])
    assert found["stopped_why"].startswith("no command for")
    # a busy machine may have called it late
    assert deadman_ms - 5.1 < silent_ms <= deadman_ms + found["latest_step_ms"]
    assert 1e3 * (found["stopped_at_s"] - killed) <= deadman_ms + found["latest_step_ms"]
