"""Eq. 2 and eq. 9: by hand, and against dm_control's own comic reward on the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dm_control.locomotion.tasks.reference_pose.rewards import comic_reward_fn

from mocap_data import rotations
from mocap_data.store import MotionSet
from npmp.core import geometry
from npmp.envs.kinematics import BodyPoses, Kinematics, in_root_frame
from npmp.envs.reference import Reference, ReferenceFrames
from npmp.robots import Robot
from npmp.tasks.rewards import RewardConfig, current_penalty, rewards, tracking_error


def feet_of(robot: Robot) -> torch.Tensor:
    return torch.tensor([robot.body_names.index(b) for b in robot.foot_bodies])


def off_the_reference(robot: Robot, reference: Reference, n: int, noise: float = 0.05):  # type: ignore[no-untyped-def]
    """Robots near some reference frames: state, poses, frames."""
    g = torch.Generator().manual_seed(0)
    frame = torch.randint(reference.num_frames, (n,), generator=g)
    state = reference.state(frame)

    def disturb(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x + scale * torch.randn(x.shape, generator=g)

    turn = geometry.exp_so3(disturb(torch.zeros(n, 3), noise))
    state = state._replace(
        root_pos=disturb(state.root_pos, noise),
        root_rot=state.root_rot @ turn,
        joint_pos=disturb(state.joint_pos, noise),
        joint_vel=disturb(state.joint_vel, 10 * noise),
    )
    poses = Kinematics(robot.model())(state.root_pos, state.root_rot, state.joint_pos)
    return state, poses, reference.at(frame)


def test_eq_2_by_hand() -> None:
    # two bodies, off by (0.3, 0, -0.3) and (0, 0, 0.6): mean of six coordinates 1.2 / 6 = 0.2 m
    # four joints, off by 0.1, -0.3, 0, 0: mean 0.1 rad
    position = torch.tensor([[[1.3, 2.0, 2.7], [0.0, 0.0, 0.6]]])
    poses = BodyPoses(position, torch.eye(3).expand(1, 2, 3, 3), torch.zeros(1, 3))
    joints = torch.tensor([[0.6, 0.2, 1.0, -1.0]])
    frames = ReferenceFrames(
        *(torch.zeros(1) for _ in range(2)),
        torch.tensor([[0.5, 0.5, 1.0, -1.0]]),
        *(torch.zeros(1) for _ in range(3)),
        torch.tensor([[[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]]),
        *(torch.zeros(1) for _ in range(3)),
    )
    torch.testing.assert_close(tracking_error(poses, joints, frames), torch.tensor([0.3]))
    torch.testing.assert_close(tracking_error(poses, joints, frames, 0.5), torch.tensor([0.15]))


def test_eq_14_by_hand() -> None:
    """Three joints of 1, -2 and 0.5 A: 1 + 4 + 0.25 = 5.25 A^2, times 5e-4."""
    squares = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]]).square()
    found = current_penalty(squares, RewardConfig(current_weight=5e-4))
    torch.testing.assert_close(found, torch.tensor([-2.625e-3, 0.0]))


def test_terms_equal_dm_controls_comic(robot: Robot, motions: MotionSet) -> None:
    reference, feet = Reference(robot, motions), feet_of(robot)
    state, poses, frames = off_the_reference(robot, reference, 20)
    error = tracking_error(poses, state.joint_pos, frames)
    ours = rewards(
        state, poses, frames, error, feet, RewardConfig(appendage_scale=40.0)
    )  # dm_control has 40, ANYmal 80
    truth = BodyPoses(frames.body_pos, frames.body_rot, frames.center_of_mass)
    for i in range(20):
        features = [
            {
                "center_of_mass": p.center_of_mass[i].numpy().astype(float),
                "joints_velocity": v[i].numpy().astype(float),
                "appendages": in_root_frame(p, feet)[i].numpy().astype(float),
                "body_quaternions": rotations.from_matrix(p.rotation[i].numpy().astype(float)),
            }
            for p, v in ((poses, state.joint_vel), (truth, frames.joint_vel))
        ]
        theirs = comic_reward_fn(
            float(error[i]), 0.3, walker_features=features[0], reference_features=features[1]
        )
        expected = [
            theirs.reward_terms[name]
            for name in (
                "termination",
                "center_of_mass",
                "joints_velocity",
                "appendages",
                "body_quaternions",
            )
        ]
        np.testing.assert_allclose(ours[i].numpy(), expected, atol=2e-5)
        assert float(ours[i].sum()) == pytest.approx(theirs.reward, abs=5e-5)


def test_gradients_are_finite_on_the_reference(robot: Robot, motions: MotionSet) -> None:
    """The angle between equal rotations is where acos has no slope; imagination must survive it."""
    state, _, frames = off_the_reference(robot, Reference(robot, motions), 4)
    joints = state.joint_pos.clone().requires_grad_()
    poses = Kinematics(robot.model())(state.root_pos, state.root_rot, joints)
    error = tracking_error(poses, joints, frames)
    rewards(state, poses, frames, error, feet_of(robot), RewardConfig()).sum().backward()
    assert joints.grad is not None and joints.grad.isfinite().all() and joints.grad.abs().max() > 0
