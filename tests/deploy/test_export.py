"""The shipped policies as bundles: the graph answers as torch does, over real simulation with
resets."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from mocap_data.errors import InputError
from npmp import robots, tasks
from npmp.actuators.models import ActuatorContract, make
from npmp.core import artifact
from npmp.core.settings import changed
from npmp.deploy import Bundle, OnnxPolicy
from npmp.deploy.export import EXCITED, EXCITED_STEPS, contract_of, export, record
from npmp.deploy.golden_check import check_golden
from npmp.deploy.onnx_policy import ROLLOUT_TOLERANCE, TOLERANCE, Golden, Readings, check_parity
from npmp.envs import TaskEnv
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.rollout import Transition, rollout
from npmp.sim.randomization import PhysicsConfig
from npmp.skills import policies
from npmp.skills.high_level_policy import HighLevelPolicy, find_module
from npmp.skills.nets import NetConfig
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.skills.skill_module import SkillContract, SkillModule
from npmp.tasks import Walk, WalkConfig

if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")):
    pytest.skip("the extra deploy is not installed", allow_module_level=True)


def loaded(name: str) -> tuple[HighLevelPolicy, SkillModule]:
    folder = policies.find(name)
    policy = HighLevelPolicy.load(folder)
    return policy, SkillModule.load(find_module(folder, policy.contract.module_sha256))


def env_of(policy: HighLevelPolicy, skill: SkillModule, num_envs: int = 2) -> TaskEnv:
    """The policy's task, encoders off by up to 0.05 rad, episodes of a second."""
    kind, robot = tasks.find(policy.contract.task), robots.load(policy.contract.robot)
    trained = tasks.trained_config(kind, policy.contract.training)
    config = replace(kind.resolve(trained, None, policy.contract.input_settings), episode_s=1.0)
    like = RobotBatchConfig(physics=PhysicsConfig(joint_offset=0.05)).like(skill)
    return TaskEnv(kind(robot, config), num_envs, robots=like, num_threads=1)


@pytest.mark.parametrize("name", ["anymal_b_dribble", "anymal_b_dribble_student", "op3_walk"])
def test_the_graph_answers_as_torch_does(name: str, tmp_path: Path) -> None:
    """A walking ANYmal goes through the command, in tests/experiments/test_bundle.py."""
    policy, skill = loaded(name)
    env = env_of(policy, skill)
    bundle = export(tmp_path, policy, skill, env, sha256="2", steps=160, about={"seed": 0})
    contract, golden = bundle.contract, bundle.golden()
    steps = 160 + EXCITED * EXCITED_STEPS
    assert len(golden.reset) == steps and golden.reset.sum() >= 4 + EXCITED and golden.reset[0]
    assert contract.golden == {"steps": steps, "resets": int(golden.reset.sum()), "seed": 0}
    assert np.ptp(golden.target[:160], 0).max() > 0.1  # it moves
    parity = check_parity(bundle.policy(), golden)
    assert parity.times_rounding <= TOLERANCE and parity.in_rollout <= ROLLOUT_TOLERANCE

    robot = robots.load(contract.robot)
    assert contract.joint_names == list(robot.joint_names)
    assert contract.command_names == policy.contract.command
    np.testing.assert_array_equal(contract.command_range.T, policy.contract.command_range)
    np.testing.assert_array_equal(contract.home_pose, robot.home_joints)
    np.testing.assert_array_equal(contract.per_joint("kp"), robot.kp)
    np.testing.assert_array_equal(contract.joint_range, [robot.joint_lower, robot.joint_upper])
    assert not np.signbit(contract.per_joint("kd")).any()
    assert (contract.hold, contract.accelerometer) == (skill.hold, skill.accelerometer)
    assert contract.licence and contract.task == policy.contract.task
    for command in contract.commands:
        assert command.meaning and command.unit in ("m", "m/s", "rad/s")
    ball = contract.conventions.get("ball", "")
    radii = {
        "anymal_b_dribble": "radius drawn from 0.105 to 0.129 m",
        "anymal_b_dribble_student": "radius drawn from 0.07 to 0.17 m",
    }
    assert ball.endswith(radii.get(name, "")) and bool(ball) == (contract.task == "dribble")


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_the_joint_table_says_where_a_turned_joint_moves_its_body(name: str) -> None:
    """A body moved by its joint alone: turned about axis through anchor, by the right-hand rule."""
    folder = {"anymal_b": "anymal_b_walk", "op3": "op3_walk"}[name]
    policy, skill = loaded(folder)
    model = robots.load(name).model(visuals=False)
    contract = contract_of(policy, skill, env_of(policy, skill).task, sha256="", golden={})

    def at(body: str, angle: float, k: int) -> tuple[np.ndarray, np.ndarray]:
        data = mujoco.MjData(model)
        data.qpos[:] = 0.0
        data.qpos[3], data.qpos[7 + k] = 1.0, angle
        mujoco.mj_kinematics(model, data)
        return data.body(body).xpos.copy(), data.body(body).xmat.reshape(3, 3).copy()

    for k, joint in enumerate(contract.joints):
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, np.r_[np.cos(0.15), np.sin(0.15) * np.array(joint.axis)])
        (before, frame), (after, turned) = at(joint.body, 0.0, k), at(joint.body, 0.3, k)
        rotation, anchor = turn.reshape(3, 3), np.array(joint.anchor)
        np.testing.assert_allclose(turned, rotation @ frame, atol=1e-8)
        np.testing.assert_allclose(after, anchor + rotation @ (before - anchor), atol=1e-8)
        assert model.body(joint.body).parentid[0] == model.body(joint.parent).id


