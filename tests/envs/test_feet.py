"""Where the feet are: against MuJoCo, and what dragging them comes to by hand."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest
import torch

from npmp import robots
from npmp.envs.feet import Feet, SteppingConfig, dragging, highest, stand_still, stepping, unlifted
from npmp.envs.state import RobotState, pose_from_qpos


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_contact_points_are_where_mujoco_has_them(name: str) -> None:
    robot = robots.load(name)
    model, feet = robot.model(), Feet(robot)
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    for _ in range(5):
        data.qpos[:3], data.qpos[3:7] = (0.3, -2.0, 1.5), rng.normal(size=4)
        data.qpos[3:7] /= np.linalg.norm(data.qpos[3:7])
        data.qpos[7:] = rng.uniform(-1.0, 1.0, model.nu)
        mujoco.mj_forward(model, data)
        wanted = [
            [data.body(body).xpos + data.body(body).xmat.reshape(3, 3) @ point for point in points]
            for body, points in zip(robot.foot_bodies, robot.foot_points, strict=True)
        ]
        result = feet(*pose_from_qpos(torch.tensor(data.qpos).unsqueeze(0)))
        expected = torch.tensor(np.array(wanted)).float()
        torch.testing.assert_close(result[0], expected, atol=1e-5, rtol=0.0)
        lowest = np.array(wanted)[..., 2].min(-1) - robot.foot_radius
        np.testing.assert_allclose(feet.heights(data.qpos[None])[0], lowest, atol=1e-5)


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_feet_move_as_their_places_change(name: str) -> None:
    robot, draw = robots.load(name), torch.Generator().manual_seed(0)
    feet, joints = Feet(robot).double(), len(robot.joint_names)
    pos, vel = torch.randn(2, 3, 5, joints, generator=draw, dtype=torch.float64)
    place, moved = feet.moving(pos, vel)
    before, after = (feet.moving(pos + time * vel, vel)[0] for time in (-1e-6, 1e-6))
    torch.testing.assert_close(moved, (after - before) / 2e-6, atol=1e-7, rtol=1e-7)
    origin, axes = (
        torch.zeros(3, 5, 3, dtype=torch.float64),
        torch.eye(3, dtype=torch.float64).expand(3, 5, 3, 3),
    )
    torch.testing.assert_close(feet(origin, axes, pos), place)


def test_legs_may_have_fewer_joints_than_others(robot: robots.Robot) -> None:
    bodies = (*robot.foot_bodies[:2], "LH_THIGH", "RH_SHANK")
    pos, vel = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(0))
    result = Feet(replace(robot, foot_bodies=bodies)).moving(pos, vel)
    for some, all_of in zip(result, Feet(robot).moving(pos, vel), strict=True):
        torch.testing.assert_close(some[:, :2], all_of[:, :2])
    data = mujoco.MjData(model := robot.model())
    data.qpos[:7], data.qpos[7:] = (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0), pos[0]
    mujoco.mj_kinematics(model, data)
    thigh = data.body("LH_THIGH")
    expected = thigh.xpos + thigh.xmat.reshape(3, 3) @ robot.foot_points[2, 0]
    np.testing.assert_allclose(result[0][0, 2, 0], expected, atol=1e-6)


def test_dragging_by_hand() -> None:
    """Half a metre a second in the ground, on it, half way up, at the height where feet are free,
    and above."""
    before, height = torch.zeros(5, 3), torch.tensor([-0.01, 0.0, 0.02, 0.04, 0.5])
    after = torch.tensor([0.006, 0.0, -0.008]).expand(5, 3)
    result = dragging(before, after, height, 0.04, 0.02)
    torch.testing.assert_close(
        result, torch.tensor([0.5, 0.5, 0.25, 0.0, 0.0]), atol=1e-3, rtol=0.0
    )


def test_unlifted_by_hand() -> None:
    """Three moments of three robots with two feet of two points: one foot gets half way up, one
    beyond; the second robot makes half the way that counts as walking, the third stands."""
    height = torch.zeros(3, 3, 2, 2)
    height[1, :, 0], height[2, :, 1] = torch.tensor([0.02, 0.9]), torch.tensor([0.05, 0.06])
    result = unlifted(height, torch.tensor([0.5, 0.075, 0.0]), 0.04, 1.0)
    torch.testing.assert_close(result, torch.tensor([0.25, 0.125, 0.0]))


def test_a_robot_that_turns_owes_for_its_feet_as_one_that_walks() -> None:
    """Half a second of three robots whose feet stay on the ground: one stands, one glides by 0.5
    m/s, one turns by 1 rad/s, which moves its feet, 0.5 m from its middle, as fast."""
    robot = robots.load("anymal_b")
    config = SteppingConfig(drag_weight=0.0, press_weight=0.0, lift_weight=1.0)
    time = torch.linspace(0.0, 0.5, 26)
    feet = Feet(robot)
    cos, sin = torch.cos(time), torch.sin(time)
    turned = torch.eye(3).repeat(26, 3, 1, 1)
    turned[:, 2, :2, :2] = torch.stack((cos, -sin, sin, cos), -1).view(-1, 2, 2)
    home = torch.tensor(robot.home_qpos, dtype=torch.float32)
    place = home[:3].repeat(26, 3, 1)
    place[:, 1, 0] += 0.5 * time
    place[..., 2] -= float(feet.heights(robot.home_qpos[None]).min())
    states = RobotState.still(place, turned, home[7:].repeat(26, 3, 1))
    owed = stepping(feet, states, config, 0.02)
    torch.testing.assert_close(owed, torch.tensor([0.0, 1.0, 1.0]), atol=0.05, rtol=0.0)


def test_feet_in_the_ground_by_hand() -> None:
    """Robots whose four feet are equally deep in the ground: the first centimetre is free, all of
    the rest counts, as of a foot in the side of a step."""
    robot = robots.load("anymal_b")
    feet = Feet(robot)
    config = SteppingConfig(drag_weight=0.0, press_weight=10.0, lift_weight=0.0)
    home = torch.tensor(robot.home_qpos, dtype=torch.float32)
    depth = torch.tensor([0.0, 0.01, 0.03, 0.04, 0.2])
    place = home[:3].repeat(2, 5, 1)
    place[..., 2] -= float(feet.heights(robot.home_qpos[None]).mean()) + depth
    states = RobotState.still(place, torch.eye(3).repeat(2, 5, 1, 1), home[7:].repeat(2, 5, 1))
    counted = torch.tensor([0.0, 0.0, 0.02, 0.03, 0.19])
    result = stepping(feet, states, config, 0.02)
    torch.testing.assert_close(result, 10.0 * 4 * counted, atol=0.02, rtol=0.0)


def test_stand_still_by_hand() -> None:
    """Three robots in the home pose: one stands, one floats 2 cm above the ground (0.02 m / 0.1 s),
    one glides at 0.5 m/s. On a ground 1 cm higher the second is 1 cm above it."""
    robot = robots.load("anymal_b")
    feet = Feet(robot)
    home = torch.tensor(robot.home_qpos, dtype=torch.float32)
    position = home[:3].repeat(4, 3, 1)
    position[..., 2] -= float(feet.heights(robot.home_qpos[None]).max())
    position[:, 1, 2] += 0.02
    position[:, 2, 0] += 0.01 * torch.arange(4)
    position.requires_grad_()
    joints = home[7:].repeat(4, 3, 1)
    states = RobotState.still(position, torch.eye(3).repeat(4, 3, 1, 1), joints)

    motion = stand_still(feet, states, 0.02)
    expected = torch.tensor([0.0, 0.2, 0.5]).repeat(3, 1)
    torch.testing.assert_close(motion, expected, atol=2e-3, rtol=0.0)
    higher = stand_still(feet, states, 0.02, lambda at: torch.full_like(at[..., 0], 0.01))
    expected[:, 1] = 0.1
    torch.testing.assert_close(higher, expected, atol=2e-3, rtol=0.0)

    motion.sum().backward()
    assert position.grad is not None and bool(position.grad.isfinite().all())
    # lowered by 1 m the foot is 10 m/s calmer, in each of three steps between four states
    assert position.grad[:, 1, 2].sum().item() == pytest.approx(30.0, abs=1e-3)


def test_feet_swing_over_the_highest_ground_within_reach() -> None:
    """Before a step of 5 cm at x = 0 feet rise from 0.1 m on, behind it they have reached it."""
    position = torch.tensor([[[-0.11, 0.3, 0.0], [-0.09, 0.3, 0.0], [0.2, -1.0, 0.0]]])

    def step(at: torch.Tensor) -> torch.Tensor:
        return 0.05 * (at[..., 0] > 0.0).float()

    assert highest(position, ground=step).tolist() == [pytest.approx([0.0, 0.05, 0.05])]
    wall = highest(position, ground=lambda at: 30.0 * step(at))
    assert wall.tolist() == [pytest.approx([0.0, 0.2, 1.5])]


def test_a_foot_low_before_a_step_has_a_loss() -> None:
    """Feet that move at 0.5 m/s, 8 cm over the floor and 5 cm before a step of 6 cm: less than the
    swing height of 4 cm over the step, more over the floor."""
    robot = robots.load("anymal_b")
    feet = Feet(robot)
    config = SteppingConfig(drag_weight=0.3, press_weight=0.0, lift_weight=0.0)
    home = torch.tensor(robot.home_qpos, dtype=torch.float32)
    lift = 0.08 - float(feet.heights(robot.home_qpos[None]).mean())
    root = home[:3] + torch.tensor([[[0.0, 0.0, lift]], [[0.01, 0.0, lift]]])
    states = RobotState.still(root, torch.eye(3).repeat(2, 1, 1, 1), home[7:].repeat(2, 1, 1))
    front = feet(states.root_pos, states.root_rot, states.joint_pos)[0, 0, :, 0, 0].max()

    def step(at: torch.Tensor) -> torch.Tensor:
        return 0.06 * (at[..., 0] > front + 0.05).float()

    flat = stepping(feet, states, config, 0.02)
    before = stepping(feet, states, config, 0.02, step)
    assert flat.item() == 0.0
    # half of the swing height is missing at 0.5 m/s
    assert before.item() == pytest.approx(0.3 * 0.5 * 0.5, rel=0.1)
