"""The only closed loop: observe, act, step, reset.

Everything that makes robots move over time is a `Policy` and goes through `rollout`: collection of
all algorithms, tracking, trials, wandering. Whatever an episode owns (memory of the networks,
latent) is in the policy's state and is emptied here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmp.core.progress import counted
from npmp.core.tree import Tree, where_tree
from npmp.envs.policy import Observation, Policy, PolicyOutput, observe
from npmp.envs.task import EnvStep
from npmp.envs.task_env import TaskEnv


class Transition(NamedTuple):
    """One control step as a recorder gets it: after the step, before any reset."""

    observation: Observation
    state: Tree  # of the policy, before the step
    output: PolicyOutput
    next_state: Tree
    step: EnvStep
    snapshot: Any = None  # what `rollout`'s snapshot returned before the step


class RolloutState(NamedTuple):
    """What one rollout leaves to the next."""

    policy: Tree
    is_first: Tensor  # (n,) bool


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
    policy: Policy,
    env: TaskEnv[Any],
    steps: int,
    record: Recorder | None = None,
    *,
    carried: RolloutState | None = None,
    resets: Callable[[EnvStep], Tensor] | None = at_end,
    redirect: Callable[[Tensor], Tensor] | None = None,
    snapshot: Callable[[Observation, Tree, Tensor], Any] | None = None,
) -> RolloutState:
    """Run all robots for so many control steps.

    Args:
      record: takes every step; see `Transition`. The environment is still in the state that the
        step led to.
      carried: of the rollout before; None where all episodes begin now. The environment is not
        reset first.
      resets: which robots (n,) bool start anew after a step; None: none.
      redirect: called before each observation with the robots (n,) bool whose episode begins; may
        give others another goal, and returns both.
      snapshot: called before each step with observation, state and action; see `Transition`.

    Returns: what goes on from here.
    """
    empty = policy.initial_state(env.num_envs)
    if carried is None:
        carried = RolloutState(empty, torch.ones(env.num_envs, dtype=torch.bool, device=env.device))
    state, is_first = carried
    for _ in counted(steps):
        if redirect is not None:
            is_first = redirect(is_first)
        observation = observe(env, is_first)
        output, after = policy.step(observation, state)
        before = None if snapshot is None else snapshot(observation, state, output.action)
        step = env.step(output.action)
        transition = Transition(observation, state, output, after, step, before)
        stop = record is not None and record(transition)
        state = after
        is_first = torch.zeros_like(is_first) if resets is None else resets(step)
        if resets is not None:
            env.reset(is_first)
            state = where_tree(is_first, empty, state)
        if stop:
            break
    return RolloutState(state, is_first)
