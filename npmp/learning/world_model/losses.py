"""The world model's loss on real windows; the policy's is its task's."""

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


# Weights of the absolute differences that judge open-loop predictions [D]: root position,
# summed over axes [1/m]; rotation, over entries; joints [1/rad]; velocities, the mean of a step
# [s/m, s/rad]; and the share of these three that velocities at a step's end have
POSITION = 4.0
ROTATION = 1.0
JOINT = 0.5
LINEAR = 0.5
ANGULAR = 0.25
JOINT_VELOCITY = 0.05
END = 0.25


def prediction_error(a: RobotState, b: RobotState) -> Tensor:
    """Weighted absolute difference of two states, (...)."""

    def off(*names: str) -> Tensor:
        mean, end = ((getattr(a, name) - getattr(b, name)).abs().sum(-1) for name in names)
        return mean + END * end

    return (
        POSITION * (a.root_pos - b.root_pos).abs().sum(-1)
        + ROTATION * (a.root_rot - b.root_rot).abs().sum((-1, -2))
        + JOINT * (a.joint_pos - b.joint_pos).abs().sum(-1)
        + LINEAR * off("root_vel", "root_vel_end")
        + ANGULAR * off("root_ang", "root_ang_end")
        + JOINT_VELOCITY * off("joint_vel", "joint_vel_end")
    )


def model_loss(advance: Advance, window: Window) -> tuple[Tensor, dict[str, Tensor]]:
    """Open-loop error of the world model over real windows, unrolled from their first state.

    advance: `WorldModel.advance` or what has its signature.
    Returns: the loss (), and errors per channel at the window's last step for the log.
    """
    state = window.states[0]
    course = []
    for setpoints, physics in zip(window.setpoints, window.physics, strict=True):
        state = advance(state, setpoints, physics)
        course.append(state)
    predicted = RobotState.unpack(torch.stack(course))
    true = RobotState.unpack(window.states[1:])
    total = (prediction_error(predicted, true) * window.valid).sum()
    with torch.no_grad():
        weight = window.valid[-1] / window.valid[-1].sum().clamp(min=1.0)
        final = RobotState.unpack(course[-1])
        sought = RobotState.unpack(window.states[-1])
        log = {
            "model_position_m": ((final.root_pos - sought.root_pos).norm(dim=-1) * weight).sum(),
            "model_joint_rad": ((final.joint_pos - sought.joint_pos).abs().mean(-1) * weight).sum(),
        }
    return total / window.valid.sum().clamp(min=1.0), log


def current_loss(model: WorldModel, window: Window) -> Tensor:
    """By how much the model is wrong about the motors' RMS currents in true states, (): the mean
    square, in `current_scale`."""
    states = RobotState.unpack(window.states[:-1].flatten(0, 1))
    setpoints = window.setpoints.flatten(0, 1)
    physics = window.physics.flatten(0, 1)
    predicted = model.current_rms(states, setpoints, physics)
    wrong = predicted - window.currents.flatten(0, 1).sqrt() / model.current_scale
    weight = window.valid.flatten()
    return (wrong.square().mean(-1) * weight).sum() / weight.sum().clamp(min=1.0)
