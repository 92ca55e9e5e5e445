"""The simulated robot behind a line whose messages come late, out of order, or not at all."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mocap_data.errors import InputError
from npmp import robots
from npmp.core import ranges
from npmp.deploy.contract import BundleContract
from npmp.deploy.robot import FloatArray, RobotStopped, State
from npmp.deploy.simulated import SimulatedRobot, refuse_other_model

# an older message is ignored [D]
STALE_S = 0.2


@dataclass(frozen=True)
class SimulatedConfig:
    """The line to the simulated robot, each way, and the robot's own watchdog. Raises ValueError
    for values out of range."""

    # of every message
    latency_ms: float = 0.0
    # more, uniform from 0, drawn for each
    jitter_ms: float = 0.0
    # share of messages that never come
    loss: float = 0.0
    # no message overtakes another, as on a line with a queue
    keeps_order: bool = True
    # without a good command, then the robot damps by itself; more than two physics steps [D]
    deadman_ms: float = 50.0
    # false: in simulated time, as fast as it goes; the same seed, the same run
    realtime: bool = True

    def __post_init__(self) -> None:
        ranges.not_negative(self, "latency_ms", "jitter_ms")
        ranges.share(self, "loss")
        ranges.above_zero(self, "deadman_ms")


class LossyLink:
    """One direction of a line: messages come out when they are due, numbered as they were sent.
    `refused` counts those that are late or were overtaken."""

    def __init__(self, config: SimulatedConfig, rng: np.random.Generator):
        self.config = config
        self.rng = rng
        self.waiting: list[tuple[float, int, float, Any]] = []
        self.sent = 0
        self.newest = 0
        self.latest = 0.0
        self.refused: Counter[str] = Counter()

    def put(self, message: Any, now: float) -> None:
        """Send a message at time now [s]."""
        config = self.config
        self.sent += 1
        if self.rng.random() < config.loss:
            return
        due = now + 1e-3 * (config.latency_ms + config.jitter_ms * self.rng.random())
        if config.keeps_order:
            due = self.latest = max(due, self.latest)
        heapq.heappush(self.waiting, (due, self.sent, now, message))

    def due(self, now: float) -> Iterator[Any]:
        """What has come by time now [s]."""
        while self.waiting and self.waiting[0][0] <= now:
            _, number, sent_s, message = heapq.heappop(self.waiting)
            if number <= self.newest:
                self.refused["out of order"] += 1
            elif now - sent_s > STALE_S:
                self.refused["stale"] += 1
            else:
                self.newest = number
                yield message


class SimulatedLine:
    """The simulated robot as the controller sees it: a `RobotInterface`, and the `LoopClock`.

    Time [s] begins with it. Physics is stepped while the controller waits, up to the time that it
    waits for. In simulated time nothing takes time but waiting, so the seed determines the run.
    """

    def __init__(self, simulated: SimulatedRobot, config: SimulatedConfig, seed: int = 0):
        self.simulated = simulated
        self.config = config
        first, second = np.random.default_rng(seed).spawn(2)
        self.incoming = LossyLink(config, first)
        self.outgoing = LossyLink(config, second)
        self.began = time.monotonic()
        self.ticks = 0
        # the newest that has arrived at the controller, and whether the robot had stopped then
        self.arrived: tuple[State, bool] | None = None
        # when the last good command came [s]
        self.heard: float | None = None
        # when and why the robot damped
        self.stopped: tuple[float, str] | None = None
        # the least of the vertical, the most of torque over its limit
        self.upright = 1.0
        self.torque = 0.0

    def now(self) -> float:
        if self.config.realtime:
            return time.monotonic() - self.began
        return self.ticks * self.simulated.dt

    def wait_until(self, time_s: float) -> None:
        until = max(time_s, self.now())
        while (at := self.ticks * self.simulated.dt) < until - 1e-9:
            self.ticks += 1
            at = self.ticks * self.simulated.dt
            if self.config.realtime and (left := at - self.now()) > 0:
                time.sleep(left)
            self.tick(at)

    def read(self) -> State | None:
        arrived, self.arrived = self.arrived, None
        if arrived is None:
            return None
        state, stopped = arrived
        if stopped:
            raise RobotStopped("the robot has stopped by itself")
        return state

    def write(self, target: FloatArray, kp: FloatArray, kd: FloatArray, duration_s: float) -> None:
        self.incoming.put((target, kp, kd, duration_s), self.now())

    def stop(self) -> None:
        self.incoming.put(None, self.now())

    def tick(self, now: float) -> None:
        """One physics step of the robot's computer, and what then arrives at the controller."""
        for command in self.incoming.due(now):
            self.heard = now
            if command is None:
                self._damp(now, "stop command")
            else:
                self.simulated.command(*command)
        silent = 0.0 if self.heard is None else now - self.heard
        # the command may have come a step before it was looked at, and the next look is a step away
        if silent > 1e-3 * self.config.deadman_ms - 2 * self.simulated.dt:
            self._damp(now, f"no command for {1e3 * silent:.1f} ms")
        self.simulated.step()
        if self.simulated.broken:
            self._damp(now, "the simulation broke down")
        data = self.simulated.data
        limit = self.simulated.robot.torque_limit
        self.torque = max(self.torque, float((np.abs(data.actuator_force) / limit).max()))
        if self.stopped is None:
            self.upright = min(self.upright, float(data.xmat[1, 8]))
        self.outgoing.put((self.simulated.sense(now), self.stopped is not None), now)
        for arrived in self.outgoing.due(now):
            self.arrived = arrived

    def _damp(self, now: float, why: str) -> None:
        if self.stopped is None:
            self.stopped = (now, why)
            self.simulated.damp()

    def summary(self) -> dict[str, Any]:
        """What the controller cannot know, and what either end refused."""
        at, why = self.stopped or (None, "")
        robot = {
            "stopped_at_s": at,
            "stopped_why": why,
            "refused": dict(self.incoming.refused),
            "least_upright": self.upright,
            "most_torque_share": self.torque,
            "travelled_m": float(np.linalg.norm(self.simulated.data.qpos[:2])),
        }
        return {"robot": robot, "refused": dict(self.outgoing.refused)}


def simulated_line(
    contract: BundleContract, config: SimulatedConfig, state_age_s: float, seed: int
) -> SimulatedLine:
    """The bundle's robot in MuJoCo behind a line. state_age_s: the oldest state that is acted on.

    Raises:
      InputError: for settings that cannot be, or another model than the bundle's.
    """
    robot = robots.load(contract.robot)
    refuse_other_model(contract, robot)
    if state_age_s > STALE_S:
        raise InputError(
            f"safety.state_age_s={state_age_s:g}: robot=sim hears nothing older than {STALE_S:g} s"
        )
    if config.deadman_ms <= (least := 2e3 / robot.physics_rate_hz):
        raise InputError(
            f"sim.deadman_ms={config.deadman_ms:g}: must be more than two physics steps, "
            f"{least:g} ms"
        )
    simulated = SimulatedRobot(robot, accelerometer=contract.accelerometer)
    return SimulatedLine(simulated, config, seed)
