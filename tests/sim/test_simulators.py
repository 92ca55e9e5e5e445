"""Simulators agree with each other, and a new one is one class."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.actuators.models import ActuatorModel
from npmp.envs import TaskEnv
from npmp.robots import Robot
from npmp.sim import BatchSim, Simulator, add_contact_sensors, flat_scene, register
from npmp.sim.batch import sensor_columns
from npmp.sim.drives import Drives
from npmp.sim.randomization import PhysicsConfig, PhysicsRandomizer, PushConfig, Pusher
from npmp.sim.staged import StagedBatchSim
from npmp.tasks import Walk, WalkConfig
from tests.environments import EVERYTHING, imitation_env

VARIED = replace(EVERYTHING, payload=(0.0, 3.0), torsional=(0.005, 0.02), rolling=(0.0001, 0.01))


def random_states(robot: Robot, n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Robots tilted by some 20 degrees, from 5 cm within the floor to 30 cm above it: qpos, qvel,
    and targets near the joints."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    qpos = torch.tensor(robot.home_qpos).repeat(n, 1)
    nu = qpos.shape[1] - 7
    qpos[:, 7:] += 0.3 * normal(n, nu)
    qpos[:, 2] += torch.linspace(-0.05, 0.3, n)
    turn = torch.cat((torch.ones(n, 1), 0.2 * normal(n, 3)), -1)
    qpos[:, 3:7] = turn / turn.norm(dim=-1, keepdim=True)
    return qpos, 0.5 * normal(n, 6 + nu), (qpos[:, 7:] + 0.2 * normal(n, nu)).float()


def placed(sim: Simulator, qpos: Tensor, qvel: Tensor) -> Simulator:
    sim.set_state(torch.arange(len(qpos)), qpos, qvel)
    return sim


def simulators(robot: Robot, n: int) -> tuple[BatchSim, StagedBatchSim]:
    """Both of the same scene with its contact sensors."""
    model = flat_scene(robot, lambda spec: add_contact_sensors(spec, robot))
    rate = robot.control_rate_hz
    batch = BatchSim(model, n, control_rate_hz=rate, num_threads=1)
    cpu = torch.device("cpu")
    return batch, StagedBatchSim(model, n, control_rate_hz=rate, num_threads=1, device=cpu)


def randomized_steps(sim: Simulator, robot: Robot, config: PhysicsConfig) -> None:
    """Six control steps of six robots with randomized physics and pushes; two are reset after
    three."""
    qpos, qvel, ctrl = random_states(robot, 6, seed=1)
    physics = PhysicsRandomizer(sim, robot, config)
    generator = torch.Generator().manual_seed(2)
    pusher = Pusher(sim, 1, PushConfig(force=100.0, gap_s=0.03, duration_s=0.1), 0.02)
    ids = torch.arange(6)
    physics.sample(ids, generator)
    placed(sim, qpos, qvel)
    pusher.begin(ids, generator)
    for k in range(6):
        sim.step(ctrl)
        pusher.advance(generator)
        if k == 2:
            some = torch.tensor([1, 4])
            physics.sample(some, generator)
            sim.set_state(some, qpos[some], qvel[some])
            pusher.begin(some, generator)
    assert pusher.force.any()


def test_drawn_physics_and_pushes_do_the_same(robot: Robot) -> None:
    """Every field that varies, and the constants derived from them; robots that are reset in
    between."""
    both = simulators(robot, 6)
    config = replace(
        VARIED, condim=(3, 4, 6), cone=("pyramidal", "elliptic"), impratio=(1.0, 100.0)
    )
    for sim in both:
        randomized_steps(sim, robot, config)
    assert torch.equal(both[1].qpos, both[0].qpos) and torch.equal(both[1].qvel, both[0].qvel)


def test_snapshots_resets_and_moves(robot: Robot) -> None:
    _, sim = simulators(robot, 3)
    qpos, qvel, ctrl = random_states(robot, 3)
    placed(sim, qpos, qvel)
    sim.wrench(1)[:, 0] = torch.tensor([0.0, 5.0, 10.0])
    sim.step(ctrl)
    kept, ended = sim.snapshot(), []
    for _ in range(2):
        sim.restore(kept)
        sim.step(ctrl, ctrl + 0.1)
        ended.append((sim.qpos.clone(), sim.qvel.clone()))
    assert torch.equal(ended[0][0], ended[1][0]) and torch.equal(ended[0][1], ended[1][1])
    sim.set_state(torch.tensor([2]), qpos[2:], qvel[2:])
    assert sim.wrench(1)[:, 0].tolist() == [0.0, 5.0, 0.0]
    assert torch.equal(sim.qpos[2], qpos[2])
    assert torch.equal(sim.qpos[:2], ended[0][0][:2])
    sim.move(torch.tensor([0]), qpos[2:], qvel[2:])
    assert torch.equal(sim.qvel[0], qvel[2])
    assert sim.wrench(1)[:, 0].tolist() == [0.0, 5.0, 0.0]
    with pytest.raises(KeyError):
        sim.sensor("none such")


def test_a_state_stays_what_it_was(robot: Robot, motions: MotionSet) -> None:
    """Whatever the simulator does with its memory."""
    env = imitation_env(robot, motions, 2)
    state = env.step(torch.zeros(2, 12)).state
    kept = state.pack().clone()
    env.step(torch.full((2, 12), 0.3))
    env.reset()
    assert torch.equal(state.pack(), kept)


def test_rejoin_turns_a_robot_without_the_physics_noticing(
    robot: Robot, motions: MotionSet
) -> None:
    """After being sent to another frame, robots move on as they would have, but for place and
    heading."""
    env = imitation_env(robot, motions, 2)
    kept = {name: value.clone() for name, value in env.state_dict().items()}
    joints = []
    for rejoin in (False, True):
        env.load_state_dict(kept)
        env.step(torch.zeros(2, 12))
        if rejoin:
            env.task.tracking.rejoin(torch.ones(2, dtype=torch.bool))
        env.step(torch.zeros(2, 12))
        joints.append(env.state.joint_pos.clone())
    torch.testing.assert_close(joints[1], joints[0], rtol=0.0, atol=1e-4)


class Loop:
    """A simulator that steps one `mujoco.MjData` after the other."""

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        *,
        device: torch.device,
        control_rate_hz: float,
        num_threads: int = 0,
        actuators: Sequence[ActuatorModel | None] = (None,),
    ):
        self.model = model
        self.num_envs = num_envs
        self.device = device
        self.substeps = round(1.0 / (control_rate_hz * model.opt.timestep))
        self.drives: Drives | None = None
        self._data = [mujoco.MjData(model) for _ in range(num_envs)]
        self.qpos = self._of("qpos")
        self.qvel = self._of("qvel")
        self._wrench = torch.zeros(num_envs, model.nbody, 6, dtype=torch.float64)

    def _of(self, name: str) -> Tensor:
        return torch.tensor(np.stack([getattr(data, name) for data in self._data]))

    def set_state(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        for i in ids.tolist():
            mujoco.mj_resetData(self.model, self._data[i])
        self._wrench[ids] = 0.0
        self.move(ids, qpos, qvel)

    def move(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        self.qpos[ids] = qpos.to(self.qpos)
        self.qvel[ids] = qvel.to(self.qvel)

    def step(self, ctrl: Tensor, previous: Tensor | None = None) -> None:
        assert previous is None
        for i, data in enumerate(self._data):
            data.qpos[:] = self.qpos[i].numpy()
            data.qvel[:] = self.qvel[i].numpy()
            data.ctrl[:] = ctrl[i].numpy()
            data.xfrc_applied[:] = self._wrench[i].numpy()
            mujoco.mj_step(self.model, data, self.substeps)
        self.qpos = self._of("qpos")
        self.qvel = self._of("qvel")

    def wrench(self, body: int) -> Tensor:
        return self._wrench[:, body]

    def sensor(self, name: str) -> Tensor:
        return self._of("sensordata")[:, sensor_columns(self.model, name)]

    def drive_forces(self) -> Tensor:
        return self._of("qfrc_actuator")

    def expand(self, names: Sequence[str]) -> dict[str, Tensor]:
        assert not names
        return {}

    def set_const(self, ids: Tensor) -> None:
        raise NotImplementedError

    def broken(self) -> Tensor:
        return torch.zeros(self.num_envs, dtype=torch.bool)

    def warnings(self, i: int) -> list[str]:
        return []

    def snapshot(self) -> Tensor:
        return torch.cat((self.qpos, self.qvel, self._of("qacc_warmstart")), -1)

    def restore(self, state: Tensor) -> None:
        sizes = self.model.nq, self.model.nv, self.model.nv
        self.qpos, self.qvel, warm = (part.clone() for part in state.split(sizes, -1))
        for data, row in zip(self._data, warm, strict=True):
            data.qacc_warmstart[:] = row.numpy()


def test_a_third_backend_is_one_class(robot: Robot) -> None:
    """A class and its registration run an environment, which agrees with MuJoCo's batch."""
    register("loop", Loop)
    envs = [
        TaskEnv(Walk(robot, WalkConfig()), 3, num_threads=1, engine=engine)
        for engine in ("", "loop")
    ]
    assert isinstance(envs[1].robots.sim, Loop)
    kept = envs[1].state_dict()
    for _ in range(5):
        steps = [env.step(torch.full((3, 12), 0.1)) for env in envs]
        torch.testing.assert_close(steps[1].state.pack(), steps[0].state.pack())
    ended = steps[1].state.pack().clone()
    envs[1].load_state_dict(kept)
    for _ in range(5):
        envs[1].step(torch.full((3, 12), 0.1))
    assert torch.equal(envs[1].state.pack(), ended)
    with pytest.raises(InputError, match="loop"):
        TaskEnv(Walk(robot, WalkConfig()), 1, engine="lop")


def test_simulators_stay_in_their_rooms() -> None:
    """Only npmp.sim and npmp.envs use an environment's simulator."""
    root = Path(__file__).resolve().parents[2] / "npmp"
    users = {
        path.relative_to(root).parts[0]
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "sim"
    }
    assert users <= {"sim", "envs"}