def test_discrete_codes_are_in_the_graph(tmp_path: Path) -> None:
    """The prior's levels are those of the decoder; latents in the memory are not rounded."""
    robot = robots.load("anymal_b")
    torch.manual_seed(0)
    net = NetConfig(latent_dim=4, encoder_width=8, decoder_width=16, lstm_width=8, prior="fsq")
    contract = SkillContract.for_robot(robot, net, context_size=20, context_horizon=5)
    skill = SkillModule(contract).requires_grad_(False)
    sizes = HighLevelConfig(input_width=16, hidden_width=16, lstm_width=8)
    policy = HighLevelPolicy.for_task(skill, Walk(robot), net=sizes)
    for head in (skill.decoder.head, policy.net.head):
        torch.nn.init.normal_(head.weight, std=0.3)
    env = env_of(policy, skill)
    bundle = export(tmp_path, policy, skill, env, sha256="2", steps=40, about={})
    golden = bundle.golden()
    parity = check_parity(bundle.policy(), golden)
    assert parity.times_rounding <= TOLERANCE and parity.in_rollout <= ROLLOUT_TOLERANCE
    z = golden.memory[:, :4]
    assert np.ptp(z[z != 0.0]) > 0.5 and not np.isin(z.round(4), (-1.0, -0.5, 0.0, 0.5, 1.0)).all()
    assert b"Round" in (tmp_path / "policy.onnx").read_bytes()


