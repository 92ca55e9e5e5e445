"""How a policy that is learned through a model collects: noise on its joint targets, stretches on
the prior's latents, jumps to other goals; and what the replay keeps of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from npmp.core.tree import Tree
from npmp.envs.policy import Observation, Policy, PolicyOutput
from npmp.envs.task_env import TaskEnv
from npmp.learning.world_model.replay import Step
from npmp.skills.composition import CompositionState


def step_of(
    env: TaskEnv[Any],
    observation: Observation,
    state: CompositionState,
    action: Tensor,
    *,
    physics_size: int,
) -> Step:
    """What the replay keeps of a control step that is about to be made.

    Args:
      state: of the policy, before the step. action: (n, nu) [rad].
      physics_size: how much of the random physics is kept, all of it or nothing.
    """
    robots = env.robots
    ground = env.ground
    squares = robots.current_squares if env.task.current_weight else None
    offset = robots.joint_offset
    robot_state = ground.integrated(env.state)
    patch = ground.patch(env.state)
    is_first = observation.is_first
    return Step(
        is_first=is_first,
        free=torch.zeros_like(is_first) if observation.free is None else observation.free,
        state=robot_state.pack(),
        setpoint=robots.setpoint(action),
        # these two change in place where an episode begins
        physics=robots.physics[:, :physics_size].clone(),
        currents=action[:, :0] if squares is None else squares,
        joint_offset=action[:, :0] if offset is None else offset.clone(),
        history=robots.history[:, 1:].flatten(1),
        patch=patch,
        ground=ground.about_feet(robot_state, patch) + patch[:, :1] if ground.rough else patch,
        z=state.z,
        decoder=state.lower,
        policy=state.upper,
        goal=env.task.goal(),
    )


class ActionNoise:
    """A policy with noise on its joint targets."""

    def __init__(self, policy: Policy, generator: torch.Generator, std: float):
        """std: of the noise [rad]."""
        self.policy = policy
        self.generator = generator
        self.std = std
        self.initial_state = policy.initial_state

    def step(self, observation: Observation, state: Tree) -> tuple[PolicyOutput, Tree]:
        output, after = self.policy.step(observation, state)
        device = output.action.device
        noise = torch.randn(output.action.shape, generator=self.generator, device=device)
        return output._replace(action=output.action + self.std * noise), after


class Redirection:
    """Other goals for robots that track references (`Imitation.free`), while they collect.

    At rates of their own they stop tracking, act on the prior for a while, and are then sent to
    track another frame from where they stand; others are sent there at once. So the policy meets
    states off the reference, and the decoder whatever latents the prior samples (ControlVAE).
    """

    def __init__(
        self,
        env: TaskEnv[Any],
        generator: torch.Generator,
        *,
        prior_share: float,
        prior_steps: int,
        rejoin_rate: float,
    ):
        """Args:
        prior_share: of the time that robots act on the prior; prior_steps: mean length of such a
          stretch. rejoin_rate: at which robots that track are sent elsewhere [1/s].
        """
        self.env = env
        self.generator = generator
        # rates of entering and leaving the free stretches, so that their mean length and share are
        # as configured
        self.leave = 1.0 / prior_steps
        self.enter = self.leave * prior_share / (1.0 - prior_share)
        self.rejoin_rate = rejoin_rate

    def __call__(self, is_first: Tensor) -> Tensor:
        """Settle which robots track what from now on. Returns those with a new goal, (n,) bool,
        episodes that begin included."""
        env = self.env
        task = env.task
        free = task.free
        draw = torch.rand(env.num_envs, generator=self.generator, device=env.device)
        ends = free & ~is_first & (draw < self.leave)
        jumps = ~free & ~is_first & (draw > 1.0 - self.rejoin_rate * env.dt)
        task.rejoin(ends | jumps)
        task.free = (free & ~ends) | (~free & ~is_first & ~jumps & (draw < self.enter))
        return is_first | ends | jumps
