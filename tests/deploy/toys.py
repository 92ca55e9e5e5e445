"""A bundle of two joints whose answers can be worked out by hand, made without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from npmp.deploy.bundle import MEMORY, Bundle, BundleContract, Golden, observation_layout

JOINTS, HOME = 2, np.array([0.1, -0.2])


def contract(**other: Any) -> BundleContract:
    values: dict[str, Any] = {
        "robot": "toy", "model_sha256": "0", "joint_names": ["hip", "knee"], "home_pose": HOME.tolist(),
        "kp": [10.0, 20.0], "kd": [0.1, 0.2], "torque_limit": [5.0, 5.0], "joint_range": [[-1.0, 1.0], [-2.0, 2.0]],
        "velocity_limit": [10.0, 10.0], "control_rate_hz": 50.0, "physics_rate_hz": 200.0, "hold": "zero_order",
        "accelerometer": "imu", "imu_position": [0.0, 0.0, 0.1], "observation": observation_layout(JOINTS),
        "command": ["forward_mps"], "command_unit": ["m/s"], "command_range": [[-1.0, 1.0]],
        "memory": dict.fromkeys(MEMORY, 1), "task": "walk", "module_sha256": "1", "policy_sha256": "2",
        "licence": ["CC0"], "data": "none", "opset": 18, "golden": {}, "versions": {},
    }  # fmt: skip
    return BundleContract(**values | other)


def graph(described: BundleContract) -> bytes:
    """action = joint_pos_minus_home + 0.5 setpoint_minus_home + (accelerometer_g z, gyro x) +
    command + h_low; h_low_next = h_low + 1, the rest of the memory as it was."""
    from onnx import TensorProto, helper, numpy_helper

    observed = sum(width for _, width, _, _ in described.observation)
    matrix = np.zeros((observed, JOINTS), np.float32)
    matrix[0, 0] = matrix[1, 1] = 1.0
    matrix[2, 0] = matrix[3, 1] = 0.5
    matrix[9, 0] = matrix[4, 1] = 1.0
    commanded = ("Add", ["sensed", "command"]) if described.command else ("Identity", ["sensed"])
    nodes = [
        helper.make_node("MatMul", ["obs", "matrix"], ["sensed"]),
        helper.make_node(*commanded, ["told"]),
        helper.make_node("Add", ["told", "h_low"], ["action"]),
        helper.make_node("Add", ["h_low", "one"], ["h_low_next"]),
        *(
            helper.make_node("Identity", [name], [f"{name}_next"])
            for name in MEMORY
            if name != "h_low"
        ),
    ]
    floats = TensorProto.FLOAT
    widths = {"obs": observed, "command": len(described.command), **dict.fromkeys(MEMORY, 1)}
    answers = {"action": JOINTS, **{f"{name}_next": 1 for name in MEMORY}}
    made = helper.make_graph(
        nodes,
        "toy",
        [helper.make_tensor_value_info(name, floats, [1, width]) for name, width in widths.items()],
        [
            helper.make_tensor_value_info(name, floats, [1, width])
            for name, width in answers.items()
        ],
        [
            numpy_helper.from_array(matrix, "matrix"),
            numpy_helper.from_array(np.ones((1, 1), np.float32), "one"),
        ],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, {"npmp": described.in_graph()})
    return bytes(model.SerializeToString())


def golden(steps: int = 100) -> Golden:
    """A robot at rest at home, told to stand, in episodes of four steps: step k answers (1 + k, k)
    and half of the answer before."""
    target, action = [], np.zeros(JOINTS)
    for k in np.arange(steps) % 4:
        action = 0.5 * action * (k > 0) + np.array([1.0, 0.0]) + k
        target.append(HOME + action)
    still, up = np.zeros((steps, 3)), np.tile([0.0, 0.0, 1.0], (steps, 1))
    joints, reset = np.tile(HOME, (steps, 1)), np.arange(steps) % 4 == 0
    return Golden(joints, still, 9.81 * up, up, np.zeros((steps, 1)), reset, np.array(target))


def write(folder: Path, **other: Any) -> Bundle:
    described = contract(**other)
    Bundle.write(folder, described, graph(described), golden()._asdict())
    return Bundle.read(folder)
