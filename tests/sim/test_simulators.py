"""Simulators agree: the staged one to the bit, mujoco_warp to what single precision leaves; in a
policy's score, too."""

from __future__ import annotations

import contextlib
import gc
import warnings
from types import SimpleNamespace

import mujoco
import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp import robots
from npmp.robots import Robot
from npmp.sim import (
    BatchSim,
    Simulator,
    StagedBatchSim,
    add_contact_sensors,
    flat_scene,
    make_simulator,
)
from npmp.sim.randomization import PhysicsConfig, PhysicsRandomizer, PushConfig, Pusher, Spread
from tests.environments import imitation_env

VARIED = PhysicsConfig(
    friction=(0.4, 1.0),
    mass=Spread(0.3, 0.1),
    com_trunk=0.05,
    com_links=0.02,
    damping=Spread(0.3, 0.1),
    friction_loss=Spread(0.3),
    gain=Spread(0.2, 0.05),
    torque=Spread(0.2, 0.05),
    payload=(0.0, 3.0),
)


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


def simulators(robot: Robot, n: int, others: str) -> tuple[Simulator, Simulator]:
    """mujoco.batch and another one, of the same scene with its contact sensors."""
    model, rate = (
        flat_scene(robot, lambda spec: add_contact_sensors(spec, robot)),
        robot.control_rate_hz,
    )
    batch = BatchSim(model, n, control_rate_hz=rate, num_threads=1)
    if others == "staged":
        return batch, StagedBatchSim(
            model, n, control_rate_hz=rate, num_threads=1, device=torch.device("cpu")
        )
    pytest.importorskip("mujoco_warp")
    return batch, make_simulator(others, model, n, control_rate_hz=rate)


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_a_control_step_of_warp_is_mujocos(name: str) -> None:
    """100 random states on and above the floor, a control step of a first-order hold; measured:
    2e-6 and 4e-5."""
    robot = robots.load(name)
    batch, warp = simulators(robot, 100, "warp")
    qpos, qvel, ctrl = random_states(robot, 100)
    for sim in (batch, warp):
        placed(sim, qpos, qvel).step(ctrl, qpos[:, 7:].float())
    assert (batch.qpos - qpos).abs().max() > 0.1  # they moved
    touched = 0
    for i in range(batch.model.nsensor):
        sensor = batch.model.sensor(i).name
        if sensor.startswith("contact_"):
            touched += int(batch.sensor(sensor).sum())
            assert torch.equal(warp.sensor(sensor), batch.sensor(sensor).float()), sensor
    assert touched > 0  # other bodies than feet, too
    torch.testing.assert_close(warp.qpos.double(), batch.qpos, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(warp.qvel.double(), batch.qvel, rtol=0.0, atol=4e-4)
    assert not warp.broken().any()


@pytest.mark.parametrize("others", ["staged", "warp"])
def test_drawn_physics_and_pushes_do_the_same(robot: Robot, others: str) -> None:
    """Every field that varies, and the constants derived from them; robots that are reset in
    between."""
    n, tolerance = 6, {"staged": 0.0, "warp": 2e-4}[others]
    qpos, qvel, ctrl = random_states(robot, n, seed=1)
    both = simulators(robot, n, others)
    for sim in both:
        physics, generator = PhysicsRandomizer(sim, robot, VARIED), torch.Generator().manual_seed(2)
        pusher = Pusher(sim, 1, PushConfig(force=100.0, gap_s=0.03, duration_s=0.1), 0.02)
        everyone = torch.arange(n)
        physics.draw(everyone, generator)
        placed(sim, qpos, qvel)
        pusher.begin(everyone, generator)
        for k in range(6):
            sim.step(ctrl)
            pusher.advance(generator)
            if k == 2:
                some = torch.tensor([1, 4])
                physics.draw(some, generator)
                sim.set_state(some, qpos[some], qvel[some])
                pusher.begin(some, generator)
        assert pusher.force.any()
    torch.testing.assert_close(both[1].qpos.double(), both[0].qpos, rtol=0.0, atol=tolerance)
    torch.testing.assert_close(both[1].qvel.double(), both[0].qvel, rtol=0.0, atol=20 * tolerance)


@pytest.mark.parametrize("others", ["staged", "warp"])
def test_snapshots_resets_and_moves(robot: Robot, others: str) -> None:
    _, sim = simulators(robot, 3, others)
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
    torch.testing.assert_close(sim.qpos[2], qpos[2].to(sim.qpos), rtol=0.0, atol=1e-6)
    assert torch.equal(sim.qpos[:2], ended[0][0][:2])
    sim.move(torch.tensor([0]), qpos[2:], qvel[2:])
    torch.testing.assert_close(sim.qvel[0], qvel[2].to(sim.qvel), rtol=0.0, atol=1e-6)
    assert sim.wrench(1)[:, 0].tolist() == [0.0, 5.0, 0.0]
    with pytest.raises(KeyError):
        sim.sensor("none such")


def test_a_diverged_simulation_stays_alone_and_comes_back(robot: Robot) -> None:
    _, sim = simulators(robot, 3, "warp")
    qpos, qvel, ctrl = random_states(robot, 3)
    placed(sim, qpos, qvel)
    sim.move(torch.tensor([1]), qpos[1:2], torch.full_like(qvel[1:2], 1e30))
    sim.step(ctrl)
    assert sim.broken().tolist() == [False, True, False] and sim.warnings(1) and not sim.warnings(0)
    sim.set_state(torch.tensor([1]), qpos[1:2], qvel[1:2])
    sim.step(ctrl)
    assert not sim.broken().any()


def test_contacts_without_room_are_reported(robot: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco_warp")
    from npmp.sim import warp

    model = flat_scene(robot)
    # two boxes of the trunk, a sphere at each hip, knee and foot, a capsule at each shank
    assert warp.contacts_at_most(model) == 2 * 4 + 12 * 1 + 4 * 2
    assert warp.rows_at_most(model, 28) == 28 * 4 + int(model.jnt_limited.sum()) + model.nv
    sim = warp.WarpSim(model, 2, control_rate_hz=robot.control_rate_hz, contacts=1)
    qpos = torch.tensor(robot.home_qpos).repeat(2, 1)
    qpos[:, 2] -= 0.05
    placed(sim, qpos, torch.zeros(2, model.nv))
    monkeypatch.setattr(warp, "_LOOK_EVERY", 2)
    sim.step(qpos[:, 7:])
    with pytest.warns(
        RuntimeWarning, match=r"no room for all contacts or constraints of \d of 2 robots"
    ):
        sim.step(qpos[:, 7:])
    with warnings.catch_warnings(action="error"):  # said once
        sim.step(qpos[:, 7:])
        sim.step(qpos[:, 7:])


def test_a_graph_is_recorded_once_and_leaves_no_trace(
    robot: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, here a pretended one: kernels are compiled by one real run, undone; then recorded,
    without garbage collection."""
    pytest.importorskip("mujoco_warp")
    from npmp.sim import warp

    sim = warp.WarpSim(flat_scene(robot), 2, control_rate_hz=robot.control_rate_hz)
    recording, calls, launched = [False], [], []

    class Capture:
        graph = "graph"

        def __enter__(self) -> Capture:
            recording[0] = True
            return self

        def __exit__(self, *_: object) -> None:
            recording[0] = False

    def launches() -> None:
        calls.append((recording[0], gc.isenabled()))
        if not recording[0]:  # what is recorded is not executed
            sim.qpos.add_(1.0)

    pretended = SimpleNamespace(
        ScopedDevice=lambda device: contextlib.nullcontext(),
        ScopedCapture=Capture,
        capture_launch=launched.append,
        is_conditional_graph_supported=lambda: True,
        is_mempool_enabled=lambda device: True,
    )
    replay = warp._Replay(launches, sim)
    monkeypatch.setattr(warp, "wp", pretended)
    replay._device = SimpleNamespace(is_cuda=True)
    before = sim.snapshot()
    replay()
    replay()
    assert calls == [(False, True), (True, False)] and gc.isenabled()
    assert launched == ["graph", "graph"]
    assert torch.equal(sim.snapshot(), before)


def test_what_cannot_be_simulated_is_said_in_a_line(robot: Robot) -> None:
    with pytest.raises(InputError, match="no simulator 'bullet'; there are: batch, warp"):
        make_simulator("bullet", flat_scene(robot), 1, control_rate_hz=50.0)
    pytest.importorskip("mujoco_warp")
    sim = make_simulator("warp", flat_scene(robot), 2, control_rate_hz=50.0)
    with pytest.raises(InputError, match=r"'opt_gravity'.*use sim=batch"):
        sim.expand(["opt_gravity"])
    spec = robot.spec()
    for geom in spec.geoms:
        geom.contype = geom.conaffinity = 1
    with pytest.raises(InputError, match="floor only; use sim=batch"):
        make_simulator("warp", spec.compile(), 1, control_rate_hz=50.0)
    spec = robot.spec()
    spec.option.solver = mujoco.mjtSolver.mjSOL_PGS
    with pytest.raises(InputError, match="PGS"):
        make_simulator("warp", spec.compile(), 1, control_rate_hz=50.0)


def test_without_the_extra_it_says_what_to_install(
    robot: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "mujoco_warp", None)
    monkeypatch.delitem(sys.modules, "npmp.sim.warp", raising=False)
    with pytest.raises(InputError, match=r"pip install 'npmp\[warp\]'"):
        make_simulator("warp", flat_scene(robot), 1, control_rate_hz=50.0)


def test_the_same_policy_scores_the_same(robot: Robot, motions: MotionSet) -> None:
    """Drives that follow the reference and damp by what the state says of velocities: how long and
    how well robots track."""
    pytest.importorskip("mujoco_warp")

    results: list[dict[str, Tensor]] = []
    for sim in ("batch", "warp"):
        env = imitation_env(robot, motions, 3, sim=sim)
        env.reset(clip=torch.tensor([0, 0, 1]), frame=torch.tensor([0, 20, 130]))
        alive, steps, states = torch.ones(3, dtype=torch.bool), torch.zeros(3), []
        for _ in range(25):
            target = env.task.reference.at(env.task.frame)
            step = env.step(
                target.joint_pos - env.home + 0.02 * (target.joint_vel - env.state.joint_vel)
            )
            alive &= ~step.terminated
            steps += alive
            states.append(step.state)
        velocities = torch.stack(
            [torch.cat((s.root_vel, s.root_ang, s.joint_vel), -1) for s in states[:5]]
        )
        poses = torch.stack([torch.cat((s.root_pos, s.joint_pos), -1) for s in states[:5]])
        results.append({"steps": steps, "velocities": velocities, "poses": poses})
    torch.testing.assert_close(results[1]["poses"], results[0]["poses"], rtol=0.0, atol=5e-4)
    torch.testing.assert_close(
        results[1]["velocities"], results[0]["velocities"], rtol=0.0, atol=2e-2
    )
    assert not torch.equal(results[0]["velocities"][0], results[0]["velocities"][1])
    assert (results[1]["steps"] - results[0]["steps"]).abs().max() <= 1
    assert results[0]["steps"].min() > 5


@pytest.mark.parametrize("sim", ["batch", "warp"])
def test_a_state_stays_what_it_was(robot: Robot, motions: MotionSet, sim: str) -> None:
    """Whatever the simulator does with its memory."""

    if sim == "warp":
        pytest.importorskip("mujoco_warp")
    env = imitation_env(robot, motions, 2, sim=sim)
    state = env.step(torch.zeros(2, 12)).state
    kept = state.pack().clone()
    env.step(torch.full((2, 12), 0.3))
    env.reset()
    assert torch.equal(state.pack(), kept)


def test_rejoin_turns_a_robot_without_the_physics_noticing(
    robot: Robot, motions: MotionSet
) -> None:
    """On every simulator: after being sent to another frame, robots move on as they would have, but
    for place and heading."""
    pytest.importorskip("mujoco_warp")

    env = imitation_env(robot, motions, 2, sim="warp")
    kept = {name: value.clone() for name, value in env.state_dict().items()}
    joints = []
    for rejoin in (False, True):
        env.load_state_dict(kept)
        env.step(torch.zeros(2, 12))
        if rejoin:
            env.task.rejoin(torch.ones(2, dtype=torch.bool))
        env.step(torch.zeros(2, 12))
        joints.append(env.state.joint_pos.clone())
    torch.testing.assert_close(joints[1], joints[0], rtol=0.0, atol=1e-4)
