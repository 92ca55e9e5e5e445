"""Joints that a model of real actuators moves."""

from __future__ import annotations

import itertools
from dataclasses import astuple, replace
from pathlib import Path

import mujoco
import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp import robots
from npmp.actuators.models import (
    PD,
    ActuatorContract,
    ActuatorModel,
    ActuatorNetConfig,
    Convolutions,
    Memory,
    make,
)
from npmp.actuators.servo import PDParameters
from npmp.envs import RobotBatchConfig
from npmp.robots import Robot
from npmp.sim import BatchSim, flat_scene
from npmp.sim.drives import with_motors
from npmp.sim.randomization import JointPhysics, PhysicsConfig, Spread, normal_of
from tests.environments import imitation_env


def model_of(
    kind: str, rate_hz: float = 400.0, current_scale: float = 0.0, **net: int
) -> ActuatorModel:
    """A model with the weights that it begins with."""
    scales = [0.1, 1.0], [0.0, 0.0], 10.0, [50.0, 1.0, 0.0]
    more = {"current_scale": current_scale, "net": ActuatorNetConfig(**net)}
    contract = ActuatorContract(kind, rate_hz, ["a", "b"], [], False, *scales, **more)
    torch.manual_seed(3)
    return make(contract).eval()


def servo(stiffness: float, damping: float, delay: int = 0, kind: str = "pd", **more: float) -> PD:
    model = model_of(kind)
    assert isinstance(model, PD)
    model.delay.fill_(delay)
    model.values.copy_(torch.tensor(astuple(PDParameters(stiffness, damping, **more))))
    return model


def standing(
    robot: Robot,
    n: int,
    *actuators: ActuatorModel | None,
    threads: int = 1,
    scene: mujoco.MjModel | None = None,
) -> BatchSim:
    scene = scene or flat_scene(robot)
    sim = BatchSim(
        scene, n, control_rate_hz=robot.control_rate_hz, num_threads=threads, actuators=actuators
    )
    sim.set_state(
        torch.arange(n), torch.tensor(robot.home_qpos).expand(n, -1), torch.zeros(n, scene.nv)
    )
    return sim


def targets(robot: Robot, n: int, steps: int, seed: int = 0) -> Tensor:
    """(steps, n, nu) joint targets about the home pose."""
    noise = torch.randn(
        steps, n, len(robot.home_joints), generator=torch.Generator().manual_seed(seed)
    )
    return torch.tensor(robot.home_joints, dtype=torch.float32) + 0.1 * noise


def test_the_drives_put_out_what_the_model_says_within_their_limits(robot: Robot) -> None:
    sim = standing(robot, 2, servo(100.0, 2.0))
    target = torch.tensor(robot.home_joints, dtype=torch.float64).expand(2, -1).clone()
    target[0, 3] += 0.05
    target[1, 4] -= 9.0  # 900 Nm, which no drive has
    before = sim.qpos[:, 7:].clone(), sim.qvel[:, 6:].clone()
    assert sim.drives is not None
    torque = sim.drives.controls(target, sim.qpos, sim.qvel)
    expected = 100.0 * (target - before[0]) - 2.0 * before[1]
    torch.testing.assert_close(torque.double(), expected, rtol=1e-4, atol=1e-3)
    sim = standing(robot, 2, servo(100.0, 2.0))
    sim.substeps = 1  # one physics step
    sim._share = sim._share[:, :1]
    sim.step(target)
    forces = sim.drive_forces()[:, 6:]
    assert forces[0, 3].item() == pytest.approx(5.0, rel=1e-4)
    assert forces[1, 4].item() == pytest.approx(-robot.torque_limit[4])


