"""A bundle as mjlab, and tools that read its exports, expect a walking policy: policy.onnx of one
`obs` with mjlab's metadata, and Unitree's deploy.yaml beside it.

mjlab has no accelerometer, holds targets (zero order), and its gyro is a moment's. So the graph is
called `CALLS` times a control step: it makes the accelerometer's mean over the step of two base
velocities, the gyro's of its readings, and moves targets on from one to the next. What it needs for
that is more memory. [R: mjlab's exporter, unitree_rl_mjlab's deploy.yaml]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp.deploy.bundle import Bundle
from npmp.deploy.contract import GRAVITY, MEMORY, BundleContract
from npmp.deploy.unitree import MOTORS

# of `obs` in order: mjlab's name and deploy.yaml's; of three numbers, or one per joint
TERMS = {
    "base_lin_vel": "base_lin_vel",
    "base_ang_vel": "base_ang_vel",
    "projected_gravity": "projected_gravity",
    "joint_pos": "joint_pos_rel",
    "actions": "last_action",
    "command": "velocity_commands",
}
OF_JOINTS = ("joint_pos", "actions")
# of a control step, where targets move linearly; G1s that are held for 20 ms fall
CALLS = 4
# memory that is added: the IMU's velocity in the root frame at the control step before [m/s], the
# gyro's readings since, added up [rad/s], calls until the next control step, the actions of the
# control step before and of this one [rad]
ADDED = ("imu_velocity", "gyro_sum", "wait", "action_before", "action_held")
VELOCITY, TURNED, WAIT, BEFORE, ACTION = ADDED
# nodes of ONNX: operator, inputs, output. Is it time for a control step, and not the first (where
# the memory is 0)?
TIME = (
    ("Less", [WAIT, "half"], ["now"]),
    ("ReduceL1", [ACTION], ["known"]),
    ("Sign", ["known"], ["begun"]),
    ("Mul", ["begun", "calls_before"], ["earlier"]),
    ("Add", ["earlier", "one"], ["readings"]),
    ("Add", [TURNED, "base_ang_vel"], ["turned_so_far"]),
    ("Div", ["turned_so_far", "readings"], ["gyro"]),
    ("Where", ["now", "none", "turned_so_far"], [f"{TURNED}_next"]),
    ("Sub", [WAIT, "one"], ["less"]),
    ("Where", ["now", "calls_before", "less"], [f"{WAIT}_next"]),
)
# the IMU's velocity, how it changed in the world, seen from the root, and the accelerometer's mean
ACCELEROMETER = (
    ("MatMul", ["base_ang_vel", "arm"], ["lever"]),
    ("Add", ["base_lin_vel", "lever"], ["moving"]),
    ("Gather", ["gyro", "yzx"], ["gyro_yzx"]),
    ("Gather", ["gyro", "zxy"], ["gyro_zxy"]),
    ("Gather", [VELOCITY, "yzx"], ["before_yzx"]),
    ("Gather", [VELOCITY, "zxy"], ["before_zxy"]),
    ("Mul", ["gyro_yzx", "before_zxy"], ["left"]),
    ("Mul", ["gyro_zxy", "before_yzx"], ["right"]),
    ("Sub", ["left", "right"], ["turned"]),
    ("Sub", ["moving", VELOCITY], ["gained"]),
    ("Div", ["gained", "period"], ["gained_per_s"]),
    ("Add", ["gained_per_s", "turned"], ["changed"]),
    ("Mul", ["changed", "begun"], ["acceleration"]),
    ("Div", ["acceleration", "gravity"], ["acceleration_g"]),
    ("Neg", ["projected_gravity"], ["up"]),
    ("Add", ["acceleration_g", "up"], ["accelerometer_g"]),
    ("Where", ["now", "moving", VELOCITY], [f"{VELOCITY}_next"]),
    ("Concat", ["joint_pos", ACTION, "gyro", "accelerometer_g", "up"], ["policy_obs"]),
)
# after the policy's own nodes: targets on the way from one to the next
HOLD = (
    ("Where", ["now", ACTION, BEFORE], [f"{BEFORE}_next"]),
    ("Where", ["now", "policy_action", ACTION], [f"{ACTION}_next"]),
    ("Sub", [f"{ACTION}_next", f"{BEFORE}_next"], ["way"]),
    ("Mul", [f"{WAIT}_next", "share"], ["missing"]),
    ("Mul", ["way", "missing"], ["left_over"]),
    ("Sub", [f"{ACTION}_next", "left_over"], ["actions"]),
)
AXIS: dict[str, dict[str, Any]] = {kind: {"axis": 1} for kind in ("Gather", "Concat", "Split")}
AXES = ("lin_vel_x", "lin_vel_y", "ang_vel_z")


def write(folder: str | Path, bundle: Bundle) -> None:
    """policy.onnx and deploy.yaml.

    Raises:
      InputError: for a policy of other commands than three velocities, that sees the ground, or
        whose accelerometer is not at the IMU.
    """
    contract = bundle.contract
    inputs = [*contract.command_names, *contract.extra_inputs]
    if len(inputs) != len(AXES) or contract.extra_inputs or contract.accelerometer != "imu":
        raise InputError(
            f"format=mjlab is of blind policies with three velocities and an accelerometer at the "
            f"imu; '{contract.task}' is told {', '.join(inputs)}, with it at the "
            f"{contract.accelerometer}"
        )
    with atomic_path(Path(folder) / "policy.onnx") as path:
        path.write_bytes(graph(bundle.graph, contract))
    with atomic_path(Path(folder) / "deploy.yaml") as path:
        path.write_text(yaml.safe_dump(deploy_settings(contract), sort_keys=False))


def graph(inner: bytes, contract: BundleContract) -> bytes:
    """(1, width) inputs obs and the memory; outputs actions and the memory's NAME_next, in the same
    order."""
    import onnx
    from onnx import TensorProto, compose, helper, numpy_helper

    model = compose.add_prefix(onnx.load_from_string(inner), "policy_")
    constants = _constants(contract)
    joints = len(contract.joints)
    memory = {name: contract.memory[name] for name in MEMORY}
    own = {"command": "policy_command", "actions": "told_actions"}
    split = ("Split", ["obs", "widths"], [own.get(term, term) for term in TERMS])
    memory_inputs = tuple(("Identity", [name], [f"policy_{name}"]) for name in memory)
    kept = tuple(
        ("Where", ["now", f"policy_{name}_next", name], [f"{name}_next"]) for name in memory
    )
    memory |= dict(zip(ADDED, (3, 3, 1, joints, joints), strict=True))

    def made_of(*tables: Any) -> list[Any]:
        return [
            helper.make_node(kind, takes, gives, **AXIS.get(kind, {}))
            for table in tables
            for kind, takes, gives in table
        ]

    sides = (
        {"obs": int(constants["widths"].sum()), **memory},
        {"actions": joints, **{f"{name}_next": wide for name, wide in memory.items()}},
    )
    inputs, answered = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, w]) for n, w in side.items()]
        for side in sides
    )
    stored = [numpy_helper.from_array(v, name) for name, v in constants.items()]
    whole = helper.make_graph(
        [
            *made_of([split], TIME, ACCELEROMETER, memory_inputs),
            *model.graph.node,
            *made_of(kept, HOLD),
        ],
        "mjlab",
        inputs,
        answered,
        [*model.graph.initializer, *stored],
    )
    combined = helper.make_model(
        whole, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    combined.functions.extend(model.functions)
    for name, value in _metadata(contract).items():
        combined.metadata_props.add(key=name, value=value)
    return bytes(combined.SerializeToString(deterministic=True))


def _constants(contract: BundleContract) -> dict[str, Any]:
    """What the tables of nodes name beside each other's outputs and the memory."""
    arm = np.array(contract.imu_position)
    calls = calls_of(contract)
    joints = len(contract.joints)
    return {
        "widths": np.array([joints if term in OF_JOINTS else 3 for term in TERMS], np.int64),
        "period": np.float32(1.0 / contract.control_rate_hz),
        "gravity": np.float32(GRAVITY),
        "arm": np.cross(np.eye(3), arm).astype(np.float32),  # gyro @ arm = gyro x arm
        "yzx": np.array([1, 2, 0], np.int64),
        "zxy": np.array([2, 0, 1], np.int64),
        "half": np.float32(0.5),
        "one": np.float32(1.0),
        "none": np.float32(0.0),
        "calls_before": np.full((1, 1), calls - 1, np.float32),
        "share": np.float32(1.0 / calls),
    }


