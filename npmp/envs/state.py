"""The robot's state as the learner sees it, and its exact kinematics over one control step.

Velocities are finite differences of successive poses (as in ControlVAE, Yao et al. 2022): then integrating them is an
identity, and a learned model of the simulator has to predict velocities only. `differentiate` and `integrate` are
inverses of each other; the real environment uses both, imagination the second.

So the acceleration, the difference of two mean velocities, is an average over the last two control steps: half a step
late beside a mean over the last one. It is that of the root's origin, not of the IMU's place
(tests/envs/test_accelerometer.py holds both against MuJoCo's sensor). Decoders are trained on it, and evaluated on it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmp import geometry

GRAVITY = 9.81  # [m/s^2]


class RobotState(NamedTuple):
    """State of a batch of robots, each field (..., k). Root frame: the frame of the root body."""

    root_pos: Tensor  # (..., 3) world [m]
    root_rot: Tensor  # (..., 3, 3) root to world
    joint_pos: Tensor  # (..., nu) [rad]
    root_vel: Tensor  # (..., 3) mean linear velocity over the last control step, in the root frame [m/s]
    root_ang: Tensor  # (..., 3) mean angular velocity over the last control step, in the root frame [rad/s]
    joint_vel: Tensor  # (..., nu) mean over the last control step [rad/s]
    accel: Tensor  # (..., 3) proper acceleration in the root frame: what an accelerometer reads, averaged [m/s^2]
    setpoint: Tensor  # (..., nu) joint targets of the last control step [rad]

    def pack(self) -> Tensor:
        """All fields in one tensor, (..., 21 + 3 nu)."""
        return torch.cat([f.flatten(-2) if i == 1 else f for i, f in enumerate(self)], -1)

    @staticmethod
    def unpack(packed: Tensor) -> RobotState:
        """The inverse of `pack`, as views."""
        nu = (packed.shape[-1] - 21) // 3
        pos, rot, q, v, w, qd, a, u = packed.split((3, 9, nu, 3, 3, nu, 3, nu), -1)
        return RobotState(pos, rot.unflatten(-1, (3, 3)), q, v, w, qd, a, u)

    def __getitem__(self, index: Any) -> Any:  # type: ignore[override]
        """Fields by position, as any tuple's; robots by a tensor or slice."""
        if isinstance(index, int):
            return tuple.__getitem__(self, index)
        return RobotState(*(f[index] for f in self))

    def where(self, mask: Tensor, other: RobotState) -> RobotState:
        """This state where mask (n,) holds, the other elsewhere."""
        return RobotState(
            *(torch.where(mask.view(-1, *([1] * (a.dim() - 1))), a, b) for a, b in zip(self, other, strict=True))
        )


class StepVelocity(NamedTuple):
    """Mean velocities over one control step, in the root frame at its START."""

    root_vel: Tensor  # (..., 3) [m/s]
    root_ang: Tensor  # (..., 3) [rad/s]; the same in the frame at the end
    joint_vel: Tensor  # (..., nu) [rad/s]


def differentiate(state: RobotState, root_pos: Tensor, root_rot: Tensor, joint_pos: Tensor, dt: float) -> StepVelocity:
    """The velocities that take a state to a pose in one control step of dt [s]."""
    return _velocity(state, root_pos, root_rot, joint_pos, dt)[0]


def _velocity(
    state: RobotState, root_pos: Tensor, root_rot: Tensor, joint_pos: Tensor, dt: float
) -> tuple[StepVelocity, Tensor]:
    """The velocities, and the turn (..., 3, 3) from the new root frame to the old."""
    moved = torch.cat((root_rot, (root_pos - state.root_pos).unsqueeze(-1)), -1)
    local = state.root_rot.transpose(-1, -2) @ moved  # both in the old root frame
    turn = local[..., :3]
    return StepVelocity(local[..., 3] / dt, geometry.log_so3(turn) / dt, (joint_pos - state.joint_pos) / dt), turn


def integrate(state: RobotState, velocity: StepVelocity, setpoint: Tensor, dt: float) -> RobotState:
    """The state after one control step of dt [s] at the given velocities, with `setpoint` (..., nu) [rad] applied."""
    turn = geometry.exp_so3(velocity.root_ang * dt)
    pose = (
        state.root_pos + geometry.to_world(state.root_rot, velocity.root_vel) * dt,
        state.root_rot @ turn,
        state.joint_pos + velocity.joint_vel * dt,
    )
    return _successor(state, velocity, turn, pose, setpoint, dt)


def arrive(
    state: RobotState, root_pos: Tensor, root_rot: Tensor, joint_pos: Tensor, setpoint: Tensor, dt: float
) -> RobotState:
    """The state after one control step of dt [s] that ended in the given pose, with `setpoint` (..., nu) [rad] applied.

    Equals `integrate(state, differentiate(state, pose), setpoint, dt)`, without the rounding of its pose.
    """
    velocity, turn = _velocity(state, root_pos, root_rot, joint_pos, dt)
    return _successor(state, velocity, turn, (root_pos, root_rot, joint_pos), setpoint, dt)


def _successor(
    state: RobotState,
    velocity: StepVelocity,
    turn: Tensor,
    pose: tuple[Tensor, Tensor, Tensor],
    setpoint: Tensor,
    dt: float,
) -> RobotState:
    """The state in a pose reached at some velocity; turn (..., 3, 3) takes the new root frame to the old."""
    up = state.root_rot[..., 2, :]  # the world's vertical in the old root frame
    accel = (velocity.root_vel - state.root_vel) / dt + GRAVITY * up
    root_pos, root_rot, joint_pos = pose
    root_vel, accel = (torch.stack((velocity.root_vel, accel), -2) @ turn).unbind(
        -2
    )  # rows times turn: into the new frame
    return RobotState(
        root_pos=root_pos,
        root_rot=root_rot,
        joint_pos=joint_pos,
        root_vel=root_vel,
        root_ang=velocity.root_ang,
        joint_vel=velocity.joint_vel,
        accel=accel,
        setpoint=setpoint,
    )


def pose_from_qpos(qpos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Root position (..., 3), rotation (..., 3, 3) and joints (..., nu) of MuJoCo positions (..., 7 + nu), as
    float32."""
    qpos = qpos.to(torch.float32)
    return qpos[..., :3], geometry.matrix_from_quat(qpos[..., 3:7]), qpos[..., 7:]
