"""The two losses of the fast path: the world model's on real windows, the policy's on imagined ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from npmp import ranges
from npmp.envs.features import ReferenceFeatures, encoder_context
from npmp.envs.reference import ReferenceFrames
from npmp.envs.sensing import Sensing
from npmp.envs.state import RobotState
from npmp.nets import DecoderState, prior
from npmp.skill import SkillModule
from npmp.world_model.model import WorldModel
from npmp.world_model.posture import PostureRange
from npmp.world_model.replay import Start, Window


@dataclass(frozen=True)
class TrackingWeights:
    """Weights of the absolute differences that make the tracking loss of one imagined step. Raises ValueError below zero."""

    position: float = 4.0  # root position, summed over axes [1/m]
    rotation: float = 1.0  # root rotation matrix, summed over entries
    joints: float = 0.5  # summed over joints [1/rad]
    linear: float = 0.2  # root linear velocity [s/m]
    angular: float = 0.1  # root angular velocity [s/rad]
    joint_velocity: float = 0.02  # summed over joints [s/rad]
    effort: float = 0.02  # setpoint minus joint angle, summed over joints [1/rad]
    smoothness: float = 0.02  # change of the setpoint, summed over joints [1/rad]

    def __post_init__(self) -> None:
        ranges.not_negative(self, *(entry.name for entry in fields(self)))


@dataclass(frozen=True)
class ModelWeights:
    """Weights of the absolute differences by which the model's open-loop predictions are judged. Raises ValueError below zero."""

    position: float = 4.0  # root position, summed over axes [1/m]
    rotation: float = 1.0  # root rotation matrix, summed over entries
    joints: float = 0.5  # summed over joints [1/rad]
    linear: float = 0.5  # root linear velocity [s/m]
    angular: float = 0.25  # root angular velocity [s/rad]
    joint_velocity: float = 0.05  # summed over joints [s/rad]

    def __post_init__(self) -> None:
        ranges.not_negative(self, *(entry.name for entry in fields(self)))


def prediction_error(a: RobotState, b: RobotState, w: ModelWeights) -> Tensor:
    """Weighted absolute difference of two states, (...)."""
    return (
        w.position * (a.root_pos - b.root_pos).abs().sum(-1)
        + w.rotation * (a.root_rot - b.root_rot).abs().sum((-1, -2))
        + w.joints * (a.joint_pos - b.joint_pos).abs().sum(-1)
        + w.linear * (a.root_vel - b.root_vel).abs().sum(-1)
        + w.angular * (a.root_ang - b.root_ang).abs().sum(-1)
        + w.joint_velocity * (a.joint_vel - b.joint_vel).abs().sum(-1)
    )


