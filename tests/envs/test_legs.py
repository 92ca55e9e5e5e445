"""Inverse kinematics: feet from known angles are reached again, derivatives by differences."""

from __future__ import annotations

import pytest
import torch

from mocap_data.errors import InputError
from npmp import robots
from npmp.envs.legs import Legs
from npmp.robots import Robot


@pytest.mark.parametrize("name", ["anymal_b", "unitree_go2"])
def test_feet_are_brought_where_they_should_be(name: str) -> None:
    robot = robots.load(name)
    legs = Legs(robot)
    home = torch.tensor(robot.home_joints, dtype=torch.float32).expand(20, -1)
    generator = torch.Generator().manual_seed(0)
    joints = home + 0.3 * (2.0 * torch.rand(home.shape, generator=generator) - 1.0)
    low, high = (
        torch.tensor(limit, dtype=torch.float32) for limit in (robot.joint_lower, robot.joint_upper)
    )
    joints = joints.clamp(low + 0.02, high - 0.02)
    aim, jacobian = legs.at(joints)
    torch.testing.assert_close(legs.at(legs.reach(aim, home))[0], aim, atol=2e-3, rtol=0.0)
    for level in range(3):
        step = torch.zeros_like(joints)
        step[:, legs.joints[:, level]] = 1e-3
        ahead, behind = (legs.at(joints + sign * step)[0] for sign in (1.0, -1.0))
        expected = (ahead - behind) / 2e-3
        torch.testing.assert_close(jacobian[..., level], expected, atol=2e-3, rtol=0.0)


@pytest.mark.parametrize("name", ["anymal_b", "unitree_go2"])
def test_a_leg_is_as_long_as_from_its_hip_to_its_farthest_foot(name: str) -> None:
    robot = robots.load(name)
    legs = Legs(robot)
    home = torch.tensor(robot.home_joints, dtype=torch.float32)
    low, high = (
        torch.tensor(limit, dtype=torch.float32) for limit in (robot.joint_lower, robot.joint_upper)
    )
    generator = torch.Generator().manual_seed(0)
    joints = low + (high - low) * torch.rand((2000, len(home)), generator=generator)
    joints[:, legs.joints[:, 0]] = home[legs.joints[:, 0]]
    distance = torch.linalg.vector_norm(legs.at(joints)[0] - legs.hips, dim=-1)
    assert bool((distance <= legs.length + 1e-4).all())
    torch.testing.assert_close(distance.amax(0), legs.length, atol=2e-3, rtol=0.0)
    # the hip is on the axis of the thigh
    turned = joints.clone()
    turned[:, legs.joints[:, 1]] = home[legs.joints[:, 1]]
    again = torch.linalg.vector_norm(legs.at(turned)[0] - legs.hips, dim=-1)
    torch.testing.assert_close(again, distance, atol=1e-5, rtol=0.0)


def test_points_out_of_reach_are_approached_within_the_limits(robot: Robot) -> None:
    legs = Legs(robot)
    home = torch.tensor(robot.home_joints, dtype=torch.float32)[None]
    # 5 cm beyond a straight leg's foot
    aim = legs.at(home)[0] - torch.tensor([0.0, 0.0, 0.15])
    reached = legs.reach(aim, home)
    off = torch.linalg.vector_norm(aim - legs.at(reached)[0], dim=-1)
    assert 0.03 < off.min().item() <= off.max().item() < 0.1
    for limit, sign in ((robot.joint_lower, 1.0), (robot.joint_upper, -1.0)):
        bound = torch.tensor(limit, dtype=torch.float32)
        assert bool((sign * (reached - bound) >= 0.0).all())


def test_a_robot_s_joints_do_not_depend_on_the_others(robot: Robot) -> None:
    """The foot of one is out of reach, so that its steps go on."""
    legs = Legs(robot)
    home = torch.tensor(robot.home_joints, dtype=torch.float32).expand(8, -1)
    generator = torch.Generator().manual_seed(0)
    aim = legs.at(home + 0.1 * torch.randn(home.shape, generator=generator))[0]
    expected = legs.reach(aim[1:], home[1:])
    aim[0, 0, 2] -= 0.5
    torch.testing.assert_close(legs.reach(aim, home)[1:], expected, atol=1e-6, rtol=0.0)


def test_angles_beyond_the_limits_are_brought_within(robot: Robot) -> None:
    legs = Legs(robot)
    upper = torch.tensor(robot.joint_upper, dtype=torch.float32)
    start = torch.tensor(robot.home_joints, dtype=torch.float32)[None].clone()
    start[0, 2] = upper[2] + 0.1
    reached = legs.reach(legs.at(start)[0], start)
    assert bool((reached <= upper).all())


@pytest.mark.parametrize("name", ["op3", "unitree_g1"])
def test_robots_without_four_round_feet_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="expected four legs of three joints"):
        Legs(robots.load(name))
