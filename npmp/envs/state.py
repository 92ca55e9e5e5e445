"""The robot's state, and its exact kinematics over one control step.

Velocities are finite differences of successive poses (as in ControlVAE, Yao et al. 2022): their
integration is exact, and a world model predicts velocities only. `integrate` is the inverse of
`differentiate`; environments use both, imagination the first.

A state also has the velocities at the step's end. With them the accelerometer reads the mean over
the last step at the IMU's position, and a world model's one-step error is smaller
(docs/learning.md). Older modules use mean velocities only: their accelerometer is averaged over the
last two steps, half a step late, at the root's origin. tests/envs/test_accelerometer.py compares
both with MuJoCo's sensor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmp.core import geometry

GRAVITY = 9.81  # [m/s^2]

# root position (..., 3), rotation (..., 3, 3), joints (..., nu)
Pose = tuple[Tensor, Tensor, Tensor]


class RobotState(NamedTuple):
    """States of a batch of robots, each field (..., k). Root frame: the frame of the root body."""

    root_pos: Tensor  # (..., 3) world [m]
    root_rot: Tensor  # (..., 3, 3) root to world
    joint_pos: Tensor  # (..., nu) [rad]
    # (..., 3) mean linear velocity over the last control step, in the root frame [m/s]
    root_vel: Tensor
    # (..., 3) mean angular velocity over the last control step, in the root frame [rad/s]
    root_ang: Tensor
    joint_vel: Tensor  # (..., nu) mean over the last control step [rad/s]
    # (..., 3) mean proper acceleration of the IMU over the last control step, in the root frame
    # [m/s^2]
    accel: Tensor
    setpoint: Tensor  # (..., nu) joint targets of the last control step [rad]
    root_vel_end: Tensor  # (..., 3) linear velocity now, in the root frame [m/s]
    root_ang_end: Tensor  # (..., 3) angular velocity now, in the root frame [rad/s]
    joint_vel_end: Tensor  # (..., nu) now [rad/s]

    @staticmethod
    def width(nu: int) -> int:
        """Width of packed states of nu joints."""
        return 27 + 4 * nu

    @staticmethod
    def still(root_pos: Tensor, root_rot: Tensor, joint_pos: Tensor) -> RobotState:
        """At rest in a pose (..., 3), (..., 3, 3), (..., nu), which is also the setpoint."""
        none = torch.zeros_like(root_pos)
        joints = torch.zeros_like(joint_pos)
        return RobotState.steady((root_pos, root_rot, joint_pos), none, none, joints)

    @staticmethod
    def steady(pose: Pose, root_vel: Tensor, root_ang: Tensor, joint_vel: Tensor) -> RobotState:
        """In a pose, which is also the setpoint, at constant velocities (..., 3), (..., 3),
        (..., nu)."""
        moving = (root_vel, root_ang, joint_vel)
        upright = GRAVITY * pose[1][..., 2, :]
        return RobotState(*pose, *moving, upright, pose[2], *moving)

    def pack(self) -> Tensor:
        """All fields in one tensor, (..., width)."""
        return torch.cat([f.flatten(-2) if i == 1 else f for i, f in enumerate(self)], -1)

    @staticmethod
    def unpack(packed: Tensor) -> RobotState:
        """The inverse of `pack`, as views."""
        nu = (packed.shape[-1] - 27) // 4
        pos, rot, *rest = packed.split((3, 9, nu, 3, 3, nu, 3, nu, 3, 3, nu), -1)
        return RobotState(pos, rot.unflatten(-1, (3, 3)), *rest)

    def __getitem__(self, index: Any) -> Any:  # type: ignore[override]
        """Fields by an integer, as of any tuple; robots by a tensor or slice."""
        if isinstance(index, int):
            return tuple.__getitem__(self, index)
        return RobotState(*(f[index] for f in self))

    def above(self, height: Tensor) -> RobotState:
        """The state with heights relative to `height` (...) [m]."""
        place = self.root_pos[..., :2]
        up = self.root_pos[..., 2:] - height.unsqueeze(-1)
        return self._replace(root_pos=torch.cat((place, up), -1))

    def where(self, mask: Tensor, other: RobotState) -> RobotState:
        """This state where mask (n,) bool is true, the other elsewhere."""
        return RobotState.unpack(torch.where(mask.unsqueeze(-1), self.pack(), other.pack()))


class StepVelocity(NamedTuple):
    """Velocities of one control step, in the root frame at its START."""

    root_vel: Tensor  # (..., 3) mean over the step [m/s]
    root_ang: Tensor  # (..., 3) mean [rad/s]; the same in the frame at the end
    joint_vel: Tensor  # (..., nu) mean [rad/s]
    root_vel_end: Tensor  # (..., 3) at its end [m/s]
    root_ang_end: Tensor  # (..., 3) at its end [rad/s]
    joint_vel_end: Tensor  # (..., nu) at its end [rad/s]


def differentiate(state: RobotState, after: RobotState, dt: float) -> StepVelocity:
    """The velocities that take a state to another in one control step of dt [s]."""
    mean, turn = _mean_velocity(state, (after.root_pos, after.root_rot, after.joint_pos), dt)
    ends = geometry.to_world(turn, after.root_vel_end), geometry.to_world(turn, after.root_ang_end)
    return StepVelocity(*mean, *ends, after.joint_vel_end)


def _mean_velocity(
    state: RobotState, pose: Pose, dt: float
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Mean velocities, and the rotation (..., 3, 3) from the new root frame to the old."""
    root_pos, root_rot, joint_pos = pose
    moved = torch.cat((root_rot, (root_pos - state.root_pos).unsqueeze(-1)), -1)
    local = state.root_rot.transpose(-1, -2) @ moved  # both in the old root frame
    turn = local[..., :3]
    joints = joint_pos - state.joint_pos
    return (local[..., 3] / dt, geometry.log_so3(turn) / dt, joints / dt), turn


