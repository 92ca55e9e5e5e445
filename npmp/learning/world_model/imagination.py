"""Imagination: policy, decoder and world model as one differentiable rollout, for any task.

A step is a pure function of tensors, with random numbers sampled in advance, so that it is compiled
once for any horizon. Losses are computed for all steps at once after the last.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmp.core import geometry
from npmp.core.gaussian import Gaussian
from npmp.core.tree import map_tree
from npmp.envs.ground import Ground
from npmp.envs.policy import Observation
from npmp.envs.sensing import Sensing, SensorNoise
from npmp.envs.state import RobotState
from npmp.envs.task import Task
from npmp.learning.rl.optimization import bounded_gradient
from npmp.learning.world_model.behavior import BehaviorPrior
from npmp.learning.world_model.compiling import compiled
from npmp.learning.world_model.model import WorldModel
from npmp.learning.world_model.posture import PostureRange, SlicedWasserstein
from npmp.learning.world_model.replay import Step
from npmp.skills.composition import Composition, CompositionState
from npmp.tasks.rewards import setpoint_costs


class Carry(NamedTuple):
    """State between imagined steps, B robots."""

    state: Tensor  # (B, s) packed RobotState
    history: Tensor  # (B, H + 1, o) exact observations, the latest first
    policy: CompositionState
    goal: Tensor  # (B, g)


class Constants(NamedTuple):
    """Constants of a rollout, B robots."""

    physics: Tensor  # (B, p)
    joint_offset: Tensor  # (B, nu) [rad], (B, 0) without offsets
    patch: Tensor  # (B, 2) `Ground.patch` at the start, (B, 0) on flat ground
    free: Tensor  # (B,) bool, acting on the prior
    drift: Tensor  # (B, 3) standard normal, for `Task.imagine`


class Noise(NamedTuple):
    """Random numbers of a step, B robots; with a leading axis, of all steps of a rollout."""

    latent: Tensor  # (B, d) standard normal
    sensors: SensorNoise
    extras: Tensor  # (B, 2, e) standard normal, for `Task.imagine`


class ImaginedTrajectory(NamedTuple):
    """An imagined rollout of H steps, B robots."""

    states: Tensor  # (H + 1, B, s) packed RobotState, with the start
    goals: Tensor  # (H, B, g) after each step
    z: Tensor  # (H + 1, B, d), with the latent before the first step
    mean: Tensor  # (H, B, d) of the policy's latents
    std: Tensor


class ImaginedLosses(NamedTuple):
    """Means over an imagined rollout, each ()."""

    task: Tensor  # `TaskLoss.task`
    style: Tensor  # `TaskLoss.style`
    effort: Tensor  # distance of setpoints from the joints before, summed over joints [rad]
    smoothness: Tensor  # change of setpoints, summed over joints [rad]
    kl: Tensor  # KL of the policy to its prior, per step [nats]
    behavior: Tensor  # weight of the behaviour prior in it
    std: Tensor  # standard deviation of the policy's latents
    posture: Tensor  # distance from upright postures
    wasserstein: Tensor  # distance of the states of robots on the prior from recorded ones
    # squared motor currents, summed over joints [A^2]; 0 without a model of them
    current: Tensor


class Imagination:
    """Rollouts of a policy in a world model, from states of the replay buffer.

    Proprioception is the sensor model's reading of the imagined state. Latents are sampled, actions
    are the decoder's mean. Physics and the patch of ground are constant over a rollout.
    """

    def __init__(
        self,
        policy: Composition,
        model: WorldModel,
        sensing: Sensing,
        task: Task,
        ground: Ground,
        postures: PostureRange,
        wasserstein: SlicedWasserstein | None = None,
        *,
        frees: bool = False,
        compile: bool = False,
    ):
        """Args:
        policy: the trained policy; gradients pass through its frozen parts.
        model: frozen.
        postures: range of upright postures. wasserstein: distance of robots on the prior.
        frees: `Step.free` robots act on the prior, and only they have the posture loss; False: all
          robots act by the policy and have it.
        compile: compile the step at its first use, which takes about a minute.
        """
        self.policy = policy
        self.model = model
        self.sensing = sensing
        self.task = task
        self.ground = ground
        self.postures = postures
        self.wasserstein = wasserstein
        self.frees = frees
        self._step = compiled(self.step, compile)

    def step(self, carry: Carry, fixed: Constants, noise: Noise) -> tuple[Carry, Gaussian]:
        """One step of all robots. Returns the next carry, and the policy's latents."""
        sensing = self.sensing
        state = RobotState.unpack(carry.state)
        proprioception = sensing.apply(carry.history, noise.sensors)
        height = partial(self.ground.above, patch=fixed.patch)
        task = self.task.imagine(state, carry.goal, height, fixed.drift, noise.extras)
        observation = Observation(
            proprioception,
            task,
            state=state,
            free=fixed.free if self.frees else None,
            noise=noise.latent,
        )
        output, policy = self.policy.step(observation, carry.policy)

        offset = fixed.joint_offset if fixed.joint_offset.shape[-1] else None
        setpoint = self.model.home + output.action
        if offset is not None:  # encoders read the angle plus the offset
            setpoint = setpoint - offset
        ground = self.ground.about_feet(state, fixed.patch)
        after: RobotState = self.model(state, setpoint, torch.cat((fixed.physics, ground), -1))
        history = sensing.remember(carry.history, sensing.exact(after, offset))
        goal = self.task.next_goal(carry.goal, after)
        return Carry(after.pack(), history, policy, goal), output.info

    def rollout(self, start: Step, horizon: int, generator: torch.Generator) -> ImaginedTrajectory:
        """Imagine `horizon` steps from replayed steps (B, ...)."""
        policy = CompositionState(start.policy, start.z, start.decoder)
        carry = Carry(start.state, self.sensed(start), policy, start.goal)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=start.z.device)

        robots = len(start.z)
        extra = len(self.task.extra_inputs)
        latent = normal(horizon, *start.z.shape)
        delay, noise = self.sensing.sample((horizon, robots), generator)
        extras = normal(horizon, robots, 2, extra)
        fixed = Constants(
            start.physics,
            start.joint_offset,
            start.patch,
            start.free,
            normal(robots, 3 * (extra > 0)),
        )
        states = [carry.state]
        goals = []
        zs = [start.z]
        latents = []
        for k in range(horizon):
            random = Noise(latent[k], SensorNoise(delay[k], noise[k]), extras[k])
            carry, distribution = self._step(map_tree(bounded_gradient, carry), fixed, random)
            states.append(carry.state)
            goals.append(carry.goal)
            zs.append(carry.policy.z)
            latents.append(distribution)
        mean, std = (torch.stack(part) for part in zip(*latents, strict=True))
        return ImaginedTrajectory(
            torch.stack(states), torch.stack(goals), torch.stack(zs), mean, std
        )

    def sensed(self, start: Step) -> Tensor:
        """Exact observations at replayed steps and before, (B, H + 1, o)."""
        offset = start.joint_offset if start.joint_offset.shape[-1] else None
        now = self.sensing.exact(RobotState.unpack(start.state), offset).unsqueeze(-2)
        if not self.sensing.lags:
            return now
        before = start.history.unflatten(-1, (self.sensing.lags, self.sensing.width))
        return torch.cat((now, before), -2)

    def __call__(self, start: Step, horizon: int, generator: torch.Generator) -> ImaginedLosses:
        """The losses of a rollout of `horizon` steps, differentiable."""
        trajectory = self.rollout(start, horizon, generator)
        before = RobotState.unpack(trajectory.states[:-1])
        after = RobotState.unpack(trajectory.states[1:])
        free = start.free.to(trajectory.std)
        commanded = 1.0 - free

        loss = self.task.imagined_loss(before, after, trajectory.goals, start.patch)
        each = torch.ones_like(trajectory.std[..., 0])
        counts = each if loss.weight is None else loss.weight

        def mean(values: Tensor, robots: Tensor, steps: Tensor) -> Tensor:
            """Mean of (H, B) with weights of robots (B,) and steps (H, B)."""
            weight = robots * steps
            return (values * weight).sum() / weight.sum().clamp(min=1.0)

        effort, smoothness = setpoint_costs(after, before)
        kl, behavior = self._divergence(trajectory, start)
        above = above_ground(after, self.ground, start.patch)
        away = self.postures(above)
        wasserstein = torch.zeros_like(away[0, 0])
        if self.wasserstein is not None and start.free.any():
            on_prior = RobotState(*(part[:, start.free] for part in above))
            wasserstein = self.wasserstein(on_prior, generator)
        current = torch.zeros_like(effort)
        if self.model.currents is not None:
            flat: Any = RobotState(*(part.flatten(0, 1) for part in before))
            physics = start.physics.repeat(horizon, 1)
            rms = self.model.current_rms(flat, after.setpoint.flatten(0, 1), physics)
            current = (rms * self.model.current_scale).square().sum(-1).view_as(effort)
        return ImaginedLosses(
            task=loss.task.mean(),
            style=loss.style.mean(),
            effort=mean(effort, commanded, counts),
            smoothness=mean(smoothness, commanded, counts),
            kl=mean(kl, commanded, counts),
            behavior=behavior.mean(),
            std=mean(trajectory.std.detach().mean(-1), commanded, each),
            posture=mean(away, free if self.frees else torch.ones_like(free), each),
            wasserstein=wasserstein,
            current=mean(current, commanded, counts),
        )

    def _divergence(self, trajectory: ImaginedTrajectory, start: Step) -> tuple[Tensor, Tensor]:
        """KL of the policy to its prior, and the behaviour prior's weight in it, (H, B) each."""
        prior = self.policy.upper.prior
        before = RobotState.unpack(trajectory.states[:-1])
        goals = torch.cat((start.goal[None], trajectory.goals[:-1]))
        task = self.task.inputs_of(before, goals) if prior.observes_task else goals
        observed = prior.observe(before, task)
        kl = prior.kl(Gaussian(trajectory.mean, trajectory.std), trajectory.z[:-1], observed)
        behaves = isinstance(prior, BehaviorPrior)
        return kl, observed[..., -1] if behaves else torch.zeros_like(kl)


def above_ground(states: RobotState, ground: Ground, patch: Tensor) -> RobotState:
    """Imagined states (H, B, ...) relative to the ground under the feet: heights above its mean,
    and orientations turned so that its normal is vertical.

    patch: (B, 2), or (B, 0) on flat ground, where states do not change.
    """
    if patch.shape[-1] == 0:
        return states
    horizon, robots = states.root_pos.shape[:2]
    each: Any = RobotState(*(part.flatten(0, 1) for part in states))
    under, gradient = ground.plane(each, patch.repeat(horizon, 1))
    above = states.above(under.view(horizon, robots))
    level = geometry.levelled(gradient).view(horizon, robots, 3, 3)
    return above._replace(root_rot=level @ above.root_rot)
