"""Tracking error, termination, rewards and imagined loss of imitation (robot-NPMP, eq. 2, 9 and 14;
terms as in CoMic and dm_control).

Pure functions of (robot's poses, reference frames), for simulated and imagined robots. The current
penalty of eq. 14 needs drives that model currents; the world model learns them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from npmp.core import geometry, ranges
from npmp.envs.kinematics import BodyPoses, in_root_frame
from npmp.envs.reference import ReferenceFrames
from npmp.envs.state import RobotState

REWARD_TERMS = ("truncation", "center_of_mass", "joint_velocity", "appendages", "orientation")
CURRENT = "current"  # the objective that eq. 14 adds


@dataclass(frozen=True)
class RewardConfig:
    """Weights and widths of eq. 9 and 14, and the threshold of eq. 2. Raises ValueError for values
    out of range."""

    # limit on the tracking error of eq. 2
    termination_threshold: float = 0.3
    # factor of the error; 1 in eq. 2, 0.5 in dm_control
    termination_factor: float = 1.0
    # eq. 9, a
    com_weight: float = 0.1
    # d [1/m^2]
    com_scale: float = 10.0
    velocity_weight: float = 1.0
    # e [s^2/rad^2]
    velocity_scale: float = 0.1
    # b
    appendage_weight: float = 0.15
    # f [1/m^2]; 80 for ANYmal, 40 in dm_control
    appendage_scale: float = 80.0
    # c
    orientation_weight: float = 0.65
    # g [1/rad^2]
    orientation_scale: float = 2.0
    # weight of eq. 14 [1/A^2]; 0: no such term
    current_weight: float = 0.0

    def __post_init__(self) -> None:
        ranges.above_zero(self, "termination_threshold", "termination_factor")
        ranges.not_negative(self, *(entry.name for entry in fields(self)))


def tracking_error(
    poses: BodyPoses, joint_pos: Tensor, reference: ReferenceFrames, factor: float = 1.0
) -> Tensor:
    """Eq. 2: mean absolute difference of body coordinates [m] plus that of joint angles [rad]. ->
    (...)."""
    bodies = (poses.position - reference.body_pos).abs().mean((-1, -2))
    joints = (joint_pos - reference.joint_pos).abs().mean(-1)
    return factor * (bodies + joints)


def rewards(
    state: RobotState,
    poses: BodyPoses,
    reference: ReferenceFrames,
    error: Tensor,
    appendages: Tensor,
    config: RewardConfig,
) -> Tensor:
    """The weighted terms of eq. 9, whose sum is the reward.

    Args:
      state, poses, reference: batch shape (...).
      error: (...) the tracking error of eq. 2.
      appendages: (k,) indices of the robot's feet; they are compared in the root frame.

    Returns: (..., 5) in the order of REWARD_TERMS.
    """
    c = config
    com = (poses.center_of_mass - reference.center_of_mass).square().sum(-1)
    velocity = (state.joint_vel - reference.joint_vel).square().sum(-1)
    ends = (in_root_frame(poses, appendages) - reference.feet).square().sum((-1, -2))
    # dm_control's distance of orientations is half the angle between them
    turn = (0.5 * geometry.angle_between(poses.rotation, reference.body_rot)).square().sum(-1)
    distances = torch.stack((com, velocity, ends, turn), -1)
    scales = distances.new_tensor(
        (c.com_scale, c.velocity_scale, c.appendage_scale, c.orientation_scale)
    )
    weights = distances.new_tensor(
        (c.com_weight, c.velocity_weight, c.appendage_weight, c.orientation_weight)
    )
    truncation = 1.0 - error / c.termination_threshold
    return 0.5 * torch.cat((truncation.unsqueeze(-1), weights * torch.exp(-scales * distances)), -1)


def current_penalty(squares: Tensor, config: RewardConfig) -> Tensor:
    """Eq. 14: minus the weight times the sum of squared motor currents (..., nu) [A^2].
    -> (...)."""
    return -config.current_weight * squares.sum(-1)


# --- imagined robots ---


@dataclass(frozen=True)
class TrackingWeights:
    """Weights of the absolute differences in the tracking loss of an imagined step. Raises
    ValueError below zero."""

    # root position, summed over axes [1/m]
    position: float = 4.0
    # root rotation matrix, summed over entries
    rotation: float = 1.0
    # summed over joints [1/rad]
    joints: float = 0.5
    # root linear velocity [s/m]
    linear: float = 0.2
    # root angular velocity [s/rad]
    angular: float = 0.1
    # summed over joints [s/rad]
    joint_velocity: float = 0.02
    # setpoint minus joint angle, summed over joints [1/rad]
    effort: float = 0.02
    # change of the setpoint, summed over joints [1/rad]
    smoothness: float = 0.02

    def __post_init__(self) -> None:
        ranges.not_negative(self, *(entry.name for entry in fields(self)))


def setpoint_costs(state: RobotState, before: RobotState) -> tuple[Tensor, Tensor]:
    """Effort and smoothness of a step, (...) [rad] each: distances of the setpoints from the
    previous joint angles and from the previous setpoints, summed over joints."""
    effort = state.setpoint - before.joint_pos
    change = state.setpoint - before.setpoint
    return effort.abs().sum(-1), change.abs().sum(-1)


def tracking_loss(
    state: RobotState, before: RobotState, reference: ReferenceFrames, w: TrackingWeights
) -> Tensor:
    """Loss of an imagined step relative to its reference frame, (...)."""
    rot_t = state.root_rot.transpose(-1, -2)
    linear = (rot_t @ reference.root_vel_w.unsqueeze(-1)).squeeze(-1)
    angular = (rot_t @ reference.root_ang_w.unsqueeze(-1)).squeeze(-1)
    effort, smoothness = setpoint_costs(state, before)
    return (
        w.position * (state.root_pos - reference.root_pos).abs().sum(-1)
        + w.rotation * (state.root_rot - reference.root_rot).abs().sum((-1, -2))
        + w.joints * (state.joint_pos - reference.joint_pos).abs().sum(-1)
        + w.linear * (state.root_vel - linear).abs().sum(-1)
        + w.angular * (state.root_ang - angular).abs().sum(-1)
        + w.joint_velocity * (state.joint_vel - reference.joint_vel).abs().sum(-1)
        + w.effort * effort
        + w.smoothness * smoothness
    )
