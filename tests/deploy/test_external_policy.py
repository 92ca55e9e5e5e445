"""Policies of other projects: networks, observations and targets, by hand."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from npmp import robots
from npmp.core.tree import Tree
from npmp.deploy.external_policy import (
    ExternalPolicy,
    OnnxNetwork,
    TorchScriptNetwork,
    adapted,
    batch_axis,
    call_network,
    load,
    with_gains,
)
from npmp.deploy.policy_description import PolicyDescription, Term
from npmp.envs import RobotBatchConfig
from npmp.envs.features import proprioception
from npmp.envs.policy import Observation
from npmp.envs.state import RobotState
from npmp.robots import Robot
from npmp.sim.randomization import JointPhysics, PhysicsConfig
from tests.refusals import refusal

GO2 = "unitree_go2"
# in another order than the robot's
JOINTS = ("FR_thigh_joint", "FL_hip_joint")


def term(name: str, width: int, **other: Any) -> Term:
    values: dict[str, Any] = {"clip": (-np.inf, np.inf), "history_length": 1, "period_s": 1.0}
    return Term(name, **{"scale": np.ones(width), **values, **other})


def description(*terms: Term, **other: Any) -> PolicyDescription:
    two = np.ones(2)
    values: dict[str, Any] = {
        "joint_names": JOINTS,
        "joint_stiffness": 30.0 * two,
        "joint_damping": 0.5 * two,
        "default_joint_pos": np.array([0.8, 0.2]),
        "action_scale": np.array([0.5, 0.25]),
        "action_offset": np.array([0.8, 0.2]),
        "action_clip": np.array([[-np.inf, np.inf]] * 2),
        "step_dt": 0.02,
        "command_range": np.array([[-1.0, 1.0]] * 3),
    }
    return PolicyDescription(terms=terms, **{**values, **other})


class Echo:
    """Records its inputs, and acts with 1 and 2, 3 and 4 and so on."""

    width = 0

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}
        self.inputs: list[list[float]] = []

    def initial_state(self) -> Tree:
        return {"count": torch.zeros(1)}

    def __call__(self, observations: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        self.inputs += [[round(value, 5) for value in row] for row in observations.tolist()]
        count = state["count"]
        return torch.stack((2.0 * count + 1.0, 2.0 * count + 2.0), -1), {"count": count + 1.0}


def robot_of(d: PolicyDescription) -> Robot:
    return adapted(robots.load(GO2), d, "x")


def moving(robot: Robot, hip: float = 0.0, hip_vel: float = 0.0) -> RobotState:
    """A robot in its home pose plus `hip` [rad] at the left front hip; it turns about its axes by
    1, 2, 3 rad/s, its right front thigh by 4 rad/s."""
    home = torch.tensor(robot.home_joints, dtype=torch.float32)[None]
    pos = home.clone()
    pos[:, 0] += hip
    velocity = torch.zeros_like(pos)
    velocity[:, 0] = hip_vel
    velocity[:, robot.joint_names.index("FR_thigh_joint")] = 4.0
    turn = torch.tensor([[1.0, 2.0, 3.0]])
    rotation = torch.eye(3)[None]
    return RobotState.steady(
        (torch.zeros(1, 3), rotation, pos), torch.tensor([[0.5, 0.0, 0.0]]), turn, velocity
    )


def observed(robot: Robot, state: RobotState, *, is_first: bool = True) -> Observation:
    home = torch.tensor(robot.home_joints, dtype=torch.float32)
    return Observation(
        proprioception(state, home),
        torch.tensor([[0.3, -0.2, 0.1]]),
        is_first=torch.tensor([is_first]),
        state=state,
    )


def acting(d: PolicyDescription) -> tuple[ExternalPolicy, Echo, Robot]:
    echo = Echo()
    robot = robot_of(d)
    policy = ExternalPolicy(echo, d, robot, "x")
    echo.inputs.clear()
    return policy, echo, robot


def test_observations_and_targets() -> None:
    """Scaled and clipped, in the policy's joints; targets are relative to the home pose, which is
    the policy's default pose."""
    d = description(
        term("base_lin_vel", 3),
        term("base_ang_vel", 3, scale=np.array([0.5, 1.0, 2.0]), clip=(-1.5, 2.5)),
        term("projected_gravity", 3),
        term("command_lin_vel", 2, scale=np.array([2.0, 2.0])),
        term("command_ang_vel", 1),
        term("joint_pos_rel", 2),
        term("joint_vel_rel", 2, scale=np.full(2, 0.05)),
        term("last_action", 2),
    )
    policy, echo, robot = acting(d)
    output, state = policy.step(
        observed(robot, moving(robot, hip=0.1, hip_vel=6.0)), policy.initial_state(1)
    )
    expected = [0.5, 0, 0, 0.5, 2.0, 5.0, 0, 0, -1, 0.6, -0.4, 0.1, 0, 0.1, 0.2, 0.3, 0, 0]
    assert echo.inputs == [pytest.approx(expected)]

    # 0.8 + 0.5 * 1, 0.2 + 0.25 * 2, minus home; other joints hold their home pose
    thigh = robot.joint_names.index("FR_thigh_joint")
    expected_action = torch.zeros(1, 12)
    expected_action[0, thigh] = 0.5
    expected_action[0, 0] = 0.5
    torch.testing.assert_close(output.action, expected_action)

    policy.step(observed(robot, moving(robot), is_first=False), state)
    assert echo.inputs[1][-2:] == [1.0, 2.0]