def test_a_policy_that_is_told_more_than_a_command(tmp_path: Path) -> None:
    """Without a word about them the clock goes on with the steps and the ground is level."""
    _, module = loaded("anymal_b_walk")
    plain, robot = module.in_joint_space(), robots.load("anymal_b")
    task = Walk(
        robot,
        changed(
            WalkConfig(),
            clock_s=0.5,
            sees_ground=True,
            ground_noise_m=0.0,
            camera={"size": [3, 3], "pitch_deg": 30.0},
            terrain="stairs",
            episode_s=1.0,
            root_height_m=0.45,
        ),
    )
    torch.manual_seed(0)
    net = HighLevelConfig(input_width=16, hidden_width=16, lstm_width=16)
    policy = HighLevelPolicy.for_task(plain, task, net=net, bound=[4.0] * 12)
    env = TaskEnv(task, 2, robots=RobotBatchConfig().like(plain), num_threads=1)
    bundle = export(tmp_path, policy, plain, env, sha256="2", steps=120, about={})
    contract, golden, acting = bundle.contract, bundle.golden(), bundle.policy()
    assert contract.command_names == ["forward_mps", "lateral_mps", "yaw_rate_rps"]
    clock = ["clock_sin", "clock_cos"]
    assert contract.extra_inputs[:3] == [*clock, "ground_LF_FOOT_-0.10_-0.05_m"]
    assert contract.clock_s == 0.5 and golden.command.shape[1] == 110
    assert contract.extra_inputs[-1] == "depth_2_2_m"
    assert contract.camera is not None and contract.camera["pitch_deg"] == 30.0
    # the middle ray goes down by half of its length
    high = robot.home_qpos[2] + contract.camera["place_m"][2]
    assert contract.level_depths_m[4] == pytest.approx(2.0 * high, rel=0.01)
    assert np.ptp(golden.command[:, 5:], 0).max() > 0.1  # it sees stairs
    assert check_parity(acting, golden).times_rounding <= TOLERANCE
    readings = [Readings(*row) for row in zip(*golden[:4], strict=True)]
    answers: list[list[np.ndarray]] = [[], []]
    for told, result in enumerate(answers):
        acting.reset()
        for t in range(20):
            angle = 2.0 * np.pi * t / 25.0  # 50 Hz: a period of 25 steps
            # of a robot that walks lower than it stands
            level = np.full(96, robot.home_qpos[2] - 0.45)
            level = np.concatenate((level, contract.level_depths_m))
            whole = np.concatenate(([0.5, 0.0, 0.0, np.sin(angle), np.cos(angle)], level))
            result.append(acting.act(readings[t], whole if told else whole[:3]))
    np.testing.assert_allclose(*answers, atol=1e-6)
    assert np.ptp(answers[0], 0).max() > 1e-3
    with pytest.raises(ValueError, match=r"command is \(100,\), expected \(110,\)"):
        acting.act(readings[0], np.zeros(100))


def other_order(graph: bytes) -> bytes:
    """The same graph, whose products are each the sum of those of the odd and of the even inputs,
    from the last to the first."""
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load_model_from_string(graph)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for k, node in enumerate(nodes):
        if node.op_type != "Gemm":
            model.graph.node.append(node)
            continue
        matrix = numpy_helper.to_array(weights[node.input[1]])
        for part, every in enumerate((slice(None, None, -2), slice(-2, None, -2))):
            columns = np.arange(matrix.shape[1])[every]
            choice = np.zeros((matrix.shape[1], len(columns)), np.float32)
            choice[columns, np.arange(len(columns))] = 1.0
            own = np.ascontiguousarray(matrix.T[columns])
            for name, value in ((f"c{k}_{part}", choice), (f"w{k}_{part}", own)):
                model.graph.initializer.append(numpy_helper.from_array(value, name))
            model.graph.node.append(
                helper.make_node("MatMul", [node.input[0], f"c{k}_{part}"], [f"x{k}_{part}"])
            )
            model.graph.node.append(
                helper.make_node("MatMul", [f"x{k}_{part}", f"w{k}_{part}"], [f"y{k}_{part}"])
            )
        terms = [f"y{k}_0", f"y{k}_1", *node.input[2:]]
        model.graph.node.append(helper.make_node("Sum", terms, node.output))
    return bytes(model.SerializeToString())


