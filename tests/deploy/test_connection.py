"""The simulated robot behind its connection: delays, losses, invalid commands."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from npmp import robots
from npmp.deploy import connection as connection_module
from npmp.deploy.connection import LossyChannel, SimulatedConfig, SimulatedConnection
from npmp.deploy.controller import Controller, ControllerConfig, ControlMode, drive
from npmp.deploy.robot import RobotStopped
from npmp.deploy.safety import SafetyConfig
from npmp.deploy.simulated import SimulatedRobot
from tests.deploy.standins import DEPTH_CAMERA, Standing, contract_of


def test_a_channel_delays_and_loses() -> None:
    rng = np.random.default_rng(0)
    channel = LossyChannel(SimulatedConfig(latency_ms=10.0), rng)
    channel.send("a", 1.0)
    assert list(channel.receive(1.0099)) == [] and list(channel.receive(1.0101)) == ["a"]
    channel = LossyChannel(SimulatedConfig(loss=0.25), rng)
    for _ in range(1000):
        channel.send("a", 0.0)
    assert 700 < len(list(channel.receive(0.0))) < 800


@pytest.mark.parametrize("keeps_order", [True, False])
def test_late_and_overtaken_messages_are_rejected(keeps_order: bool) -> None:
    config = SimulatedConfig(jitter_ms=20.0, keeps_order=keeps_order)
    channel = LossyChannel(config, np.random.default_rng(0))
    for k in range(100):
        channel.send(k, 1e-3 * k)
    received = list(channel.receive(0.12))
    assert received == sorted(received) and (len(received) == 100) is keeps_order
    assert channel.rejected["out of order"] == 100 - len(received)
    channel.send("old", 1.0)
    assert list(channel.receive(1.3)) == [] and channel.rejected["stale"] == 1


def connected(name: str = "anymal_b", **settings: float) -> SimulatedConnection:
    config = SimulatedConfig(**{"realtime": False, **settings})  # type: ignore[arg-type]
    return SimulatedConnection(SimulatedRobot(robots.load(name)), config)


def test_silence_damps_within_50_ms() -> None:
    connection = connected()
    robot, gains = connection.simulated.robot, connection.simulated.model.actuator_gainprm
    # no command has come yet: it waits
    connection.wait_until(0.2)
    assert (
        connection.stopped is None and connection.read() is not None and connection.read() is None
    )
    connection.write(robot.home_joints, robot.kp, robot.kd, 0.0)
    connection.wait_until(0.3)
    # heard at the next step of 2.5 ms; a step before 50 ms are over, as the command may have lain
    # there for a step
    assert connection.stopped == (pytest.approx(0.25), "no command for 47.5 ms")
    assert (gains[:, 0] == 0).all()
    # what has damped stays so
    connection.write(robot.home_joints, robot.kp, robot.kd, 0.0)
    connection.wait_until(0.31)
    assert (gains[:, 0] == 0).all()
    with pytest.raises(RobotStopped):
        connection.read()


def test_a_simulation_that_diverges_damps() -> None:
    connection = connected()
    connection.simulated.data.qvel[2] = 1e12
    connection.tick(1.0)
    assert connection.stopped == (1.0, "the simulation diverged")


def test_in_real_time_physics_keeps_to_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(at=7.0)
    clock.monotonic = lambda: clock.at
    clock.sleep = lambda seconds: setattr(clock, "at", clock.at + seconds)
    monkeypatch.setattr(connection_module, "time", clock)
    connection = connected(realtime=True)
    connection.wait_until(0.05)
    assert connection.now() == pytest.approx(0.05) and connection.ticks == 20
    clock.sleep(0.05)
    # what was slept through is made up for
    connection.wait_until(0.06)
    assert connection.ticks == 40


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_invalid_commands_stay_within_the_robots_limits(name: str) -> None:
    connection, rng = connected(name), np.random.default_rng(1)
    robot, model, data = (
        connection.simulated.robot,
        connection.simulated.model,
        connection.simulated.data,
    )
    most_kd = 2 * np.maximum(robot.kd, 0.01 * robot.kp)
    for k in range(150):
        target, kp, kd = (
            rng.uniform(-1, 1, len(robot.kp)) * 10.0 ** rng.uniform(-3, 300, len(robot.kp))
            for _ in range(3)
        )
        connection.write(target, kp, kd, float(rng.uniform(-1, 1) * 1e9))
        connection.wait_until(connection.simulated.dt * (k + 1))
        assert (np.abs(data.actuator_force) <= robot.torque_limit * (1 + 1e-9)).all()
        assert ((robot.joint_lower <= data.ctrl) & (data.ctrl <= robot.joint_upper)).all()
        assert (model.actuator_gainprm[:, 0] >= 0).all()
        assert (model.actuator_gainprm[:, 0] <= 2 * robot.kp + 1e-9).all()
        assert (-model.actuator_biasprm[:, 2] >= 0).all()
        assert (-model.actuator_biasprm[:, 2] <= most_kd + 1e-9).all()
        assert np.isfinite(data.qpos).all()


@pytest.mark.parametrize(
    "field", ["joint_pos", "joint_torque", "joint_vel", "up", "gyro", "accelerometer"]
)
def test_an_impossible_reading_damps(field: str) -> None:
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
@pytest.mark.parametrize(
    ("settings", "ended"),
    [({"jitter_ms": 20.0, "loss": 0.01}, "the time is over"), ({"latency_ms": 110.0}, "the state")],
    ids=["bad", "slow"],
)
def test_it_stands_with_jitter_and_loss_and_damps_with_latency(
    name: str, settings: dict[str, float], ended: str
) -> None:
    connection, policy = connected(name, **settings), Standing(robots.load(name).home_joints)
    config = ControllerConfig(stand_s=1.5)
    controller = Controller(contract_of(name), policy, config, SafetyConfig())
    drive(
        connection,
        controller,
        seconds=1.0,
        clock=connection,
        record=lambda step: None,
        command=lambda _: np.zeros(2),
    )
    assert controller.reason.startswith(ended)
    assert connection.stopped is not None and connection.stopped[1] == "stop command"
    assert connection.least_upright > 0.95


def test_it_delivers_the_floor_to_terrain_sensors() -> None:
    """The floor lies as far below the home pose's as the root is below the home pose; an image is
    taken every 0.1 s and delivered 0.1 s later."""
    contract = replace(
        contract_of(),
        extra_inputs=["ground_LF_+0.00_-0.05_m", "ground_LF_+0.00_+0.05_m", "depth_0_0_m"],
        camera=DEPTH_CAMERA | {"size": [1, 1], "pitch_deg": 30.0},
        level_depths_m=[1.2],
    )
    robot = robots.load("anymal_b")
    simulated = SimulatedRobot(robot)
    connection = SimulatedConnection(simulated, SimulatedConfig(realtime=False), contract=contract)
    assert connection.read_heights() is None and connection.read_depths() is None
    times = []
    for k in range(1, 41):
        connection.wait_until(0.01 * k)
        heights = connection.read_heights()
        assert heights is not None and heights.time_s == pytest.approx(0.01 * k)
        root_m = simulated.data.qpos[2]
        assert heights.values == pytest.approx(np.full(2, robot.home_qpos[2] - root_m), abs=1e-3)
        if (image := connection.read_depths()) is not None:
            times.append((image.time_s, 0.01 * k))
            # the ray goes down by half of its length
            assert image.values == pytest.approx([2.0 * root_m], abs=0.02)
    taken, delivered = np.array(times).T
    assert delivered - taken == pytest.approx(np.full(len(times), 0.1), abs=0.011)
    assert np.diff(taken) == pytest.approx(np.full(len(times) - 1, 0.1), abs=0.003)