def test_a_servo_without_delay_is_the_ideal_drive(robot: Robot) -> None:
    """With little damping, which MuJoCo takes with the speed after a physics step, a servo with
    that before it."""
    scene = flat_scene(robot)
    scene.actuator_biasprm[:, 2] = -0.05
    ideal = standing(robot, 2, None, scene=scene)
    real, late = (
        standing(robot, 2, servo(float(robot.kp[0]), 0.05, delay=delay)) for delay in (0, 8)
    )
    previous = torch.tensor(robot.home_joints, dtype=torch.float32).expand(2, -1)
    for target in targets(robot, 2, 4):
        for sim in (real, ideal, late):
            sim.step(target, previous)
        previous = target
    assert (ideal.qpos[:, 7:] - previous).abs().max() > 0.1  # they moved
    assert (real.qpos - ideal.qpos)[:, 7:].abs().max() < 0.005
    assert (late.qpos - ideal.qpos)[:, 7:].abs().max() > 0.05


@pytest.mark.parametrize("kind", ["pd", "hybrid", "mlp", "conv", "vae"])
def test_a_snapshot_brings_back_every_bit_and_threads_change_none(robot: Robot, kind: str) -> None:
    model = model_of(kind)
    if isinstance(model, PD):  # and a hybrid
        model = servo(60.0, 1.0, delay=3, kind=kind, lag_s=0.01, coulomb=2.0, load=0.2)
    sim, other = standing(robot, 3, model), standing(robot, 3, model, threads=2)
    asked = targets(robot, 3, 8)
    for target in asked[:4]:
        sim.step(target)
    noted = sim.snapshot()
    for target in asked[4:]:
        sim.step(target)
    after = sim.snapshot()
    sim.restore(noted)
    other.restore(noted)
    for target in asked[4:]:
        sim.step(target)
        other.step(target)
    assert torch.equal(sim.snapshot(), after) and torch.equal(other.snapshot(), after)


