"""Legged odometry against closed forms, and against the true motion of a simulated robot."""

from __future__ import annotations

import math

import pytest
import torch

from npmp import robots
from npmp.core import geometry
from npmp.envs.features import proprioception
from npmp.envs.feet import Feet
from npmp.envs.kinematics import Kinematics
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.rollout import rollout
from npmp.envs.sensing import SensorConfig
from npmp.envs.state import GRAVITY, RobotState
from npmp.robots import Robot
from npmp.skills import modules
from npmp.skills.composition import over
from npmp.skills.footsteps import FootstepPolicy
from npmp.skills.odometry import LegOdometry, Odometry, filter_gain, tracking_gains
from npmp.skills.skill_module import SkillModule
from tests.environments import walk_env

DT = 0.02


@pytest.fixture(scope="module")
def go2() -> Robot:
    return robots.load("unitree_go2")


@pytest.fixture(scope="module")
def legs(go2: Robot) -> LegOdometry:
    return LegOdometry(go2, Kinematics(go2.model()), Feet(go2), DT, SensorConfig())


@pytest.fixture(scope="module")
def standing(go2: Robot) -> RobotState:
    """At home, turned by half a radian."""
    place = torch.tensor([[1.0, 2.0, float(go2.home_qpos[2])]])
    home = torch.tensor(go2.home_joints, dtype=torch.float32)[None]
    return RobotState.still(place, geometry.yaw_matrix(torch.tensor([0.5])), home)


def update(
    legs: LegOdometry, begin: RobotState, reads: RobotState, steps: int, stands: bool
) -> tuple[Odometry, RobotState]:
    """`steps` updates from a state at rest by constant readings of another."""
    none = torch.zeros_like(begin.joint_pos)
    feet = torch.full((1, 4), stands)
    sensors = proprioception(reads, legs.home)
    odometry = legs.begin(begin)
    for _ in range(steps):
        odometry, estimate = legs.update(odometry, sensors, feet, legs.home[None], none)
    return odometry, estimate


