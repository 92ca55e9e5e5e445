"""The simulated robot behind datagrams that come late, out of order, or not at all: in a process of
its own and in real time, or in simulated time.

`RobotServer` is a robot's computer: it takes datagrams, keeps to its own limits and damps when no
command comes; `LossyLink` the bad line; `serve` runs them in time. All but `serve` know no clock.
"""

from __future__ import annotations

import heapq
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from npmp import ranges
from npmp.deploy import wire
from npmp.deploy.controller import LoopClock, SystemClock
from npmp.deploy.robot import RobotInterface
from npmp.deploy.simulated import SimulatedRobot
from npmp.deploy.wire import Inbox, Kind, Outbox, RemoteRobot, Udp, identity
from npmp.robots import Robot, load

SILENCE_S = 1.0  # without any datagram, then the robot's process ends; at first 20 times that [D]


@dataclass(frozen=True)
class SimulatedConfig:
    """The line to the simulated robot, each way, and the robot's own watchdog. Raises ValueError
    for values out of range."""

    # of every datagram
    latency_ms: float = 0.0
    # more, uniform from 0, drawn for each
    jitter_ms: float = 0.0
    # share of datagrams that never come
    loss: float = 0.0
    # no datagram overtakes another, as on a line with a queue
    keeps_order: bool = True
    # without a good command, then the robot damps by itself; more than two physics steps [D]
    deadman_ms: float = 50.0
    # false: in this process and in simulated time, as fast as it goes; the same seed, the same run
    realtime: bool = True
    # legs start at the home pose's angles times this, within their ranges
    crouch: float = 2.5

    def __post_init__(self) -> None:
        ranges.not_negative(self, "latency_ms", "jitter_ms")
        ranges.share(self, "loss")
        ranges.above_zero(self, "deadman_ms", "crouch")


class LossyLink:
    """One direction of a line: datagrams come out when they are due."""

    def __init__(self, config: SimulatedConfig, rng: np.random.Generator):
        self.config, self.rng = config, rng
        self.waiting: list[tuple[float, int, bytes]] = []
        self.count, self.latest = 0, 0.0

    def put(self, datagram: bytes, now: float) -> None:
        config = self.config
        if self.rng.random() < config.loss:
            return
        due = now + 1e-3 * (config.latency_ms + config.jitter_ms * self.rng.random())
        if config.keeps_order:
            due = self.latest = max(due, self.latest)
        self.count += 1
        heapq.heappush(self.waiting, (due, self.count, datagram))

    def due(self, now: float) -> Iterator[bytes]:
        while self.waiting and self.waiting[0][0] <= now:
            yield heapq.heappop(self.waiting)[2]


class RobotServer:
    """The computer on the robot: datagrams in, physics, datagrams out, and its own watchdog."""

    def __init__(self, simulated: SimulatedRobot, config: SimulatedConfig, seed: int = 0):
        robot = simulated.robot
        name, joints = identity(robot.name, robot.model_sha256), len(robot.joint_names)
        self.simulated, self.config = simulated, config
        self.inbox = Inbox(name, joints, (Kind.COMMAND, Kind.STOP))
        self.outbox = Outbox(name, joints)
        first, second = np.random.default_rng(seed).spawn(2)
        self.incoming, self.outgoing = LossyLink(config, first), LossyLink(config, second)
        self.heard: float | None = None  # when the last good command came [s]
        self.stopped: tuple[float, str] | None = None  # when and why it damped
        # the least of the vertical, the most of torque over its limit
        self.upright, self.torque = 1.0, 0.0

    def take(self, datagram: bytes, now: float) -> None:
        """A datagram enters the line."""
        self.incoming.put(datagram, now)

    def tick(self, now: float) -> list[bytes]:
        """One physics step; returns the datagrams that leave the line."""
        for datagram in self.incoming.due(now):
            self._obey(datagram, now)
        silent = 0.0 if self.heard is None else now - self.heard
        # the command may have come a step before it was looked at, and the next look is a step away
        if self.heard and silent > 1e-3 * self.config.deadman_ms - 2 * self.simulated.dt:
            self._damp(now, f"no command for {1e3 * silent:.1f} ms")
        self.simulated.step()
        if self.simulated.broken:
            self._damp(now, "the simulation broke down")
        self._look()
        state = self.simulated.sense(now)
        self.outgoing.put(self.outbox.state(state, stopped=self.stopped is not None), now)
        return list(self.outgoing.due(now))

    def _obey(self, datagram: bytes, now: float) -> None:
        message = self.inbox.take(datagram, now)
        if message is None:
            return
        self.heard = now
        if message.kind is Kind.STOP:
            self._damp(now, "stop command")
            return
        target, kp, kd, duration = np.split(message.body, np.cumsum([self.inbox.joints] * 3))
        self.simulated.command(target, kp, kd, float(duration[0]))

    def _damp(self, now: float, why: str) -> None:
        if self.stopped is None:
            self.stopped = (now, why)
            self.simulated.damp()

    def _look(self) -> None:
        data, robot = self.simulated.data, self.simulated.robot
        self.torque = max(
            self.torque, float((np.abs(data.actuator_force) / robot.torque_limit).max())
        )
        if self.stopped is None:
            self.upright = min(self.upright, float(data.xmat[1, 8]))

    def summary(self) -> dict[str, Any]:
        """What a report wants to know, and the controller cannot."""
        at, why = self.stopped or (None, "")
        return {
            "stopped_at_s": at,
            "stopped_why": why,
            "refused": dict(self.inbox.refused),
            "least_upright": self.upright,
            "most_torque_share": self.torque,
            "travelled_m": float(np.linalg.norm(self.simulated.data.qpos[:2])),
        }


