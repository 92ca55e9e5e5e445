"""Deterministic rollouts of a skill module's imitation policy, and how well it tracks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from npmp.envs.features import ReferenceFeatures, encoder_context
from npmp.envs.imitation import ImitationEnv
from npmp.skill import SkillModule


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


@torch.no_grad()
def track(skill: SkillModule, env: ImitationEnv, clip: Tensor, frame: Tensor) -> Tracking:
    """Start every robot of the environment at a frame and follow the reference with mean latents and actions.

    Args:
      clip, frame: (num_envs,) clip index and global start frame, on any device.

    Skill and environment are on one device.

    Returns: the episodes, each until eq. 2's corridor is left or its clip ends, on the CPU.
    """
    features = ReferenceFeatures(env.robot, env.reference, skill.contract.context_horizon)
    clip, frame = clip.to(env.device), frame.to(env.device)
    env.reset(clip=clip, frame=frame)
    remaining = env.last_frame - frame
    z = torch.zeros(env.num_envs, skill.latent_dim, device=env.device)
    memory = skill.initial_state(env.num_envs)
    alive = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    steps = torch.zeros(env.num_envs, dtype=torch.long, device=env.device)
    qpos, frames, errors, latents = [env.sim.qpos.clone()], [env.frame.clone()], [], []
    for _ in range(int(remaining.max())):
        state = env.state
        mu, _ = skill.encode(encoder_context(features, state, env.frame, env.last_frame, env.home), z)
        z = skill.alpha * z + mu
        action, memory = skill.decode(z, env.observe(), memory)
        step = env.step(action)
        alive &= ~step.terminated
        alive &= steps < remaining
        steps += alive
        qpos.append(env.sim.qpos.clone())
        frames.append(env.frame.clone())
        errors.append(step.error)
        latents.append(z)
        if not alive.any():
            break
    courses = (torch.stack(course) for course in (qpos, frames, errors, latents))
    whole = Tracking(steps, remaining, *courses)
    return Tracking(*(part.cpu() for part in whole))._replace(qpos=whole.qpos.to("cpu", torch.float64))
