"""Velocities of a robot, and their errors relative to commands (robot-NPMP, eq. 16).

A velocity is (forward [m/s], lateral [m/s, left positive], yaw rate [rad/s]) in the robot's heading
frame: its horizontal axes turned to where the root's x axis points. All functions are pure and
serve simulated and imagined robots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from npmp.core import geometry, ranges
from npmp.core.host_waits import constant
from npmp.envs.state import RobotState
from npmp.envs.task import Trial

COMMAND_NAMES = ("forward_mps", "lateral_mps", "yaw_rate_rps")
# names and units for figures
COMMAND_CHANNELS = (("Forward velocity", "m/s"), ("Lateral velocity", "m/s"), ("Yaw rate", "rad/s"))
# time after a change of the command that settled figures leave out
SETTLING_S = 0.5


def heading_velocity(state: RobotState) -> Tensor:
    """Forward, lateral [m/s] and yaw velocity [rad/s] over the last control step, in the heading
    frame. -> (..., 3)."""
    linear_w = geometry.to_world(state.root_rot, state.root_vel)
    return in_heading(state.root_rot, linear_w, geometry.to_world(state.root_rot, state.root_ang))


def in_heading(root_rot: Tensor, linear_w: Tensor, angular_w: Tensor) -> Tensor:
    """Linear and angular velocities in the world (..., 3) as a velocity in the heading frame."""
    yaw = geometry.yaw_of(root_rot)
    cos, sin = torch.cos(yaw), torch.sin(yaw)
    x, y = linear_w[..., 0], linear_w[..., 1]
    return torch.stack((cos * x + sin * y, cos * y - sin * x, angular_w[..., 2]), -1)


def velocity_reward(velocity: Tensor, command: Tensor, phi: float) -> Tensor:
    """Eq. 16, exp(-|v - v_cmd|^2 / phi). velocity, command (..., 3) -> (...)."""
    return torch.exp(-(velocity - command).square().sum(-1) / phi)


def velocity_error(velocity: Tensor, command: Tensor) -> Tensor:
    """|v - v_cmd|, the norm over (m/s, m/s, rad/s) of eq. 16. (..., 3) twice -> (...)."""
    return torch.linalg.vector_norm(velocity - command, dim=-1)


def filtered(before: Tensor, velocity: Tensor, constant: float) -> Tensor:
    """The exponentially filtered velocity, c v + (1 - c) v_new; (..., 3) -> (..., 3)."""
    return velocity if constant == 0.0 else constant * before + (1.0 - constant) * velocity


# --- imagined robots ---


def reachable(velocity: Tensor, command: Tensor, limit: Tensor, steps: int) -> Tensor:
    """Velocities (H, B, 3) that approach commands (B, 3) or (H, B, 3) by at most `limit` (3,) per
    step, from the velocity (B, 3) after the first step. A robot that must reach the command at once
    stamps."""
    step = torch.arange(steps, device=command.device).view(-1, 1, 1)
    return velocity + torch.clamp(command - velocity, -step * limit, step * limit)


@dataclass(frozen=True)
class VelocityLossConfig:
    """The loss of imagined robots on velocity errors. Raises ValueError for values out of range."""

    # weight of the error of each step
    step_weight: float = 0.5
    # weight of the error of the mean over a stride
    stride_weight: float = 2.0
    stride_s: float = 0.24
    # acceleration towards the command [m/s^2, m/s^2, rad/s^2]
    acceleration: tuple[float, float, float] = (4.0, 4.0, 8.0)
    # weight of the motion of the feet at command zero [s/m]
    stand_still_weight: float = 1.0
    # weight of the root's roll and pitch rates [s/rad]
    roll_pitch_weight: float = 0.0

    def __post_init__(self) -> None:
        ranges.above_zero(self, "stride_s", "acceleration")
        ranges.not_negative(
            self, "step_weight", "stride_weight", "stand_still_weight", "roll_pitch_weight"
        )


def velocity_loss(
    velocity: Tensor, command: Tensor, config: VelocityLossConfig, dt: float
) -> Tensor:
    """The loss (B,) of velocities (H, B, 3) relative to `reachable` ones.

    `step_weight` scales |v - v_cmd|_1 of each step, `stride_weight` the norm of the difference
    averaged over a stride, within which a body may sway. Weights of steps increase linearly with
    mean 1, as a robot cannot follow a new command at once.
    """
    steps = len(velocity)
    stride = min(max(1, round(config.stride_s / dt)), steps)
    limit = constant(config.acceleration, velocity.device) * dt
    off = velocity - reachable(velocity[0].detach(), command, limit, steps)
    weight = torch.arange(1, steps + 1, device=off.device).to(off)
    each = off.abs().sum(-1)
    means = off.unfold(0, stride, 1).mean(-1)
    strides = torch.sqrt(means.square().sum(-1) + 1e-8)  # the norm has no gradient at zero
    late = weight[stride - 1 :]
    by_step = (weight.unsqueeze(-1) * each).sum(0) / weight.sum()
    by_stride = (late.unsqueeze(-1) * strides).sum(0) / late.sum()
    return config.step_weight * by_step + config.stride_weight * by_stride


def must_stand(
    velocity: Tensor, command: Tensor, config: VelocityLossConfig, dt: float, steps: int
) -> Tensor:
    """Whether a robot must stand still, (H, B) bool: its command (B, 3) is zero, and since the
    velocity (B, 3) after the first step there was time to brake."""
    limit = constant(config.acceleration, velocity.device) * dt
    step = torch.arange(steps, device=velocity.device).view(-1, 1, 1)
    return ((command == 0.0) & (velocity.abs() <= step * limit)).all(-1)


# --- figures of a trial ---


def settled(command: Tensor, steps: int) -> Tensor:
    """Whether at least `steps` control steps have passed since the start and since the last change
    of the command (T, n, 3), (T, n) bool."""
    changed = torch.ones(command.shape[:2], dtype=torch.bool)
    changed[1:] = (command[1:] != command[:-1]).any(-1)
    time = torch.arange(len(command)).unsqueeze(-1)
    return time - torch.where(changed, time, 0).cummax(0).values >= steps


def velocity_figures(trial: Trial) -> dict[str, Any]:
    """`velocity_error`, the mean of |v - v_cmd| over unfiltered velocities, and the mean absolute
    error of each component, `error_forward_mps` and so on. Suffixes:

    - `_1s`: errors averaged over a second, which removes the sway of strides;
    - `_settled`: without the first half second after the start and after each change of the
      command. For `_1s` only seconds without such a time count.

    Figures without samples in a short trial are left out.
    """
    command = trial.metrics["command"]
    difference = trial.metrics["achieved"] - command
    window = max(1, min(len(difference), round(1.0 / trial.dt)))
    kept = settled(command, max(1, round(SETTLING_S / trial.dt)))
    smooth = difference.unfold(0, window, window).mean(-1)
    chosen = {
        "": difference,
        "_1s": smooth,
        "_settled": difference[kept],
        "_1s_settled": smooth[kept.unfold(0, window, window).all(-1)],
    }
    figures = {}
    for suffix, errors in chosen.items():
        if errors.numel():
            norm = torch.linalg.vector_norm(errors, dim=-1)
            figures[f"velocity_error{suffix}"] = norm.mean().item()
            parts = zip(COMMAND_NAMES, errors.flatten(0, -2).abs().mean(0), strict=True)
            figures |= {f"error_{name}{suffix}": part.item() for name, part in parts}
    return figures
