"""A walking bundle by itself in a simulator, by commands from its ranges: the same for a seed, in
any simulator.

No controller and no line stand between policy and robot, so that simulators differ and nothing else
does.
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
PERIOD_S = 3.0  # between changes of the command
# chance of a new component not to be zero, as `CommandConfig.command_nonzero`
NONZERO = (0.9, 0.25, 0.5)
UPRIGHT = math.cos(math.radians(45.0))  # of the vertical in the root frame; below it has fallen [P]


class Episode(NamedTuple):
    """What came of one."""

    fell: bool
    command: FloatArray  # (T, 3) of the steps that were made
    achieved: FloatArray  # (T, 3) velocity over each in the heading frame [m/s, m/s, rad/s]


def drawn(contract: BundleContract, steps: int, seed: int, episode: int = 0) -> FloatArray:
    """Commands of an episode, (steps, 3).

    Raises:
      InputError: for a bundle that is not commanded how to walk.
    """
    if contract.command_names != COMMAND:
        names = ", ".join(contract.command_names)
        raise InputError(
            f"a trial takes the commands {', '.join(COMMAND)}; the bundle's are {names}"
        )
    rng = np.random.default_rng([episode, seed])
    low, high = contract.command_range
    period = round(PERIOD_S * contract.control_rate_hz)
    share, chance = rng.uniform(size=(math.ceil(steps / period), 2, len(low))).swapaxes(0, 1)
    some = np.where(chance < NONZERO, low + share * (high - low), np.clip(0.0, low, high))
    return np.repeat(some, period, axis=0)[:steps]


def episodes(
    robot: SimulatedRobot,
    policy: ActingPolicy,
    contract: BundleContract,
    *,
    count: int,
    steps: int,
    seed: int,
    note: Callable[[ControlStep], None],
) -> Iterator[Episode]:
    """Episodes from the home pose, each of so many control steps or until it falls.

    note: called with every step.

    Raises:
      InputError: as `drawn`.
    """
    period = 1.0 / contract.control_rate_hz
    duration = period if contract.hold == "first_order" else 0.0
    kp, kd = contract.per_joint("kp"), contract.per_joint("kd")
    for episode in range(count):
        commands = drawn(contract, steps, seed, episode)
        achieved = list[list[float]]()
        robot.place()
        policy.reset()
        state = robot.sense(0.0)
        fell = False
        for t, command in enumerate(commands):
            begun = time.perf_counter()
            before = robot.data.qpos[:3].copy()
            readings = Readings(state.joint_pos, state.gyro, state.accelerometer, state.up)
            proposed = policy.act(readings, command)
            target = np.clip(proposed, *contract.joint_range)
            output = Output(ControlMode.POLICY, target, proposed, command)
            note(ControlStep(t * period, 0.0, time.perf_counter() - begun, state, command, output))
            robot.command(target, kp, kd, duration)
            for _ in range(robot.robot.substeps):
                robot.step()
            state = robot.sense((t + 1) * period)
            qpos = robot.data.qpos
            forward = to_heading((qpos[:3] - before) / period, qpos[3:7])
            achieved.append([*forward, float(state.up @ state.gyro)])
            if fell := robot.broken or not bool(state.up[2] >= UPRIGHT):
                break
        yield Episode(fell, commands[: len(achieved)], np.array(achieved))


def to_heading(velocity: FloatArray, quat: FloatArray) -> tuple[float, float]:
    """A velocity (3,) of the world, forward and to the left of a root of orientation quat (4,)."""
    x, y, yaw = *velocity[:2], rotations.yaw(quat)
    cos, sin = math.cos(yaw), math.sin(yaw)
    return float(cos * x + sin * y), float(cos * y - sin * x)


def velocity_error_1s(episode: Episode, rate_hz: float) -> FloatArray:
    """|v - v_cmd| of velocity and command averaged over each whole second, as `npmp evaluate` has
    it. -> (seconds,)."""
    window = round(rate_hz)
    whole = len(episode.command) // window * window
    error = (episode.achieved - episode.command)[:whole].reshape(-1, window, len(COMMAND)).mean(1)
    return np.asarray(np.linalg.norm(error, axis=-1))


def figures(found: Sequence[Episode], steps: int, rate_hz: float) -> dict[str, Any]:
    """Falls, the share of episodes and of steps without one, and the velocity error over 1 s, null
    where no episode lasted that long."""
    errors = np.concatenate([velocity_error_1s(one, rate_hz) for one in found])
    falls = sum(one.fell for one in found)
    return {
        "falls": falls,
        "survived": 1.0 - falls / len(found),
        "steps_survived": sum(len(one.command) for one in found) / (steps * len(found)),
        "velocity_error_1s": float(errors.mean()) if len(errors) else None,
    }