def weight_off(graph: bytes, name: str, latents: int) -> bytes:
    """The same graph, where the largest weight of an initializer is 1e-4 more: of the policy's head
    one for the mean of its latents, as a bundle has no use for their deviation."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load_model_from_string(graph)
    tensor = next(one for one in model.graph.initializer if one.name == name)
    values = numpy_helper.to_array(tensor).copy()
    used = values[:latents] if name == "policy.upper.net.head.weight" else values
    used.flat[np.abs(used).argmax()] += 1e-4
    tensor.CopyFrom(numpy_helper.from_array(values, name))
    return bytes(model.SerializeToString())


def matrices(graph: bytes) -> list[str]:
    """Names of the layers' matrices."""
    import onnx

    initializers = onnx.load_model_from_string(graph).graph.initializer
    return [one.name for one in initializers if len(one.dims) == 2 and "weight" in one.name]


def difference(bundle: Bundle, graph: bytes, steps: int) -> float:
    """`Parity.times_rounding` of a graph over the last golden steps, which include the excited."""
    whole = bundle.golden()
    golden = Golden(*(part[-steps:] for part in whole[:-1]), whole.rounding)
    return check_parity(OnnxPolicy(bundle.contract, graph), golden).times_rounding


def test_a_weight_that_is_off_shows_and_another_order_of_sums_does_not(tmp_path: Path) -> None:
    """Of a policy of 16 units without a module's decoder: each of its matrices."""
    _, module = loaded("anymal_b_walk")
    plain, robot = module.in_joint_space(), robots.load("anymal_b")
    torch.manual_seed(0)
    net = HighLevelConfig(input_width=16, hidden_width=16, lstm_width=16)
    task = Walk(robot, WalkConfig(episode_s=1.0))
    policy = HighLevelPolicy.for_task(plain, task, net=net, bound=[4.0] * 12)
    # before training the head is nearly 0, so that nothing before it counts
    for matrix in policy.net.parameters():
        if matrix.ndim == 2:
            torch.nn.init.normal_(matrix, std=0.3)
    env = TaskEnv(task, 2, robots=RobotBatchConfig().like(plain), num_threads=1)
    bundle = export(tmp_path, policy, plain, env, sha256="2", steps=100, about={})
    assert difference(bundle, other_order(bundle.graph), 400) <= TOLERANCE
    names = matrices(bundle.graph)
    assert len(names) == 6
    for name in names:
        graph = weight_off(bundle.graph, name, bundle.contract.memory["z"])
        assert difference(bundle, graph, 400) > TOLERANCE, name


@pytest.mark.slow
@pytest.mark.parametrize("name", policies.names())
def test_every_shipped_policy_is_judged_by_its_weights(name: str, tmp_path: Path) -> None:
    """Whatever the processor: a child process checks what this one exported."""
    policy, skill = loaded(name)
    env = env_of(policy, skill)
    # long enough for commands of each component
    steps = 300
    bundle = export(tmp_path, policy, skill, env, sha256="2", steps=steps, about={"seed": 0})
    assert check_golden(bundle).times_rounding <= TOLERANCE
    assert np.all(policy.contract.command_range == bundle.contract.command_range.T)
    every = steps + EXCITED * EXCITED_STEPS
    assert difference(bundle, other_order(bundle.graph), every) <= TOLERANCE
    for matrix in matrices(bundle.graph):
        graph = weight_off(bundle.graph, matrix, bundle.contract.memory["z"])
        assert difference(bundle, graph, 400) > TOLERANCE, matrix


def test_what_was_asked_last_is_the_setpoint_that_simulation_shows() -> None:
    """`Readings` has no setpoint: a robot's own memory of it is what it saw in training, encoder
    offsets and all."""
    policy, skill = loaded("anymal_b_walk")
    env, seen = env_of(policy, skill), []

    def note(moment: Transition) -> None:
        seen.append((moment.observation.is_first, moment.output.action, env.observe()[:, 12:24]))

    from npmp.skills.composition import over

    env.reset()
    rollout(over(policy, skill), env, 40, note)
    for _, action, shown in seen:
        torch.testing.assert_close(shown, action, atol=1e-6, rtol=0.0)


