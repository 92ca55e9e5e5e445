"""Between action and observation: delays, noise, calibration errors, pushes, and that they are off
unless asked for."""

from __future__ import annotations

import mujoco
import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.core import geometry
from npmp.envs import TaskEnv
from npmp.envs.robot_batch import RobotBatch, RobotBatchConfig
from npmp.envs.sensing import Sensing, SensorConfig
from npmp.robots import Robot
from npmp.sim import flat_scene
from npmp.sim.randomization import PhysicsConfig, PushConfig, Spread
from npmp.tasks import ImitationEnv, Walk
from tests.environments import imitation_env, walk_env

DT = 0.02
FULL = RobotBatchConfig(
    hold="first_order",
    physics=PhysicsConfig(
        friction=(0.4, 1.0),
        mass=Spread(0.3, 0.1),
        com_trunk=0.05,
        joint_offset=0.05,
        gain=Spread(0.2),
    ),
    pushes=PushConfig(force=50.0, duration_s=0.1, gap_s=0.2),
    sensors=SensorConfig(
        delay_s=(0.0, 0.02),
        joint_noise=0.03,
        gyro_noise=(0.1, 0.2, 0.8),
        accelerometer_noise=0.5,
        up_noise=0.05,
    ),
)


def env_of(robot: Robot, motions: MotionSet, n: int, config: RobotBatchConfig) -> ImitationEnv:
    return imitation_env(robot, motions, n, robots=config)


def counting(n: int, reach: int, width: int = 33) -> Tensor:
    """A history whose observation of j steps ago is -j everywhere."""
    return -torch.arange(reach + 1.0).view(1, -1, 1).expand(n, -1, width)


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.02, 0.033, 0.06])
def test_a_constant_delay_reads_between_two_steps(delay: float) -> None:
    sensing = Sensing(SensorConfig(delay_s=(delay, delay)), torch.zeros(12), DT)
    assert sensing.lags == {0.0: 0, 0.005: 1, 0.02: 1, 0.033: 2, 0.06: 3}[delay]
    seen = sensing.read(counting(2, sensing.lags), torch.Generator())
    torch.testing.assert_close(seen[:, :12], torch.full((2, 12), -delay / DT))
    torch.testing.assert_close(seen[:, 24:], torch.full((2, 9), -delay / DT))
    assert not seen[:, 12:24].any()  # its own setpoints it knows at once


def test_the_delay_is_one_for_all_sensors_and_uniform() -> None:
    sensing = Sensing(SensorConfig(delay_s=(0.01, 0.05)), torch.zeros(12), DT)
    seen = sensing.read(counting(4000, 3), torch.Generator().manual_seed(0))
    lag = -seen[:, 0] * DT
    assert torch.equal(seen[:, :1].expand(-1, 12), seen[:, :12])
    assert torch.equal(seen[:, :1].expand(-1, 9), seen[:, 24:])
    assert lag.min() >= 0.01 - 1e-6 and lag.max() <= 0.05 + 1e-6
    assert lag.mean().item() == pytest.approx(0.03, abs=0.001)


def test_noise_has_its_figures() -> None:
    sensing = Sensing(FULL.sensors, torch.zeros(12), DT)
    seen = sensing.read(torch.zeros(20000, 2, 33), torch.Generator().manual_seed(0))
    expected = torch.tensor(
        [0.03] * 12 + [0.0] * 12 + [0.1, 0.2, 0.8] + [0.5 / 9.81] * 3 + [0.05] * 3
    )
    torch.testing.assert_close(seen.std(0), expected, rtol=0.03, atol=1e-9)
    assert seen.mean(0).abs().max() < 0.03


def test_miscalibrated_encoders_are_consistent(robot: Robot, motions: MotionSet) -> None:
    """A robot told to hold what it reads holds its true angles: the offset cancels between encoder
    and drive."""
    plant = RobotBatchConfig(physics=PhysicsConfig(joint_offset=0.05))
    env = env_of(robot, motions, 4, plant)
    offset = env.robots.joint_offset
    assert offset is not None and offset.abs().max() > 0.01
    read = env.observe()[:, :12]
    torch.testing.assert_close(read, env.state.joint_pos - env.home + offset)
    torch.testing.assert_close(env.robots.setpoint(read), env.state.joint_pos)
    env.step(read)
    torch.testing.assert_close(
        env.observe()[:, 12:24], read, atol=1e-6, rtol=0
    )  # what it commanded, as it commanded it


