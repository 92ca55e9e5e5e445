"""Export a policy and its module as a bundle: the graph by torch's exporter, the contract, and a
golden rollout in simulation."""

from __future__ import annotations

import logging
import math
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mocap_data.errors import InputError, importing
from npmp import actuators
from npmp.core import artifact
from npmp.core.tree import map_tree
from npmp.deploy.bundle import Bundle
from npmp.deploy.contract import (
    GRAVITY,
    MEMORY,
    UNITS,
    BundleContract,
    Command,
    JointSpec,
    conventions,
    observation_layout,
)
from npmp.deploy.onnx_policy import Golden, OnnxPolicy, check_parity
from npmp.envs.camera import DepthCamera
from npmp.envs.policy import Observation, PolicyOutput
from npmp.envs.robot_batch import RobotBatchConfig, imu_position
from npmp.envs.rollout import Transition, rollout
from npmp.envs.task import Task
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.robots.model import posed
from npmp.sim.drives import IDEAL
from npmp.skills.composition import Composition, CompositionState, over
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets import DecoderState
from npmp.skills.skill_module import SkillContract, SkillModule

# the exporter's lowest; onnxruntime supports it since 1.14
OPSET = 18
# episodes with random readings and memory, which exercise weights that walking leaves idle [D]
EXCITED = 100
# steps of such an episode [D]
EXCITED_STEPS = 4
# standard deviation of their readings, relative to the rollout's [D]
SPREAD = 2.0
# standard deviation of their memory [D]
MEMORY_SPREAD = 0.5
_PLACE = "of the heading frame, from the root's origin; measured"
MEANINGS = {
    "forward_mps": "velocity of the root along X of the heading frame",
    "lateral_mps": "velocity of the root along Y of the heading frame: to the left",
    "yaw_rate_rps": "turning about the world's vertical: counter-clockwise seen from above",
    "ball_forward_m": f"the ball's centre along X {_PLACE}",
    "ball_left_m": f"the ball's centre along Y, to the left, {_PLACE}",
    "ball_radius_m": "its radius",
    "target_forward_m": f"the ball's target along X {_PLACE}",
    "target_left_m": f"the ball's target along Y, to the left, {_PLACE}",
    "stand_height": "of the root above the ground, as a share of that in the home pose",
}


def export(
    folder: str | Path,
    policy: HighLevelPolicy,
    skill: SkillModule,
    env: TaskEnv[Any],
    *,
    sha256: str,
    steps: int,
    about: dict[str, Any],
) -> Bundle:
    """Write a bundle and read it back.

    Args:
      policy, skill: must belong together (`HighLevelPolicy.check_module`).
      env: the policy's task with the module's robot and the drives of training, for the golden
        rollout.
      sha256: of the policy's weights. steps: minimum of the rollout. about: entries of
        `contract.golden`.

    Raises:
      InputError: for a module of another robot, other drives than in training or several kinds, or
        if onnx is absent.
    """
    skill.check_robot(env.robot)
    policy.check_task(env.task)
    config = env.robots.config
    if len(config.drives) > 1:
        raise InputError(f"actuator={config.actuator}: expected one kind of drives")
    golden = record(policy, skill, env, steps)
    about = {"steps": len(golden.reset), "resets": int(golden.reset.sum())} | about
    drives = next(iter(config.real_drives), None)
    contract = contract_of(policy, skill, env.task, drives=drives, sha256=sha256, golden=about)
    graph = graph_of(policy, skill, contract)
    rounding = check_parity(OnnxPolicy(contract, graph), golden).error
    Bundle.write(folder, contract, graph, golden._replace(rounding=rounding)._asdict())
    return Bundle.read(folder)


# --- the contract ---


