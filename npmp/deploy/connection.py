"""The simulated robot behind a connection with latency, jitter and loss."""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mocap_data.errors import InputError
from npmp import robots
from npmp.core import ranges
from npmp.deploy.contract import BundleContract
from npmp.deploy.robot import FloatArray, RobotStopped, State, TerrainReading
from npmp.deploy.simulated import FloorCamera, SimulatedRobot, check_model

# age at which a message is rejected [s] [D]
STALE_S = 0.2


@dataclass(frozen=True)
class SimulatedConfig:
    """The connection to the simulated robot, each way, and the robot's own watchdog.

    Raises:
      ValueError: for values out of range.
    """

    # constant delay of every message
    latency_ms: float = 0.0
    # additional delay, uniform from 0
    jitter_ms: float = 0.0
    # share of messages that are lost
    loss: float = 0.0
    # messages do not overtake one another, as in a queue
    keeps_order: bool = True
    # time without a valid command after which the robot damps by itself; more than two physics
    # steps [D]
    deadman_ms: float = 50.0
    # false: in simulated time, as fast as possible and reproducible by seed
    realtime: bool = True

    def __post_init__(self) -> None:
        ranges.not_negative(self, "latency_ms", "jitter_ms")
        ranges.share(self, "loss")
        ranges.above_zero(self, "deadman_ms")


class LossyChannel:
    """One direction of a connection. `rejected` counts messages that were late or overtaken."""

    def __init__(self, config: SimulatedConfig, rng: np.random.Generator):
        self.config = config
        self.rng = rng
        # heap of due time [s], number, time of sending [s], message
        self.queue: list[tuple[float, int, float, Any]] = []
        self.sent = 0
        self.newest = 0
        self.last_due = 0.0
        self.rejected: Counter[str] = Counter()

    def send(self, message: Any, now: float) -> None:
        """Send a message at time now [s]."""
        config = self.config
        self.sent += 1
        if self.rng.random() < config.loss:
            return
        due = now + 1e-3 * (config.latency_ms + config.jitter_ms * self.rng.random())
        if config.keeps_order:
            due = max(due, self.last_due)
            self.last_due = due
        heapq.heappush(self.queue, (due, self.sent, now, message))

    def receive(self, now: float) -> Iterator[Any]:
        """The messages that have arrived by time now [s]."""
        while self.queue and self.queue[0][0] <= now:
            _, number, sent_s, message = heapq.heappop(self.queue)
            if number <= self.newest:
                self.rejected["out of order"] += 1
            elif now - sent_s > STALE_S:
                self.rejected["stale"] += 1
            else:
                self.newest = number
                yield message


