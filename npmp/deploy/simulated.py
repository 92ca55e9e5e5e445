"""A robot in MuJoCo, in its own process and in real time, behind datagrams that come late, out of
order, or not at all.

`SimulatedRobot` is physics, drives and senses; `Station` what a robot's computer is: it takes
datagrams, keeps to its own limits and damps when nobody speaks to it; `Link` the bad line; `serve`
runs them in time. All but `serve` know no clock, so tests step them.
"""

from __future__ import annotations

import heapq
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import mujoco
import numpy as np

from npmp import ranges
from npmp.deploy.realtime import prioritized
from npmp.deploy.robot import FloatArray, State
from npmp.deploy.wire import Inbox, Kind, Outbox, identity, open_socket, send, waiting
from npmp.robots import Robot, load

GRAVITY = 9.81  # [m/s2]
MOST_GAIN = 2.0  # times the robot's own gains: more than that no drive takes [D]
LONGEST_S = 1.0  # of a target's duration [D]
_BREAKDOWNS = [int(kind) for kind in (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL,
                                      mujoco.mjtWarning.mjWARN_BADQACC, mujoco.mjtWarning.mjWARN_BADCTRL)]  # fmt: skip


@dataclass(frozen=True)
class SimulatedConfig:
    """The line to the robot, each way, and the robot's own watchdog. Raises ValueError for values
    out of range."""

    latency_ms: float = 0.0  # of every datagram
    jitter_ms: float = 0.0  # more, uniform, drawn for each
    loss: float = 0.0  # share of datagrams that never come
    keeps_order: bool = True  # no datagram overtakes another, as on a line with a queue
    deadman_ms: float = 50.0  # without a good command, then it damps; more than two physics steps
    silence_s: float = 1.0  # without any, then the process ends
    realtime: bool = True  # false: in this process, as fast as it goes, the same for the same seed
    crouch: float = 2.5  # legs start at the home pose's angles times this, within their ranges

    def __post_init__(self) -> None:
        ranges.not_negative(self, "latency_ms", "jitter_ms")
        ranges.share(self, "loss")
        ranges.above_zero(self, "deadman_ms", "silence_s", "crouch")