def contract_of(
    policy: HighLevelPolicy,
    skill: SkillModule,
    task: Task,
    *,
    drives: str | None = None,
    sha256: str,
    golden: dict[str, Any],
) -> BundleContract:
    """The content of bundle.json. Raises InputError if actions were not joint angles in training,
    and as `_gains`."""
    own = policy.contract
    module = skill.contract
    robot = task.robot
    for training in (own.training, module.training):
        drive = training.get("actuator", {"name": IDEAL})
        if drive["name"] != IDEAL and "sha256" not in drive:
            raise InputError(
                f"actuator={drive['name']} in training: its actions are no joint angles; only joint"
                " angles can be exported"
            )
    if (own.camera or {}).get("eyes"):
        raise InputError("the policy estimates depths from images, which cannot be exported")
    gains = _gains(own.training, module, drives)
    if drives is not None:
        golden = golden | {"actuator": RobotBatchConfig(actuator=drives).drives_record()}
    meaning = conventions(skill.hold, skill.accelerometer)
    if (radius := getattr(task.config, "radius_m", None)) is not None:
        least, most = radius
        meaning["ball"] = f"a sphere on the ground, radius drawn from {least:g} to {most:g} m"
    commands = []
    for name, pair in zip(own.command, own.command_range, strict=True):
        unit = UNITS.get(name.rpartition("_")[2], "")
        commands.append(Command(name, unit, list(pair), MEANINGS.get(name, "")))
    high = policy.net.config.lstm_width
    low = skill.decoder.lstm_width
    return BundleContract(
        robot=module.robot,
        model_sha256=module.model_sha256,
        joints=joint_table(robot, module, *gains),
        control_rate_hz=module.control_rate_hz,
        physics_rate_hz=module.physics_rate_hz,
        hold=skill.hold,
        accelerometer=skill.accelerometer,
        imu_position=imu_position(robot.model(), robot).tolist(),
        observation=observation_layout(len(module.joint_names)),
        commands=commands,
        extra_inputs=own.extra_inputs,
        clock_s=own.clock_s,
        level_m=_level(task),
        camera=own.camera,
        level_depths_m=_level_depths(task),
        memory=dict(zip(MEMORY, (policy.latent_dim, high, high, low, low), strict=True)),
        task=own.task,
        module_sha256=own.module_sha256,
        policy_sha256=sha256,
        licence=list(module.training.get("licences", [])),
        data=Path(module.training.get("data", "")).name,
        opset=OPSET,
        golden=golden,
        versions=artifact.versions(),
        conventions=meaning,
    )


def joint_table(
    robot: Robot, module: SkillContract, kp: list[float], kd: list[float]
) -> list[JointSpec]:
    """Each joint as the model has it, in the zero pose."""
    model = robot.model(visuals=False)
    table = []
    data = posed(model)
    for k, name in enumerate(robot.joint_names):
        joint = model.joint(name).id
        body = model.jnt_bodyid[joint]
        dof = model.jnt_dofadr[joint]
        numbers = {
            "home": module.home_pose[k],
            "kp": kp[k],
            "kd": kd[k],
            "torque_limit": module.torque_limit[k],
            "velocity_limit": robot.velocity_limit[k],
            "joint_damping": model.dof_damping[dof],
            "joint_friction": model.dof_frictionloss[dof],
            "armature": model.dof_armature[dof],
        }
        # + 0.0: no -0.0
        table.append(
            JointSpec(
                name=name,
                body=model.body(body).name,
                parent=model.body(model.body_parentid[body]).name,
                axis=(data.xaxis[joint].round(9) + 0.0).tolist(),
                anchor=(data.xanchor[joint].round(9) + 0.0).tolist(),
                range=[float(robot.joint_lower[k]), float(robot.joint_upper[k])],
                **{key: float(value) + 0.0 for key, value in numbers.items()},
            )
        )
    return table


def _gains(
    training: dict[str, Any], module: SkillContract, drives: str | None
) -> tuple[list[float], list[float]]:
    """kp [Nm/rad] and kd [Nm s/rad] of each joint's drive in training, for a fitted model the
    nearest constant gains.

    drives: the folder of one of the models; None: ideal drives with the robot's gains.

    Raises:
      InputError: for other drives than in training.
    """
    trained = {"name": "ideal drives", "sha256": IDEAL} | training.get("actuator", {})
    name = trained["name"]
    checksums = trained["sha256"].split("+")
    if drives is None:
        if IDEAL not in checksums:
            raise InputError(
                f"actuator: not set; the policy was trained with '{name}', whose gains differ from"
                " the robot's; set actuator=FOLDER"
            )
        return module.kp, module.kd
    if artifact.sha256(Path(drives) / "actuator.safetensors") not in checksums:
        raise InputError(
            f"actuator={drives}: sha256 differs from that of {name}, which the policy was trained "
            "with"
        )
    stiffness, damping = nearest_gains(drives)
    return [stiffness] * len(module.joint_names), [damping] * len(module.joint_names)


