"""Stand-ins for a bundle: contracts, states, a policy that holds a pose, and a bundle of two joints
whose answers can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from npmp import robots
from npmp.deploy.bundle import Bundle
from npmp.deploy.contract import (
    MEMORY,
    BundleContract,
    Command,
    JointSpec,
    conventions,
    observation_layout,
)
from npmp.deploy.onnx_policy import Golden, Readings
from npmp.deploy.robot import FloatArray, State

HOME = np.array([0.1, -0.1])
DEPTH_CAMERA = {
    "size": [2, 4],
    "range_m": [0.2, 4.0],
    "fov_deg": [60.0, 60.0],
    "place_m": [0.0, 0.0, 0.0],
    "pitch_deg": 35.0,
    "rate_hz": 10.0,
    "delay_s": 0.1,
}
COMMANDS = [Command("forward_mps", "m/s", [-0.5, 1.5]), Command("turn_rps", "rad/s", [-1.0, 1.0])]


def joint(name: str, **other: Any) -> JointSpec:
    """kp 10, kd 1, 10 Nm, +-1 rad, 5 rad/s."""
    values: dict[str, Any] = {"home": 0.0, "range": [-1.0, 1.0], "kp": 10.0, "kd": 1.0}
    values |= {"torque_limit": 10.0, "velocity_limit": 5.0}
    values |= dict.fromkeys(("joint_damping", "joint_friction", "armature"), 0.0)
    place = {"body": "leg", "parent": "base", "axis": [0.0, 1.0, 0.0], "anchor": [0.0] * 3}
    return JointSpec(name=name, **place | values | other)


def two_joints(**other: Any) -> BundleContract:
    """Home at (0.1, -0.1), 50 Hz, commanded forwards and to turn."""
    values: dict[str, Any] = {
        "joints": [joint("hip", home=0.1), joint("knee", home=-0.1)],
        "observation": observation_layout(2),
        "commands": COMMANDS,
        "memory": dict.fromkeys(MEMORY, 1),
        "conventions": conventions("first_order", "imu"),
    }
    values |= {"robot": "toy", "control_rate_hz": 50.0, "physics_rate_hz": 200.0, "task": "walk"}
    values |= {"hold": "first_order", "accelerometer": "imu", "imu_position": [0.0, 0.0, 0.1]}
    values |= {"model_sha256": "0", "module_sha256": "1", "policy_sha256": "0" * 64}
    values |= {"licence": ["CC0"], "data": "none", "opset": 18, "golden": {}, "versions": {}}
    return BundleContract(**values | other)


@cache
def contract_of(name: str = "anymal_b") -> BundleContract:
    """The same of a shipped robot."""
    robot = robots.load(name)
    numbers = ("kp", "kd", "torque_limit", "velocity_limit")
    joints = [
        joint(
            name,
            home=float(robot.home_joints[k]),
            range=[float(robot.joint_lower[k]), float(robot.joint_upper[k])],
            **{number: float(getattr(robot, number)[k]) for number in numbers},
        )
        for k, name in enumerate(robot.joint_names)
    ]
    return replace(
        two_joints(),
        robot=robot.name,
        model_sha256=robot.model_sha256,
        joints=joints,
        control_rate_hz=robot.control_rate_hz,
        physics_rate_hz=robot.physics_rate_hz,
        observation=observation_layout(len(joints)),
    )


def state_of(time_s: float = 0.0, **changed: object) -> State:
    """Two joints at rest at zero, upright; a gyro as noisy as need be."""
    zero, turn, up = (
        np.zeros(2),
        np.full(3, 1e-6 * np.nan_to_num(time_s)),
        np.array([0.0, 0.0, 1.0]),
    )
    return State(time_s, zero, zero, zero, turn, 9.81 * up, up)._replace(**changed)  # type: ignore[arg-type]


class Standing:
    """Holds a pose; counts."""

    def __init__(self, pose: FloatArray):
        self.pose, self.resets, self.acts = pose, 0, 0
        self.commands: list[FloatArray] = []

    def reset(self) -> None:
        self.resets += 1

    def act(self, readings: Readings, command: FloatArray) -> FloatArray:
        self.acts += 1
        self.commands.append(command)
        return np.array(self.pose, dtype=float)


# --- a bundle ---


def toy(**other: Any) -> BundleContract:
    """Two joints, one command."""
    return two_joints(**{"commands": [Command("forward_mps", "m/s", [-1.0, 1.0])]} | other)


def toy_graph(described: BundleContract) -> bytes:
    """action = joint_pos_minus_home + 0.5 setpoint_minus_home + (accelerometer_g z, gyro x) +
    the commands' sum + h_low; h_low_next = h_low + 1, the rest of the memory as it was."""
    from onnx import TensorProto, helper, numpy_helper

    observed = sum(width for _, width, _, _ in described.observation)
    matrix = np.zeros((observed, 2), np.float32)
    matrix[0, 0] = matrix[1, 1] = matrix[9, 0] = matrix[4, 1] = 1.0
    matrix[2, 0] = matrix[3, 1] = 0.5
    width = described.command_width
    commanded = ("Sum", ["sensed", "asked"]) if width else ("Identity", ["sensed"])
    nodes = [
        helper.make_node("MatMul", ["obs", "matrix"], ["sensed"]),
        helper.make_node("ReduceSum", ["command"], ["asked"]),
        helper.make_node(*commanded, ["moved"]),
        helper.make_node("Add", ["moved", "h_low"], ["action"]),
        helper.make_node("Add", ["h_low", "one"], ["h_low_next"]),
        *(helper.make_node("Identity", [k], [f"{k}_next"]) for k in MEMORY if k != "h_low"),
    ]
    widths = {"obs": observed, "command": width, **dict.fromkeys(MEMORY, 1)}
    answers = {"action": 2, **{f"{name}_next": 1 for name in MEMORY}}
    made = helper.make_graph(
        nodes,
        "toy",
        *(
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width])
                for name, width in side.items()
            ]
            for side in (widths, answers)
        ),
        [
            numpy_helper.from_array(matrix, "matrix"),
            numpy_helper.from_array(np.ones((1, 1), np.float32), "one"),
        ],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, {"npmp": described.in_graph()})
    return bytes(model.SerializeToString())


def toy_golden(steps: int = 100) -> Golden:
    """A robot at rest at home, commanded to stand, in episodes of four steps: step k answers
    (1 + k, k) and half of the answer before; h_low counts the steps."""
    target, action = [], np.zeros(2)
    count = np.arange(steps) % 4
    for k in count:
        action = 0.5 * action * (k > 0) + np.array([1.0, 0.0]) + k
        target.append(HOME + action)
    still, up = np.zeros((steps, 3)), np.tile([0.0, 0.0, 1.0], (steps, 1))
    memory = np.zeros((steps, len(MEMORY)), np.float32)
    memory[:, MEMORY.index("h_low")] = count
    return Golden(
        np.tile(HOME, (steps, 1)),
        still,
        9.81 * up,
        up,
        np.zeros((steps, 1)),
        count == 0,
        np.array(target),
        memory,
        np.zeros(2 + len(MEMORY)),
    )


def write_toy(folder: Path, golden: dict[str, Any] | None = None, **other: Any) -> Bundle:
    described = toy(**other)
    Bundle.write(folder, described, toy_graph(described), toy_golden()._asdict() | (golden or {}))
    return Bundle.read(folder)
