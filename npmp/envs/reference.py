"""Reference motions as tensors: every frame of every clip in one table, gathered by index."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.core import geometry
from npmp.envs.ground import ABOUT_FEET, points_around
from npmp.envs.kinematics import BodyPoses, Kinematics, in_root_frame
from npmp.envs.state import RobotState, pose_from_qpos
from npmp.robots import Robot

MIN_FRAMES = 8  # per clip


class ReferenceFrames(NamedTuple):
    """Reference poses at some frames, batch shape (...)."""

    root_pos: Tensor  # (..., 3) world [m]
    root_rot: Tensor  # (..., 3, 3)
    joint_pos: Tensor  # (..., nu) [rad]
    root_vel_w: Tensor  # (..., 3) mean linear velocity since the frame before, world [m/s]
    root_ang_w: Tensor  # (..., 3) mean angular velocity since the frame before, world [rad/s]
    joint_vel: Tensor  # (..., nu) [rad/s]
    body_pos: Tensor  # (..., nbody, 3) world [m]
    body_rot: Tensor  # (..., nbody, 3, 3)
    center_of_mass: Tensor  # (..., 3) world [m]
    feet: Tensor  # (..., feet, 3) origins of the foot bodies in the root frame [m]


class Reference:
    """All clips of a motion set for one robot, at its control rate.

    Frame indices are global: clip c's frames are `start[c] ... start[c] + length[c] - 1`.
    """

    def __init__(
        self,
        robot: Robot,
        motions: MotionSet,
        device: torch.device | str = "cpu",
        origins: np.ndarray | None = None,
    ):
        """device: of the table. origins: (clips, 3) [m] of the motions' frames in the world.

        Raises:
          InputError: for an empty dataset, a clip that is too short or not at the robot's control
            rate, or if all sampling weights are 0.
        """
        _check(robot, motions)
        self.names = tuple(m.name for m in motions.motions)
        length = torch.tensor([len(m.qpos) for m in motions.motions])
        start = torch.cat((torch.zeros(1, dtype=torch.long), length.cumsum(0)[:-1]))
        weight = torch.tensor([m.weight for m in motions.motions], dtype=torch.float64)
        # (clips,)
        self.length = length.to(device)
        self.start = start.to(device)
        self.weight = weight.to(device)  # (clips,) per frame
        self.dt = 1.0 / robot.control_rate_hz
        self.origin = torch.zeros(len(length), 3, dtype=torch.float64)
        if origins is not None:
            self.origin = torch.from_numpy(origins)
        qpos = torch.from_numpy(np.concatenate([m.qpos for m in motions.motions]))
        qpos[:, :3] += self.origin.repeat_interleave(length, 0)
        # (frames, 7 + nu) in the world, float64
        self.qpos = qpos.to(device)
        pos, rot, joints = pose_from_qpos(qpos)
        previous = torch.arange(len(qpos)) - 1
        # a clip's first frame has the velocity of its second
        previous[start] = start
        following = previous + 1
        turn = geometry.log_so3(rot[previous].transpose(-1, -2) @ rot[following])
        poses = Kinematics(robot.model())(pos, rot, joints)
        feet = torch.tensor([robot.body_names.index(b) for b in robot.foot_bodies])
        frames = ReferenceFrames(
            root_pos=pos,
            root_rot=rot,
            joint_pos=joints,
            root_vel_w=(pos[following] - pos[previous]) / self.dt,
            root_ang_w=geometry.to_world(rot[previous], turn) / self.dt,
            joint_vel=(joints[following] - joints[previous]) / self.dt,
            body_pos=poses.position,
            body_rot=poses.rotation,
            center_of_mass=poses.center_of_mass,
            feet=in_root_frame(poses, feet),
        )
        states = RobotState.still(pos, rot, joints)
        points = points_around(states, ABOUT_FEET.to(pos), poses.position[:, feet, :2])
        heights = self._ground(points[..., 0], motions)
        # (frames,) mean height of the ground under the feet [m], and (frames, 2) its gradient
        self.ground = heights[..., 0].mean(-1).float().to(device)
        slope = geometry.plane_gradient(points.flatten(1, 2), heights.flatten(1))
        self.slope = slope.float().to(device)
        self.origin = self.origin.to(device)
        # one row per frame, so that a gather serves all fields
        self._shapes = [f.shape[1:] for f in frames]
        self._table = torch.cat([f.flatten(1) for f in frames], -1).to(device)

    def _ground(self, x: Tensor, motions: MotionSet) -> Tensor:
        """Height of the ground at x (frames, ...) [m], (frames, ...) [m]."""
        lengths = [len(m.qpos) for m in motions.motions]
        heights = []
        for m, origin, at in zip(motions.motions, self.origin, x.split(lengths), strict=True):
            under = m.ground_at((at - origin[0]).double().numpy())
            heights.append(torch.from_numpy(under) + origin[2])
        return torch.cat(heights)

    @property
    def frames(self) -> ReferenceFrames:
        """All frames, as views of one table."""
        return self._split(self._table)

    @property
    def above_ground(self) -> ReferenceFrames:
        """All frames with the root relative to the ground under the feet: heights above its mean,
        orientations and velocities turned so that its normal is vertical."""
        frames = self.frames
        up = frames.root_pos[:, 2] - self.ground
        level = geometry.levelled(self.slope)
        return frames._replace(
            root_pos=torch.cat((frames.root_pos[:, :2], up.unsqueeze(-1)), -1),
            root_rot=level @ frames.root_rot,
            root_vel_w=(level @ frames.root_vel_w.unsqueeze(-1)).squeeze(-1),
            root_ang_w=(level @ frames.root_ang_w.unsqueeze(-1)).squeeze(-1),
        )

    def _split(self, rows: Tensor) -> ReferenceFrames:
        fields = rows.split([shape.numel() for shape in self._shapes], -1)
        shaped = zip(fields, self._shapes, strict=True)
        return ReferenceFrames(*(f.unflatten(-1, shape) for f, shape in shaped))

    @property
    def num_frames(self) -> int:
        """Frames in all clips."""
        return len(self._table)

    def at(self, frame: Tensor) -> ReferenceFrames:
        """The frames at global indices (...)."""
        return self._split(self._table.index_select(0, frame.flatten()).unflatten(0, frame.shape))

    def bodies(self, frame: Tensor) -> BodyPoses:
        """World poses of all bodies at global indices (...)."""
        f = self.at(frame)
        return BodyPoses(f.body_pos, f.body_rot, f.center_of_mass)

    def clip_of(self, frame: Tensor) -> Tensor:
        """Clip index of each global frame index (...)."""
        return torch.bucketize(frame, self.start, right=True) - 1

    def last_frame(self, clip: Tensor) -> Tensor:
        """Global index of each clip's last frame."""
        return self.start[clip] + self.length[clip] - 1

    def state(self, frame: Tensor) -> RobotState:
        """The state of a robot that tracked the reference exactly up to a frame (...); setpoints
        are the joint positions."""
        return self.tracked(self.at(frame))

    def tracked(self, f: ReferenceFrames) -> RobotState:
        """As `state`, of frames from `at`."""
        pose = f.root_pos, f.root_rot, f.joint_pos
        linear, angular = (geometry.to_local(pose[1], v) for v in (f.root_vel_w, f.root_ang_w))
        return RobotState.steady(pose, linear, angular, f.joint_vel)


def _check(robot: Robot, motions: MotionSet) -> None:
    """Raise InputError for motions that are no reference of the robot."""
    if not motions.motions:
        raise InputError("the dataset has no clips")
    for m in motions.motions:
        if abs(m.rate_hz - robot.control_rate_hz) > 1e-6:
            raise InputError(
                f"clip '{m.name}' is at {m.rate_hz:g} Hz, expected the control rate of"
                f" {robot.name}, {robot.control_rate_hz:g} Hz:"
                f" retarget it with rate_hz={robot.control_rate_hz:g}"
            )
        if len(m.qpos) < MIN_FRAMES:
            raise InputError(
                f"clip '{m.name}' has {len(m.qpos)} frames, expected at least {MIN_FRAMES}"
            )
    if not any(m.weight > 0.0 for m in motions.motions):
        raise InputError("all clips have sampling weight 0, expected one above 0")
