"""Tracking of references by a skill module, with deterministic rollouts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from npmp.envs.rollout import Transition, rollout
from npmp.skills.composition import tracking
from npmp.skills.skill_module import SkillModule
from npmp.tasks.imitation import ImitationEnv


class Tracking(NamedTuple):
    """Results of n episodes; step t is the state after t + 1 control steps."""

    steps: Tensor  # (n,) control steps tracked before a failure, or to the clip's end
    remaining: Tensor  # (n,) control steps from the start to the clip's end
    # (T + 1, n, nq) float64 in the frames of the motions, including the start
    qpos: Tensor
    # (T + 1, n, nv), including the start
    qvel: Tensor
    frame: Tensor  # (T + 1, n) global reference frames
    error: Tensor  # (T, n) eq. 2; the failing step's included
    latents: Tensor  # (T, n, d) inputs of the decoder
    # (T, n, nu) joint targets of the step [rad]
    setpoints: Tensor

    @property
    def fraction(self) -> Tensor:
        """Share of the remaining clip that was tracked, (n,)."""
        return self.steps / self.remaining


def track(skill: SkillModule, env: ImitationEnv, clip: Tensor, frame: Tensor) -> Tracking:
    """Track the reference from start frames, with mean latents and actions.

    Args:
      skill: on the environment's device; its `context_horizon` equals the task's future frames.
      clip, frame: (num_envs,) clip index and global start frame, on any device.

    Returns: the episodes on the CPU, each until termination by eq. 2 or the clip's end.
    """
    env.reset(clip=clip.to(env.device), frame=frame.to(env.device))
    task = env.task
    remaining = task.tracking.last_frame - task.tracking.frame
    steps = torch.zeros_like(remaining)
    alive = torch.ones_like(remaining, dtype=torch.bool)
    qpos = [task.tracking.qpos()]
    qvel = [env.robots.qvel.clone()]
    frames = [task.tracking.frame.clone()]
    errors: list[Tensor] = []
    latents: list[Tensor] = []
    setpoints: list[Tensor] = []

    def record(transition: Transition) -> bool:
        """Record the step, and end the rollout when all episodes are over."""
        alive.logical_and_(~transition.step.terminated & (steps < remaining))
        steps.add_(alive)
        qpos.append(task.tracking.qpos())
        qvel.append(env.robots.qvel.clone())
        frames.append(task.tracking.frame.clone())
        errors.append(transition.step.error)
        latents.append(transition.next_state.z)
        setpoints.append(transition.step.state.setpoint)
        return not alive.any()

    rollout(tracking(skill), env, int(remaining.max()), record, resets=None)
    recorded = (qpos, qvel, frames, errors, latents, setpoints)
    kept = (torch.stack(part).cpu() for part in recorded)
    whole = Tracking(steps.cpu(), remaining.cpu(), *kept)
    return whole._replace(qpos=whole.qpos.double())
