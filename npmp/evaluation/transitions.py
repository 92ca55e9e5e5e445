"""Whether a walking policy stands still at command zero, steps off, and stops."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from npmp.envs import TaskEnv
from npmp.envs.policy import Policy
from npmp.envs.task import Trial
from npmp.evaluation.gait import restless, standing_metrics
from npmp.evaluation.trial import part_of, run_trial
from npmp.tasks.commands import CommandRange
from npmp.tasks.velocity import SETTLING_S

# duration of phases at command zero and of walking [s]
PHASE_S = 2.0
# longest time of turning about [s]
MAX_TURN_S = 4.0
# moving phases of robots differ by up to this time, so that they stop at any phase of a stride [s]
STAGGER_S = 0.5


class Phase(NamedTuple):
    """A time at a constant command."""

    name: str
    command: tuple[float, float, float]
    seconds: float

    @property
    def moves(self) -> bool:
        """Whether the command is not zero."""
        return any(self.command)


def phases(command_range: CommandRange) -> list[Phase]:
    """Stand, walk at half of the range, stop, turn about, stop; [] for a range without zero, and
    without a phase of a component that is always zero."""
    if any(low > 0.0 or high < 0.0 for low, high in command_range):
        return []
    fastest = [max(reversed(ends), key=abs) for ends in command_range]
    result = [Phase("stand", (0.0, 0.0, 0.0), PHASE_S)]
    if fastest[0]:
        result.append(Phase("walk", (0.5 * fastest[0], 0.0, 0.0), PHASE_S))
        result.append(Phase("stop", (0.0, 0.0, 0.0), PHASE_S))
    if fastest[2]:
        seconds = min(math.pi / abs(fastest[2]), MAX_TURN_S)
        result.append(Phase("turn about", (0.0, 0.0, fastest[2]), seconds))
        result.append(Phase("stop", (0.0, 0.0, 0.0), PHASE_S))
    return result


def evaluate_transitions(
    policy: Policy, env: TaskEnv[Any], *, seed: int = 0
) -> list[dict[str, Any]]:
    """A trial with the commands of `phases`.

    Returns: a row per phase: `phase`; `command`; `falls`; `faults`, messages; at command zero
    `standing_metrics`; else `max_error`, the largest |v - v_cmd| of any robot, of velocities
    averaged over `SETTLING_S`, without the first `SETTLING_S`.
    """
    sequence = phases(env.task.commands.config.range)
    if not sequence:
        return []
    share = torch.arange(env.num_envs) / env.num_envs
    seconds = torch.stack([p.seconds + p.moves * STAGGER_S * share for p in sequence])
    # (phases, n), the control step after each
    ends = torch.round(seconds.cumsum(0) / env.dt).long()
    time = torch.arange(int(ends[-1].max()))
    # (T, n)
    index = (time[:, None, None] >= ends).sum(1).clamp(max=len(sequence) - 1)
    commands = torch.tensor([p.command for p in sequence])[index]
    trial = run_trial(policy, env, seconds=len(time) * env.dt, seed=seed, commands=commands)
    rows = []
    for k, phase in enumerate(sequence):
        begins = ends[k - 1] if k else torch.zeros_like(ends[0])
        steps = torch.arange(int((ends[k] - begins).min())).unsqueeze(-1)
        part = part_of(trial, begins + steps, torch.arange(env.num_envs))
        # each robot's own steps, of which `part` has as many as all robots have
        during = (time.unsqueeze(-1) >= begins) & (time.unsqueeze(-1) < ends[k])
        row: dict[str, Any] = {
            "phase": phase.name,
            "command": list(phase.command),
            "falls": int((trial.fell[: len(time)].cpu() & during).sum()),
        }
        row |= {"max_error": max_error(part)} if phase.moves else standing_metrics(part)
        rows.append(row | {"faults": faults(row)})
    return rows


def max_error(trial: Trial) -> float:
    """Largest |v - v_cmd| of any robot, of velocities averaged over `SETTLING_S`, without the
    first `SETTLING_S`."""
    difference = trial.metrics["achieved"] - trial.metrics["command"]
    window = min(round(SETTLING_S / trial.dt), len(difference))
    means = difference.unfold(0, window, 1).mean(-1)
    errors = torch.linalg.vector_norm(means, dim=-1)
    return errors[min(window, len(errors) - 1) :].max().item()


def faults(row: dict[str, Any]) -> list[str]:
    """Messages for a row of `evaluate_transitions`: falls, robots that do not stand still, and
    velocities that miss half of the command."""
    problems = [f"{row['falls']} falls"] if row["falls"] else []
    if "stood" in row:
        return problems + restless(row)
    if row["max_error"] > 0.5 * math.hypot(*row["command"]):
        problems.append(f"stumbles: off by {row['max_error']:.2f}")
    return problems
