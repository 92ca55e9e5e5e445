"""Inverse kinematics of four legs of three joints."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mocap_data.errors import InputError
from npmp.envs.feet import Feet
from npmp.robots import Robot
from npmp.robots.model import posed

# at most this many steps
_STEPS = 6
# no further step of a robot whose feet are all this near [m]
_NEAR_M = 1e-4
# largest change of a joint in a step [rad]
_LARGEST_RAD = 0.4
# damping of the first step [m^2], its limits, and its factors after a step that brings a foot
# closer, and after one that does not
_DAMPING = 1e-4
_DAMPINGS = (1e-5, 1.0)
_CALMER = 0.3
_WILDER = 10.0
# angles of a joint at which a leg's length is measured
_ANGLES = 64


class Legs(nn.Module):
    """Joint angles that bring the feet to points.

    `joints`: (4, 3) indices of the joints that move each foot. `hips`: (4, 3) anchors of the legs'
    second joints in the root's frame [m], at home, as they move with the first joints. `length`:
    (4,) longest distance from hip to foot [m].
    """

    joints: Tensor
    hips: Tensor
    length: Tensor
    _low: Tensor
    _high: Tensor

    def __init__(self, robot: Robot):
        """Raises: InputError unless the robot has four feet of one point, each moved by three
        joints of its own."""
        super().__init__()
        self.feet = Feet(robot)
        home = torch.tensor(robot.home_joints, dtype=torch.float32)
        each = torch.eye(len(home))
        _, moved = self.feet.moving(home.expand(len(home), -1), each)  # by one joint after another
        moves = moved.abs().sum((-1, -2)) > 1e-6  # (nu, F)
        own = bool((moves.sum(0) == 3).all()) and not bool((moves.sum(1) > 1).any())
        if self.feet.shape != (4, 1) or not own:
            raise InputError(
                f"robot '{robot.name}': expected four legs of three joints, with round feet"
            )
        joints = torch.stack([torch.nonzero(column).squeeze(-1) for column in moves.T])
        self.register_buffer("joints", joints, persistent=False)
        for name, limits in (("_low", robot.joint_lower), ("_high", robot.joint_upper)):
            value = torch.tensor(limits, dtype=torch.float32)
            self.register_buffer(name, value, persistent=False)
        anchors = posed(robot.model(), robot.home_joints).xanchor[1:]
        hips = torch.tensor(anchors, dtype=torch.float32)[joints[:, 1]]
        # turns about the first two joints leave the distance from hip to foot as it is
        angles = home.repeat(_ANGLES, 1)
        share = torch.linspace(0.0, 1.0, _ANGLES).unsqueeze(-1)
        knees = joints[:, 2]
        angles[:, knees] = torch.lerp(self._low[knees], self._high[knees], share)
        distance = torch.linalg.vector_norm(self.at(angles)[0] - hips, dim=-1)
        self.register_buffer("hips", hips, persistent=False)
        self.register_buffer("length", distance.amax(0), persistent=False)

    def at(self, angles: Tensor) -> tuple[Tensor, Tensor]:
        """The feet in the root's frame (n, 4, 3) [m] at joint angles (n, nu) [rad], and their
        Jacobians by the joints of their legs (n, 4, 3, 3)."""
        rate = angles.new_zeros(3, 1, angles.shape[-1])
        for level, own in enumerate(self.joints.T):
            rate[level, 0, own] = 1.0
        position, moved = self.feet.moving(
            angles.expand(3, -1, -1), rate.expand(-1, len(angles), -1)
        )
        return position[0, :, :, 0], moved[..., 0, :].permute(1, 2, 3, 0)

    def reach(self, aim: Tensor, angles: Tensor) -> Tensor:
        """Joint angles (n, nu) [rad] within limits that bring the feet closest to points (n, 4, 3)
        in the root's frame [m], from `angles` (n, nu).

        By Levenberg and Marquardt, each leg for itself: a step that does not bring its foot closer
        is repeated with a larger damping, as a straight leg's Gauss-Newton step is too long.
        """
        eye = torch.eye(3, device=aim.device)
        damping = torch.full((*aim.shape[:2], 1, 1), _DAMPING, device=aim.device)
        angles = angles.clamp(self._low, self._high)
        position, jacobian = self.at(angles)
        for _ in range(_STEPS):
            near = ((aim - position).square().sum(-1) < _NEAR_M**2).all(-1, keepdim=True)
            if bool(near.all()):
                break
            across = jacobian.transpose(-1, -2)
            off = across @ (aim - position).unsqueeze(-1)
            step = torch.linalg.solve(across @ jacobian + damping * eye, off).squeeze(-1)
            step = step.clamp(-_LARGEST_RAD, _LARGEST_RAD)
            tried = angles.clone()
            tried[:, self.joints.flatten()] += step.flatten(1)
            tried = tried.clamp(self._low, self._high)
            there, its_jacobian = self.at(tried)
            closer = (aim - there).square().sum(-1) < (aim - position).square().sum(-1)
            closer = closer & ~near
            damping = damping * torch.where(closer, _CALMER, _WILDER)[..., None, None]
            damping = damping.clamp(*_DAMPINGS)
            taken = torch.zeros_like(angles, dtype=torch.bool)
            taken[:, self.joints.flatten()] = closer.repeat_interleave(3, -1)
            angles = torch.where(taken, tried, angles)
            position = torch.where(closer.unsqueeze(-1), there, position)
            jacobian = torch.where(closer[..., None, None], its_jacobian, jacobian)
        return angles
