"""How well a skill module tracks: deterministic rollouts of its imitation policy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from npmp.actors import TrackingActor
from npmp.rollout import Moment, rollout
from npmp.skill import SkillModule
from npmp.tasks.imitation import ImitationEnv


class Tracking(NamedTuple):
    """How n episodes went; step t is the state after t + 1 control steps."""

    steps: Tensor  # (n,) control steps tracked before failing, or to the clip's end
    remaining: Tensor  # (n,) control steps that there were to track
    qpos: Tensor  # (T + 1, n, nq) float64, including the start
    frame: Tensor  # (T + 1, n) global reference frames
    error: Tensor  # (T, n) eq. 2; the failing step's included
    latents: Tensor  # (T, n, d) what the decoder was given

    @property
    def fraction(self) -> Tensor:
        """Share of the remaining clip that was tracked, (n,)."""
        return self.steps / self.remaining


class _TrackRecorder:
    """Keeps the episodes, and ends the rollout when all are over."""

    def __init__(self, env: ImitationEnv):
        task, n = env.task, env.num_envs
        self.env = env
        self.remaining = task.last_frame - task.frame
        self.alive = torch.ones(n, dtype=torch.bool, device=env.device)
        self.steps = torch.zeros(n, dtype=torch.long, device=env.device)
        self.qpos, self.frames = [env.robots.qpos.clone()], [task.frame.clone()]
        self.errors: list[Tensor] = []
        self.latents: list[Tensor] = []

    def __call__(self, moment: Moment) -> bool:
        """As `npmp.rollout.Recorder`."""
        self.alive &= ~moment.step.terminated
        self.alive &= self.steps < self.remaining
        self.steps += self.alive
        self.qpos.append(self.env.robots.qpos.clone())
        self.frames.append(self.env.task.frame.clone())
        self.errors.append(moment.step.error)
        self.latents.append(moment.decision.note.z)
        return not self.alive.any()


def track(skill: SkillModule, env: ImitationEnv, clip: Tensor, frame: Tensor) -> Tracking:
    """Start every robot of the environment at a frame and follow the reference with mean latents
    and actions.

    Args:
      clip, frame: (num_envs,) clip index and global start frame, on any device.

    Skill and environment are on one device.

    Returns: the episodes, each until eq. 2's corridor is left or its clip ends, on the CPU.
    """
    env.reset(clip=clip.to(env.device), frame=frame.to(env.device))
    record = _TrackRecorder(env)
    rollout(TrackingActor(skill), env, int(record.remaining.max()), record, resets=None)
    stacked = (
        torch.stack(part) for part in (record.qpos, record.frames, record.errors, record.latents)
    )
    whole = Tracking(record.steps, record.remaining, *stacked)
    return Tracking(*(part.cpu() for part in whole))._replace(
        qpos=whole.qpos.to("cpu", torch.float64)
    )