def nearest_gains(drives: str) -> tuple[float, float]:
    """The constant kp [Nm/rad] and kd [Nm s/rad] that are nearest to a fitted model of drives, in
    the folder `drives`. Raises InputError if kp would be negative."""
    stiffness, damping, _ = actuators.load(drives).contract.baseline
    if not stiffness > 0.0:
        raise InputError(
            f"actuator={drives}: kp={stiffness:g} of its nearest constant gains: must be above 0"
        )
    return stiffness, max(damping, 0.0)


def _level(task: Task) -> float:
    """The observed height of level ground [m]: the root's height at home minus that in walking."""
    height_m = getattr(task.config, "root_height_m", None)
    if height_m is None or not task.extra_inputs:
        return 0.0
    return float(task.robot.home_qpos[2]) - float(height_m)


def _level_depths(task: Task) -> list[float]:
    """The depths of level ground from the home pose [m]; [] without a camera."""
    camera = task.part(DepthCamera)
    if camera is None:
        return []
    position = torch.zeros(1, 3)
    level = torch.eye(3)[None]
    position[0, 2] = float(task.robot.home_qpos[2])
    depths = camera.depths(position, level, lambda at: torch.zeros(at.shape[:-1]))[0]
    return [round(depth, 4) for depth in depths.tolist()]


# --- the graph ---


class _Step(nn.Module):
    """One control step of one robot, with the state as tensors."""

    def __init__(self, policy: Composition):
        super().__init__()
        self.policy = policy

    def forward(
        self,
        obs: Tensor,
        command: Tensor,
        z: Tensor,
        h_high: Tensor,
        c_high: Tensor,
        h_low: Tensor,
        c_low: Tensor,
    ) -> tuple[Tensor, ...]:
        high = DecoderState(h_high, c_high)
        low = DecoderState(h_low, c_low)
        observation = Observation(obs, command)
        output, after = self.policy.step(observation, CompositionState(high, z, low))
        return output.action, after.z, *after.upper, *after.lower


def graph_of(policy: HighLevelPolicy, skill: SkillModule, contract: BundleContract) -> bytes:
    """policy.onnx: (1, width) inputs obs, command and the memory; outputs action and the memory's
    NAME_next.

    Raises:
      InputError: if onnx or onnxscript is absent.
    """
    with importing("exporting a bundle needs onnx and onnxscript: pip install 'npmp[deploy]'"):
        import onnx  # noqa: F401 - the exporter's own message does not name the package
        import onnxscript  # noqa: F401
    observed = sum(width for _, width, _, _ in contract.observation)
    widths = {"obs": observed, "command": contract.command_width, **contract.memory}
    # the exporter warns of unused operators
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            program = torch.onnx.export(
                _Step(over(policy, skill)).eval(),
                tuple(torch.zeros(1, width) for width in widths.values()),
                dynamo=True,
                opset_version=OPSET,
                verbose=False,
                input_names=list(widths),
                output_names=["action", *(f"{name}_next" for name in MEMORY)],
            )
    finally:
        logger.setLevel(level)
    assert program is not None  # with dynamo
    model = program.model_proto
    # source locations with paths of this machine
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    del model.graph.value_info[:], model.metadata_props[:], model.graph.metadata_props[:]
    model.metadata_props.add(key="npmp", value=contract.in_graph())
    return bytes(model.SerializeToString(deterministic=True))


# --- the golden rollout ---


class _DeployedState(NamedTuple):
    policy: CompositionState
    action: Tensor  # (n, nu) of the step before, 0 at first


