"""The loss of the world model, on real windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from npmp import ranges
from npmp.envs.state import RobotState
from npmp.world_model.replay import Window

# one control step of the world model: packed states (n, s), setpoints (n, nu), physics (n, p) ->
# packed states (n, s)
Advance = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ModelWeights:
    """Weights of the absolute differences by which the model's open-loop predictions are judged.
    Raises ValueError below zero."""

    position: float = 4.0  # root position, summed over axes [1/m]
    rotation: float = 1.0  # root rotation matrix, summed over entries
    joints: float = 0.5  # summed over joints [1/rad]
    linear: float = 0.5  # root linear velocity, the mean of a step [s/m]
    angular: float = 0.25  # root angular velocity, likewise [s/rad]
    joint_velocity: float = 0.05  # summed over joints, likewise [s/rad]
    end: float = 0.25  # share of these three weights that velocities at a step's end have [1]

    def __post_init__(self) -> None:
        ranges.not_negative(self, *(entry.name for entry in fields(self)))


def prediction_error(a: RobotState, b: RobotState, w: ModelWeights) -> Tensor:
    """Weighted absolute difference of two states, (...)."""
    return (
        w.position * (a.root_pos - b.root_pos).abs().sum(-1)
        + w.rotation * (a.root_rot - b.root_rot).abs().sum((-1, -2))
        + w.joints * (a.joint_pos - b.joint_pos).abs().sum(-1)
        + w.linear
        * ((a.root_vel - b.root_vel).abs() + w.end * (a.root_vel_end - b.root_vel_end).abs()).sum(
            -1
        )
        + w.angular
        * ((a.root_ang - b.root_ang).abs() + w.end * (a.root_ang_end - b.root_ang_end).abs()).sum(
            -1
        )
        + w.joint_velocity
        * (
            (a.joint_vel - b.joint_vel).abs() + w.end * (a.joint_vel_end - b.joint_vel_end).abs()
        ).sum(-1)
    )


def model_loss(
    advance: Advance, window: Window, weights: ModelWeights | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Open-loop error of the world model over real windows, unrolled from their first state.

    advance: `WorldModel.advance` or what has its signature.
    Returns: the loss (), and errors per channel at the window's last step for the log.
    """
    weights = weights or ModelWeights()
    state, course = window.states[0], []
    for setpoints, physics in zip(window.setpoints, window.physics, strict=True):
        state = advance(state, setpoints, physics)
        course.append(state)
    predicted, true = RobotState.unpack(torch.stack(course)), RobotState.unpack(window.states[1:])
    total = (prediction_error(predicted, true, weights) * window.valid).sum()
    with torch.no_grad():
        weight = window.valid[-1] / window.valid[-1].sum().clamp(min=1.0)
        found, sought = RobotState.unpack(course[-1]), RobotState.unpack(window.states[-1])
        log = {
            "model_position_m": ((found.root_pos - sought.root_pos).norm(dim=-1) * weight).sum(),
            "model_joint_rad": ((found.joint_pos - sought.joint_pos).abs().mean(-1) * weight).sum(),
        }
    return total / window.valid.sum().clamp(min=1.0), log
