"""A velocity policy of another project as a `Policy`, by its `PolicyDescription`.

The observations are those that the policy was trained with, at the end of the control step. The
suite's noise and delay are added to them: the difference of a reading of `proprioception` from the
exact one. The base's linear velocity is exact, as it has no sensor.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.input_files import reading, regular_file
from npmp.core.tree import Tree, leaves, map_tree, stack_trees
from npmp.deploy.onnx_policy import open_session
from npmp.deploy.policy_description import PolicyDescription, Term, read_description
from npmp.deploy.unitree import MOTORS
from npmp.envs import RobotBatchConfig
from npmp.envs.features import proprioception_layout
from npmp.envs.policy import Observation, PolicyOutput
from npmp.robots import Robot
from npmp.sim.randomization import JointPhysics

# largest file [D]
MAX_BYTES = 1 << 28
# ends of a recurrent state's names at the input and the output: rsl_rl; npmp
RECURRENT = (("_in", "_out"), ("", "_next"))


class OnnxNetwork:
    """An ONNX graph of observations and recurrent states."""

    def __init__(self, path: Path):
        """Raises InputError for a graph with other inputs."""
        graph = regular_file(path, at_most=MAX_BYTES).read_bytes()
        self._session = open_session(graph, path.name, weights_folder=path.parent)
        self.metadata = dict(self._session.get_modelmeta().custom_metadata_map)
        first, *others = self._session.get_inputs()
        outputs = [output.name for output in self._session.get_outputs()]
        self._states = dict[str, str]()
        self._shapes = dict[str, tuple[int, ...]]()
        for entry in others:
            after = [re.sub(f"{a}$", b, entry.name) for a, b in RECURRENT if entry.name.endswith(a)]
            matches = [name for name in after if name in outputs and name != entry.name]
            if not matches:
                raise InputError(
                    f"'{path.name}': input '{entry.name}': expected one observation and recurrent"
                    " states (h_in and h_out); does the policy follow a motion?"
                )
            self._states[entry.name] = matches[0]
            self._shapes[entry.name] = tuple(s if isinstance(s, int) else 1 for s in entry.shape)
        self._input = first.name
        self._action = next(name for name in outputs if name not in self._states.values())
        if first.type != "tensor(float)" or len(first.shape) != 2:
            raise InputError(
                f"'{path.name}': input {first.name} {first.shape}: expected [1, width]"
            )
        # of the input, 0 if unknown
        self.width = first.shape[1] if isinstance(first.shape[1], int) else 0

    def initial_state(self) -> Tree:
        """The recurrent state at an episode's start."""
        return {name: torch.zeros(shape) for name, shape in self._shapes.items()}

    def __call__(self, observations: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Actions (n, J) of observations (n, w), and the next state; most graphs have n = 1."""
        feed = {name: value.numpy() for name, value in state.items()}
        feed[self._input] = observations.numpy()
        action, *after = self._session.run([self._action, *self._states.values()], feed)
        states = dict(zip(self._states, map(torch.from_numpy, after), strict=True))
        return torch.from_numpy(action), states


class TorchScriptNetwork:
    """The same of a TorchScript module, which contains code. Its recurrent state is in its buffers
    and in the attributes that `forward` sets."""

    def __init__(self, path: Path):
        regular_file(path, at_most=MAX_BYTES)
        with reading(path):
            self._module = torch.jit.load(str(path), map_location="cpu").eval()
        self.metadata = dict[str, str]()
        self.width = 0
        for name in ("reset", "reset_memory"):
            if hasattr(self._module, name):
                getattr(self._module, name)()
        self._names = [name for name, _ in self._module.named_buffers()]
        self._names += re.findall(r"self\.(\w+) = ", self._module.code)
        self._initial = self._state()

    def initial_state(self) -> Tree:
        return self._initial

    @torch.no_grad()
    def __call__(self, observations: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        buffers = dict(self._module.named_buffers())
        for name, value in state.items():
            if name in buffers:
                buffers[name].set_(value.clone())
            else:
                setattr(self._module, name, value.clone())
        output = self._module(observations)
        action = output[0] if isinstance(output, tuple) else output
        return action.reshape(len(observations), -1), self._state()

    def _state(self) -> dict[str, Tensor]:
        buffers = dict(self._module.named_buffers())
        values = {
            name: buffers[name] if name in buffers else getattr(self._module, name)
            for name in self._names
        }
        return {name: value.clone() for name, value in values.items() if isinstance(value, Tensor)}


Network: TypeAlias = OnnxNetwork | TorchScriptNetwork


class ExternalState(NamedTuple):
    """The state of an `ExternalPolicy`; zero at an episode's start, except the network's."""

    action: Tensor  # (n, J) the last output
    read_pos: Tensor  # (n, nu) joint angles of the last observation, minus home [rad]
    step: Tensor  # (n,) since the episode's start
    history: tuple[Tensor, ...]  # per term (n, H, w), the oldest first
    network: Tree


def call_network(
    network: Network, observations: Tensor, states: Tree, axis: int | None
) -> tuple[Tensor, Tree]:
    """Actions (n, J) of observations (n, w), and the next states, leaves (n, ...).

    axis: of a state's leaves, along which one call has all robots; None: a call per robot.
    """
    if axis is None:
        rows = [
            network(observations[i : i + 1], map_tree(lambda leaf, i=i: leaf[i], states))
            for i in range(len(observations))
        ]
        return torch.cat([row for row, _ in rows]), stack_trees([state for _, state in rows])
    batch = map_tree(lambda leaf: leaf.transpose(0, 1 + axis).squeeze(0), states)
    actions, after = network(observations, batch)
    return actions, map_tree(lambda leaf: leaf.unsqueeze(0).transpose(0, 1 + axis), after)


def batch_axis(network: Network, observations: Tensor) -> int | None:
    """The axis with which `call_network` equals a call per robot, to rounding; None: no axis.

    observations: (n, w) of robots that differ, for three steps; before the third, all robots but
      the first start again.
    """
    count = len(observations)

    def three_steps(axis: int | None) -> list[Tensor]:
        states = stack_trees([network.initial_state()] * count)
        first, states = call_network(network, observations, states, axis)
        second, states = call_network(network, observations.flip(0), states, axis)
        advanced = map_tree(lambda leaf: leaf[0], states)
        states = stack_trees([advanced, *[network.initial_state()] * (count - 1)])
        third, states = call_network(network, observations, states, axis)
        return [first, second, third, *leaves(states)]

    expected = three_steps(None)
    for axis in (0, 1):
        # most graphs and some modules refuse a batch
        with suppress(InputError), reading("a batch"):
            pairs = zip(expected, three_steps(axis), strict=True)
            if all(
                a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs
            ):
                return axis
    return None


class ExternalPolicy:
    """A network between the observations and the targets of its description."""

    def __init__(self, network: Network, description: PolicyDescription, robot: Robot, name: str):
        """robot: in the policy's default pose, at its control rate (`adapted`). name: for errors.

        Raises:
          InputError: for a network of another width.
        """
        self.network = network
        self.description = d = description
        self._layout = [width for _, width in proprioception_layout(len(robot.joint_names))]
        self._ids = [robot.joint_names.index(joint) for joint in d.joint_names]
        self._home = _tensor(robot.home_joints)
        self._default = _tensor(d.default_joint_pos)
        self._scale = _tensor(d.action_scale)
        self._offset = _tensor(d.action_offset)
        self._low, self._high = _tensor(d.action_clip).T
        self._scales = [_tensor(term.scale) for term in d.terms]
        widths = ", ".join(
            f"{term.name} {len(term.scale)} x {term.history_length}" for term in d.terms
        )
        if network.width not in (0, d.width):
            raise InputError(
                f"'{name}': {d.width} observations ({widths}): expected {network.width} as in the "
                "graph"
            )
        example = torch.linspace(-1.0, 1.0, d.width)[None]
        with reading(f"'{name}' of {d.width} observations ({widths})"):
            action, _ = network(example, network.initial_state())
            again, _ = network(example, network.initial_state())
        if not torch.equal(action, again):
            raise InputError(
                f"'{name}': actions differ for the same observation and recurrent state: expected "
                "the state in buffers or in tensors that forward sets"
            )
        if action.shape != (1, len(self._ids)):
            raise InputError(
                f"'{name}': {action.shape[-1]} actions: expected {len(self._ids)} as in joint_names"
            )
        # of the recurrent states, along which a call has all robots; None: a call per robot
        self.batch_axis = batch_axis(network, torch.cat((example, 0.5 - example)))

    def initial_state(self, n: int) -> ExternalState:
        """The state at the start of n episodes."""
        d = self.description
        return ExternalState(
            torch.zeros(n, len(self._ids)),
            torch.zeros(n, len(self._home)),
            torch.zeros(n),
            tuple(torch.zeros(n, t.history_length, len(t.scale)) for t in d.terms),
            stack_trees([self.network.initial_state()] * n),
        )

    def step(
        self, observation: Observation, state: ExternalState
    ) -> tuple[PolicyOutput, ExternalState]:
        """As `Policy.step`."""
        d = self.description
        device = observation.task.device
        o = map_tree(lambda leaf: leaf.cpu(), observation)
        readings, read_pos = self._readings(o, state)
        is_first = o.is_first.reshape(-1, 1, 1)
        history = []
        for term, scale, old in zip(d.terms, self._scales, state.history, strict=True):
            frame = self._frame(term, readings, scale).unsqueeze(1)
            shifted = torch.cat((old[:, 1:], frame), 1)
            history.append(torch.where(is_first, frame.expand_as(old), shifted))

        frames = [part.flip(1) for part in history] if d.newest_first else history
        if d.use_gym_history:
            inputs = torch.cat(frames, -1).flatten(1)
        else:
            inputs = torch.cat([part.flatten(1) for part in frames], -1)

        output, network = call_network(self.network, inputs, state.network, self.batch_axis)
        action = output.float()
        target = (self._offset + self._scale * action).clamp(self._low, self._high)
        relative = torch.zeros_like(read_pos)
        relative[:, self._ids] = target - self._home[self._ids]
        after = ExternalState(action, read_pos, state.step + 1.0, tuple(history), network)
        return PolicyOutput(relative.to(device)), after

    def _readings(
        self, observation: Observation, state: ExternalState
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Observations by name, and all joint angles minus home (n, nu)."""
        robot = observation.state
        read_pos, _, gyro, _, up = observation.proprioception.split(self._layout, -1)
        first = observation.is_first.unsqueeze(-1)
        velocity = (read_pos - state.read_pos) / self.description.step_dt
        error = torch.where(first, torch.zeros_like(velocity), velocity - robot.joint_vel)
        command = observation.task[:, :3]
        readings = {
            "base_lin_vel": robot.root_vel_end,
            "base_ang_vel": robot.root_ang_end + gyro - robot.root_ang,
            "projected_gravity": -up,
            "velocity_commands": command,
            "command_lin_vel": command[:, :2],
            "command_ang_vel": command[:, 2:],
            "joint_pos_rel": (read_pos + self._home)[:, self._ids] - self._default,
            "joint_vel_rel": (robot.joint_vel_end + error)[:, self._ids],
            "last_action": state.action,
            "time": (state.step * self.description.step_dt).unsqueeze(-1),
        }
        return readings, read_pos

    def _frame(self, term: Term, readings: dict[str, Tensor], scale: Tensor) -> Tensor:
        """The current frame of a term, (n, w)."""
        if term.name in readings:
            value = readings[term.name]
        else:
            angle = 2.0 * math.pi * readings["time"] / term.period_s
            both = torch.cat((angle, angle + math.pi), -1)
            value = {
                "gait_phase": lambda: torch.cat((angle.sin(), angle.cos()), -1),
                "sin_phase": both.sin,
                "cos_phase": both.cos,
            }[term.name]()
        if self.description.scale_first:
            return (value * scale).clamp(*term.clip)
        return value.clamp(*term.clip) * scale


def adapted(robot: Robot, description: PolicyDescription, name: str) -> Robot:
    """The robot in the policy's default pose, at its control rate; joints that the policy does not
    have stay in the robot's home pose.

    Raises:
      InputError: for unknown joints, or a pose outside of the joints' limits.
    """
    d = description
    if unknown := sorted(set(d.joint_names) - set(robot.joint_names)):
        raise InputError(
            f"'{name}': joint_names: {', '.join(unknown[:3])}: not joints of robot '{robot.name}': "
            f"{', '.join(robot.joint_names)}"
        )
    home = np.array(robot.home_joints)
    ids = [robot.joint_names.index(joint) for joint in d.joint_names]
    home[ids] = d.default_joint_pos
    outside = (home < robot.joint_lower - 1e-3) | (home > robot.joint_upper + 1e-3)
    if outside.any():
        i = int(outside.argmax())
        raise InputError(
            f"'{name}': default_joint_pos: {robot.joint_names[i]}={home[i]:g}: must be from "
            f"{robot.joint_lower[i]:.4g} to {robot.joint_upper[i]:.4g} [rad]; is joint_names in "
            "the policy's order?"
        )
    return replace(robot.with_home(home), control_rate_hz=round(1.0 / d.step_dt, 6))


def with_gains(robots: RobotBatchConfig, description: PolicyDescription) -> RobotBatchConfig:
    """The config of robots with the policy's gains."""
    d = description
    nominal = dict(robots.physics.nominal)
    for joint, kp, kd in zip(d.joint_names, d.joint_stiffness, d.joint_damping, strict=True):
        nominal[joint] = replace(nominal.get(joint, JointPhysics()), kp=float(kp), kd=float(kd))
    return replace(robots, physics=replace(robots.physics, nominal=nominal))


def load(
    path: Path, robot: Robot, *, description: Path | None = None, trust: bool = False
) -> tuple[ExternalPolicy, Robot]:
    """A policy's file and the robot `adapted` to it.

    Args:
      description: a YAML file of `policy_description.KEYS`; None: beside the policy.
      trust: whether to load TorchScript, which contains code.

    Raises:
      InputError: for TorchScript without trust, and for a policy that does not fit.
    """
    if path.suffix == ".onnx":
        network: Network = OnnxNetwork(path)
    elif trust:
        network = TorchScriptNetwork(path)
    else:
        raise InputError(
            f"{path}: TorchScript contains code: trust=true loads it, if you trust its authors"
        )
    motors = MOTORS.get(robot.name, ("", []))[1]
    own = read_description(path, network.metadata, motors, description)
    robot = adapted(robot, own, path.name)
    return ExternalPolicy(network, own, robot, path.name), robot


def _tensor(values: Any) -> Tensor:
    return torch.tensor(np.array(values), dtype=torch.float32)
