"""A walking bundle by itself in a simulator, by commands from its ranges: the same seed, the same
in any simulator.

No controller and no line stand between policy and robot, so that simulators differ and nothing else
does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mocap_data.errors import InputError
from npmp.deploy.bundle import BundleContract, Readings
from npmp.deploy.controller import Acting, Mode, Order, Step
from npmp.deploy.robot import FloatArray
from npmp.deploy.simulated import SimulatedRobot

COMMAND = ["forward_mps", "lateral_mps", "yaw_rate_rps"]
PERIOD_S = 3.0  # between changes of the command, and
NONZERO = (0.9, 0.25, 0.5)  # chance of a new component not to be zero: as conf/task/walk.yaml [R]
UPRIGHT = math.cos(math.radians(45.0))  # of the vertical in the root frame; below it has fallen [P]


class Episode(NamedTuple):
    """What came of one."""

    fell: bool
    command: FloatArray  # (T, 3) of the steps that were made
    achieved: FloatArray  # (T, 3) velocity over each in the heading frame [m/s, m/s, rad/s]


def drawn(contract: BundleContract, steps: int, seed: int, episode: int = 0) -> FloatArray:
    """Commands of an episode, (steps, 3).

    Raises:
      InputError: for a bundle that is not told how to walk.
    """
    if contract.command != COMMAND:
        wanted, told = ", ".join(COMMAND), ", ".join(contract.command)
        raise InputError(f"a trial is for bundles that are told {wanted}; this one is told {told}")
    rng, (low, high) = np.random.default_rng([episode, seed]), np.array(contract.command_range).T
    period = round(PERIOD_S * contract.control_rate_hz)
    share, chance = rng.uniform(size=(math.ceil(steps / period), 2, len(low))).swapaxes(0, 1)
    some = np.where(chance < NONZERO, low + share * (high - low), np.clip(0.0, low, high))
    return np.repeat(some, period, axis=0)[:steps]


def refuse_other_model(contract: BundleContract, robot: Any) -> None:
    """Raises InputError where a bundle is of another robot than this one, or was trained at other
    rates."""
    mine = (
        contract.model_sha256,
        tuple(contract.joint_names),
        contract.physics_rate_hz,
        contract.control_rate_hz,
    )
    if mine != (
        robot.model_sha256,
        robot.joint_names,
        robot.physics_rate_hz,
        robot.control_rate_hz,
    ):
        raise InputError(
            f"the bundle is of another '{robot.name}' than this npmp has: model, joints or rates differ"
        )


def episodes(
    robots: Sequence[SimulatedRobot],
    policies: Sequence[Acting],
    contract: BundleContract,
    *,
    count: int,
    steps: int,
    seed: int,
    note: Callable[[Step], None],
) -> Iterator[Episode]:
    """Episodes from the home pose, each of so many control steps or until it falls.

    robots: that walk side by side, each under a policy of its own. note: called with every step,
    one episode after the other.

    Raises:
      InputError: as `drawn`.
    """
    walkers = list(zip(robots, policies, strict=True))
    for first in range(0, count, len(robots)):
        commands = [
            drawn(contract, steps, seed, k) for k in range(first, min(first + len(robots), count))
        ]
        walks = [_Walk(*walker, command, contract) for walker, command in zip(walkers, commands)]
        while going := [walk for walk in walks if walk.goes_on]:
            for walk in going:
                walk.act()
            for _ in range(walks[0].robot.robot.substeps):
                type(walks[0].robot).step_all([walk.robot for walk in going])
            for walk in going:
                walk.look()
        for walk in walks:
            for step in walk.steps:
                note(step)
            yield walk.episode()


class _Walk:
    """An episode under way."""

    def __init__(
        self, robot: SimulatedRobot, policy: Acting, commands: FloatArray, contract: BundleContract
    ):
        self.robot, self.policy, self.commands = robot, policy, commands
        self.period = 1.0 / contract.control_rate_hz
        self.duration = self.period if contract.hold == "first_order" else 0.0
        self.kp, self.kd = np.array(contract.kp), np.array(contract.kd)
        self.low, self.high = np.array(contract.joint_range).T
        self.steps, self.achieved, self.fell = list[Step](), list[list[float]](), False
        robot.place()
        policy.reset()
        self.state = robot.sense(0.0)

    @property
    def goes_on(self) -> bool:
        return not self.fell and len(self.steps) < len(self.commands)

    def act(self) -> None:
        """What the policy says to what is sensed goes to the drives."""
        begun, t, state = time.perf_counter(), len(self.steps), self.state
        command, self.before = self.commands[t], self.robot.data.qpos[:3].copy()
        readings = Readings(state.joint_pos, state.gyro, state.accelerometer, state.up)
        proposed = self.policy.act(readings, command)
        order = Order(Mode.POLICY, np.clip(proposed, self.low, self.high), proposed, command)
        self.steps.append(
            Step(t * self.period, 0.0, time.perf_counter() - begun, state, command, order)
        )
        self.robot.command(order.target, self.kp, self.kd, self.duration)

    def look(self) -> None:
        """What came of it."""
        qpos = self.robot.data.qpos
        self.state = state = self.robot.sense(len(self.steps) * self.period)
        forward = heading((qpos[:3] - self.before) / self.period, qpos[3:7])
        self.achieved.append([*forward, float(state.up @ state.gyro)])
        self.fell = self.robot.broken or not bool(state.up[2] >= UPRIGHT)

    def episode(self) -> Episode:
        return Episode(self.fell, self.commands[: len(self.steps)], np.array(self.achieved))


def heading(velocity: FloatArray, quat: FloatArray) -> tuple[float, float]:
    """Forward and to the left: a velocity (3,) of the world by somebody of orientation quat (4,)."""
    w, x, y, z = quat
    yaw = math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    cos, sin = math.cos(yaw), math.sin(yaw)
    return float(cos * velocity[0] + sin * velocity[1]), float(
        cos * velocity[1] - sin * velocity[0]
    )


def velocity_error_1s(episode: Episode, rate_hz: float) -> FloatArray:
    """|v - v_cmd| of velocity and command averaged over each whole second, as `npmp evaluate` has
    it. -> (seconds,)."""
    window = round(rate_hz)
    whole = len(episode.command) // window * window
    error = (episode.achieved - episode.command)[:whole].reshape(-1, window, len(COMMAND)).mean(1)
    return np.asarray(np.linalg.norm(error, axis=-1))


def figures(found: list[Episode], steps: int, rate_hz: float) -> dict[str, Any]:
    """Falls, the share of episodes and of steps that were walked through, and the velocity error
    over 1 s, null where nobody stood that long."""
    errors = np.concatenate([velocity_error_1s(one, rate_hz) for one in found])
    walked = sum(len(one.command) for one in found)
    return {
        "falls": sum(one.fell for one in found), "survived": 1.0 - sum(one.fell for one in found) / len(found),
        "steps_survived": walked / (steps * len(found)),
        "velocity_error_1s": float(errors.mean()) if len(errors) else None,
    }  # fmt: skip
