"""How a policy that is learned through a model collects: sampled latents, noise on the actions,
stretches on the prior's latents, jumps to other goals."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from npmp.envs.rollout import PolicyOutput
from npmp.envs.task_env import TaskEnv
from npmp.learning.world_model.replay import Step
from npmp.skills import prior
from npmp.skills.actors import SkillMemory
from npmp.skills.high_level_policy import Player, PolicyInput, PolicyMemory, policy_memory


def step_of(
    env: TaskEnv[Any],
    memory: PolicyMemory,
    first: Tensor,
    free: Tensor,
    action: Tensor,
    *,
    physics_size: int,
) -> Step:
    """What the replay keeps of a control step that is about to be made.

    Args:
      memory: before the step. action: (n, nu) [rad].
      physics_size: how much of the drawn physics is kept, all of it or nothing.
    """
    robots = env.robots
    ground = env.ground
    squares = robots.current_squares if env.task.current_weight else None
    offset = robots.joint_offset
    state = ground.integrated(env.state)
    patch = ground.patch(env.state)
    return Step(
        first=first,
        free=free,
        state=state.pack(),
        setpoint=robots.setpoint(action),
        # these two change in place where an episode begins
        physics=robots.physics[:, :physics_size].clone(),
        currents=action[:, :0] if squares is None else squares,
        joint_offset=action[:, :0] if offset is None else offset.clone(),
        history=robots.history[:, 1:].flatten(1),
        patch=patch,
        ground=ground.about_feet(state, patch) + patch[:, :1] if ground.rough else patch,
        z=memory.skill.z,
        decoder=memory.skill.decoder,
        policy=memory.policy,
        goal=env.task.goal(),
    )


class Explorer:
    """A policy with sampled latents and noise on its actions. Its notes are what `ReplayBuffer.add`
    takes.

    At rates of their own robots stop tracking (`Imitation.free`), act on latents of the prior for a
    while, and are then sent to track another frame from where they stand; others are sent there at
    once. So the policy meets states off the reference, and the decoder whatever the prior asks of
    it (ControlVAE).
    """

    def __init__(
        self,
        player: Player,
        generator: torch.Generator,
        *,
        noise: float,
        prior_share: float,
        prior_steps: int,
        rejoin_rate: float,
        physics_size: int,
        tracks: bool,
    ):
        """Args:
        noise: of the actions [rad].
        prior_share: of the time that robots act from the prior; prior_steps: mean length of such a
          stretch. rejoin_rate: at which robots that track are sent elsewhere [1/s].
        physics_size: as `step_of`. tracks: whether the task is to track references, so that the
          rest means anything.
        """
        self.player = player
        self.generator = generator
        self.noise = noise
        self.initial_memory = partial(policy_memory, *player)
        # rates of entering and leaving the free stretches, so that their mean length and share are
        # as configured
        self.leave = 1.0 / prior_steps
        self.enter = self.leave * prior_share / (1.0 - prior_share)
        self.rejoin_rate = rejoin_rate
        self.physics_size = physics_size
        self.tracks = tracks

    def _randn(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator, device=like.device)

    def _switch(self, env: TaskEnv[Any], first: Tensor) -> Tensor:
        """Which robots track what from now on. Returns those with a new target, (n,) bool, episodes
        that begin included."""
        task = env.task
        free = env.task.tracking.free
        draw = torch.rand(env.num_envs, generator=self.generator, device=env.device)
        ends = free & ~first & (draw < self.leave)
        jumps = ~free & ~first & (draw > 1.0 - self.rejoin_rate * env.dt)
        task.tracking.rejoin(ends | jumps)
        task.tracking.free = (free & ~ends) | (~free & ~first & ~jumps & (draw < self.enter))
        return first | ends | jumps

    def act(self, env: TaskEnv[Any], memory: PolicyMemory, first: Tensor) -> PolicyOutput:
        policy, skill = self.player
        free = torch.zeros_like(first)
        if self.tracks:
            first = self._switch(env, first)
            free = env.task.tracking.free
        inputs = PolicyInput(env.observe(), env.task.observe(), memory.skill.z)
        latent, state = policy.step(inputs, memory.policy)
        latent = prior.where_free(latent, free.unsqueeze(-1), memory.skill.z, policy.alpha)
        z = latent.mean + latent.std * self._randn(latent.mean)
        action, decoder = skill.decode(z, inputs.senses, memory.skill.decoder)
        action = action + self.noise * self._randn(action)
        step = step_of(env, memory, first, free, action, physics_size=self.physics_size)
        return PolicyOutput(action, PolicyMemory(state, SkillMemory(z, decoder)), step)