def test_targets_are_clipped() -> None:
    d = description(
        term("last_action", 2),
        action_offset=np.zeros(2),
        action_clip=np.array([[-1.0, 0.4], [0.6, 1.0]]),
    )
    policy, _, robot = acting(d)
    output, _ = policy.step(observed(robot, moving(robot)), policy.initial_state(1))
    # 0.5 and 0.5 become 0.4 and 0.6; the default pose is 0.8 and 0.2
    thigh = robot.joint_names.index("FR_thigh_joint")
    assert output.action[0, [thigh, 0]].tolist() == pytest.approx([-0.4, 0.4])


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        # per term, the oldest first; the first frame fills the history
        ({}, [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 2]]),
        ({"use_gym_history": True}, [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 2]]),
        ({"newest_first": True}, [[0, 0, 0, 0, 0, 0], [1, 2, 0, 0, 0, 0]]),
    ],
)
def test_histories(switches: dict[str, bool], expected: list[list[float]]) -> None:
    d = description(term("last_action", 2, history_length=3), **switches)
    policy, echo, robot = acting(d)
    state = policy.initial_state(1)
    for step in range(2):
        _, state = policy.step(observed(robot, moving(robot), is_first=step == 0), state)
    assert echo.inputs == expected


def test_whole_frames() -> None:
    """With use_gym_history each frame has all terms."""
    d = description(
        term("joint_pos_rel", 2, history_length=2),
        term("last_action", 2, history_length=2),
        use_gym_history=True,
    )
    policy, echo, robot = acting(d)
    _, state = policy.step(observed(robot, moving(robot)), policy.initial_state(1))
    policy.step(observed(robot, moving(robot, hip=0.1), is_first=False), state)
    assert echo.inputs == [pytest.approx([0] * 8), pytest.approx([0, 0, 0, 0, 0, 0.1, 1, 2])]


def test_clocks() -> None:
    """A quarter of a period after the start; sin_phase is of two clocks half a period apart."""
    terms = [term(name, 2, period_s=0.08) for name in ("gait_phase", "sin_phase", "cos_phase")]
    policy, echo, robot = acting(description(*terms))
    _, state = policy.step(observed(robot, moving(robot)), policy.initial_state(1))
    policy.step(observed(robot, moving(robot), is_first=False), state)
    assert echo.inputs[0] == pytest.approx([0, 1, 0, 0, 1, -1], abs=1e-5)
    assert echo.inputs[1] == pytest.approx([1, 0, 1, -1, 0, 0], abs=1e-5)


def test_noise_is_added_to_the_readings() -> None:
    """An error of 0.01 rad of the angle read, after none: 0.5 rad/s over 0.02 s."""
    d = description(term("joint_pos_rel", 2), term("joint_vel_rel", 2), term("base_ang_vel", 3))
    policy, echo, robot = acting(d)
    still = moving(robot, hip_vel=0.0)
    _, state = policy.step(observed(robot, still), policy.initial_state(1))
    noisy = observed(robot, still._replace(joint_vel=0.0 * still.joint_vel), is_first=False)
    noisy.proprioception[:, 0] += 0.01
    noisy.proprioception[:, 24] += 0.1
    policy.step(noisy, state)
    assert echo.inputs[1] == pytest.approx([0, 0.01, 4.0, 0.5, 1.1, 2.0, 3.0])


