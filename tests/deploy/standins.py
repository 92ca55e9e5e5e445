"""Stand-ins for a bundle: contracts, states, and a policy that holds a pose."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from npmp import robots
from npmp.deploy.bundle import MEMORY, BundleContract, Readings, observation_layout
from npmp.deploy.robot import FloatArray, State


@cache
def contract_of(name: str = "anymal_b") -> BundleContract:
    robot = robots.load(name)
    ranges = [[float(a), float(b)] for a, b in zip(robot.joint_lower, robot.joint_upper)]
    numbers = {
        "home_pose": robot.home_joints, "kp": robot.kp, "kd": robot.kd, "torque_limit": robot.torque_limit,
        "velocity_limit": robot.velocity_limit,
    }  # fmt: skip
    return BundleContract(
        robot=robot.name, model_sha256=robot.model_sha256, joint_names=list(robot.joint_names), joint_range=ranges,
        control_rate_hz=robot.control_rate_hz, physics_rate_hz=robot.physics_rate_hz, hold="first_order",
        accelerometer="imu", imu_position=[0.0, 0.0, 0.0], observation=observation_layout(len(robot.joint_names)),
        command=["forward", "turn"], command_unit=["m/s", "rad/s"], command_range=[[-0.5, 1.5], [-1.0, 1.0]],
        memory=dict.fromkeys(MEMORY, 1), task="walk", module_sha256="", policy_sha256="0" * 64, licence=[], data="",
        opset=0, golden={}, versions={}, **{key: [float(v) for v in values] for key, values in numbers.items()},
    )  # fmt: skip


def two_joints() -> BundleContract:
    """kp 10, kd 1, 10 Nm, of which 0.8 are used, +-1 rad, 5 rad/s; 50 Hz; home at (0.1, -0.1)."""
    return replace(
        contract_of(), joint_names=["hip", "knee"], home_pose=[0.1, -0.1], kp=[10.0, 10.0], kd=[1.0, 1.0],
        torque_limit=[10.0, 10.0], joint_range=[[-1.0, 1.0]] * 2, velocity_limit=[5.0, 5.0], control_rate_hz=50.0,
        observation=observation_layout(2),
    )  # fmt: skip


def state_of(time_s: float = 0.0, **changed: object) -> State:
    """Two joints at rest at zero, upright; a gyro as noisy as need be."""
    zero, turn, up = (
        np.zeros(2),
        np.full(3, 1e-6 * np.nan_to_num(time_s)),
        np.array([0.0, 0.0, 1.0]),
    )
    return State(time_s, zero, zero, zero, turn, 9.81 * up, up)._replace(**changed)  # type: ignore[arg-type]


class Standing:
    """Holds a pose, home by default; counts."""

    def __init__(self, pose: FloatArray):
        self.pose, self.resets, self.acts = pose, 0, 0
        self.commands: list[FloatArray] = []

    def reset(self) -> None:
        self.resets += 1

    def act(self, readings: Readings, command: FloatArray) -> FloatArray:
        self.acts += 1
        self.commands.append(command)
        return np.array(self.pose, dtype=float)
