"""How well a task is done: one trial for every policy, asked the same, started alike, falls counted the same way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from npmp.envs.task import Trial
from npmp.envs.task_env import TaskEnv
from npmp.rollout import Actor, Moment, at_end_but_time, rollout


def evaluate(actor: Actor, env: TaskEnv[Any], *, seconds: float = 20.0, seed: int = 0) -> Trial:
    """Run all robots of the environment for a time; `env.task.figures` says what came of it.

    A robot that fails is put back at a start and goes on with what was settled for everyone in advance (`Task.script`),
    its memory emptied; every step of every robot counts, the fall's and those from the new start included. So falling
    neither ends the accounting nor is it hidden: it costs what the robot loses until it moves again, and is reported as
    falls per minute besides. Episodes do not end by time.

    Args:
      env: is reset first, and left wherever the trial ends. Its generator is reseeded.
      seed: of what is asked and of the starts. The same seed asks the same of every policy, from the same first starts.
    """
    steps = max(1, round(seconds / env.dt))
    try:
        env.task.script(steps, torch.Generator(env.device).manual_seed(seed))
        env.generator.manual_seed(seed + 1)
        env.reset()
        recorder = _TrialRecorder(env)
        rollout(actor, env, steps, recorder, resets=at_end_but_time)
    finally:
        env.task.unscript()
    return recorder.trial()


class _TrialRecorder:
    def __init__(self, env: TaskEnv[Any]):
        self.env = env
        self.seen: dict[str, list[Tensor]] = {}
        self.errors: list[Tensor] = []
        self.fell: list[Tensor] = []
        self.qpos = [env.robots.qpos[0].clone()]

    def __call__(self, moment: Moment) -> None:
        """As `npmp.rollout.Recorder`."""
        for name, value in moment.step.seen.items():
            self.seen.setdefault(name, []).append(value.clone())
        self.errors.append(moment.step.error.nan_to_num(0.0))
        self.fell.append(moment.step.terminated)
        self.qpos.append(self.env.robots.qpos[0].clone())

    def trial(self) -> Trial:
        """All of it, on the CPU."""
        seen = {name: torch.stack(rows).cpu() for name, rows in self.seen.items()}
        errors, fell = torch.stack(self.errors).cpu(), torch.stack(self.fell).cpu()
        return Trial(seen, errors, fell, torch.stack(self.qpos).double().cpu(), self.env.dt)
