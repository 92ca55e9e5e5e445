"""What policies see: by hand where it is simple, by invariance where it is not."""

from __future__ import annotations

import dataclasses

import torch

from mocap_data.store import MotionSet
from npmp.core import geometry
from npmp.envs.features import ReferenceFeatures, proprioception, proprioception_layout, true_state
from npmp.envs.reference import Reference
from npmp.envs.state import GRAVITY, RobotState
from npmp.robots import Robot


def still(robot: Robot, motions: MotionSet, frame: int = 40) -> MotionSet:
    """One clip that stays in a frame of the first."""
    m = motions.motions[0]
    held = dataclasses.replace(m, qpos=m.qpos[[frame] * 12], contacts=None, frame_quality={})
    return dataclasses.replace(motions, motions=(held,))


def test_proprioception_is_in_the_order_of_its_layout(robot: Robot) -> None:
    home = torch.tensor(robot.home_joints, dtype=torch.float32)
    # the world's vertical in the root frame: row 2 of the rotation
    up = torch.tensor([0.0, 0.6, 0.8])
    rotation = torch.stack((torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 0.8, -0.6]), up))
    state = RobotState.still(torch.tensor([5.0, 6.0, 0.5]), rotation, home + 0.1)._replace(
        root_vel=torch.full((3,), 7.0),
        root_ang=torch.tensor([1.0, 2.0, 3.0]),
        joint_vel=torch.full((12,), 9.0),
        accel=GRAVITY * torch.tensor([0.5, 0.0, 1.0]),
        setpoint=home - 0.2,
    )
    parts = dict(
        zip(
            (n for n, _ in proprioception_layout(12)),
            proprioception(state, home).split([width for _, width in proprioception_layout(12)]),
            strict=True,
        )
    )
    torch.testing.assert_close(parts["joint_pos_minus_home"], torch.full((12,), 0.1))
    torch.testing.assert_close(parts["setpoint_minus_home"], torch.full((12,), -0.2))
    torch.testing.assert_close(parts["gyro"], torch.tensor([1.0, 2.0, 3.0]))
    torch.testing.assert_close(parts["accelerometer_g"], torch.tensor([0.5, 0.0, 1.0]))
    torch.testing.assert_close(parts["up"], up)


def test_states_do_not_tell_where_and_which_way(robot: Robot, motions: MotionSet) -> None:
    home = torch.tensor(robot.home_joints, dtype=torch.float32)
    state = Reference(robot, motions).state(torch.arange(50))
    yaw = geometry.yaw_matrix(torch.tensor(1.0))
    elsewhere = state._replace(
        root_pos=geometry.to_world(yaw, state.root_pos) + torch.tensor([3.0, -2.0, 0.0]),
        root_rot=yaw @ state.root_rot,
    )
    for view in (proprioception, true_state):
        torch.testing.assert_close(view(state, home), view(elsewhere, home), atol=1e-5, rtol=0)
    assert true_state(state, home).shape == (50, 13 + 36)
    higher = state._replace(root_pos=state.root_pos + torch.tensor([0.0, 0.0, 0.1]))
    assert not torch.equal(true_state(state, home), true_state(higher, home))


def test_a_robot_on_a_still_reference_sees_no_difference(robot: Robot, motions: MotionSet) -> None:
    reference = Reference(robot, still(robot, motions))
    features = ReferenceFeatures(robot, reference, horizon=2)
    frame, last = torch.tensor([3]), torch.tensor([11])
    state = reference.state(frame)
    seen = features(state, frame, last)
    assert seen.shape == (1, features.size)
    points = 1 + 4 + 4  # root, knees, feet
    vectors = seen[0, : 2 * 3 * (points + 4)].view(2, points + 4, 3)
    torch.testing.assert_close(vectors[0], vectors[1])
    # the root is where it should be
    torch.testing.assert_close(vectors[0, 0], torch.zeros(3), atol=1e-6, rtol=0)
    poses = reference.bodies(frame)
    foot = robot.body_names.index(robot.foot_bodies[1])
    expected = geometry.to_local(state.root_rot[0], poses.position[0, foot] - state.root_pos[0])
    torch.testing.assert_close(vectors[0, 1 + 4 + 1], expected, atol=1e-6, rtol=0)
    # axes x, y
    torch.testing.assert_close(vectors[0, points : points + 2], torch.eye(3)[:2], atol=1e-6, rtol=0)
    # at rest
    torch.testing.assert_close(vectors[0, points + 2 :], torch.zeros(2, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen[0, -24:], torch.zeros(24), atol=1e-6, rtol=0)  # joints


def test_shifts_are_seen_in_the_robots_own_frame(robot: Robot, motions: MotionSet) -> None:
    reference = Reference(robot, motions)
    features = ReferenceFeatures(robot, reference, horizon=1)
    frame, last = torch.tensor([20]), torch.tensor([99])
    state = reference.state(frame)
    shift = torch.tensor([0.1, -0.2, 0.3])  # of the robot, in its own frame
    moved = state._replace(
        root_pos=state.root_pos + geometry.to_world(state.root_rot, shift),
        joint_pos=state.joint_pos + 0.5,
    )
    change = (features(moved, frame, last) - features(state, frame, last))[0]
    torch.testing.assert_close(change[:27].view(9, 3), -shift.expand(9, 3), atol=1e-6, rtol=0)
    # directions do not shift
    torch.testing.assert_close(change[27:39], torch.zeros(12), atol=1e-6, rtol=0)
    torch.testing.assert_close(change[39:], torch.full((12,), -0.5), atol=1e-6, rtol=0)


def test_beyond_its_end_a_clip_repeats_its_last_frame(robot: Robot, motions: MotionSet) -> None:
    reference = Reference(robot, motions)
    last = torch.tensor([99])  # of the first clip; frame 100 belongs to the second
    five, one = (ReferenceFeatures(robot, reference, horizon=h) for h in (5, 1))
    state = reference.state(torch.tensor([98]))
    joints = five(state, torch.tensor([98]), last)[0, -60:].view(5, 12)
    torch.testing.assert_close(joints, joints[:1].expand(5, 12))
    expected = one(state, torch.tensor([99]), last)
    torch.testing.assert_close(one(state, torch.tensor([98]), last), expected)