def test_the_robot_is_the_policys() -> None:
    d = description(term("last_action", 2), step_dt=0.01)
    robot = robots.load(GO2)
    other = adapted(robot, d, "x")
    assert other.control_rate_hz == 100.0
    home = dict(zip(robot.joint_names, robot.home_joints, strict=True))
    home |= {"FR_thigh_joint": 0.8, "FL_hip_joint": 0.2}
    assert dict(zip(other.joint_names, other.home_joints, strict=True)) == home
    # the feet stay on the ground
    np.testing.assert_allclose(robot.with_home(robot.home_joints).home_qpos, robot.home_qpos)
    preset = RobotBatchConfig(physics=PhysicsConfig(nominal={JOINTS[0]: JointPhysics(damping=0.1)}))
    nominal = with_gains(preset, d).physics.nominal
    assert nominal[JOINTS[0]] == JointPhysics(damping=0.1, kp=30.0, kd=0.5)
    assert nominal[JOINTS[1]] == JointPhysics(kp=30.0, kd=0.5)


def test_refusals_of_a_robot() -> None:
    d = description(term("last_action", 2))
    robot = robots.load(GO2)
    refusal("joint_names: knee", adapted, robot, replace(d, joint_names=("knee", JOINTS[1])), "x")
    outside = replace(d, default_joint_pos=np.array([9.0, 0.0]))
    refusal("default_joint_pos: FR_thigh_joint", adapted, robot, outside, "x")
    refusal("1 actions", ExternalPolicy, Width(4), replace(d), robot_of(d), "x")
    refusal("expected 5", ExternalPolicy, Width(5), d, robot_of(d), "x")


