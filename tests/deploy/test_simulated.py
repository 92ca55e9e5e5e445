"""The simulated robot and its line, stepped without real time; hostile datagrams; and kill -9 with
real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

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
from npmp.deploy.run_log import RunLogger
from npmp.deploy.safety import SafetyConfig
from npmp.deploy.simulated import SimulatedRobot
from npmp.deploy.wire import HEADER, Kind, Outbox, RemoteRobot, identity
from tests.deploy.standins import Standing, contract_of
from tests.deploy.test_wire import resealed

FAR = 1e9


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_it_rests_crouched_and_measures_that_it_does(name: str) -> None:
    robot = SimulatedRobot(robots.load(name))
    state = robot.sense(3.0)
    assert state.time_s == 3.0
    assert np.abs(state.joint_vel).max() < 0.05 and np.abs(state.gyro).max() < 0.05
    assert state.up[2] > 0.99
    # at rest an accelerometer measures what holds it up
    assert state.accelerometer == pytest.approx(9.81 * state.up, abs=0.05)
    assert robot.data.qpos[2] < 0.8 * robot.robot.home_qpos[2]


def test_its_senses_are_those_that_policies_were_trained_on() -> None:
    """Held against the environment's over one control step of a moving robot; to the environment's
    float32."""
    torch = pytest.importorskip("torch")
    from npmp.envs.state import arrive, lever_of

    robot = robots.load("anymal_b")
    for kind in ("imu", "root"):
        simulated = SimulatedRobot(robot, accelerometer=kind)
        lever = (
            lever_of(torch.tensor(simulated.imu_offset, dtype=torch.float32))
            if kind == "imu"
            else None
        )
        simulated.command(robot.home_joints, robot.kp, robot.kd, 0.0)
        states = []
        for _ in range(3 * robot.substeps):
            simulated.step()
            states.append((simulated.data.qpos.copy(), simulated.data.qvel.copy()))
        before, after = None, None
        from npmp.envs.state import RobotState, pose_from_qpos

        qpos, _ = (torch.tensor(v) for v in states[robot.substeps - 1])
        before = RobotState.still(*pose_from_qpos(qpos[None]))
        for k in (2, 3):
            qpos, qvel = (torch.tensor(v)[None] for v in states[k * robot.substeps - 1])
            after = arrive(before, qpos, qvel, before.joint_pos, 1 / robot.control_rate_hz, lever)
            before = after
        found = simulated.sense(0.0)
        assert after is not None
        assert found.gyro == pytest.approx(after.root_ang[0].numpy(), abs=1e-3)
        assert found.accelerometer == pytest.approx(after.accel[0].numpy(), abs=0.02)
        assert found.up == pytest.approx(after.root_rot[0, 2].numpy(), abs=1e-6)


def test_targets_are_approached_along_a_line() -> None:
    robot = robots.load("anymal_b")
    simulated = SimulatedRobot(robot)
    simulated.command(robot.home_joints, robot.kp, robot.kd, 0.0)
    assert simulated.setpoint() == pytest.approx(robot.home_joints)
    goal = robot.home_joints + 0.08
    simulated.command(goal, robot.kp, robot.kd, 0.02)  # 8 physics steps of 2.5 ms
    for k in range(1, 5):
        simulated.step()
        assert simulated.data.ctrl == pytest.approx(robot.home_joints + 0.01 * k)
    simulated.command(goal, robot.kp, robot.kd, 0.01)  # told again with what is left: the same line
    simulated.step()
    assert simulated.data.ctrl == pytest.approx(robot.home_joints + 0.05)


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_limp_drives_begin_where_the_joints_lie(name: str) -> None:
    """Told to stay, within a control period or at once, they hardly pull."""
    robot = robots.load(name)
    simulated = SimulatedRobot(robot)
    lies = simulated.data.qpos[7:].copy()
    simulated.command(lies, robot.kp, robot.kd, 0.02)
    for _ in range(8):
        simulated.step()
        assert (np.abs(simulated.data.actuator_force) / robot.torque_limit).max() < 0.3


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


def test_a_thousand_hostile_states_are_ignored() -> None:
    """The controller's end; absurd readings that are well formed damp, see below."""
    contract, rng = contract_of(), np.random.default_rng(2)
    robot = robots.load("anymal_b")
    line = Lockstep(server())
    remote = RemoteRobot(identity(robot.name, robot.model_sha256), 12, line, line.now)
    controller = Controller(
        contract, Standing(robot.home_joints), ControllerConfig(stand_s=0.5), SafetyConfig()
    )
    good = line.server.outbox
    injected = 0

    def inject(time_s: float) -> None:
        nonlocal injected
        if injected < 1000:
            state = good.state(line.server.simulated.sense(line.now()))
            line.arrived.append(hostile(rng, state, 8))
            injected += 1
        wait(time_s)

    wait, line.wait_until = line.wait_until, inject  # type: ignore[method-assign]
    logger = RunLogger(contract, "sim")
    drive(
        remote,
        controller,
        seconds=5.0,
        clock=line,
        note=logger.note,
        asked=lambda _: np.array([0.3, 0.0]),
    )
    assert injected == 1000 and remote.inbox.refused.total() == 1000
    assert controller.reason == "the time is over"
    assert line.server.torque <= 1.0 and line.server.upright > 0.98
    recorded = logger.log({})
    sent = recorded.columns["target"][recorded.acting]
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


def walk(name: str, **settings: float) -> tuple[Controller, Lockstep]:
    """Stand up and stand on a bad line, in simulated time."""
    contract, robot = contract_of(name), robots.load(name)
    line = Lockstep(server(name, **settings))
    remote = RemoteRobot(
        identity(robot.name, robot.model_sha256), len(robot.joint_names), line, line.now
    )
    policy = Standing(robot.home_joints)
    controller = Controller(contract, policy, ControllerConfig(stand_s=1.5), SafetyConfig())
    drive(
        remote,
        controller,
        seconds=1.0,
        clock=line,
        note=lambda step: None,
        asked=lambda _: np.zeros(2),
    )
    return controller, line


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_it_stands_up_and_stands_on_a_bad_line(name: str) -> None:
    controller, line = walk(name, jitter_ms=20.0, loss=0.01)
    assert controller.reason == "the time is over"
    assert line.server.stopped is not None and line.server.stopped[1] == "told to"
    assert line.server.upright > 0.95


def test_a_line_that_is_too_slow_damps() -> None:
    controller, _ = walk("anymal_b", latency_ms=110.0)
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
    # ten times what is usual: a busy machine may keep the controller from speaking for long
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