def calls_of(contract: BundleContract) -> int:
    """How often the graph is called within a control step."""
    return CALLS if contract.hold == "first_order" else 1


def _metadata(contract: BundleContract) -> dict[str, str]:
    def listed(values: Any) -> str:
        return ",".join(f"{value:.6g}" for value in values)

    return {
        "run_path": contract.policy_sha256,
        "joint_names": ",".join(contract.joint_names),
        "joint_stiffness": listed(contract.per_joint("kp")),
        "joint_damping": listed(contract.per_joint("kd")),
        "default_joint_pos": listed(contract.home_pose),
        "command_names": "twist",
        "observation_names": ",".join(TERMS),
        "action_scale": listed(np.ones(len(contract.joints))),
    }


def deploy_settings(contract: BundleContract) -> dict[str, Any]:
    """deploy.yaml: gains in the order of the robot's motors, the rest in the policy's."""
    names = contract.joint_names
    motors = MOTORS.get(contract.robot, ("", names))[1]
    at = [names.index(name) for name in motors]
    ranges = {axis: one.range for axis, one in zip(AXES, contract.commands)}
    count = len(names)
    return {
        "joint_ids_map": [motors.index(name) for name in names],
        "step_dt": 1.0 / (contract.control_rate_hz * calls_of(contract)),
        "stiffness": contract.per_joint("kp")[at].tolist(),
        "damping": contract.per_joint("kd")[at].tolist(),
        "default_joint_pos": contract.home_pose.tolist(),
        "commands": {"base_velocity": {"ranges": {**ranges, "heading": None}}},
        "actions": {
            "JointPositionAction": {
                "clip": None,
                "joint_names": [".*"],
                "scale": [1.0] * count,
                "offset": contract.home_pose.tolist(),
                "joint_ids": None,
            }
        },
        "observations": {
            term: {
                "params": {"command_name": "base_velocity"} if mjlab == "command" else {},
                "clip": None,
                "scale": [1.0] * (count if mjlab in OF_JOINTS else 3),
                "history_length": 1,
            }
            for mjlab, term in TERMS.items()
        },
    }
