"""How well a skill module tracks: deterministic rollouts of its imitation policy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from npmp.envs.rollout import Transition, rollout
from npmp.skills.composition import tracking
from npmp.skills.skill_module import SkillModule
from npmp.tasks.imitation import ImitationEnv


class Tracking(NamedTuple):
    """How n episodes went; step t is the state after t + 1 control steps."""

    steps: Tensor  # (n,) control steps tracked before failing, or to the clip's end
    remaining: Tensor  # (n,) control steps that there were to track
    qpos: Tensor  # (T + 1, n, nq) float64, including the start
    frame: Tensor  # (T + 1, n) global reference frames
    error: Tensor  # (T, n) eq. 2; the failing step's included
    latents: Tensor  # (T, n, d) what the decoder took

    @property
    def fraction(self) -> Tensor:
        """Share of the remaining clip that was tracked, (n,)."""
        return self.steps / self.remaining


def track(skill: SkillModule, env: ImitationEnv, clip: Tensor, frame: Tensor) -> Tracking:
    """Start every robot of the environment at a frame and follow the reference with mean latents
    and actions.

    Args:
      clip, frame: (num_envs,) clip index and global start frame, on any device.

    Skill and environment are on one device; the task shows as many frames ahead as the module's
    encoder takes, `context_horizon`.

    Returns: the episodes, each until eq. 2's corridor is left or its clip ends, on the CPU.
    """
    env.reset(clip=clip.to(env.device), frame=frame.to(env.device))
    task = env.task
    robots = env.robots
    remaining = task.last_frame - task.frame
    steps = torch.zeros_like(remaining)
    alive = torch.ones_like(remaining, dtype=torch.bool)
    qpos = [robots.qpos.clone()]
    frames = [task.frame.clone()]
    errors: list[Tensor] = []
    latents: list[Tensor] = []

    def record(transition: Transition) -> bool:
        """Keep the step, and end the rollout when all episodes are over."""
        alive.logical_and_(~transition.step.terminated & (steps < remaining))
        steps.add_(alive)
        qpos.append(robots.qpos.clone())
        frames.append(task.frame.clone())
        errors.append(transition.step.error)
        latents.append(transition.next_state.z)
        return not alive.any()

    rollout(tracking(skill), env, int(remaining.max()), record, resets=None)
    kept = (torch.stack(part).cpu() for part in (qpos, frames, errors, latents))
    whole = Tracking(steps.cpu(), remaining.cpu(), *kept)
    return whole._replace(qpos=whole.qpos.double())