class SimulatedRobot:
    """One robot on flat ground. Its drives do what they are told within the robot's own limits."""

    def __init__(self, robot: Robot, *, accelerometer: str = "imu", crouch: float = 2.5):
        """accelerometer: as in a bundle, where and how it is read."""
        self.robot, self.model = robot, scene(robot)
        self.data = mujoco.MjData(self.model)
        self.dt = float(self.model.opt.timestep)
        self.root_based = accelerometer == "root"
        self.resting(crouch)

    def place(self, crouch: float = 1.0) -> None:
        """At rest, its servos on, the lowest foot on the ground; crouch 1 is the home pose."""
        robot, data = self.robot, self.data
        mujoco.mj_resetData(self.model, data)
        data.qpos[:] = robot.home_qpos
        pose = np.clip(crouch * robot.home_joints, robot.joint_lower, robot.joint_upper)
        data.qpos[7:] = np.where(robot.carries_feet, pose, robot.home_joints)
        mujoco.mj_kinematics(self.model, data)
        feet = zip(robot.foot_bodies, robot.foot_points)
        points = [
            data.body(b).xpos + points @ data.body(b).xmat.reshape(3, 3).T for b, points in feet
        ]
        data.qpos[2] -= np.concatenate(points)[:, 2].min() - robot.foot_radius
        self.begun = self.wanted = data.qpos[7:].copy()
        self.left = self.steps = 0
        self._gains(robot.kp, robot.kd)
        mujoco.mj_forward(self.model, data)
        self.lever = data.xmat[1].reshape(3, 3).T @ (data.site(robot.imu_site).xpos - data.xpos[1])
        self.past = deque([self._moment()] * (2 * robot.substeps + 1), 2 * robot.substeps + 1)
        self.damped = False

    def resting(self, crouch: float) -> None:
        """Crouched: on four feet it lies down, limp; on two its servos hold it."""
        self.place(crouch)
        if len(self.robot.foot_bodies) >= 4:
            self.damp()
        for _ in range(round(2.0 / self.dt)):
            self.step()
        # limp drives go to their first target from where the joints have come to lie
        if self.damped:
            self.begun = self.wanted = self.data.qpos[7:].copy()
            self.damped = False

    def _gains(self, kp: FloatArray, kd: FloatArray) -> None:
        self.model.actuator_gainprm[:, 0] = kp
        self.model.actuator_biasprm[:, 1], self.model.actuator_biasprm[:, 2] = -kp, -kd

    def command(
        self, target: FloatArray, kp: FloatArray, kd: FloatArray, duration_s: float
    ) -> None:
        """As `RobotInterface.write`, within the robot's limits; nothing once it is damped."""
        if self.damped:
            return
        robot, most = self.robot, MOST_GAIN
        self._gains(
            np.clip(kp, 0.0, most * robot.kp),
            np.clip(kd, 0.0, most * np.maximum(robot.kd, 0.01 * robot.kp)),
        )
        self.begun = self.setpoint()
        self.wanted = np.clip(target, robot.joint_lower, robot.joint_upper)
        self.left = self.steps = round(min(max(duration_s, 0.0), LONGEST_S) / self.dt)

    def setpoint(self) -> FloatArray:
        """Where the drives are now on their way to the target, (nu,) [rad]."""
        share = self.left / self.steps if self.steps else 0.0
        return np.asarray(self.wanted + share * (self.begun - self.wanted))

    def damp(self) -> None:
        """No stiffness: each joint brakes with the robot's own damping."""
        self.damped = True
        self._gains(np.zeros_like(self.robot.kp), self.robot.kd)

    @classmethod
    def several(cls, robot: Robot, count: int, *, accelerometer: str) -> Sequence[Self]:
        """Robots for `step_all`, in the home pose: as many as gain from it, at most so many."""
        return [cls(robot, accelerometer=accelerometer, crouch=1.0)]

    @classmethod
    def step_all(cls, robots: Sequence[Self]) -> None:
        """One physics step of each."""
        for robot in robots:
            robot.left = max(0, robot.left - 1)
        cls._advance_all(robots)
        for robot in robots:
            robot.past.append(robot._moment())

    def step(self) -> None:
        """One physics step."""
        self.step_all([self])

    @property
    def broken(self) -> bool:
        """Whether the simulation has broken down since `place`: MuJoCo then goes on, from the
        model's default state."""
        return any(self.data.warning[kind].number for kind in _BREAKDOWNS)

    @classmethod
    def _advance_all(cls, robots: Sequence[Self]) -> None:
        for robot in robots:
            robot._advance(robot.setpoint())

    def _advance(self, setpoint: FloatArray) -> None:
        """Physics itself; other simulators have their own and leave the state in `data`."""
        self.data.ctrl[:] = setpoint
        mujoco.mj_step(self.model, self.data)

    def _moment(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Root position, quaternion, and velocity of the IMU, in the world."""
        qpos, qvel = self.data.qpos, self.data.qvel
        velocity = np.zeros(3)
        mujoco.mju_rotVecQuat(velocity, np.cross(qvel[3:6], self.lever), qpos[3:7])
        return qpos[:3].copy(), qpos[3:7].copy(), velocity + qvel[:3]

    def sense(self, time_s: float) -> State:
        """What it measures; gyro and accelerometer are means over the last control period, as
        policies were trained."""
        substeps, period = self.robot.substeps, self.robot.substeps * self.dt
        (pos2, _, _), (pos1, quat1, vel1), (pos, quat, vel) = (
            self.past[-1 - k * substeps] for k in (2, 1, 0)
        )
        gyro, rotation = np.zeros(3), np.zeros(9)
        mujoco.mju_subQuat(gyro, quat, quat1)
        mujoco.mju_quat2Mat(rotation, quat)
        to_root = rotation.reshape(3, 3).T
        change = (pos - 2 * pos1 + pos2) / period if self.root_based else vel - vel1
        up = to_root[:, 2]
        accelerometer = to_root @ change / period + GRAVITY * up
        qpos, qvel, torque = self.data.qpos[7:], self.data.qvel[6:], self.data.actuator_force
        return State(
            time_s, qpos.copy(), qvel.copy(), torque.copy(), gyro / period, accelerometer, up
        )


def scene(robot: Robot) -> mujoco.MjModel:
    """The robot on flat ground."""
    spec = robot.spec(visuals=False)
    spec.option.timestep = 1.0 / robot.physics_rate_hz
    spec.worldbody.add_geom(name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.05])
    return spec.compile()


class Link:
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


class Station:
    """The computer on the robot: datagrams in, physics, datagrams out, and its own watchdog."""

    def __init__(self, simulated: SimulatedRobot, config: SimulatedConfig, seed: int = 0):
        robot = simulated.robot
        name, joints = identity(robot.name, robot.model_sha256), len(robot.joint_names)
        self.simulated, self.config = simulated, config
        self.inbox, self.outbox = (
            Inbox(name, joints, (Kind.COMMAND, Kind.STOP)),
            Outbox(name, joints),
        )
        first, second = np.random.default_rng(seed).spawn(2)
        self.incoming, self.outgoing = Link(config, first), Link(config, second)
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
        if (
            self.heard is not None
            and silent > 1e-3 * self.config.deadman_ms - 2 * self.simulated.dt
        ):
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
            self._damp(now, "told to")
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
            "stopped_at_s": at, "stopped_why": why, "refused": dict(self.inbox.refused),
            "least_upright": self.upright, "most_torque_share": self.torque,
            "travelled_m": float(np.linalg.norm(self.simulated.data.qpos[:2])),
        }  # fmt: skip


class Stepped:
    """The station in this process and in simulated time: the `Line` to it, and the `Clock`.

    Nothing takes time but waiting, so what comes out depends on the seed alone.
    """

    def __init__(self, station: Station):
        self.station, self.ticks = station, 0
        self.arrived: list[bytes] = []

    def now(self) -> float:
        return self.ticks * self.station.simulated.dt

    def wait_until(self, time_s: float) -> None:
        while self.now() < time_s - 1e-9:
            self.ticks += 1
            self.arrived += self.station.tick(self.now())

    def receive(self) -> list[bytes]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def send(self, datagram: bytes) -> None:
        self.station.take(datagram, self.now())


def serve(station: Station, controller: tuple[str, int]) -> dict[str, Any]:
    """Run in real time until nobody has spoken for `silence_s`, or for 20 times that at first.
    Returns the summary.

    controller: where states are sent; only what comes from there is listened to.
    """
    end = open_socket()
    dt, start, steps, slipped, worst = station.simulated.dt, time.monotonic(), 0, 0.0, 0.0
    spoken = start + 19 * station.config.silence_s  # nobody has yet
    while time.monotonic() - spoken < station.config.silence_s:
        if (left := start + steps * dt - time.monotonic()) > 0:
            time.sleep(left)
        now = time.monotonic()
        if (behind := now - start - steps * dt) > 0.1:  # rather lose time than hurry after it
            start, slipped = start + behind, slipped + behind
        worst = max(worst, behind)
        for datagram, sender in waiting(end):
            if sender == controller:
                spoken = now
                station.take(datagram, now)
        for datagram in station.tick(now):
            send(end, datagram, controller)
        steps += 1
    return {
        **station.summary(),
        "steps": steps,
        "slipped_s": slipped,
        "latest_step_ms": 1e3 * worst,
    }


def spawn(
    robot: str,
    accelerometer: str,
    config: SimulatedConfig,
    address: tuple[str, int],
    *,
    seed: int,
    priority: int,
) -> subprocess.Popen[str]:
    """Start the robot's process; it prints its summary as JSON when it ends, some time after the
    controller has."""
    told = {
        "robot": robot,
        "accelerometer": accelerometer,
        "address": address,
        "seed": seed,
        "priority": priority,
    }
    arguments = [
        sys.executable,
        "-P",
        "-m",
        "npmp.deploy.simulated",
        json.dumps({**told, "config": asdict(config)}),
    ]
    # in a session of its own: Ctrl-C is for the controller, which then damps the robot
    return subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def main(told: Mapping[str, Any]) -> None:
    """The robot's process."""
    config = SimulatedConfig(**told["config"])
    host, port = told["address"]
    station = make_station(load(told["robot"]), told["accelerometer"], config, told["seed"])
    with prioritized(told["priority"]):
        found = serve(station, (host, port))
    print(json.dumps(found), flush=True)


def make_station(robot: Robot, accelerometer: str, config: SimulatedConfig, seed: int) -> Station:
    """A robot at rest behind its line."""
    return Station(
        SimulatedRobot(robot, accelerometer=accelerometer, crouch=config.crouch), config, seed
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