def test_the_recording_is_what_torch_answered_to_what_was_sensed() -> None:
    policy, skill = loaded("anymal_b_walk")
    golden = record(policy, skill, env_of(policy, skill), 40)
    again = record(policy, skill, env_of(policy, skill), 40)
    for one, other in zip(golden, again, strict=True):
        np.testing.assert_array_equal(one, other)
    memory, reset = golden.memory[:40], golden.reset[:40]
    assert not memory[reset].any() and memory[~reset].any(0).mean() > 0.9
    assert golden.memory[40:].any(0).all() and golden.reset[40::EXCITED_STEPS].all()
    golden = Golden(*(part[:40] for part in golden[:-1]), golden.rounding)
    np.testing.assert_allclose(np.linalg.norm(golden.up, axis=-1), 1.0, atol=1e-5)
    # two robots, one after the other
    assert golden.reset.tolist() == [t % 20 == 0 for t in range(40)]
    assert 5.0 < golden.accelerometer[:, 2].mean() < 15.0


def test_a_module_whose_actions_are_torques_is_refused() -> None:
    policy, skill = loaded("anymal_b_walk")
    other = SkillModule(replace(skill.contract, training={"actuator": {"name": "torque"}}))
    with pytest.raises(InputError, match="actuator=torque"):
        contract_of(policy, other, env_of(policy, skill).task, sha256="", golden={})


def test_gains_are_those_of_the_drives_in_training(tmp_path: Path) -> None:
    """A servo of 45 Nm/rad and 1.5 Nm s/rad, which no PD of the robot's 100 and 2.4 is."""
    policy, skill = loaded("anymal_b_walk")
    task, drives, other = env_of(policy, skill).task, tmp_path / "knee", tmp_path / "other"
    for folder, seed in ((drives, 0), (other, 1)):
        torch.manual_seed(seed)
        scales = [[0.1, 1.0], [0.0, 0.0], 7.0, [45.0, 1.5, 0.1]]
        make(ActuatorContract("mlp", 400.0, ["knee"], [], False, *scales)).save(folder)
    ideal = contract_of(policy, skill, task, sha256="", golden={})
    with pytest.raises(InputError, match=r"actuator=.*ideal drives"):
        contract_of(policy, skill, task, drives=str(drives), sha256="", golden={})
    trained = {"name": "knee", "sha256": artifact.sha256(drives / "actuator.safetensors")}
    policy.contract = replace(
        policy.contract, training={**policy.contract.training, "actuator": trained}
    )
    with pytest.raises(InputError, match="knee"):
        contract_of(policy, skill, task, sha256="", golden={})
    with pytest.raises(InputError, match=r"actuator=.*knee"):
        contract_of(policy, skill, task, drives=str(other), sha256="", golden={})
    told = contract_of(policy, skill, task, drives=str(drives), sha256="", golden={"steps": 1})
    assert set(told.per_joint("kp")) == {45.0} and set(told.per_joint("kd")) == {1.5}
    assert told.golden == {"steps": 1, "actuator": trained}
    assert replace(told, joints=ideal.joints, golden={}) == ideal
    # of two kinds: either, but not both at once
    both = {"name": "pd+knee", "sha256": f"pd+{trained['sha256']}"}
    training = {**policy.contract.training, "actuator": both}
    policy.contract = replace(policy.contract, training=training)
    assert contract_of(policy, skill, task, sha256="", golden={}).joints == ideal.joints
    again = contract_of(policy, skill, task, drives=str(drives), sha256="", golden={"steps": 1})
    assert again.joints == told.joints and again.golden == told.golden
    wired = RobotBatchConfig(
        hold=skill.hold, accelerometer=skill.accelerometer, actuator=f"pd+{drives}"
    )
    env = TaskEnv(task, 2, robots=wired, num_threads=1)
    with pytest.raises(InputError, match="drives"):
        export(tmp_path / "bundle", policy, skill, env, sha256="", steps=100, about={})
    assert not (tmp_path / "bundle").exists()
