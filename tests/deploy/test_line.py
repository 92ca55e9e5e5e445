"""The simulated robot behind its line, in simulated time: delays, losses, absurd commands."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from npmp import robots
from npmp.deploy import line as line_module
from npmp.deploy.controller import Controller, ControllerConfig, ControlMode, drive
from npmp.deploy.line import LossyLink, SimulatedConfig, SimulatedLine
from npmp.deploy.robot import RobotStopped
from npmp.deploy.safety import SafetyConfig
from npmp.deploy.simulated import SimulatedRobot
from tests.deploy.standins import Standing, contract_of


def test_a_line_delays_and_loses() -> None:
    rng = np.random.default_rng(0)
    link = LossyLink(SimulatedConfig(latency_ms=10.0), rng)
    link.put("a", 1.0)
    assert list(link.due(1.0099)) == [] and list(link.due(1.0101)) == ["a"]
    link = LossyLink(SimulatedConfig(loss=0.25), rng)
    for _ in range(1000):
        link.put("a", 0.0)
    assert 700 < len(list(link.due(0.0))) < 800


@pytest.mark.parametrize("keeps_order", [True, False])
def test_what_is_overtaken_or_late_is_refused(keeps_order: bool) -> None:
    config = SimulatedConfig(jitter_ms=20.0, keeps_order=keeps_order)
    link = LossyLink(config, np.random.default_rng(0))
    for k in range(100):
        link.put(k, 1e-3 * k)
    came = list(link.due(0.12))
    assert came == sorted(came) and (len(came) == 100) is keeps_order
    assert link.refused["out of order"] == 100 - len(came)
    link.put("old", 1.0)
    assert list(link.due(1.3)) == [] and link.refused["stale"] == 1


def line_of(name: str = "anymal_b", **settings: float) -> SimulatedLine:
    config = SimulatedConfig(**{"realtime": False, **settings})  # type: ignore[arg-type]
    return SimulatedLine(SimulatedRobot(robots.load(name)), config)


def test_silence_damps_within_50_ms() -> None:
    line = line_of()
    robot, gains = line.simulated.robot, line.simulated.model.actuator_gainprm
    # no command has come yet: it waits
    line.wait_until(0.2)
    assert line.stopped is None and line.read() is not None and line.read() is None
    line.write(robot.home_joints, robot.kp, robot.kd, 0.0)
    line.wait_until(0.3)
    # heard at the next step of 2.5 ms; a step before 50 ms are over, as the command may have lain
    # there for a step
    assert line.stopped == (pytest.approx(0.25), "no command for 47.5 ms")
    assert (gains[:, 0] == 0).all()
    # what has damped stays so
    line.write(robot.home_joints, robot.kp, robot.kd, 0.0)
    line.wait_until(0.31)
    assert (gains[:, 0] == 0).all()
    with pytest.raises(RobotStopped):
        line.read()


def test_a_simulation_that_breaks_down_damps() -> None:
    line = line_of()
    line.simulated.data.qvel[2] = 1e12
    line.tick(1.0)
    assert line.stopped == (1.0, "the simulation broke down")


def test_in_real_time_physics_keeps_to_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(at=7.0)
    clock.monotonic = lambda: clock.at
    clock.sleep = lambda seconds: setattr(clock, "at", clock.at + seconds)
    monkeypatch.setattr(line_module, "time", clock)
    line = line_of(realtime=True)
    line.wait_until(0.05)
    assert line.now() == pytest.approx(0.05) and line.ticks == 20
    clock.sleep(0.05)
    # what was slept through is made up for
    line.wait_until(0.06)
    assert line.ticks == 40


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_absurd_commands_do_no_harm(name: str) -> None:
    line, rng = line_of(name), np.random.default_rng(1)
    robot, model, data = line.simulated.robot, line.simulated.model, line.simulated.data
    most_kd = 2 * np.maximum(robot.kd, 0.01 * robot.kp)
    for k in range(150):
        target, kp, kd = (
            rng.uniform(-1, 1, len(robot.kp)) * 10.0 ** rng.uniform(-3, 300, len(robot.kp))
            for _ in range(3)
        )
        line.write(target, kp, kd, float(rng.uniform(-1, 1) * 1e9))
        line.wait_until(line.simulated.dt * (k + 1))
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
@pytest.mark.parametrize(
    ("settings", "ended"),
    [({"jitter_ms": 20.0, "loss": 0.01}, "the time is over"), ({"latency_ms": 110.0}, "the state")],
    ids=["bad", "slow"],
)
def test_it_stands_on_a_bad_line_and_damps_on_a_slow_one(
    name: str, settings: dict[str, float], ended: str
) -> None:
    line, policy = line_of(name, **settings), Standing(robots.load(name).home_joints)
    config = ControllerConfig(stand_s=1.5)
    controller = Controller(contract_of(name), policy, config, SafetyConfig())
    drive(
        line,
        controller,
        seconds=1.0,
        clock=line,
        note=lambda step: None,
        asked=lambda _: np.zeros(2),
    )
    assert controller.reason.startswith(ended)
    assert line.stopped is not None and line.stopped[1] == "stop command"
    assert line.upright > 0.95