def model_loss(model: WorldModel, window: Window, weights: ModelWeights | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """Open-loop error of the world model over real windows, unrolled from their first state.

    Returns: the loss (), and errors per channel at the window's last step for the log.
    """
    weights = weights or ModelWeights()
    state = RobotState.unpack(window.states[0])
    total = window.states.new_zeros(())
    for t in range(len(window.setpoints)):
        state = model(state, window.setpoints[t], window.physics[t])
        true = RobotState.unpack(window.states[t + 1])
        total = total + (prediction_error(state, true, weights) * window.valid[t]).sum()
    with torch.no_grad():
        weight = window.valid[-1] / window.valid[-1].sum().clamp(min=1.0)
        log = {
            "model_position_m": ((state.root_pos - true.root_pos).norm(dim=-1) * weight).sum(),
            "model_joint_rad": ((state.joint_pos - true.joint_pos).abs().mean(-1) * weight).sum(),
        }
    return total / window.valid.sum().clamp(min=1.0), log


def tracking_loss(state: RobotState, before: RobotState, reference: ReferenceFrames, w: TrackingWeights) -> Tensor:
    """Loss of one imagined step against the reference frame it should have reached: (...)."""
    rot_t = state.root_rot.transpose(-1, -2)
    linear = (rot_t @ reference.root_vel_w.unsqueeze(-1)).squeeze(-1)
    angular = (rot_t @ reference.root_ang_w.unsqueeze(-1)).squeeze(-1)
    return (
        w.position * (state.root_pos - reference.root_pos).abs().sum(-1)
        + w.rotation * (state.root_rot - reference.root_rot).abs().sum((-1, -2))
        + w.joints * (state.joint_pos - reference.joint_pos).abs().sum(-1)
        + w.linear * (state.root_vel - linear).abs().sum(-1)
        + w.angular * (state.root_ang - angular).abs().sum(-1)
        + w.joint_velocity * (state.joint_vel - reference.joint_vel).abs().sum(-1)
        + w.effort * (state.setpoint - before.joint_pos).abs().sum(-1)
        + w.smoothness * (state.setpoint - before.setpoint).abs().sum(-1)
    )


def wander_loss(state: RobotState, before: RobotState, postures: PostureRange, w: TrackingWeights) -> Tensor:
    """Loss of one imagined step of a robot that acts from the prior: its distance from the recordings' postures, and the price of
    its action as in `tracking_loss`. (...)."""
    return (
        postures(state, w.position, w.rotation, w.joints)
        + w.effort * (state.setpoint - before.joint_pos).abs().sum(-1)
        + w.smoothness * (state.setpoint - before.setpoint).abs().sum(-1)
    )


class Imagined(NamedTuple):
    """Means over an imagined rollout."""

    tracking: Tensor  # () discounted tracking loss per step
    kl: Tensor  # () KL to the prior per step [nats]
    sigma: Tensor  # () mean deviation of the encoder
    wander: Tensor  # () discounted loss per step of those that act from the prior


def imagine(
    skill: SkillModule,
    model: WorldModel,
    sensing: Sensing,
    features: ReferenceFeatures,
    reference_at: Callable[[Tensor], ReferenceFrames],
    start: Start,
    horizon: int,
    discount: float,
    weights: TrackingWeights,
    generator: torch.Generator,
    postures: PostureRange | None = None,
) -> Imagined:
    """Roll the policy out in the world model from replayed moments, differentiably.

    The encoder sees the exact imagined state, the decoder what the robot's sensors would make of it. The physics stays what it is
    at the start.

    Args:
      reference_at: global frame indices (n,) -> ReferenceFrames.
      horizon: imagined steps; those past the end of a clip do not count.
      discount: weight of step k is discount**k.
      postures: where given, robots whose reference has no frame left act from the prior instead of the encoder, as they do in
        collection, and are asked to stay within these.
    """
    state = RobotState.unpack(start.state)
    memory = DecoderState(start.hidden, start.cell)
    z, frame = start.z, start.frame
    offset = start.joint_offset if start.joint_offset.shape[-1] else None
    history = sensing.exact(state, offset).unsqueeze(-2)
    if sensing.reach:
        history = torch.cat((history, start.history.unflatten(-1, (sensing.reach, sensing.width))), -2)
    tracking = start.state.new_zeros(())
    kl, norm, sigmas = tracking, tracking, []
    free = start.frame >= start.last_frame
    wander, total = tracking, sum(discount**k for k in range(horizon)) * free.sum().clamp(min=1)
    for k in range(horizon):
        mu, sigma = skill.encode(encoder_context(features, state, frame, start.last_frame, model.home), z)
        noise = torch.randn(mu.shape, generator=generator, device=mu.device)
        if postures is not None:
            unguided = free.unsqueeze(-1)
            mu, sigma = mu.masked_fill(unguided, 0.0), sigma.masked_fill(unguided, prior.prior_std(skill.alpha))
        z = prior.sample_posterior(z, mu, sigma, skill.alpha, noise)
        action, memory = skill.decode(z, sensing.read(history, generator), memory)
        setpoint = model.home + action
        before, state = state, model(state, setpoint if offset is None else setpoint - offset, start.physics)
        history = sensing.remember(history, sensing.exact(state, offset))
        inside = (frame < start.last_frame).to(mu.dtype) * discount**k
        frame = torch.minimum(frame + 1, start.last_frame)
        tracking = tracking + (tracking_loss(state, before, reference_at(frame), weights) * inside).sum()
        kl = kl + (prior.kl_of_deviation(mu, sigma, skill.alpha) * inside).sum()
        norm = norm + inside.sum()
        sigmas.append(sigma.detach().mean())
        if postures is not None:
            wander = wander + (wander_loss(state, before, postures, weights) * free).sum() * discount**k
    norm = norm.clamp(min=1.0)
    return Imagined(tracking / norm, kl / norm, torch.stack(sigmas).mean(), wander / total)