def test_currents_are_squared_and_averaged_over_the_physics_steps_of_a_control_step(
    robot: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight steps with 1 to 8 A, (1 + 4 + ... + 64) / 8 = 25.5 A^2; of the next eight, 9 to 16
    A, 161.5."""
    model, amperes = model_of("conv", current_scale=2.0), itertools.count(1)
    told = model.step_with_current

    def with_known_currents(inputs: Tensor, memory: Memory) -> tuple[Tensor, Tensor, Memory]:
        torque, current, memory = told(inputs, memory)
        assert current is not None
        return torque, torch.full_like(current, next(amperes)), memory

    monkeypatch.setattr(model, "step_with_current", with_known_currents)
    sim = standing(robot, 2, model)
    assert sim.drives is not None and sim.substeps == 8
    for target, expected in zip(targets(robot, 2, 2), (25.5, 161.5), strict=True):
        sim.step(target)
        torch.testing.assert_close(sim.drives.current_squares, torch.full((2, 12), expected))
    without = standing(robot, 1, model_of("conv"))
    assert without.drives is not None and without.drives.current_squares is None


def test_robots_with_several_drives_move_as_those_with_one(robot: Robot) -> None:
    """Of six robots in turn on ideal drives, a servo and convolutions: to the bit as three pairs,
    also of joints with friction, and beyond their ranges."""
    scene, laws = flat_scene(robot), (None, servo(60.0, 1.0, delay=3), model_of("conv"))
    scene.dof_frictionloss[6:], scene.dof_damping[6:] = 0.3, 0.2
    scene.actuator_ctrllimited[:], scene.actuator_ctrlrange[:] = 1, (-0.6, 0.6)
    mixed = standing(robot, 6, *laws, scene=scene)
    alone = [standing(robot, 2, law, scene=scene) for law in laws]
    asked = targets(robot, 6, 8)
    noted = mixed.snapshot()
    for target in asked[:4]:
        mixed.step(target)
    mixed.restore(noted)
    previous = asked[0]
    for target in asked:
        mixed.step(target, previous)
        for k, sim in enumerate(alone):
            sim.step(target[k::3], previous[k::3])
        previous = target
    for k, sim in enumerate(alone):
        assert torch.equal(mixed.qpos[k::3], sim.qpos) and torch.equal(mixed.qvel[k::3], sim.qvel)
    assert mixed.drives is not None and mixed.drives.current_squares is None
    # the last of them placed anew
    ids, home = torch.tensor([5]), torch.tensor(robot.home_qpos).unsqueeze(0)
    mixed.set_state(ids, home, torch.zeros(1, scene.nv))
    alone[2].set_state(torch.tensor([1]), home, torch.zeros(1, scene.nv))
    mixed.step(asked[0])
    alone[2].step(asked[0][2::3])
    assert torch.equal(mixed.qpos[2::3], alone[2].qpos)


def test_a_robot_placed_anew_remembers_nothing(robot: Robot) -> None:
    model = model_of("conv")
    used, fresh = standing(robot, 2, model), standing(robot, 2, model)
    for target in targets(robot, 2, 5):
        used.step(target)
    used.set_state(
        torch.tensor([1]), torch.tensor(robot.home_qpos).unsqueeze(0), torch.zeros(1, used.model.nv)
    )
    for target in targets(robot, 2, 3, seed=1):
        used.step(target)
        fresh.step(target)
    assert torch.equal(used.snapshot()[1], fresh.snapshot()[1])
    assert not torch.equal(used.snapshot()[0], fresh.snapshot()[0])


def test_randomization_scales_the_torques_and_draws_the_actuators(
    robot: Robot, motions: MotionSet, tmp_path: Path
) -> None:
    model_of("vae", latent_dim=2).save(tmp_path)
    config = RobotBatchConfig(
        actuator=str(tmp_path), physics=PhysicsConfig(gain=Spread(0.2), actuators=0.5)
    )
    env = imitation_env(robot, motions, 8, robots=config)
    assert env.robots.sim.drives is not None
    unit = env.robots.physics
    assert unit.shape == (
        8,
        1 + 2 * 12,
    )  # one gain, a latent of two numbers for each drive; of damping drives have none
    latent = env.robots.sim.drives._groups[0].latent
    torch.testing.assert_close(latent.flatten(1), 0.5 * normal_of(unit[:, 1:]))
    gains = torch.from_numpy(env.robots.sim.batch.expand("actuator_gainprm"))[:, 0, 0]  # type: ignore[attr-defined]
    torch.testing.assert_close(gains, 1.0 + 0.2 * unit[:, 0].double())
    held = {key: value.clone() for key, value in env.robots.state_dict().items()}
    action = torch.zeros(8, 12)
    env.robots.step(action, env.generator)
    expected = env.robots.state.pack()
    other = imitation_env(robot, motions, 8, robots=config)
    other.robots.load_state_dict(held)
    other.robots.step(action, other.generator)
    assert torch.equal(other.robots.state.pack(), expected)
    # its nominal sibling has the same drives
    assert RobotBatchConfig().like(config).actuator == str(tmp_path)


def test_the_model_is_told_which_drives_a_robot_has(
    robot: Robot, motions: MotionSet, tmp_path: Path
) -> None:
    """Drawn gains scale the gains of ideal drives and the torques of others."""
    model_of("mlp").save(tmp_path / "a")
    physics = PhysicsConfig(gain=Spread(0.2), friction=(0.4, 0.8))
    config = RobotBatchConfig(actuator=f"{tmp_path / 'a'}+pd+pd", physics=physics)
    env = imitation_env(robot, motions, 4, robots=config)
    told = env.robots.physics
    assert told.shape == (4, env.robots.physics_size) == (4, 2 + 3)
    assert torch.equal(told[:, 2:], torch.eye(3)[[0, 1, 2, 0]])
    gains = torch.from_numpy(env.robots.sim.batch.expand("actuator_gainprm"))[:, 0, 0]  # type: ignore[attr-defined]
    own = torch.tensor([1.0, robot.kp[0], robot.kp[0], 1.0], dtype=torch.float64)
    torch.testing.assert_close(gains, own * (1.0 + 0.2 * told[:, 1].double()))
    name, sums = config.drives_record().values()
    assert name == "a+pd+pd" and len(sums.split("+")[0]) == 64 and sums.endswith("+pd+pd")
    assert RobotBatchConfig().drives_record() == {}
    alone = imitation_env(
        robot, motions, 1, robots=replace(config, actuator=f"pd+{tmp_path / 'a'}")
    )
    alone.robots.step(torch.zeros(1, 12), alone.generator)
    held = {key: value.clone() for key, value in alone.robots.state_dict().items()}
    alone.robots.load_state_dict(held)
    assert alone.robots.current_squares is None
    with pytest.raises(ValueError, match=r"joined by \+; got 'pd\+'"):
        RobotBatchConfig(actuator="pd+")


def test_normal_numbers_of_uniform_ones() -> None:
    values = normal_of(torch.tensor([-1.0, -0.6826895, 0.0, 0.9544997]))
    torch.testing.assert_close(values, torch.tensor([-4.0, -1.0, 0.0, 2.0]), rtol=1e-4, atol=1e-6)


def test_a_robot_stands_on_joints_that_friction_holds(robot: Robot) -> None:
    """On gears that lose 8 Nm and half of the motor's torque, more at rest, it comes to rest within
    a second; on the same motors without, its feet go on sliding."""
    gears = {"coulomb": 8.0, "stiction": 8.0, "stribeck": 0.2, "load": 0.5, "load_at_rest": 0.4}
    held, free = (standing(robot, 1, servo(80.0, 2.0, lag_s=0.005, **more)) for more in (gears, {}))
    for sim in (held, free):
        for _ in range(int(robot.control_rate_hz)):
            sim.step(torch.tensor(robot.home_joints, dtype=torch.float64).unsqueeze(0))
        assert sim.qpos[:, 2].min() > 0.9 * robot.home_qpos[2]
    assert held.qvel[:, 6:].abs().max() < 0.005 < 0.02 < free.qvel[:, 6:].abs().max()


def test_a_model_goes_on_from_the_torque_that_arrived(robot: Robot) -> None:
    """By 1 Nm a sample more, from 60 Nm of constant gains (50 Nm/rad, 1.2 rad off) where the drive
    puts out 40: a sample after the error has turned it is 39, not 100."""
    model = model_of("conv")
    assert isinstance(model, Convolutions)
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.constant_(model.head.bias, 0.1)
    sim = standing(robot, 1, model)
    assert sim.drives is not None and robot.torque_limit[3] == 40.0
    target = torch.tensor(robot.home_joints, dtype=torch.float64).unsqueeze(0) + 1.2
    for _ in range(40):
        torque = sim.drives.controls(target, sim.qpos, sim.qvel)
        torch.testing.assert_close(torque, torch.full((1, 12), 41.0, dtype=torch.float64))
    torch.nn.init.constant_(model.head.bias, -0.1)
    result = sim.drives.controls(target, sim.qpos, sim.qvel)
    torch.testing.assert_close(result, torch.full((1, 12), 39.0, dtype=torch.float64))
    # placed 0.2 rad off and at 3 rad/s it begins from 50 * 0.2 - 1 * 3 Nm
    sim.drives.begin(torch.tensor([0]))
    torque = sim.drives.controls(target - 1.0, sim.qpos, torch.full_like(sim.qvel, 3.0))
    torch.testing.assert_close(torque, torch.full((1, 12), 6.0, dtype=torch.float64))


def test_friction_that_was_measured_acts_once(
    robot: Robot, motions: MotionSet, tmp_path: Path
) -> None:
    """OP3's joints have damping and friction; gains mean nothing to a model of torques."""
    op3 = robots.load("op3")
    scene = flat_scene(op3)
    assert scene.dof_damping[6:].all() and scene.dof_frictionloss[6:].all()
    model = with_motors(scene)
    assert not model.dof_damping[6:].any() and not model.dof_frictionloss[6:].any()
    # the other is as it was
    assert (model.dof_armature == scene.dof_armature).all() and scene.dof_damping[6:].all()
    known = with_motors(scene, 0.003)  # of an actuator that tells its own
    assert (known.dof_armature[6:] == 0.003).all() and not known.dof_armature[:6].any()
    model_of("mlp").save(tmp_path)
    identified = {"LF_HAA": JointPhysics(kp=50.0)}
    with pytest.raises(InputError, match="LF_HAA sets kp, which the model of actuator= includes"):
        physics = PhysicsConfig(nominal=identified)
        like = RobotBatchConfig(actuator=str(tmp_path), physics=physics)
        imitation_env(robot, motions, 1, robots=like)
