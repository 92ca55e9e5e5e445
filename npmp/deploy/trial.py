"""A walking bundle in a simulator with random commands, which are the same in every simulator.

Policy and robot are connected directly, so that only the simulators differ.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mocap_data import rotations
from mocap_data.errors import InputError
from npmp.deploy.contract import BundleContract
from npmp.deploy.controller import ActingPolicy, ControlMode, ControlStep, Output
from npmp.deploy.onnx_policy import Readings
from npmp.deploy.robot import FloatArray
from npmp.deploy.simulated import SimulatedRobot

COMMAND = ["forward_mps", "lateral_mps", "yaw_rate_rps"]
# time between changes of the command [s]
PERIOD_S = 3.0
# probability that a component is not zero, as `CommandConfig.command_nonzero`
NONZERO = (0.9, 0.25, 0.5)
# vertical component of `up` below which the robot has fallen [P]
UPRIGHT = math.cos(math.radians(45.0))


class Episode(NamedTuple):
    """One episode of T steps."""

    fell: bool
    command: FloatArray  # (T, 3)
    achieved: FloatArray  # (T, 3) velocity in the heading frame [m/s, m/s, rad/s]


def sample_commands(
    contract: BundleContract, steps: int, seed: int, episode: int = 0
) -> FloatArray:
    """Random commands of an episode, (steps, 3).

    Raises:
      InputError: for a bundle with other commands.
    """
    if contract.command_names != COMMAND:
        names = ", ".join(contract.command_names)
        raise InputError(f"the bundle's commands {names}: a trial needs {', '.join(COMMAND)}")
    rng = np.random.default_rng([episode, seed])
    low, high = contract.command_range
    period = round(PERIOD_S * contract.control_rate_hz)
    share, chance = rng.uniform(size=(math.ceil(steps / period), 2, len(low))).swapaxes(0, 1)
    values = np.where(chance < NONZERO, low + share * (high - low), np.clip(0.0, low, high))
    return np.repeat(values, period, axis=0)[:steps]


def episodes(
    robot: SimulatedRobot,
    policy: ActingPolicy,
    contract: BundleContract,
    *,
    count: int,
    steps: int,
    seed: int,
    record: Callable[[ControlStep], None],
) -> Iterator[Episode]:
    """Episodes from the home pose, each of `steps` control steps or until the robot falls.

    record: called with every step.

    Raises:
      InputError: as `sample_commands`.
    """
    period = 1.0 / contract.control_rate_hz
    duration = period if contract.hold == "first_order" else 0.0
    kp = contract.per_joint("kp")
    kd = contract.per_joint("kd")
    for episode in range(count):
        commands = sample_commands(contract, steps, seed, episode)
        achieved = list[list[float]]()
        robot.place()
        policy.reset()
        state = robot.sense(0.0)
        fell = False
        for t, command in enumerate(commands):
            start = time.perf_counter()
            position = robot.data.qpos[:3].copy()
            readings = Readings(state.joint_pos, state.gyro, state.accelerometer, state.up)
            proposed = policy.act(readings, command)
            target = np.clip(proposed, *contract.joint_range)
            output = Output(ControlMode.POLICY, target, proposed, command)
            work = time.perf_counter() - start
            record(ControlStep(t * period, 0.0, work, state, command, output))

            robot.command(target, kp, kd, duration)
            for _ in range(robot.robot.substeps):
                robot.step()
            state = robot.sense((t + 1) * period)
            qpos = robot.data.qpos
            forward = to_heading((qpos[:3] - position) / period, qpos[3:7])
            achieved.append([*forward, float(state.up @ state.gyro)])
            fell = robot.broken or not bool(state.up[2] >= UPRIGHT)
            if fell:
                break
        yield Episode(fell, commands[: len(achieved)], np.array(achieved))


def to_heading(velocity: FloatArray, quat: FloatArray) -> tuple[float, float]:
    """A world velocity (3,) in the heading frame of a root of orientation quat (4,): forward and
    left."""
    x, y = velocity[:2]
    yaw = rotations.yaw(quat)
    cos = math.cos(yaw)
    sin = math.sin(yaw)
    return float(cos * x + sin * y), float(cos * y - sin * x)


def velocity_error_1s(episode: Episode, rate_hz: float) -> FloatArray:
    """|v - v_cmd| with both averaged over each whole second (seconds,), as in `npmp evaluate`."""
    window = round(rate_hz)
    whole = len(episode.command) // window * window
    error = (episode.achieved - episode.command)[:whole].reshape(-1, window, len(COMMAND)).mean(1)
    return np.asarray(np.linalg.norm(error, axis=-1))


def metrics(results: Sequence[Episode], steps: int, rate_hz: float) -> dict[str, Any]:
    """Falls, the shares of episodes and of steps without one, and the velocity error over 1 s; None
    if no episode lasted that long."""
    errors = np.concatenate([velocity_error_1s(episode, rate_hz) for episode in results])
    falls = sum(episode.fell for episode in results)
    return {
        "falls": falls,
        "survived": 1.0 - falls / len(results),
        "steps_survived": sum(len(episode.command) for episode in results) / (steps * len(results)),
        "velocity_error_1s": float(errors.mean()) if len(errors) else None,
    }
