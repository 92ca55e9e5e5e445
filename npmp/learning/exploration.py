"""Exploration of model-based learning: action noise, phases on the prior, changes of goal; and the
replay buffer's record of a step."""

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
    """The replay buffer's record of the coming control step.

    Args:
      state: of the policy, before the step. action: (n, nu) [rad].
      physics_size: width of the recorded physics: all of it or 0.
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
        # cloned, as a reset changes physics and joint offset in place
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
    """Goal changes of robots that track references (`Imitation.free`), during collection.

    At random times robots stop tracking, act on the prior, and then track another frame from their
    current state; others change the frame at once. So the policy visits states off the reference,
    and the decoder latents of the prior (ControlVAE).
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
        prior_share: of the time that robots act on the prior.
        prior_steps: mean duration of a phase on the prior [control steps].
        rejoin_rate: rate of changes of frame while tracking [1/s].
        """
        self.env = env
        self.generator = generator
        # probabilities per step of leaving and entering the prior phase, by its mean duration and
        # share
        self.leave = 1.0 / prior_steps
        self.enter = self.leave * prior_share / (1.0 - prior_share)
        self.rejoin_rate = rejoin_rate

    def __call__(self, is_first: Tensor) -> Tensor:
        """Change goals. Returns the robots with a new goal, (n,) bool, including episode starts."""
        env = self.env
        task = env.task
        free = task.tracking.free
        uniform = torch.rand(env.num_envs, generator=self.generator, device=env.device)
        ends = free & ~is_first & (uniform < self.leave)
        jumps = ~free & ~is_first & (uniform > 1.0 - self.rejoin_rate * env.dt)
        task.tracking.rejoin(ends | jumps)
        enters = ~free & ~is_first & ~jumps & (uniform < self.enter)
        task.tracking.free = (free & ~ends) | enters
        return is_first | ends | jumps
