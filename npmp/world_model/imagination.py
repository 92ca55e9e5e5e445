"""Imagination: the policy rolled out in the world model, differentiably.

A step is a pure function of tensors, with every random number drawn in advance, so that it can be
compiled once and serves any horizon. What does not depend on the imagined robots (the reference
ahead of them) is gathered before the first step, and what no later step depends on (the losses) is
computed for all steps at once after the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from npmp.envs.features import ReferenceFeatures, true_state
from npmp.envs.reference import ReferenceFrames
from npmp.envs.sensing import Sensing, SensorDraws
from npmp.envs.state import RobotState
from npmp.nets import DecoderState, prior
from npmp.skill import SkillModule
from npmp.tasks.rewards import TrackingWeights, tracking_loss
from npmp.world_model.compiling import compiled
from npmp.world_model.model import WorldModel
from npmp.world_model.posture import PostureRange, SlicedWasserstein
from npmp.world_model.replay import Start


class Carry(NamedTuple):
    """What one imagined step leaves to the next, B robots."""

    state: Tensor  # (B, s) packed RobotState
    z: Tensor  # (B, d)
    hidden: Tensor  # (B, h)
    cell: Tensor  # (B, h)
    history: Tensor  # (B, H + 1, o) exact observations, the latest first


class Fixed(NamedTuple):
    """What stays the same over a rollout, B robots."""

    physics: Tensor  # (B, p)
    joint_offset: Tensor  # (B, nu) [rad], (B, 0) where encoders are right
    free: Tensor  # (B, 1) bool, acting from the prior


class Given(NamedTuple):
    """What a step is given from outside, B robots; with a leading axis, all steps of a rollout."""

    # (horizon, B, points and axes, 3) of the reference frames ahead, `ReferenceFeatures.coming`
    vectors: Tensor
    joints: Tensor  # (horizon, B, nu)
    latent: Tensor  # (B, d) standard normal
    delay: Tensor  # (B, 1) or (B, 0), `SensorDraws`
    noise: Tensor  # (B, o) or (B, 0), `SensorDraws`


class Imagined(NamedTuple):
    """Means over an imagined rollout."""

    tracking: Tensor  # () discounted tracking loss per step
    kl: Tensor  # () KL to the prior per step [nats]
    sigma: Tensor  # () mean deviation of the encoder, of the robots that have a reference
    # () distance from the recordings' postures per step, discounted, of those that act from the
    # prior
    posture: Tensor
    wasserstein: Tensor  # () distance of their states from the recordings'


def driven(
    model: WorldModel,
    sensing: Sensing,
    state: RobotState,
    action: Tensor,
    history: Tensor,
    *,
    physics: Tensor,
    joint_offset: Tensor,
) -> tuple[RobotState, Tensor]:
    """One control step of imagined robots (B, ...): where an action takes them, and their exact
    observations then.

    Args:
      action: (B, nu) joint targets minus the home pose [rad].
      history: (B, H + 1, o) exact observations, the latest first.
      physics: (B, p). joint_offset: (B, nu) of the encoders [rad], (B, 0) where they are right.
    """
    offset = joint_offset if joint_offset.shape[-1] else None
    setpoint = model.home + action if offset is None else model.home + action - offset
    after: RobotState = model(state, setpoint, physics)
    return after, sensing.remember(history, sensing.exact(after, offset))


def sensed(sensing: Sensing, at: Start) -> Tensor:
    """Exact observations at real moments and before, (..., H + 1, o)."""
    offset = at.joint_offset if at.joint_offset.shape[-1] else None
    history = sensing.exact(RobotState.unpack(at.state), offset).unsqueeze(-2)
    if not sensing.reach:
        return history
    return torch.cat((history, at.history.unflatten(-1, (sensing.reach, sensing.width))), -2)


class Imagination:
    """Rolls a policy out in a world model from replayed moments.

    The encoder sees the exact imagined state, the decoder what the robot's sensors would make of
    it. The physics stays what it is at the start.
    """

    def __init__(
        self,
        skill: SkillModule,
        model: WorldModel,
        sensing: Sensing,
        features: ReferenceFeatures,
        reference_at: Callable[[Tensor], ReferenceFrames],
        discount: float,
        weights: TrackingWeights,
        postures: PostureRange | None = None,
        wasserstein: SlicedWasserstein | None = None,
        *,
        compile: bool = False,
    ):
        """Put the parts together.

        Args:
          reference_at: global frame indices (...) -> ReferenceFrames.
          discount: weight of step k is discount**k.
          postures: where given, robots whose reference has no frame left act from the prior instead
            of the encoder, as they do in collection, and are asked to stay within these.
          wasserstein: the same, and they are asked to move, all together, as the recordings do.
          compile: compile the step at its first use, which takes a minute or so and pays in long
            runs.
        """
        self.skill, self.model, self.sensing, self.features = skill, model, sensing, features
        self.reference_at, self.discount, self.weights = reference_at, discount, weights
        self.postures, self.wasserstein = postures, wasserstein
        self._step = compiled(self.step, compile)

    def step(self, carry: Carry, fixed: Fixed, given: Given) -> tuple[Carry, Tensor, Tensor]:
        """One step of all robots. Returns what the next one needs, and the encoder's mu and sigma,
        (B, d)."""
        skill, sensing, home = self.skill, self.sensing, self.model.home
        state = RobotState.unpack(carry.state)
        context = torch.cat(
            (self.features.relative(state, given.vectors, given.joints), true_state(state, home)),
            -1,
        )
        mu, sigma = skill.encode(context, carry.z)
        if self.postures is not None or self.wasserstein is not None:
            mu = mu.masked_fill(fixed.free, 0.0)
            sigma = sigma.masked_fill(fixed.free, prior.prior_std(skill.alpha))
        z = prior.sample_posterior(carry.z, mu, sigma, skill.alpha, given.latent)
        seen = sensing.shown(carry.history, SensorDraws(given.delay, given.noise))
        action, memory = skill.decode(z, seen, DecoderState(carry.hidden, carry.cell))
        after, history = driven(
            self.model,
            sensing,
            state,
            action,
            carry.history,
            physics=fixed.physics,
            joint_offset=fixed.joint_offset,
        )
        return Carry(after.pack(), z, memory.hidden, memory.cell, history), mu, sigma

    @torch.no_grad()
    def burn_in(self, stretch: Start, first: Tensor, generator: torch.Generator) -> Start:
        """The last of T + 1 successive moments, with the memory that the decoder as it is now has
        there.

        The memory stored at the first moment is carried on over the T real steps, with the latents
        that were used and the exact observations, delayed and made noisy anew. Where an episode
        began, or the target changed, it is the stored one again.

        stretch, first: of `Replay.stretches`, (T + 1, B, ...).
        """
        memory, history = (
            DecoderState(stretch.hidden[0], stretch.cell[0]),
            sensed(self.sensing, stretch),
        )
        draws = self.sensing.draw(tuple(first.shape), generator)
        for t in range(len(first) - 1):
            seen = self.sensing.shown(history[t], SensorDraws(draws.delay[t], draws.noise[t]))
            # a moment's z is that of the step before
            _, memory = self.skill.decode(stretch.z[t + 1], seen, memory)
            begins = first[t + 1].unsqueeze(-1)
            memory = DecoderState(
                torch.where(begins, stretch.hidden[t + 1], memory.hidden),
                torch.where(begins, stretch.cell[t + 1], memory.cell),
            )
        return Start(*(field[-1] for field in stretch))._replace(
            hidden=memory.hidden, cell=memory.cell
        )

    def begin(self, start: Start) -> tuple[Carry, Fixed]:
        """What the first step needs."""
        free = (start.frame >= start.last_frame).unsqueeze(-1)
        carry = Carry(start.state, start.z, start.hidden, start.cell, sensed(self.sensing, start))
        return carry, Fixed(start.physics, start.joint_offset, free)

    def __call__(self, start: Start, horizon: int, generator: torch.Generator) -> Imagined:
        """A rollout of `horizon` steps; those past the end of a clip do not count."""
        carry, fixed = self.begin(start)
        ahead = self.features.horizon
        vectors, joints = self.features.coming(start.frame, start.last_frame, horizon)
        latent = torch.randn((horizon, *start.z.shape), generator=generator, device=start.z.device)
        delay, noise = self.sensing.draw((horizon, len(start.z)), generator)
        states, mus, sigmas = [start.state], [], []
        for k in range(horizon):
            given = Given(
                vectors[k : k + ahead], joints[k : k + ahead], latent[k], delay[k], noise[k]
            )
            carry, mu, sigma = self._step(carry, fixed, given)
            states.append(carry.state)
            mus.append(mu)
            sigmas.append(sigma)
        return self._judge(
            start, torch.stack(states), torch.stack(mus), torch.stack(sigmas), generator
        )

    def _judge(
        self, start: Start, states: Tensor, mu: Tensor, sigma: Tensor, generator: torch.Generator
    ) -> Imagined:
        """The losses of a rollout of H steps: packed states (H + 1, B, s), mu and sigma (H, B, d)."""
        before, after = RobotState.unpack(states[:-1]), RobotState.unpack(states[1:])
        steps = torch.arange(len(mu), device=mu.device).unsqueeze(-1)
        discount = self.discount**steps
        inside = (start.frame + steps < start.last_frame) * discount
        norm = inside.sum().clamp(min=1.0)
        reference = self.reference_at(torch.minimum(start.frame + steps + 1, start.last_frame))
        tracking = (tracking_loss(after, before, reference, self.weights) * inside).sum() / norm
        kl = (prior.kl_of_deviation(mu, sigma, self.skill.alpha) * inside).sum() / norm
        free = start.frame >= start.last_frame
        guided = (~free).to(sigma)
        spread = (sigma.detach().mean((0, -1)) * guided).sum() / guided.sum().clamp(min=1.0)
        posture = wasserstein = torch.zeros_like(tracking)
        if self.postures is not None:
            away = self.postures(
                after, self.weights.position, self.weights.rotation, self.weights.joints
            )
            posture = (away * free * discount).sum() / (discount.sum() * free.sum().clamp(min=1))
        if self.wasserstein is not None and free.any():
            wasserstein = self.wasserstein(RobotState(*(f[:, free] for f in after)), generator)
        return Imagined(tracking, kl, spread, posture, wasserstein)
