"""Inputs of policies and models, as functions of (state, reference, frame), for simulated and
imagined robots.

- `proprioception`: the real robot's sensors; the decoder's only input.
- `true_state`: the simulator's state without horizontal position and heading.
- `ReferenceFeatures`: the next frames of the reference relative to the current pose.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from npmp.envs.reference import Reference
from npmp.envs.state import GRAVITY, RobotState
from npmp.robots import Robot


def proprioception_layout(num_joints: int) -> list[tuple[str, int]]:
    """Names and widths of the decoder's observation, in order (robot-NPMP, imitation task)."""
    return [
        ("joint_pos_minus_home", num_joints),
        ("setpoint_minus_home", num_joints),
        ("gyro", 3),
        ("accelerometer_g", 3),
        ("up", 3),
    ]


def proprioception(state: RobotState, home: Tensor) -> Tensor:
    """The robot's sensors: (..., 2 nu + 9), in the order of `proprioception_layout`.

    Joint angles and last setpoints relative to the home pose [rad]; gyro [rad/s]; accelerometer
    [g]; the world's vertical in the root frame, from which roll and pitch follow. home (nu,) [rad].
    """
    joints = state.joint_pos - home, state.setpoint - home
    imu = state.root_ang, state.accel / GRAVITY, state.root_rot[..., 2, :]
    return torch.cat((*joints, *imu), -1)


def true_state(state: RobotState, home: Tensor) -> Tensor:
    """The full state without horizontal position and heading, on which physics on flat ground does
    not depend: (..., 13 + 3 nu)."""
    pose = state.root_pos[..., 2:], state.root_rot[..., 2, :], state.joint_pos - home
    motion = state.root_vel, state.root_ang, state.joint_vel, state.accel / GRAVITY
    return torch.cat((*pose, *motion, state.setpoint - state.joint_pos), -1)


def true_state_width(nu: int) -> int:
    """Width of `true_state` of nu joints."""
    return 13 + 3 * nu


class ReferenceFeatures(nn.Module):
    """The next frames of the reference, relative to the robot's current pose (robot-NPMP: context
    x_t, 5 frames).

    Per frame, in the robot's root frame: positions of the root, knees and feet relative to the root
    [m]; the first two columns of the root's rotation; its linear and angular velocity; reference
    joint angles minus the robot's [rad]. These determine the poses of the other bodies. Frames
    beyond the end of a clip repeat its last frame.
    """

    _vectors: Tensor
    _joints: Tensor
    # (frames,) `Reference.ground`
    ground: Tensor

    def __init__(self, robot: Robot, reference: Reference, horizon: int = 5):
        super().__init__()
        self.horizon = horizon
        points = reference_points(robot)
        f = reference.frames
        vectors = frame_vectors(f.body_pos[:, points], f.root_rot, f.root_vel_w, f.root_ang_w)
        self.register_buffer("_vectors", vectors, persistent=False)
        self.register_buffer("_joints", f.joint_pos, persistent=False)
        self.register_buffer("ground", reference.ground, persistent=False)
        self.size = horizon * (3 * vectors.shape[1] + f.joint_pos.shape[1])

    def forward(self, state: RobotState, frame: Tensor, last_frame: Tensor) -> Tensor:
        """state (n, ...), frame and last_frame (n,) global indices of the current and of the clip's
        last frame -> (n, size)."""
        ahead = torch.arange(1, self.horizon + 1, device=frame.device)
        ahead = torch.minimum(frame.unsqueeze(-1) + ahead, last_frame.unsqueeze(-1))
        return relative(self._vectors[ahead], self._joints[ahead], state)


def reference_points(robot: Robot) -> list[int]:
    """Indices of the bodies whose positions are features of a reference: root, knees, feet."""
    model = robot.model()
    knees = [int(model.body(b).parentid[0]) - 1 for b in robot.foot_bodies]
    return [0, *knees, *(robot.body_names.index(b) for b in robot.foot_bodies)]


def frame_vectors(points: Tensor, root_rot: Tensor, root_vel: Tensor, root_ang: Tensor) -> Tensor:
    """The vectors of reference frames in the world, (..., p + 4, 3): positions (..., p, 3) [m], two
    columns of the root's rotation (..., 3, 3), its velocities (..., 3) [m/s, rad/s]."""
    axes = root_rot[..., :2].transpose(-1, -2)
    return torch.cat((points, axes, root_vel.unsqueeze(-2), root_ang.unsqueeze(-2)), -2)


def relative(vectors: Tensor, joints: Tensor, state: RobotState) -> Tensor:
    """Features of the next reference frames: vectors (n, H, p + 4, 3) of `frame_vectors` and joint
    angles (n, H, nu) relative to states (n, ...), (n, H (3 (p + 4) + nu))."""
    points = vectors[..., :-4, :] - state.root_pos[:, None, None]
    # rows times R: world to root frame
    local = torch.cat((points, vectors[..., -4:, :]), -2).flatten(1, 2) @ state.root_rot
    angles = joints - state.joint_pos.unsqueeze(1)
    return torch.cat((local.flatten(1), angles.flatten(1)), -1)


def context_size(robot: Robot, horizon: int) -> int:
    """Width of `encoder_context` for a robot and a number of reference frames ahead."""
    nu = len(robot.joint_names)
    points = 1 + 2 * len(robot.foot_bodies)
    return horizon * (3 * (points + 4) + nu) + true_state_width(nu)


def encoder_context(
    features: ReferenceFeatures, state: RobotState, frame: Tensor, last: Tensor, home: Tensor
) -> Tensor:
    """The encoder's input (n, context_size): reference features and the true state, its height
    above the ground under the reference's feet."""
    above = state.above(features.ground[torch.minimum(frame, last)])
    return torch.cat((features(state, frame, last), true_state(above, home)), -1)