def test_a_robot_at_rest_stays(legs: LegOdometry, standing: RobotState) -> None:
    _, estimate = update(legs, standing, standing, 50, stands=True)
    for now, before in zip(estimate, standing, strict=True):
        torch.testing.assert_close(now, before, atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("stands", [False, True])
def test_it_falls_freely(legs: LegOdometry, standing: RobotState, stands: bool) -> None:
    """Whatever should stand."""
    falling = standing._replace(accel=torch.zeros(1, 3))
    odometry, _ = update(legs, standing, falling, 25, stands=stands)
    t = 25 * DT
    fallen = standing.root_pos[0, 2] - odometry.root_pos[0, 2]
    assert fallen.item() == pytest.approx(0.5 * GRAVITY * t**2, rel=1e-4)
    assert odometry.velocity[0, 2].item() == pytest.approx(-GRAVITY * t, rel=1e-4)


def test_the_gyro_turns_it_and_the_vertical_corrects_only_tilt(
    legs: LegOdometry, standing: RobotState
) -> None:
    turning = standing._replace(root_ang=torch.tensor([[0.0, 0.0, 1.0]]))
    odometry, _ = update(legs, standing, turning, 25, stands=False)
    assert geometry.yaw_of(odometry.root_rot).item() == pytest.approx(0.5 + 25 * DT, abs=1e-4)
    tilt = geometry.exp_so3(torch.tensor([0.1, 0.2, 0.0]))
    tilted = standing._replace(root_rot=standing.root_rot @ tilt)
    odometry, _ = update(legs, standing, tilted, 200, stands=False)
    up = odometry.root_rot[:, 2]
    torch.testing.assert_close(up, tilted.root_rot[:, 2], atol=1e-3, rtol=0.0)


def test_a_foot_away_from_its_place_is_not_trusted(legs: LegOdometry, standing: RobotState) -> None:
    odometry, _ = update(legs, standing, standing, 1, stands=True)
    # the first leg is lifted by 0.4 rad at its knee
    moved = standing._replace(joint_pos=standing.joint_pos + 0.4 * torch.eye(12)[2])
    sensors = proprioception(moved, legs.home)
    feet = torch.ones(1, 4, dtype=torch.bool)
    for _ in range(10):
        odometry, _ = legs.update(odometry, sensors, feet, legs.home[None], torch.zeros(1, 12))
    torch.testing.assert_close(odometry.root_pos, standing.root_pos, atol=3e-3, rtol=0.0)


def test_standing_feet_hold_the_heading_against_the_gyro(
    legs: LegOdometry, standing: RobotState
) -> None:
    wrong = standing._replace(root_ang=torch.tensor([[0.0, 0.0, 0.2]]))
    for stands, lowest, highest in ((True, 0.0, 0.05), (False, 0.19, 0.21)):
        odometry, _ = update(legs, standing, wrong, 50, stands=stands)
        assert lowest <= geometry.yaw_of(odometry.root_rot).item() - 0.5 < highest
        # about the feet's centre, which is below the root
        torch.testing.assert_close(odometry.root_pos, standing.root_pos, atol=5e-3, rtol=0.0)


def test_standing_feet_stop_a_wrong_velocity(legs: LegOdometry, standing: RobotState) -> None:
    moving = standing._replace(root_vel_end=torch.tensor([[0.1, 0.0, 0.0]]))
    odometry, _ = update(legs, moving, standing, 50, stands=True)
    assert odometry.velocity.abs().max().item() < 0.01
    odometry, _ = update(legs, moving, standing, 50, stands=False)
    assert torch.linalg.vector_norm(odometry.velocity).item() == pytest.approx(0.1, abs=1e-3)


@pytest.mark.parametrize(("stood_s", "sinks_m"), [(0.0, 0.0), (1.0, 0.006)])
def test_feet_that_rise_from_soft_ground_do_not_lower_it(
    legs: LegOdometry, standing: RobotState, stood_s: float, sinks_m: float
) -> None:
    """Feet rise by 6 mm within 0.08 s of touchdown, relative to a root that stays."""
    knees = torch.tensor([0.0, 0.0, 1.0] * 4)

    def bent(angle: float) -> RobotState:
        return standing._replace(joint_pos=standing.joint_pos + angle * knees)

    def lowest(robots: RobotState) -> float:
        return legs.feet(robots.root_pos, robots.root_rot, robots.joint_pos)[..., 2].min().item()

    angle = 0.05
    rise = lowest(standing) - lowest(bent(angle))
    angle *= 0.006 / rise
    odometry = legs.begin(bent(angle))
    odometry = odometry._replace(stood_s=torch.full((1, 4), stood_s))
    feet = torch.ones(1, 4, dtype=torch.bool)
    for k in range(1, 30):
        robots = bent(angle * max(1.0 - k / 4.0, 0.0))
        reading = proprioception(robots, legs.home)
        none = torch.zeros(1, 12)
        odometry, _ = legs.update(odometry, reading, feet, robots.joint_pos, none)
    sunk = standing.root_pos[0, 2] - odometry.root_pos[0, 2]
    assert sunk.item() == pytest.approx(sinks_m, abs=0.0015)


def test_a_single_foot_off_its_place_is_not_trusted(
    legs: LegOdometry, standing: RobotState
) -> None:
    odometry, _ = update(legs, standing, standing, 1, stands=True)
    only = torch.tensor([[True, False, False, False]])
    moved = standing._replace(joint_pos=standing.joint_pos + 0.4 * torch.eye(12)[2])
    sensors = proprioception(moved, legs.home)
    after, _ = legs.update(odometry, sensors, only, legs.home[None], torch.zeros(1, 12))
    torch.testing.assert_close(after.root_pos, standing.root_pos, atol=3e-3, rtol=0.0)


def test_joints_have_moved_on_by_the_delay(go2: Robot, standing: RobotState) -> None:
    sensors = SensorConfig(delay_s=(0.01, 0.01))
    legs = LegOdometry(go2, Kinematics(go2.model()), Feet(go2), DT, sensors)
    moves = torch.full((1, 12), 2.0)
    late = standing._replace(joint_pos=standing.joint_pos - 0.02)
    reading = proprioception(late, legs.home)
    stands = torch.ones(1, 4, dtype=torch.bool)
    _, estimate = legs.update(legs.begin(standing), reading, stands, standing.joint_pos, moves)
    torch.testing.assert_close(estimate.joint_pos, standing.joint_pos, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(estimate.joint_vel, moves, atol=1e-3, rtol=0.0)


def test_it_follows_a_simulated_trot(go2: Robot) -> None:
    skill = SkillModule.load(modules.find("go2_ground"))
    policy = FootstepPolicy(skill, go2)
    batch = RobotBatchConfig().like(skill)
    clock_s = policy.contract.clock_s
    env = walk_env(go2, 2, robots=batch, clock_s=clock_s, command_range=((-1.0, 1.0),) * 3)
    env.schedule(10_000, None)
    env.task.commands.fix(torch.tensor([[[0.5, 0.0, 0.0], [0.3, 0.0, 0.5]]]))
    env.reset()
    begin = env.state
    after = rollout(over(policy, skill), env, 200, lambda step: None)
    odometry = after.policy.upper.odometry
    moved = torch.linalg.vector_norm((env.state.root_pos - begin.root_pos)[:, :2], dim=-1)
    assert moved.min().item() > 0.5
    # of the step before: the policy has not seen the last state
    before = env.state.root_pos - DT * geometry.to_world(env.state.root_rot, env.state.root_vel)
    off = odometry.root_pos - before
    assert off[:, :2].abs().max().item() < 0.04
    assert off[:, 2].abs().max().item() < 0.03
    turn = geometry.yaw_of(env.state.root_rot.transpose(-1, -2) @ odometry.root_rot)
    assert turn.abs().max().item() < 0.05


@pytest.mark.parametrize("noise", [0.1, 1.0, 30.0])
def test_tracking_gains_are_those_of_the_filter_that_converged(noise: float) -> None:
    # covariance of position and velocity, period 1, acceleration of variance 1
    move = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    way = torch.tensor([[0.5], [1.0]], dtype=torch.float64)
    covariance = torch.eye(2, dtype=torch.float64)
    for _ in range(2000):
        ahead = move @ covariance @ move.T + way @ way.T
        gain = ahead[:, :1] / (ahead[0, 0] + noise**2)
        covariance = ahead - gain @ ahead[:1]
    position, velocity = tracking_gains(1.0, noise)
    assert position == pytest.approx(gain[0].item(), rel=1e-6)
    assert velocity == pytest.approx(min(gain[1].item(), 1.0), rel=1e-6)


def test_gains_without_noise_take_the_measurement() -> None:
    assert tracking_gains(1.0, 0.0) == pytest.approx((1.0, 1.0), abs=1e-5)
    gains = filter_gain(1.0, torch.tensor([0.0, 1.0, 1e3]))
    # the golden ratio's inverse for equal deviations
    expected = torch.tensor([1.0, 0.5 * (math.sqrt(5.0) - 1.0), 1e-3])
    torch.testing.assert_close(gains, expected, atol=1e-5, rtol=1e-3)