class _OwnSetpoint:
    """A policy that observes its own last action as the last setpoint, as on a robot; the info is
    that observation."""

    def __init__(self, policy: Composition):
        self.policy = policy
        self.joints = len(policy.lower.contract.joint_names)

    def initial_state(self, n: int) -> _DeployedState:
        state = self.policy.initial_state(n)
        return _DeployedState(state, state.z.new_zeros(n, self.joints))

    def step(
        self, observation: Observation, state: _DeployedState
    ) -> tuple[PolicyOutput, _DeployedState]:
        nu = self.joints
        proprioception = observation.proprioception.clone()
        proprioception[:, nu : 2 * nu] = state.action
        task = observation.task.clone()
        observation = observation._replace(proprioception=proprioception, task=task)
        output, policy = self.policy.step(observation, state.policy)
        return PolicyOutput(output.action, observation), _DeployedState(policy, output.action)


def record(policy: HighLevelPolicy, skill: SkillModule, env: TaskEnv[Any], steps: int) -> Golden:
    """A rollout in torch: at least `steps` control steps, robots concatenated, then `EXCITED`
    episodes of random readings. `Golden.rounding` is still zero."""
    rows: list[_Row] = []
    whole = over(policy, skill)
    env.reset()

    def keep(t: Transition) -> None:
        o: Observation = t.output.info
        rows.append(_Row(o.proprioception, o.task, o.is_first, t.output.action, t.state.policy))

    rollout(_OwnSetpoint(whole), env, math.ceil(steps / env.num_envs), keep)
    simulated = _one_after_another(rows)
    excited = _one_after_another(_excited(whole, simulated))
    senses, command, reset, action, memory = (
        torch.cat(pair) for pair in zip(simulated, excited, strict=True)
    )
    nu = action.shape[-1]
    home = torch.tensor(skill.contract.home_pose, dtype=torch.float64)
    # in double precision, so that the runtime and torch get equal inputs
    joints, _, gyro, accelerometer, up = senses.double().split((nu, nu, 3, 3, 3), -1)
    readings = (joints + home, gyro, GRAVITY * accelerometer, up)
    rounding = torch.zeros(nu + memory.shape[-1], dtype=torch.float64)
    parts = (*readings, command, reset, action + home, memory, rounding)
    return Golden(*(part.numpy() for part in parts))


class _Row(NamedTuple):
    """A control step of n robots."""

    senses: Tensor  # (n, o)
    command: Tensor  # (n, c) the task's inputs
    reset: Tensor  # (n,) bool
    action: Tensor  # (n, nu) [rad]
    memory: Any  # before the step: `CompositionState`, or (T, m) in the order of `MEMORY`


def _one_after_another(rows: list[_Row]) -> _Row:
    """Control steps of n robots as one row (T, ...), one robot's steps after another's; the memory
    in the order of `MEMORY`."""
    flat = [row._replace(memory=_in_order(row.memory)) for row in rows]
    return _Row(*(torch.stack(part, 1).flatten(0, 1) for part in zip(*flat, strict=True)))


def _in_order(state: CompositionState) -> Tensor:
    """The memory (n, m): z, then hidden state and cell of the policy, then of the decoder."""
    return torch.cat((state.z, *state.upper, *state.lower), -1)


@torch.no_grad()
def _excited(policy: Composition, simulated: _Row) -> list[_Row]:
    """Steps of `EXCITED` episodes. simulated: whose readings have mean and spread."""
    generator = torch.Generator().manual_seed(0)

    def readings(like: Tensor) -> Tensor:
        noise = torch.randn(EXCITED, like.shape[-1], generator=generator)
        return like.mean(0) + SPREAD * like.std(0) * noise

    memory = map_tree(
        lambda part: MEMORY_SPREAD * torch.randn(part.shape, generator=generator),
        policy.initial_state(EXCITED),
    )
    nu = simulated.action.shape[-1]
    setpoint = torch.zeros(EXCITED, nu)
    rows = list[_Row]()
    for step in range(EXCITED_STEPS):
        senses = readings(simulated.senses)
        command = readings(simulated.command)
        senses[:, nu : 2 * nu] = setpoint
        output, after = policy.step(Observation(senses, command), memory)
        is_first = torch.full((EXCITED,), step == 0)
        rows.append(_Row(senses, command, is_first, output.action, memory))
        setpoint = output.action
        memory = after
    return rows
