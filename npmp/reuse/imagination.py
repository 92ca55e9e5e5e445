"""Imagination of reuse: policy, frozen decoder and world model as one differentiable rollout.

As in imitation (`npmp.world_model.imagination`), a step is a pure function of tensors with every
random number drawn in advance, and the losses are computed for all steps after the last.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from npmp.envs.ground import Ground
from npmp.envs.sensing import Sensing, SensorDraws
from npmp.envs.state import RobotState
from npmp.envs.task import Task
from npmp.nets import DecoderState, prior
from npmp.nets.high_level import HighLevelState
from npmp.reuse.policy import HighLevelPolicy, PolicyInput
from npmp.skill import SkillModule
from npmp.tasks.rewards import TrackingWeights, setpoint_costs
from npmp.world_model.compiling import compiled
from npmp.world_model.imagination import driven, sensed
from npmp.world_model.model import WorldModel
from npmp.world_model.posture import PostureRange
from npmp.world_model.replay import Start

# what a metre, a tilt and a radian outside the range count beside each other
POSTURE = TrackingWeights()


class Carry(NamedTuple):
    """What one imagined step leaves to the next, B robots."""

    state: Tensor  # (B, s) packed RobotState
    z: Tensor  # (B, d)
    policy_hidden: Tensor  # (B, hp)
    policy_cell: Tensor  # (B, hp)
    hidden: Tensor  # (B, h) of the decoder
    cell: Tensor  # (B, h)
    history: Tensor  # (B, H + 1, o) exact observations, the latest first
    goal: Tensor  # (B, g)


class Fixed(NamedTuple):
    """What stays the same over a rollout, B robots."""

    physics: Tensor  # (B, p)
    joint_offset: Tensor  # (B, nu) [rad], (B, 0) where encoders are right
    patch: Tensor  # (B, 2) `Ground.patch` where imagination began, (B, 0) on flat ground


class Given(NamedTuple):
    """Random numbers of a step, B robots."""

    latent: Tensor  # (B, d) standard normal
    delay: Tensor  # (B, 1) or (B, 0), `SensorDraws`
    noise: Tensor  # (B, o) or (B, 0), `SensorDraws`


class Imagined(NamedTuple):
    """Means over an imagined rollout, each ()."""

    task: Tensor  # `TaskLoss.task`
    style: Tensor  # `TaskLoss.style`
    posture: Tensor  # distance from the postures that are known to hold, per step
    # distance of setpoints from the joints before, summed over joints, per step [rad]
    effort: Tensor
    smoothness: Tensor  # change of setpoints, summed over joints, per step [rad]
    kl: Tensor  # of the policy to the prior, per step [nats]
    std: Tensor  # of the policy's latents


class PolicyImagination:
    """Rolls a policy out in a world model from replayed moments, with one goal each.

    The policy and the decoder see what the robot's sensors would make of the imagined state.
    Latents are sampled, the decoder acts by its mean.
    """

    def __init__(
        self,
        policy: HighLevelPolicy,
        skill: SkillModule,
        model: WorldModel,
        sensing: Sensing,
        task: Task,
        postures: PostureRange,
        *,
        compile: bool = False,
    ):
        """skill, model: frozen; gradients pass through them. postures: what robots are asked to
        stay within. compile: the step, at its first use."""
        self.policy, self.skill, self.model, self.sensing = policy, skill, model, sensing
        self.task, self.ground, self.postures = task, task.env.ground, postures
        self._step = compiled(self.step, compile)

    def step(self, carry: Carry, fixed: Fixed, given: Given) -> tuple[Carry, Tensor, Tensor]:
        """One step of all robots. Returns what the next one needs, and the policy's mean and
        deviation, (B, d)."""
        state = RobotState.unpack(carry.state)
        seen = self.sensing.shown(carry.history, SensorDraws(given.delay, given.noise))
        known = PolicyInput(seen, self.task.see(state, carry.goal), carry.z)
        latent, policy = self.policy.step(
            known, HighLevelState(carry.policy_hidden, carry.policy_cell)
        )
        z = latent.mean + latent.std * given.latent
        action, decoder = self.skill.decode(z, seen, DecoderState(carry.hidden, carry.cell))
        physics = torch.cat((fixed.physics, self.ground.under_feet(state, fixed.patch)), -1)
        after, history = driven(
            self.model,
            self.sensing,
            state,
            action,
            carry.history,
            physics=physics,
            joint_offset=fixed.joint_offset,
        )
        goal = self.task.next_goal(carry.goal, after)
        return Carry(after.pack(), z, *policy, *decoder, history, goal), latent.mean, latent.std

    def begin(self, start: Start, policy: HighLevelState, goal: Tensor) -> Carry:
        """What the first step needs; policy: its memory at the start."""
        return Carry(
            start.state,
            start.z,
            *policy,
            start.hidden,
            start.cell,
            sensed(self.sensing, start),
            goal,
        )

    def __call__(
        self,
        start: Start,
        policy: HighLevelState,
        goal: Tensor,
        patch: Tensor,
        horizon: int,
        generator: torch.Generator,
    ) -> Imagined:
        """A rollout of `horizon` steps towards goals (B, g), with heights above the ground of the
        patch (B, 2)."""
        carry, fixed = (
            self.begin(start, policy, goal),
            Fixed(start.physics, start.joint_offset, patch),
        )
        latent = torch.randn((horizon, *start.z.shape), generator=generator, device=start.z.device)
        delay, noise = self.sensing.draw((horizon, len(start.z)), generator)
        states, goals, kls, stds = [], [], [], []
        for k in range(horizon):
            before = carry.z
            carry, mean, std = self._step(carry, fixed, Given(latent[k], delay[k], noise[k]))
            states.append(carry.state)
            goals.append(carry.goal)
            kls.append(prior.kl_to_prior(mean, std, before, self.policy.contract.alpha))
            stds.append(std.detach())
        after = RobotState.unpack(torch.stack(states))
        away = self.postures(
            from_ground(after, self.ground, patch),
            POSTURE.position,
            POSTURE.rotation,
            POSTURE.joints,
        )
        preceding = RobotState.unpack(torch.stack([start.state, *states[:-1]]))
        effort, smoothness = (cost.mean() for cost in setpoint_costs(after, preceding))
        owed = self.task.imagined_loss(preceding, after, torch.stack(goals), patch)
        kl, std = torch.stack(kls).mean(), torch.stack(stds).mean()
        return Imagined(
            owed.task.mean(), owed.style.mean(), away.mean(), effort, smoothness, kl, std
        )


def from_ground(states: RobotState, ground: Ground, patch: Tensor) -> RobotState:
    """Imagined states (H, B, ...) with heights above the mean of the ground under the feet: a
    robot that climbs stands no higher. patch: (B, 2), or (B, 0) on flat ground, where nothing
    changes."""
    if patch.shape[-1] == 0:
        return states
    horizon, robots = states.root_pos.shape[:2]
    each = RobotState(*(part.flatten(0, 1) for part in states))
    above = ground.under_feet(each, patch.repeat(horizon, 1))
    return states.above(above.mean(-1).view(horizon, robots))
