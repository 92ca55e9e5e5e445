"""A bundle as mjlab, and tools that read its exports, expect a walking policy: policy.onnx of one
`obs` with mjlab's metadata, and Unitree's deploy.yaml beside it.

mjlab has no accelerometer. The graph makes its mean over a control step of two base velocities; the
first is one more memory. What differs otherwise: there targets are held (zero order), and the gyro
is a moment's. [R: mjlab's exporter, unitree_rl_mjlab's deploy.yaml]
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
VELOCITY = "imu_velocity"  # the memory that is added, in the root frame [m/s]
# nodes of ONNX: operator, inputs, output. The IMU's velocity, how it changed in the world, seen
# from the root (by nothing at first, where the memory is 0), and the accelerometer's mean
ACCELEROMETER = (
    ("MatMul", ["base_ang_vel", "arm"], ["lever"]),
    ("Add", ["base_lin_vel", "lever"], [f"{VELOCITY}_next"]),
    ("Gather", ["base_ang_vel", "yzx"], ["gyro_yzx"]),
    ("Gather", ["base_ang_vel", "zxy"], ["gyro_zxy"]),
    ("Gather", [VELOCITY, "yzx"], ["before_yzx"]),
    ("Gather", [VELOCITY, "zxy"], ["before_zxy"]),
    ("Mul", ["gyro_yzx", "before_zxy"], ["one"]),
    ("Mul", ["gyro_zxy", "before_yzx"], ["other"]),
    ("Sub", ["one", "other"], ["turned"]),
    ("Sub", [f"{VELOCITY}_next", VELOCITY], ["gained"]),
    ("Div", ["gained", "period"], ["gained_per_s"]),
    ("Add", ["gained_per_s", "turned"], ["changed"]),
    ("ReduceL1", [VELOCITY], ["known"]),
    ("Sign", ["known"], ["begun"]),
    ("Mul", ["changed", "begun"], ["acceleration"]),
    ("Div", ["acceleration", "gravity"], ["acceleration_g"]),
    ("Neg", ["projected_gravity"], ["up"]),
    ("Add", ["acceleration_g", "up"], ["accelerometer_g"]),
)
AXES = ("lin_vel_x", "lin_vel_y", "ang_vel_z")


def write(folder: str | Path, bundle: Bundle) -> None:
    """policy.onnx and deploy.yaml.

    Raises:
      InputError: as `refuse_other`.
    """
    contract = bundle.contract
    refuse_other(contract)
    with atomic_path(Path(folder) / "policy.onnx") as path:
        path.write_bytes(graph(bundle.graph, contract))
    with atomic_path(Path(folder) / "deploy.yaml") as path:
        path.write_text(yaml.safe_dump(deploy_settings(contract), sort_keys=False))


def refuse_other(contract: BundleContract) -> None:
    """Raises InputError for a policy of other commands than three velocities, that sees the ground,
    or whose accelerometer is not at the IMU."""
    told = [*contract.command_names, *contract.extra_inputs]
    if len(told) != len(AXES) or contract.extra_inputs or contract.accelerometer != "imu":
        raise InputError(
            f"format=mjlab is of blind policies with three velocities and an accelerometer at the "
            f"imu; '{contract.task}' is told {', '.join(told)}, with it at the "
            f"{contract.accelerometer}"
        )


def graph(inner: bytes, contract: BundleContract) -> bytes:
    """(1, width) inputs obs and the memory; outputs actions and the memory's NAME_next, in the same
    order."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model, joints = onnx.load_from_string(inner), len(contract.joints)
    widths = [joints if term in OF_JOINTS else 3 for term in TERMS]
    period, arm = 1.0 / contract.control_rate_hz, np.array(contract.imu_position)
    constants: dict[str, Any] = {
        "widths": np.array(widths, np.int64),
        "period": np.float32(period),
        "gravity": np.float32(GRAVITY),
        "arm": np.cross(np.eye(3), arm).astype(np.float32),  # gyro @ arm = gyro x arm
        "yzx": np.array([1, 2, 0], np.int64),
        "zxy": np.array([2, 0, 1], np.int64),
    }
    nodes = [helper.make_node("Split", ["obs", _own("widths")], [*map(_own, TERMS)], axis=1)]
    for kind, takes, gives in ACCELEROMETER:
        more: dict[str, Any] = {"axis": 1} if kind == "Gather" else {}
        nodes.append(helper.make_node(kind, [*map(_own, takes)], [*map(_own, gives)], **more))
    seen = ("joint_pos", "actions", "base_ang_vel", "accelerometer_g", "up")
    nodes.append(helper.make_node("Concat", [*map(_own, seen)], [_own("obs")], axis=1))
    renamed = {"obs": _own("obs"), "command": _own("command"), "action": "actions"}
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    memory = {name: contract.memory[name] for name in MEMORY} | {VELOCITY: 3}
    sides = (
        {"obs": sum(widths), **memory},
        {"actions": joints, **{f"{name}_next": wide for name, wide in memory.items()}},
    )
    given, answered = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, w]) for n, w in side.items()]
        for side in sides
    )
    stored = [numpy_helper.from_array(v, _own(name)) for name, v in constants.items()]
    whole = helper.make_graph(
        [*nodes, *model.graph.node], "mjlab", given, answered, [*model.graph.initializer, *stored]
    )
    made = helper.make_model(whole, opset_imports=model.opset_import, ir_version=model.ir_version)
    made.functions.extend(model.functions)
    for name, value in _metadata(contract).items():
        made.metadata_props.add(key=name, value=value)
    return bytes(made.SerializeToString(deterministic=True))


def _own(name: str) -> str:
    """A name that the inner graph has not."""
    return name if name.startswith(VELOCITY) else f"mjlab_{name}"


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
        "step_dt": 1.0 / contract.control_rate_hz,
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
