"""Losses of the world model on recorded windows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from npmp.envs.state import RobotState
from npmp.learning.world_model.model import WorldModel
from npmp.learning.world_model.replay import Window

# one control step of the world model: packed states (n, s), setpoints (n, nu), physics (n, p) ->
# packed states (n, s)
Advance = Callable[[Tensor, Tensor, Tensor], Tensor]


# Weights of absolute errors of open-loop predictions [D]: root position [1/m], entries of the
# rotation matrix, joints [1/rad], mean velocities of a step [s/m, s/rad]; of velocities at its end,
# as a share of the mean's
POSITION = 4.0
ROTATION = 1.0
JOINT = 0.5
LINEAR = 0.5
ANGULAR = 0.25
JOINT_VELOCITY = 0.05
END = 0.25


def prediction_error(a: RobotState, b: RobotState) -> Tensor:
    """Weighted absolute difference of two states, (...)."""

    def velocity_error(*names: str) -> Tensor:
        mean, end = ((getattr(a, name) - getattr(b, name)).abs().sum(-1) for name in names)
        return mean + END * end

    return (
        POSITION * (a.root_pos - b.root_pos).abs().sum(-1)
        + ROTATION * (a.root_rot - b.root_rot).abs().sum((-1, -2))
        + JOINT * (a.joint_pos - b.joint_pos).abs().sum(-1)
        + LINEAR * velocity_error("root_vel", "root_vel_end")
        + ANGULAR * velocity_error("root_ang", "root_ang_end")
        + JOINT_VELOCITY * velocity_error("joint_vel", "joint_vel_end")
    )


def model_loss(advance: Advance, window: Window) -> tuple[Tensor, dict[str, Tensor]]:
    """Open-loop prediction error of the world model, unrolled from each window's first state.

    advance: `WorldModel.advance`, or a function with its signature.
    Returns: the loss (), and metrics at the window's last step.
    """
    state = window.states[0]
    states = []
    for setpoints, physics in zip(window.setpoints, window.physics, strict=True):
        state = advance(state, setpoints, physics)
        states.append(state)
    predicted = RobotState.unpack(torch.stack(states))
    true = RobotState.unpack(window.states[1:])
    total = (prediction_error(predicted, true) * window.valid).sum()
    with torch.no_grad():
        weight = window.valid[-1] / window.valid[-1].sum().clamp(min=1.0)
        last = RobotState.unpack(states[-1])
        target = RobotState.unpack(window.states[-1])
        position = (last.root_pos - target.root_pos).norm(dim=-1)
        joints = (last.joint_pos - target.joint_pos).abs().mean(-1)
        metrics = {
            "model_position_m": (position * weight).sum(),
            "model_joint_rad": (joints * weight).sum(),
        }
    return total / window.valid.sum().clamp(min=1.0), metrics


def current_loss(model: WorldModel, window: Window) -> Tensor:
    """Mean squared error of the motors' RMS currents in recorded states, in units of
    `current_scale`, ()."""
    states = RobotState.unpack(window.states[:-1].flatten(0, 1))
    setpoints = window.setpoints.flatten(0, 1)
    physics = window.physics.flatten(0, 1)
    predicted = model.current_rms(states, setpoints, physics)
    error = predicted - window.currents.flatten(0, 1).sqrt() / model.current_scale
    weight = window.valid.flatten()
    return (error.square().mean(-1) * weight).sum() / weight.sum().clamp(min=1.0)