class Lockstep:
    """The server in this process and in simulated time: the `Transport` to it, and the `LoopClock`.

    Nothing takes time but waiting, so what comes out depends on the seed alone.
    """

    def __init__(self, server: RobotServer):
        self.server, self.ticks = server, 0
        self.arrived: list[bytes] = []

    def now(self) -> float:
        return self.ticks * self.server.simulated.dt

    def wait_until(self, time_s: float) -> None:
        while self.now() < time_s - 1e-9:
            self.ticks += 1
            self.arrived += self.server.tick(self.now())

    def receive(self) -> list[bytes]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def send(self, datagram: bytes) -> None:
        self.server.take(datagram, self.now())


def serve(server: RobotServer, controller: tuple[str, int]) -> dict[str, Any]:
    """Run in real time until no datagram has come for SILENCE_S. Returns the summary.

    controller: where states are sent; only what comes from there is listened to.
    """
    end = wire.open_socket()
    dt, start, steps, slipped, worst = server.simulated.dt, time.monotonic(), 0, 0.0, 0.0
    heard = start + 19 * SILENCE_S
    while time.monotonic() - heard < SILENCE_S:
        if (left := start + steps * dt - time.monotonic()) > 0:
            time.sleep(left)
        now = time.monotonic()
        if (behind := now - start - steps * dt) > 0.1:  # rather lose time than hurry after it
            start, slipped = start + behind, slipped + behind
        worst = max(worst, behind)
        for datagram, sender in wire.waiting(end):
            if sender == controller:
                heard = now
                server.take(datagram, now)
        for datagram in server.tick(now):
            wire.send(end, datagram, controller)
        steps += 1
    late = {"slipped_s": slipped, "latest_step_ms": 1e3 * worst}
    return {**server.summary(), "steps": steps, **late}


def spawn(
    robot: str, accelerometer: str, config: SimulatedConfig, address: tuple[str, int], *, seed: int
) -> subprocess.Popen[str]:
    """Start the robot's process; it prints its summary as JSON when it ends, some time after the
    controller has."""
    content = {"robot": robot, "accelerometer": accelerometer, "address": address, "seed": seed}
    described = json.dumps({**content, "config": asdict(config)})
    # in a session of its own: Ctrl-C is for the controller, which then damps the robot
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "npmp.deploy.robot_server", described],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def main(content: Mapping[str, Any]) -> None:
    """The robot's process."""
    config = SimulatedConfig(**content["config"])
    host, port = content["address"]
    robot = load(content["robot"])
    server = make_server(robot, content["accelerometer"], config, content["seed"])
    print(json.dumps(serve(server, (host, port))), flush=True)


def make_server(
    robot: Robot, accelerometer: str, config: SimulatedConfig, seed: int
) -> RobotServer:
    """A robot at rest behind its line."""
    return RobotServer(
        SimulatedRobot(robot, accelerometer=accelerometer, crouch=config.crouch), config, seed
    )


@contextmanager
def simulated_robot(
    robot: Robot, accelerometer: str, config: SimulatedConfig, *, seed: int, said: dict[str, Any]
) -> Iterator[tuple[RobotInterface, LoopClock]]:
    """The simulated robot and its clock, in a process of its own or in simulated time.

    said: filled with what the robot says when it ends.
    """
    name, joints = identity(robot.name, robot.model_sha256), len(robot.joint_names)
    if not config.realtime:
        lockstep = Lockstep(make_server(robot, accelerometer, config, seed))
        remote = RemoteRobot(name, joints, lockstep, lockstep.now)
        yield remote, lockstep
        said.update(robot=lockstep.server.summary(), refused=dict(remote.inbox.refused))
        return
    with (
        closing(Udp(name, joints)) as udp,
        spawn(robot.name, accelerometer, config, udp.address, seed=seed) as process,
    ):
        remote = RemoteRobot(name, joints, udp)
        try:
            yield remote, SystemClock()
            if udp.peer is None:  # it has not begun, and would wait for long for a command
                process.terminate()
            words, _ = process.communicate(timeout=30 * SILENCE_S)
            said["robot"] = json.loads(words) if words else {"ended": process.returncode}
            said["refused"] = dict(remote.inbox.refused)
        except subprocess.TimeoutExpired:
            said["robot"] = {"ended": "not within its time"}
        finally:
            process.kill()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
