"""How well commands are followed: one trial for every policy, with the same commands, starts and falls counted the same
way."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmp.envs.walking import COMMAND_NAMES, WalkingEnv, command_schedule, heading_velocity
from npmp.nets.prior import sample_prior
from npmp.reuse.policy import HighLevelPolicy, PolicyInput
from npmp.skill import SkillModule


class WalkingTrial(NamedTuple):
    """A trial of n robots over T control steps; arrays of step t are after it, but for the command, which it was judged
    by."""

    command: Tensor  # (T, n, 3) forward, lateral [m/s], yaw rate [rad/s]
    achieved: Tensor  # (T, n, 3) the same, over the control step, in the heading frame
    fell: Tensor  # (T, n) bool: this step ended an episode by failure
    qpos: Tensor  # (T + 1, nq) float64, of robot 0, including the start; jumps where it fell and was put back
    dt: float  # control period [s]

    @property
    def error(self) -> Tensor:
        """|v - v_cmd| of every step, (T, n)."""
        return torch.linalg.vector_norm(self.achieved - self.command, dim=-1)

    def summary(self) -> dict[str, Any]:
        """The figures: `velocity_error` (mean |v - v_cmd| over all steps of all robots), its mean absolute part per
        component, `velocity_error_1s` (the same norm of velocities averaged over a second: what is left when a stride's
        sway is taken out), `falls_per_minute` (per robot), `survived` (share of robots that never fell), `seconds` and
        `robots`.
        """
        steps, n = self.fell.shape
        minutes = steps * n * self.dt / 60.0
        window = max(1, min(steps, round(1.0 / self.dt)))
        smooth = (self.achieved - self.command).unfold(0, window, window).mean(-1)
        return {
            "velocity_error": self.error.mean().item(),
            "velocity_error_1s": torch.linalg.vector_norm(smooth, dim=-1).mean().item(),
            **{
                f"error_{name}": part.item()
                for name, part in zip(COMMAND_NAMES, (self.achieved - self.command).abs().mean((0, 1)), strict=True)
            },
            "falls": int(self.fell.sum()),
            "falls_per_minute": self.fell.sum().item() / minutes,
            "survived": (~self.fell.any(0)).float().mean().item(),
            "seconds": steps * self.dt,
            "robots": n,
        }


@torch.no_grad()
def evaluate_walking(
    policy: HighLevelPolicy | None,
    skill: SkillModule,
    env: WalkingEnv,
    *,
    seconds: float = 20.0,
    commands: Tensor | None = None,
    seed: int = 0,
) -> WalkingTrial:
    """Run all robots of the environment for a time, following commands.

    A robot that falls is put back at a start pose and goes on with the same commands, its memory emptied; every step of
    every robot counts, the fall's and those from the new start included. So falling neither ends the accounting nor is
    it hidden: it costs what the robot loses until it moves again, and is reported as falls per minute besides. Episodes
      do not end by time.

    Args:
      policy: acts by the mean of z_t; None draws latents from the AR(1) prior instead, the baseline of random skills.
      env: is reset first, and left wherever the trial ends; its own commands and rewards play no part. Its generator is
        reseeded.
      commands: (T, num_envs, 3); drawn from the environment's command process by default.
      seed: of commands, starts and random latents. The same seed gives every policy the same commands and first starts.
    """
    generator = torch.Generator(env.device).manual_seed(seed)
    steps = max(1, round(seconds / env.dt)) if commands is None else len(commands)
    if commands is None:
        commands = command_schedule(env.config, env.num_envs, steps, env.dt, generator)
    commands = commands.to(env.device)
    env.generator.manual_seed(seed + 1)
    env.reset()
    z = torch.zeros(env.num_envs, skill.latent_dim, device=env.device)
    memory = skill.initial_state(env.num_envs)
    thought = None if policy is None else policy.initial_state(env.num_envs)
    achieved, fell, qpos = [], [], [env.sim.qpos[0].clone()]
    for command in commands:
        observed = env.observe()
        if policy is None or thought is None:
            z = sample_prior(z, skill.alpha, generator)
        else:
            latent, thought = policy.step(PolicyInput(observed, command, z), thought)
            z = latent.mean
        action, memory = skill.decode(z, observed, memory)
        step = env.step(action)
        achieved.append(heading_velocity(step.state).nan_to_num(0.0))
        fell.append(step.terminated)
        env.reset(step.terminated)
        z = z.masked_fill(step.terminated.unsqueeze(-1), 0.0)
        memory = memory.reset(step.terminated)
        thought = None if thought is None else thought.reset(step.terminated)
        qpos.append(env.sim.qpos[0].clone())
    parts = (commands, torch.stack(achieved), torch.stack(fell), torch.stack(qpos).double())
    command, velocity, falls, path = (part.cpu() for part in parts)
    return WalkingTrial(command, velocity, falls, path, env.dt)
