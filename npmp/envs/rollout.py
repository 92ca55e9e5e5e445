"""The only closed loop: sense, decide, step, reset.

Everything that makes robots move over time is an `Actor` and goes through `rollout`: collection of
all algorithms, tracking, trials, wandering. Whatever an episode owns (memory of the networks,
latent) is in the actor's memory and is emptied here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from npmp.core.progress import counted
from npmp.core.tree import Tree, where_tree
from npmp.envs.task import EnvStep
from npmp.envs.task_env import TaskEnv


class PolicyOutput(NamedTuple):
    """What an actor does in one control step."""

    action: Tensor  # (n, nu) joint targets minus the home pose [rad]
    memory: Tree  # (n, ...) for the next step
    note: Any = None  # what a recorder may want to know


class Actor(Protocol):
    """What moves the robots: memory in, memory out."""

    def initial_memory(self, n: int) -> Tree:
        """The memory of n episodes that begin, leaves (n, ...)."""

    def act(self, env: TaskEnv[Any], memory: Tree, first: Tensor) -> PolicyOutput:
        """The next step of all robots; `first` (n,) bool: an episode begins with it."""


class Transition(NamedTuple):
    """One control step, as a recorder is shown it: after the step, before any reset."""

    first: Tensor  # (n,) bool: it was the first of its episode
    memory: Tree  # that the decision was made with
    decision: PolicyOutput
    step: EnvStep


class RolloutState(NamedTuple):
    """What one rollout leaves to the next."""

    memory: Tree
    first: Tensor  # (n,) bool


Recorder = Callable[[Transition], "bool | None"]
"""Called after every step; True ends the rollout."""


def at_end(step: EnvStep) -> Tensor:
    """Episodes end by failure or by time, (n,) bool."""
    return step.terminated | step.truncated


def at_end_but_time(step: EnvStep) -> Tensor:
    """Episodes end by failure, or as the task itself is over; not by time, (n,) bool."""
    return step.terminated | step.ended


@torch.no_grad()
def rollout(
    actor: Actor,
    env: TaskEnv[Any],
    steps: int,
    record: Recorder | None = None,
    *,
    carried: RolloutState | None = None,
    resets: Callable[[EnvStep], Tensor] | None = at_end,
) -> RolloutState:
    """Run all robots for so many control steps.

    Args:
      record: takes every step; see `Transition`. The environment is still in the state that the
        step led to.
      carried: of the rollout before; None where all episodes begin now. The environment is not
        reset first.
      resets: which robots (n,) bool start anew after a step; None: none.

    Returns: what goes on from here.
    """
    empty = actor.initial_memory(env.num_envs)
    if carried is None:
        carried = RolloutState(empty, torch.ones(env.num_envs, dtype=torch.bool, device=env.device))
    memory, first = carried
    for _ in counted(steps):
        decision = actor.act(env, memory, first)
        step = env.step(decision.action)
        stop = record is not None and record(Transition(first, memory, decision, step))
        memory = decision.memory
        first = torch.zeros_like(first) if resets is None else resets(step)
        if resets is not None:
            env.reset(first)
            memory = where_tree(first, empty, memory)
        if stop:
            break
    return RolloutState(memory, first)