class SimulatedConnection:
    """A `RobotInterface` to the simulated robot, and the `LoopClock`.

    Physics is stepped while the controller waits. Without realtime only waiting advances the clock,
    so the seed determines the run.
    """

    def __init__(
        self,
        simulated: SimulatedRobot,
        config: SimulatedConfig,
        seed: int = 0,
        contract: BundleContract | None = None,
    ):
        """contract: for the terrain sensors that its policy observes; None for none."""
        self.simulated = simulated
        self.config = config
        self.heights = 0 if contract is None else len(contract.height_names)
        camera = None if contract is None else contract.camera
        self.camera = None if camera is None else FloorCamera(camera)
        # [s]
        self.image_period_s = 1.0 / camera["rate_hz"] if camera else math.inf
        self.image_delay_s = camera["delay_s"] if camera else 0.0
        # images not yet delivered, and the newest readings at the controller
        self.images: deque[TerrainReading] = deque()
        self.height_map: TerrainReading | None = None
        self.image: TerrainReading | None = None
        command_rng, state_rng = np.random.default_rng(seed).spawn(2)
        self.commands = LossyChannel(config, command_rng)
        self.states = LossyChannel(config, state_rng)
        self.start = time.monotonic()
        self.ticks = 0
        self.next_image_s = 0.0
        # newest state at the controller, and whether the robot had stopped then
        self.arrived: tuple[State, bool] | None = None
        # arrival of the last valid command [s]
        self.last_command_s: float | None = None
        # time [s] and reason of damping
        self.stopped: tuple[float, str] | None = None
        # smallest vertical component of `up`, and largest share of the torque limit
        self.least_upright = 1.0
        self.most_torque_share = 0.0

    def now(self) -> float:
        if self.config.realtime:
            return time.monotonic() - self.start
        return self.ticks * self.simulated.dt

    def wait_until(self, time_s: float) -> None:
        until = max(time_s, self.now())
        while self.ticks * self.simulated.dt < until - 1e-9:
            self.ticks += 1
            tick_s = self.ticks * self.simulated.dt
            if self.config.realtime and (left := tick_s - self.now()) > 0:
                time.sleep(left)
            self.tick(tick_s)

    def read(self) -> State | None:
        arrived = self.arrived
        self.arrived = None
        if arrived is None:
            return None
        state, stopped = arrived
        if stopped:
            _, reason = self.stopped or (None, "")
            raise RobotStopped(f"the simulated robot damped itself: {reason}")
        return state

    def read_heights(self) -> TerrainReading | None:
        """Of the flat floor, without noise."""
        reading = self.height_map
        self.height_map = None
        return reading

    def read_depths(self) -> TerrainReading | None:
        """Of the flat floor, without noise, at the camera's rate and delay."""
        reading = self.image
        self.image = None
        return reading

    def write(self, target: FloatArray, kp: FloatArray, kd: FloatArray, duration_s: float) -> None:
        self.commands.send((target, kp, kd, duration_s), self.now())

    def stop(self) -> None:
        self.commands.send(None, self.now())

    def tick(self, now: float) -> None:
        """One physics step with the commands and states that arrive by then."""
        for command in self.commands.receive(now):
            self.last_command_s = now
            if command is None:
                self._damp(now, "stop command")
            else:
                self.simulated.command(*command)
        silent = 0.0 if self.last_command_s is None else now - self.last_command_s
        # a command may have arrived up to a step earlier, and the next check is a step away
        if silent > 1e-3 * self.config.deadman_ms - 2 * self.simulated.dt:
            self._damp(now, f"no command for {1e3 * silent:.1f} ms")
        self.simulated.step()
        if self.simulated.broken:
            self._damp(now, "the simulation diverged")

        data = self.simulated.data
        torque_share = np.abs(data.actuator_force) / self.simulated.robot.torque_limit
        self.most_torque_share = max(self.most_torque_share, float(torque_share.max()))
        if self.stopped is None:
            self.least_upright = min(self.least_upright, float(data.xmat[1, 8]))
        message = (self.simulated.sense(now), self.stopped is not None, *self._terrain(now))
        self.states.send(message, now)
        for state, stopped, heights, image in self.states.receive(now):
            self.arrived = state, stopped
            self.height_map = heights
            self.image = image or self.image

    def _terrain(self, now: float) -> tuple[TerrainReading | None, TerrainReading | None]:
        """The height map, and the image that the camera delivers in this physics step."""
        data = self.simulated.data
        heights = None
        if self.heights:
            height = self.simulated.robot.home_qpos[2] - data.xpos[1, 2]
            heights = TerrainReading(now, np.full(self.heights, height))
        if self.camera is not None and now >= self.next_image_s:
            self.next_image_s = now + self.image_period_s
            self.images.append(TerrainReading(now, self.camera.depths(data)))
        if self.images and now - self.images[0].time_s >= self.image_delay_s:
            return heights, self.images.popleft()
        return heights, None

    def _damp(self, now: float, reason: str) -> None:
        if self.stopped is None:
            self.stopped = (now, reason)
            self.simulated.damp()

    def summary(self) -> dict[str, Any]:
        """Figures for deploy.json: the end of the run at the robot, and rejected messages of both
        directions."""
        stopped_s, reason = self.stopped or (None, "")
        robot = {
            "stopped_at_s": stopped_s,
            "stopped_why": reason,
            "refused": dict(self.commands.rejected),
            "least_upright": self.least_upright,
            "most_torque_share": self.most_torque_share,
            "travelled_m": float(np.linalg.norm(self.simulated.data.qpos[:2])),
        }
        return {"robot": robot, "refused": dict(self.states.rejected)}


def simulated_connection(
    contract: BundleContract, config: SimulatedConfig, state_age_s: float, seed: int
) -> SimulatedConnection:
    """The bundle's robot in MuJoCo behind a connection. state_age_s: limit of the controller.

    Raises:
      InputError: for invalid settings, or another model than the bundle's.
    """
    robot = robots.load(contract.robot)
    check_model(contract, robot)
    if state_age_s > STALE_S:
        raise InputError(
            f"safety.state_age_s={state_age_s:g}: must be at most {STALE_S:g} [s] with robot=sim"
        )
    if config.deadman_ms <= (least := 2e3 / robot.physics_rate_hz):
        raise InputError(
            f"sim.deadman_ms={config.deadman_ms:g}: must be above two physics steps, {least:g} [ms]"
        )
    simulated = SimulatedRobot(robot, accelerometer=contract.accelerometer)
    return SimulatedConnection(simulated, config, seed, contract)
