"""How the fast path explores: tracking with action noise, stretches on the prior's latents, jumps
to other frames."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from npmp.actors import SkillMemory, skill_memory
from npmp.envs.task_env import TaskEnv
from npmp.nets import prior
from npmp.rollout import Decision, Moment
from npmp.skill import SkillModule
from npmp.tasks.imitation import ImitationEnv


def robot_sizes(env: TaskEnv[Any], physics_size: int) -> dict[str, int]:
    """Widths of what `robot_note` notes, as `Replay` takes them."""
    robots = env.robots
    return {
        "state": env.state.pack().shape[-1],
        "setpoint": env.num_actions,
        "physics": physics_size,
        "joint_offset": 0 if robots.joint_offset is None else env.num_actions,
        "history": robots.sensing.reach * robots.sensing.width,
    }


def robot_note(env: TaskEnv[Any], action: Tensor, physics_size: int) -> dict[str, Tensor]:
    """What a world model is fitted to, and imagines from, of a control step that is about to be
    made.

    Args:
      action: (n, nu) [rad].
      physics_size: how much of the drawn physics is noted; all of it or nothing.
    """
    robots = env.robots
    offset = robots.joint_offset
    return {
        "state": env.state.pack(),
        "setpoint": robots.setpoint(action),
        # these two change in place where an episode begins
        "physics": robots.physics[:, :physics_size].clone(),
        "joint_offset": action.new_zeros(len(action), 0) if offset is None else offset.clone(),
        "history": robots.history[:, 1:].flatten(1),
    }


class Explorer:
    """A module with sampled latents and action noise. Its notes are what `Replay.add` takes of a
    step.

    At rates of their own robots stop tracking (`Imitation.free`), act on latents of the prior for a
    while, and are then sent to track another frame from where they stand; others are sent there at
    once. So the policy meets states off the reference, and the decoder whatever the prior asks of
    it (ControlVAE).
    """

    def __init__(
        self,
        skill: SkillModule,
        generator: torch.Generator,
        *,
        noise: float,
        prior_share: float,
        prior_steps: int,
        rejoin_rate: float,
        physics_size: int,
    ):
        """Args:
        noise: of the actions [rad].
        prior_share: of the time that robots act from the prior; prior_steps: mean length of such a
        stretch. rejoin_rate: at which robots that track are sent elsewhere [1/s].
        physics_size: how much of the drawn physics is noted; all of it or nothing.
        """
        self.skill, self.generator, self.noise = skill, generator, noise
        # rates of entering and leaving the free stretches, so that their mean length and share are
        # as configured
        self.leave = 1.0 / prior_steps
        self.enter = self.leave * prior_share / (1.0 - prior_share)
        self.rejoin_rate, self.physics_size = rejoin_rate, physics_size

    def initial_memory(self, n: int) -> SkillMemory:
        """As `Actor.initial_memory`."""
        return skill_memory(self.skill, n)

    def _randn(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator, device=like.device)

    def _switch(self, env: ImitationEnv, first: Tensor) -> Tensor:
        """Who tracks what from now on. Returns whose target is new, (n,) bool, episodes that begin
        included."""
        task, free = env.task, env.task.free
        draw = torch.rand(env.num_envs, generator=self.generator, device=env.device)
        ends = free & ~first & (draw < self.leave)
        jumps = ~free & ~first & (draw > 1.0 - self.rejoin_rate * env.dt)
        task.rejoin(ends | jumps)
        task.free = (free & ~ends) | (~free & ~first & ~jumps & (draw < self.enter))
        return first | ends | jumps

    def act(self, env: ImitationEnv, memory: SkillMemory, first: Tensor) -> Decision:
        """As `Actor.act`."""
        skill, task = self.skill, env.task
        begins = self._switch(env, first)
        free, frame = task.free, task.frame
        mu, sigma = skill.encode(task.context(skill.contract.context_horizon), memory.z)
        unguided = free.unsqueeze(-1)  # these follow the prior itself
        mu, sigma = (
            mu.masked_fill(unguided, 0.0),
            sigma.masked_fill(unguided, prior.prior_std(skill.alpha)),
        )
        z = prior.sample_posterior(memory.z, mu, sigma, skill.alpha, self._randn(mu))
        action, decoder = skill.decode(z, env.observe(), memory.decoder)
        action = action + self.noise * self._randn(action)
        note = {
            "frame": frame,
            # a free robot has no reference
            "last_frame": torch.where(free, frame, task.last_frame),
            "first": begins,
            "z": memory.z,
            "hidden": memory.decoder.hidden,
            "cell": memory.decoder.cell,
            **robot_note(env, action, self.physics_size),
        }
        return Decision(action, SkillMemory(z, decoder), note)


class TrackedMeans:
    """A recorder that keeps every step's note, and means over the robots that tracked."""

    def __init__(self, env: ImitationEnv):
        self.env = env
        self.taken: list[dict[str, Tensor]] = []
        self._sums = torch.zeros(4, device=env.device)

    def __call__(self, moment: Moment) -> None:
        """As `Recorder`."""
        note, step = moment.decision.note, moment.step
        self.taken.append(note)
        tracked = (note["last_frame"] > note["frame"]).float()
        error = step.error.nan_to_num(1.0).clamp(max=1.0)
        reward = step.rewards.nan_to_num().sum(-1)
        self._sums += torch.stack(
            [torch.dot(v, tracked) for v in (error, step.terminated.float(), reward, tracked)]
        )

    def figures(self) -> dict[str, float]:
        """Means: `error` (eq. 2), `failures_per_s`, `reward`."""
        error, failures, reward, count = self._sums.tolist()
        count = max(count, 1.0)
        return {
            "error": error / count,
            "failures_per_s": failures / count / self.env.dt,
            "reward": reward / count,
        }
