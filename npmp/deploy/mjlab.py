"""Export a bundle in the format of mjlab's walking policies: policy.onnx with the input `obs` and
mjlab's metadata, and Unitree's deploy.yaml.

mjlab has no accelerometer, holds targets (zero order), and its gyro is instantaneous. So the graph
is called `CALLS` times per control step: it derives the mean acceleration from two base velocities,
averages the gyro, and interpolates the targets. This takes additional recurrent state. [R: mjlab's
exporter, unitree_rl_mjlab's deploy.yaml]
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

# parts of `obs` in order, three numbers or one per joint: names in mjlab and in deploy.yaml
TERMS = {
    "base_lin_vel": "base_lin_vel",
    "base_ang_vel": "base_ang_vel",
    "projected_gravity": "projected_gravity",
    "joint_pos": "joint_pos_rel",
    "actions": "last_action",
    "command": "velocity_commands",
}
PER_JOINT = ("joint_pos", "actions")
# calls per control step if targets are interpolated; a G1 falls with targets held for 20 ms
CALLS = 4
# additional recurrent state
# velocity of the IMU in the root frame at the last control step [m/s]
VELOCITY = "imu_velocity"
# sum of the gyro's readings since the last control step [rad/s]
GYRO_SUM = "gyro_sum"
# calls until the next control step
WAIT = "wait"
# action of the last control step [rad]
BEFORE = "action_before"
# action of this control step [rad]
ACTION = "action_held"
ADDED = (VELOCITY, GYRO_SUM, WAIT, BEFORE, ACTION)
# ONNX nodes: operator, inputs, output
# now: whether a control step is due
# begun: whether it is not the first, at which the state is 0
# gyro: mean of the gyro's readings
TIME = (
    ("Less", [WAIT, "half"], ["now"]),
    ("ReduceL1", [ACTION], ["action_norm"]),
    ("Sign", ["action_norm"], ["begun"]),
    ("Mul", ["begun", "calls_before"], ["earlier"]),
    ("Add", ["earlier", "one"], ["readings"]),
    ("Add", [GYRO_SUM, "base_ang_vel"], ["gyro_total"]),
    ("Div", ["gyro_total", "readings"], ["gyro"]),
    ("Where", ["now", "zero", "gyro_total"], [f"{GYRO_SUM}_next"]),
    ("Sub", [WAIT, "one"], ["wait_less"]),
    ("Where", ["now", "calls_before", "wait_less"], [f"{WAIT}_next"]),
)
# velocity v of the IMU in the root frame, its change in the world dv/dt + gyro x v, and the
# accelerometer
ACCELEROMETER = (
    ("MatMul", ["base_ang_vel", "arm"], ["lever"]),
    ("Add", ["base_lin_vel", "lever"], ["moving"]),
    ("Gather", ["gyro", "yzx"], ["gyro_yzx"]),
    ("Gather", ["gyro", "zxy"], ["gyro_zxy"]),
    ("Gather", [VELOCITY, "yzx"], ["before_yzx"]),
    ("Gather", [VELOCITY, "zxy"], ["before_zxy"]),
    ("Mul", ["gyro_yzx", "before_zxy"], ["left"]),
    ("Mul", ["gyro_zxy", "before_yzx"], ["right"]),
    ("Sub", ["left", "right"], ["cross"]),
    ("Sub", ["moving", VELOCITY], ["difference"]),
    ("Div", ["difference", "period"], ["derivative"]),
    ("Add", ["derivative", "cross"], ["change"]),
    ("Mul", ["change", "begun"], ["acceleration"]),
    ("Div", ["acceleration", "gravity"], ["acceleration_g"]),
    ("Neg", ["projected_gravity"], ["up"]),
    ("Add", ["acceleration_g", "up"], ["accelerometer_g"]),
    ("Where", ["now", "moving", VELOCITY], [f"{VELOCITY}_next"]),
    ("Concat", ["joint_pos", ACTION, "gyro", "accelerometer_g", "up"], ["policy_obs"]),
)
# after the policy's own nodes: interpolated targets
HOLD = (
    ("Where", ["now", ACTION, BEFORE], [f"{BEFORE}_next"]),
    ("Where", ["now", "policy_action", ACTION], [f"{ACTION}_next"]),
    ("Sub", [f"{ACTION}_next", f"{BEFORE}_next"], ["action_change"]),
    ("Mul", [f"{WAIT}_next", "share"], ["share_left"]),
    ("Mul", ["action_change", "share_left"], ["change_left"]),
    ("Sub", [f"{ACTION}_next", "change_left"], ["actions"]),
)
AXIS: dict[str, dict[str, Any]] = {kind: {"axis": 1} for kind in ("Gather", "Concat", "Split")}
AXES = ("lin_vel_x", "lin_vel_y", "ang_vel_z")


def write(folder: str | Path, bundle: Bundle) -> None:
    """Write policy.onnx and deploy.yaml.

    Raises:
      InputError: for a policy with other commands than three velocities, with extra inputs, or with
        its accelerometer not at the IMU.
    """
    contract = bundle.contract
    inputs = [*contract.command_names, *contract.extra_inputs]
    if len(inputs) != len(AXES) or contract.extra_inputs or contract.accelerometer != "imu":
        raise InputError(
            "format=mjlab needs a policy commanded by three velocities with its accelerometer at "
            f"the imu: '{contract.task}' has {', '.join(inputs)}, at the {contract.accelerometer}"
        )
    with atomic_path(Path(folder) / "policy.onnx") as path:
        path.write_bytes(graph(bundle.graph, contract))
    with atomic_path(Path(folder) / "deploy.yaml") as path:
        path.write_text(yaml.safe_dump(deploy_settings(contract), sort_keys=False))


def graph(inner: bytes, contract: BundleContract) -> bytes:
    """The graph with (1, width) inputs obs and the recurrent state, and outputs actions and
    NAME_next in the same order. inner: the bundle's graph."""
    import onnx
    from onnx import TensorProto, compose, helper, numpy_helper

    model = compose.add_prefix(onnx.load_from_string(inner), "policy_")
    constants = _constants(contract)
    joints = len(contract.joints)
    memory = {name: contract.memory[name] for name in MEMORY}
    # the last action is part of the recurrent state already
    outputs_of = {"command": "policy_command", "actions": "unused_actions"}
    split = ("Split", ["obs", "widths"], [outputs_of.get(term, term) for term in TERMS])
    memory_inputs = tuple(("Identity", [name], [f"policy_{name}"]) for name in memory)
    memory_outputs = tuple(
        ("Where", ["now", f"policy_{name}_next", name], [f"{name}_next"]) for name in memory
    )
    memory |= dict(zip(ADDED, (3, 3, 1, joints, joints), strict=True))

    def nodes(*tables: Any) -> list[Any]:
        return [
            helper.make_node(kind, inputs, outputs, **AXIS.get(kind, {}))
            for table in tables
            for kind, inputs, outputs in table
        ]

    def tensors(widths: dict[str, int]) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width])
            for name, width in widths.items()
        ]

    combined_graph = helper.make_graph(
        [
            *nodes([split], TIME, ACCELEROMETER, memory_inputs),
            *model.graph.node,
            *nodes(memory_outputs, HOLD),
        ],
        "mjlab",
        tensors({"obs": int(constants["widths"].sum()), **memory}),
        tensors({"actions": joints, **{f"{name}_next": w for name, w in memory.items()}}),
        [
            *model.graph.initializer,
            *(numpy_helper.from_array(value, name) for name, value in constants.items()),
        ],
    )
    combined = helper.make_model(
        combined_graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    combined.functions.extend(model.functions)
    for name, value in _metadata(contract).items():
        combined.metadata_props.add(key=name, value=value)
    return bytes(combined.SerializeToString(deterministic=True))


def _constants(contract: BundleContract) -> dict[str, Any]:
    """The constants of the tables of nodes."""
    arm = np.array(contract.imu_position)
    calls = calls_of(contract)
    joints = len(contract.joints)
    return {
        "widths": np.array([joints if term in PER_JOINT else 3 for term in TERMS], np.int64),
        "period": np.float32(1.0 / contract.control_rate_hz),
        "gravity": np.float32(GRAVITY),
        "arm": np.cross(np.eye(3), arm).astype(np.float32),  # gyro @ arm = gyro x arm
        "yzx": np.array([1, 2, 0], np.int64),
        "zxy": np.array([2, 0, 1], np.int64),
        "half": np.float32(0.5),
        "one": np.float32(1.0),
        "zero": np.float32(0.0),
        "calls_before": np.full((1, 1), calls - 1, np.float32),
        "share": np.float32(1.0 / calls),
    }


def calls_of(contract: BundleContract) -> int:
    """The calls of the graph per control step."""
    return CALLS if contract.hold == "first_order" else 1


def _metadata(contract: BundleContract) -> dict[str, str]:
    def joined(values: Any) -> str:
        return ",".join(f"{value:.6g}" for value in values)

    return {
        "run_path": contract.policy_sha256,
        "joint_names": ",".join(contract.joint_names),
        "joint_stiffness": joined(contract.per_joint("kp")),
        "joint_damping": joined(contract.per_joint("kd")),
        "default_joint_pos": joined(contract.home_pose),
        "command_names": "twist",
        "observation_names": ",".join(TERMS),
        "action_scale": joined(np.ones(len(contract.joints))),
    }


def deploy_settings(contract: BundleContract) -> dict[str, Any]:
    """The content of deploy.yaml: gains in the order of the robot's motors, the rest in the
    policy's."""
    names = contract.joint_names
    motors = MOTORS.get(contract.robot, ("", names))[1]
    order = [names.index(name) for name in motors]
    ranges = {axis: command.range for axis, command in zip(AXES, contract.commands)}
    count = len(names)
    return {
        "joint_ids_map": [motors.index(name) for name in names],
        "step_dt": 1.0 / (contract.control_rate_hz * calls_of(contract)),
        "stiffness": contract.per_joint("kp")[order].tolist(),
        "damping": contract.per_joint("kd")[order].tolist(),
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
                "scale": [1.0] * (count if mjlab in PER_JOINT else 3),
                "history_length": 1,
            }
            for mjlab, term in TERMS.items()
        },
    }
