"""MuJoCo Warp agrees with MuJoCo, on Warp's CPU device.

The first run compiles kernels for about half a minute a model; Warp keeps them in its cache
(WARP_CACHE_PATH), and the next run takes seconds.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import mujoco
import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.envs import TaskEnv
from npmp.robots import Robot
from npmp.sim import BatchSim, Simulator, WarpSim, add_contact_sensors, flat_scene, simulate
from npmp.sim.randomization import PhysicsRandomizer, Spread, with_nominal
from npmp.tasks import Walk, WalkConfig
from tests.sim.test_drives import model_of, servo
from tests.sim.test_simulators import VARIED, placed, random_states, randomized_steps

# Float32 rounds positions of about 2 (m, rad) to 1e-7. Over 80 physics steps these errors add up
# like a random walk to 9 * 1e-7, and 1e-5 leaves ten times as much for contacts that amplify them.
# A contact turns a difference of position into one of velocity within its time constant of 0.02 s:
# 1e-5 / 0.02 s = 5e-4 m/s, or 2e-3 rad/s at a lever of 0.25 m. A drive of 80 Nm/rad and 2 Nms/rad
# turns both into 80 * 1e-5 + 2 * 2e-3 = 5e-3 Nm.
POSITION = {"rtol": 0.0, "atol": 1e-5}
VELOCITY = {"rtol": 0.0, "atol": 2e-3}
TORQUE = {"rtol": 0.0, "atol": 5e-3}

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def warp() -> None:
    pytest.importorskip("mujoco_warp")


def pair(robot: Robot, n: int, **settings: object) -> tuple[BatchSim, Simulator]:
    """The same scene with its contact sensors in MuJoCo and in Warp."""
    model = flat_scene(robot, lambda spec: add_contact_sensors(spec, robot))
    rate = robot.control_rate_hz
    batch = BatchSim(model, n, control_rate_hz=rate, num_threads=1, **settings)  # type: ignore[arg-type]
    return batch, simulate(model, n, engine="warp", control_rate_hz=rate, **settings)


def check_equal(batch: Simulator, sim: Simulator) -> None:
    torch.testing.assert_close(sim.qpos.double(), batch.qpos, **POSITION)
    torch.testing.assert_close(sim.qvel.double(), batch.qvel, **VELOCITY)
    torch.testing.assert_close(sim.drive_forces().double(), batch.drive_forces(), **TORQUE)


@pytest.mark.slow
def test_both_holds_and_sensors_of_falling_robots(robot: Robot, warp: None) -> None:
    n = 6
    qpos, qvel, ctrl = random_states(robot, n)
    both = pair(robot, n)
    for sim in both:
        placed(sim, qpos, qvel)
        for k in range(10):
            sim.step(ctrl + 0.02 * k, ctrl if k % 3 == 2 else None)
    batch, sim = both
    check_equal(batch, sim)
    assert not sim.broken().any()
    for i in range(batch.model.nsensor):
        name = batch.model.sensor(i).name
        # accelerations are forces over about 1 kg of a foot
        torch.testing.assert_close(sim.sensor(name).double(), batch.sensor(name), **TORQUE)
    with pytest.raises(KeyError):
        sim.sensor("none such")


@pytest.mark.slow
def test_random_physics_pushes_and_resets_of_some(robot: Robot, warp: None) -> None:
    both = pair(robot, 6)
    config = replace(VARIED, contact_s=(0.01, 0.03), weak_joint=0.5, armature=Spread(0.2, 0.1))
    for sim in both:
        randomized_steps(sim, robot, config)
    check_equal(*both)


@pytest.mark.slow
def test_contacts_that_all_robots_share(robot: Robot, warp: None) -> None:
    """Elliptic cones and six dimensions; of each robot its own they are refused."""
    config = replace(VARIED, condim=6, cone="elliptic", impratio=(100.0, 100.0))
    model = with_nominal(flat_scene(robot), robot, config)
    rate = robot.control_rate_hz
    batch = BatchSim(model, 6, control_rate_hz=rate, num_threads=1)
    sim = simulate(model, 6, engine="warp", control_rate_hz=rate)
    for one in (batch, sim):
        randomized_steps(one, robot, config)
    check_equal(batch, sim)
    for key, value in (("condim", (3, 6)), ("cone", ("pyramidal", "elliptic"))):
        with pytest.raises(InputError, match=f"{key}.*engine=mujoco"):
            PhysicsRandomizer(sim, robot, replace(config, **{key: value}))


@pytest.mark.slow
def test_actuator_models_between_physics_steps(robot: Robot, warp: None) -> None:
    """Of one kind, and of several with ideal drives among them; some robots are reset."""
    n = 4
    qpos, qvel, ctrl = random_states(robot, n, seed=3)
    mixed = (model_of("conv"), None, model_of("vae"))
    for actuators in ((servo(80.0, 2.0, lag_s=0.005, coulomb=1.0),), mixed):
        both = pair(robot, n, actuators=actuators)
        for sim in both:
            placed(sim, qpos, qvel)
            for k in range(6):
                if k == 3:
                    sim.set_state(torch.tensor([2]), qpos[2:3], qvel[2:3])
                sim.step(ctrl, ctrl - 0.1 if k == 4 else None)
        check_equal(*both)


@pytest.mark.slow
def test_snapshots_and_resets_of_some(robot: Robot, warp: None) -> None:
    _, sim = pair(robot, 3)
    qpos, qvel, ctrl = random_states(robot, 3)
    placed(sim, qpos, qvel)
    sim.wrench(1)[:, 0] = torch.tensor([0.0, 5.0, 10.0])
    sim.step(ctrl)
    kept = sim.snapshot()
    ends: list[Tensor] = []
    for _ in range(2):
        sim.restore(kept)
        sim.step(ctrl, ctrl + 0.1)
        ends.append(sim.snapshot())
    assert torch.equal(ends[0], ends[1])
    sim.set_state(torch.tensor([2]), qpos[2:], qvel[2:])
    after = sim.snapshot()
    assert torch.equal(after[:2], ends[0][:2])
    # of a reset only the state is not zero
    model = sim.model
    assert torch.equal(after[2, : model.nq], qpos[2].float().double())
    assert not after[2, model.nq + model.nv :].any()


@pytest.mark.slow
def test_a_simulation_that_diverges_is_reset_alone(robot: Robot, warp: None) -> None:
    _, sim = pair(robot, 2)
    qpos, qvel, ctrl = random_states(robot, 2)
    placed(sim, qpos, qvel)
    sim.qvel[1, 3] = torch.nan
    sim.step(ctrl)
    assert sim.broken().tolist() == [False, True]
    assert sim.warnings(0) == []
    assert sim.warnings(1) == ["BADQPOS"]
    assert sim.qpos.isfinite().all()
    assert sim.qvel.isfinite().all()


@pytest.mark.slow
def test_an_environment_agrees_with_mujoco(robot: Robot, warp: None) -> None:
    envs = [
        TaskEnv(Walk(robot, WalkConfig()), 3, num_threads=1, engine=engine)
        for engine in ("mujoco", "warp")
    ]
    assert isinstance(envs[1].robots.sim, WarpSim)
    for env in envs:
        # feet that just touch the floor have a contact or none, by their last bit
        env.robots.shift(torch.arange(3), torch.tensor([0.0, 0.0, 0.02]).expand(3, -1))
    for _ in range(5):
        steps = [env.step(torch.full((3, 12), 0.1)) for env in envs]
    a, b = (step.state for step in steps)
    torch.testing.assert_close(b.joint_pos, a.joint_pos, **POSITION)
    torch.testing.assert_close(b.root_vel, a.root_vel, **VELOCITY)


@pytest.mark.slow
def test_it_says_what_it_cannot_do(robot: Robot, warp: None) -> None:
    _, sim = pair(robot, 2)
    with pytest.raises(InputError, match="geom_type"):
        sim.expand(["geom_type"])
    with pytest.raises(InputError, match="none_such"):
        sim.expand(["none_such"])
    model = flat_scene(robot)
    model.opt.enableflags |= 1 << 20
    with pytest.raises(InputError, match="engine=warp cannot simulate"):
        simulate(model, 1, engine="warp", control_rate_hz=50.0)


def test_it_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "warp", None)
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    with pytest.raises(InputError, match=r"pip install 'npmp\[warp\]'"):
        simulate(model, 1, engine="warp", control_rate_hz=50.0)