def integrate(
    state: RobotState,
    velocity: StepVelocity,
    setpoint: Tensor,
    dt: float,
    imu_cross: Tensor | None = None,
) -> RobotState:
    """The state after one control step of dt [s] at a velocity, with `setpoint` (..., nu) [rad].

    Args:
      imu_cross: (3, 3) `geometry.skew` of the accelerometer's position r, so that angular
        velocities (rows) times it are omega x r; None: at the root's origin, over two steps.
    """
    turn = geometry.exp_so3(velocity.root_ang * dt)
    pose = (
        state.root_pos + geometry.to_world(state.root_rot, velocity.root_vel) * dt,
        state.root_rot @ turn,
        state.joint_pos + velocity.joint_vel * dt,
    )
    return _successor(state, velocity, turn, pose, setpoint, dt, imu_cross)


def arrive(
    state: RobotState,
    qpos: Tensor,
    qvel: Tensor,
    setpoint: Tensor,
    dt: float,
    imu_cross: Tensor | None = None,
) -> RobotState:
    """The state after one control step of dt [s], from MuJoCo's positions and velocities.

    Equals `integrate` of `differentiate`, without rounding errors in the pose.

    Args:
      qpos: (..., 7 + nu). qvel: (..., 6 + nu). setpoint: (..., nu) applied over the step [rad].
      imu_cross: as `integrate`.
    """
    pose = pose_from_qpos(qpos)
    qvel = qvel.to(torch.float32)
    mean, turn = _mean_velocity(state, pose, dt)
    # MuJoCo's linear velocity is in the world frame, the angular one in the root frame
    ends = geometry.to_local(state.root_rot, qvel[..., :3]), geometry.to_world(turn, qvel[..., 3:6])
    return _successor(
        state, StepVelocity(*mean, *ends, qvel[..., 6:]), turn, pose, setpoint, dt, imu_cross
    )


def _successor(
    state: RobotState,
    velocity: StepVelocity,
    turn: Tensor,
    pose: Pose,
    setpoint: Tensor,
    dt: float,
    imu_cross: Tensor | None,
) -> RobotState:
    """The state in a pose reached at a velocity. turn: (..., 3, 3) from the new root frame to the
    old."""
    up = state.root_rot[..., 2, :]  # the world's vertical in the old root frame
    if imu_cross is None:
        accel = (velocity.root_vel - state.root_vel) / dt + GRAVITY * up
    else:  # the IMU's velocity at the end is in the new frame, and added below
        accel = GRAVITY * up - (state.root_vel_end + state.root_ang_end @ imu_cross) / dt
    rows = (velocity.root_vel, accel, velocity.root_vel_end, velocity.root_ang_end)
    # rows times turn: old to new frame
    root_vel, accel, root_vel_end, root_ang_end = (torch.stack(rows, -2) @ turn).unbind(-2)
    if imu_cross is not None:
        accel = accel + (root_vel_end + root_ang_end @ imu_cross) / dt
    return RobotState(
        *pose,
        root_vel=root_vel,
        root_ang=velocity.root_ang,
        joint_vel=velocity.joint_vel,
        accel=accel,
        setpoint=setpoint,
        root_vel_end=root_vel_end,
        root_ang_end=root_ang_end,
        joint_vel_end=velocity.joint_vel_end,
    )


def turned(yaw: Tensor, qpos: Tensor, qvel: Tensor) -> tuple[Tensor, Tensor]:
    """Positions (n, 7 + nu) and velocities (n, 6 + nu) rotated about the world's vertical axis by
    yaw (n,) [rad]. Angular velocities are in the root frame and do not change."""
    half = 0.5 * yaw.to(qpos)
    turn = geometry.yaw_matrix(yaw.to(qpos))
    none = torch.zeros_like(half)
    yaw_quat = torch.stack((torch.cos(half), none, none, torch.sin(half)), -1)
    quat = geometry.multiply_quat(yaw_quat, qpos[:, 3:7])
    place, speed = (geometry.to_world(turn, part[:, :3].to(turn)) for part in (qpos, qvel))
    return torch.cat((place, quat, qpos[:, 7:]), -1), torch.cat((speed.to(qvel), qvel[:, 3:]), -1)


def pose_from_qpos(qpos: Tensor) -> Pose:
    """Root position (..., 3), rotation (..., 3, 3) and joints (..., nu), float32, from MuJoCo's
    positions (..., 7 + nu)."""
    qpos = qpos.to(torch.float32)
    return qpos[..., :3], geometry.matrix_from_quat(qpos[..., 3:7]), qpos[..., 7:]