class Width(Echo):
    """One action, whatever the description says."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = 2 if width == 4 else width

    def __call__(self, observations: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        return torch.zeros(1, 1), state


# --- networks ---

WITHOUT_ONNX = any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime"))
# observations of two robots
ROBOTS = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
needs_onnx = pytest.mark.skipif(WITHOUT_ONNX, reason="the extra deploy is not installed")


def save_graph(path: Path, nodes: list[Any], inputs: dict[str, list[int]], *, outside: str = ""):
    """An ONNX file with outputs of the inputs' shapes: actions, and h_out with a second input."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def tensors(shapes: dict[str, list[int]]) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in shapes.items()
        ]

    first, *others = inputs
    outputs = {"actions": inputs[first]} | {
        name.replace("_in", "_out"): inputs[name] for name in others
    }
    weight = numpy_helper.from_array(np.full((1, 2), 3.0, np.float32), "three")
    graph = helper.make_graph(nodes, "g", tensors(inputs), tensors(outputs), [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if outside:
        onnx.save(
            model,
            path,
            save_as_external_data=True,
            location=outside,
            size_threshold=0,
            convert_attribute=False,
        )
    else:
        onnx.save(model, path)


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(kind, inputs.split(), [output], **attributes)


@needs_onnx
def test_a_recurrent_graph(tmp_path: Path) -> None:
    """rsl_rl's signature: actions = 3 obs + h_in, h_out = h_in + obs."""
    path = tmp_path / "policy.onnx"
    save_graph(
        path,
        [
            node("Mul", "obs three", "tripled"),
            node("Squeeze", "h_in", "h"),
            node("Add", "tripled h", "actions"),
            node("Add", "h_in obs", "h_out"),
        ],
        {"obs": [1, 2], "h_in": [1, 1, 2]},
    )
    network = OnnxNetwork(path)
    assert network.width == 2
    action, state = network(torch.tensor([[1.0, 2.0]]), network.initial_state())
    assert action.tolist() == [[3.0, 6.0]]
    action, _ = network(torch.tensor([[0.0, 1.0]]), state)
    assert action.tolist() == [[1.0, 5.0]]
    assert batch_axis(network, ROBOTS) is None


@needs_onnx
def test_weights_beside_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    nodes = [node("Mul", "obs three", "actions")]
    save_graph(path, nodes, {"obs": [1, 2]}, outside="policy.onnx.data")
    assert OnnxNetwork(path)(torch.ones(1, 2), {})[0].tolist() == [[3.0, 3.0]]
    path.write_bytes(path.read_bytes().replace(b"policy.onnx.data", b"../icy.onnx.data"))
    refusal("same folder", OnnxNetwork, path)


@needs_onnx
def test_graphs_that_are_refused(tmp_path: Path) -> None:
    from onnx import helper

    path = tmp_path / "policy.onnx"
    nodes = [node("Mul", "obs three", "actions"), node("Identity", "time_step", "after")]
    save_graph(path, nodes, {"obs": [1, 2], "time_step": [1, 1]})
    refusal("time_step", OnnxNetwork, path)
    save_graph(path, [node("Mul", "obs three", "actions", domain="evil")], {"obs": [1, 2]})
    refusal("evil.Mul", OnnxNetwork, path)
    body = helper.make_graph([node("Identity", "obs", "x")], "b", [], [])
    loop = node("If", "obs", "actions", then_branch=body, else_branch=body)
    save_graph(path, [loop], {"obs": [1, 2]})
    refusal("If", OnnxNetwork, path)


class Sum(torch.nn.Module):
    """Adds its inputs up in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.full((1, 2), 7.0))

    def forward(self, x: Tensor) -> Tensor:
        self.total += x
        return self.total


class Counter(torch.nn.Module):
    """A sum, and the last input, which it keeps in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = Sum()
        self.last = torch.zeros(1, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        before = self.last
        self.last = x
        return self.sum(x) + 10.0 * before, x

    @torch.jit.export
    def reset(self) -> None:
        self.sum.total[:] = 0.0


def test_torchscript(tmp_path: Path) -> None:
    """The state starts after `reset`, and is that of each robot."""
    path = tmp_path / "policy.pt"
    torch.jit.script(Counter()).save(str(path))
    network = TorchScriptNetwork(path)
    zero = network.initial_state()
    action, state = network(torch.tensor([[1.0, 2.0]]), zero)
    assert action.tolist() == [[1.0, 2.0]]
    assert network(torch.tensor([[1.0, 0.0]]), state)[0].tolist() == [[12.0, 22.0]]
    assert network(torch.tensor([[1.0, 2.0]]), zero)[0].tolist() == [[1.0, 2.0]]


class Layers(torch.nn.Module):
    """Two layers' states in a buffer, (layer, robot, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hidden", torch.zeros(2, 1, 2))

    def forward(self, x: Tensor) -> Tensor:
        self.hidden += torch.stack((x, 2.0 * x))
        return self.hidden.sum(0)


class Mean(torch.nn.Module):
    """Accepts a batch, and mixes its rows."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.mean()


class Filled(torch.nn.Module):
    """A history that the first observation fills, if it is zero for all robots."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("history", torch.zeros(1, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        frame = x.unsqueeze(1)
        if bool((self.history == 0.0).all()):
            self.history = frame.repeat(1, 3, 1)
        else:
            self.history = torch.cat((self.history[:, 1:], frame), 1)
        return self.history.sum(1)


def test_batches(tmp_path: Path) -> None:
    """One call has all robots where it equals a call per robot; each has its own state."""
    path = tmp_path / "policy.pt"
    for module, axis in ((Counter(), 0), (Layers(), 1), (Mean(), None), (Filled(), None)):
        torch.jit.script(module).save(str(path))
        assert batch_axis(TorchScriptNetwork(path), ROBOTS) == axis

    torch.jit.script(Layers()).save(str(path))
    network = TorchScriptNetwork(path)
    states = {"hidden": torch.tensor([[[[1.0, 0.0]], [[0.0, 0.0]]], [[[0.0, 5.0]], [[7.0, 0.0]]]])}
    actions, after = call_network(network, ROBOTS, states, 1)
    # the sum of the layers' states, and 3 x
    assert actions.tolist() == [[4.0, 6.0], [16.0, -7.0]]
    assert after["hidden"].tolist() == [
        [[[2.0, 2.0]], [[2.0, 4.0]]],
        [[[3.0, 1.0]], [[13.0, -8.0]]],
    ]


class Hidden(torch.nn.Module):
    """A sum in a tuple, which is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = (torch.zeros(1, 12), 0)

    def forward(self, x: Tensor) -> Tensor:
        self.kept = (self.kept[0] + x[:, :12], 0)
        return self.kept[0]


def test_torchscript_with_state_elsewhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    torch.jit.script(Hidden()).save(str(path))
    own = {
        "joint_names": list(robots.load(GO2).joint_names),
        "joint_stiffness": 20.0,
        "joint_damping": 0.5,
        "action_scale": 0.25,
        "step_dt": 0.02,
        "default_joint_pos": robots.load(GO2).home_joints.tolist(),
        "command_ranges": [[-1, 1], [-1, 1], [-1, 1]],
        "observations": ["joint_pos"],
    }
    path.with_suffix(".yaml").write_text(yaml.safe_dump(own))
    refusal("recurrent state", load, path, robots.load(GO2), trust=True)


def test_torchscript_needs_trust(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    path.write_bytes(b"")
    refusal("trust=true", load, path, robots.load(GO2))
    # no archive of TorchScript: a pickle is not read
    torch.save({"actor": torch.zeros(1)}, path)
    refusal("policy.pt", load, path, robots.load(GO2), trust=True)