def test_first_order_hold_starts_from_the_last_setpoint(robot: Robot, motions: MotionSet) -> None:
    first, zero = (
        env_of(robot, motions, 1, RobotBatchConfig(hold=hold))
        for hold in ("first_order", "zero_order")
    )
    action = torch.full((1, 12), 0.2)
    for env in (first, zero):
        env.reset(clip=torch.tensor([0]), frame=torch.tensor([10]))
        env.step(action)
    moved = [
        (env.state.joint_pos - env.task.tracking.reference.at(torch.tensor([10])).joint_pos)
        .abs()
        .mean()
        for env in (first, zero)
    ]
    assert moved[0] < 0.8 * moved[1]
    with pytest.raises(ValueError, match="hold"):
        RobotBatchConfig(hold="cubic")


def test_every_episode_has_its_own_physics(robot: Robot, motions: MotionSet) -> None:
    env = env_of(robot, motions, 4, FULL)
    before = env.robots.physics.clone()
    assert before.shape == (4, env.robots.physics_size)
    mask = torch.tensor([True, False, True, False])
    env.reset(mask)
    assert torch.equal((env.robots.physics != before).any(-1), mask)
    assert not env.robots.without_push(torch.ones(4, env.robots.physics_size))[:, -2:].any()


def test_a_push_is_told_as_the_robot_meets_it(robot: Robot, motions: MotionSet) -> None:
    """Turning robot and push together changes nothing; a push from behind is forwards, one from the
    right is to the left."""
    env = env_of(robot, motions, 3, FULL)
    yaw = torch.tensor([0.0, torch.pi / 2, -2.0])
    tilted = geometry.exp_so3(torch.tensor([0.1, -0.2, 0.0]))
    env.robots.state = env.state._replace(root_rot=geometry.yaw_matrix(yaw) @ tilted)
    force = FULL.pushes.force
    heading = geometry.yaw_of(env.state.root_rot)
    env.robots.pusher.force = force * torch.stack((torch.cos(heading), torch.sin(heading)), -1)
    torch.testing.assert_close(env.robots.physics[:, -2:], torch.tensor([[1.0, 0.0]] * 3))
    env.robots.pusher.force = force * torch.stack((-torch.sin(heading), torch.cos(heading)), -1)
    torch.testing.assert_close(env.robots.physics[:, -2:], torch.tensor([[0.0, 1.0]] * 3))


class Ball(Walk):
    """Walking, with a ball in the scene whose columns come after the robot's, and a door's hinge
    before them."""

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        super().add_to_scene(spec)
        ball = spec.worldbody.add_body(name="ball", pos=[2.0, 0.0, 0.117])
        ball.add_joint(name="ball", type=mujoco.mjtJoint.mjJNT_FREE)
        ball.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.117, 0, 0], mass=0.45)


def test_robots_columns_are_found_by_name(robot: Robot) -> None:
    """A ball beside the robot changes nothing about the robot, and lies where the scene has it
    after a reset."""
    plain = walk_env(robot, 3, seed=2)
    with_ball = TaskEnv(Ball(robot, plain.task.config), 3, seed=2, num_threads=1)
    assert with_ball.robots.sim.qpos.shape == (3, 26) and with_ball.robots.qpos.shape == (3, 19)
    for t in range(10):
        action = 0.2 * torch.sin(torch.arange(36.0) + t).view(3, 12)
        seen = [env.step(action).state.pack() for env in (plain, with_ball)]
        # one solver for both bodies: other rounding
        torch.testing.assert_close(*seen, atol=1e-4, rtol=1e-4)
    with_ball.robots.sim.qpos[:, 19] = 5.0
    with_ball.reset(torch.tensor([True, False, True]))
    assert with_ball.robots.sim.qpos[:, 19].tolist() == [2.0, 5.0, 2.0]


def test_the_physics_rate_is_a_multiple_of_the_control_rate(robot: Robot) -> None:
    physics = PhysicsConfig(physics_rate_hz=333.0)
    with pytest.raises(InputError, match=r"physics_rate_hz=333"):
        RobotBatch(robot, flat_scene(robot), 1, RobotBatchConfig(physics=physics))
    own = flat_scene(robot)
    for timestep in (0.003, 0.03, 0.05):  # a task's scene may say it
        own.opt.timestep = timestep
        with pytest.raises(InputError, match="physics_rate_hz"):
            RobotBatch(robot, own, 1, RobotBatchConfig())
