"""The closed loop: observe, act, step, reset.

`rollout` runs a `Policy` for collection, tracking, trials and wandering. All memory of an episode
(networks, latents) is in the policy's state, which is reset here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmp.core.progress import counted
from npmp.core.tree import Tree, where_tree
from npmp.envs.policy import Observation, Policy, PolicyOutput, bind, observe
from npmp.envs.task import EnvStep
from npmp.envs.task_env import TaskEnv


class Transition(NamedTuple):
    """One control step as recorders get it, after the step and before any reset."""

    observation: Observation
    state: Tree  # state of the policy before the step
    output: PolicyOutput
    next_state: Tree
    step: EnvStep
    snapshot: Any = None  # result of `rollout`'s `snapshot`, taken before the step


class RolloutState(NamedTuple):
    """State at the end of a rollout, from which the next continues."""

    policy: Tree
    is_first: Tensor  # (n,) bool


Recorder = Callable[[Transition], "bool | None"]
"""Called after every step; True ends the rollout."""


def at_end(step: EnvStep) -> Tensor:
    """Reset after failure or time-out, (n,) bool."""
    return step.terminated | step.truncated


def at_end_but_time(step: EnvStep) -> Tensor:
    """Reset after failure or the end of the task, not after time-out, (n,) bool."""
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
    """Run all robots for `steps` control steps.

    Args:
      record: called after every step, with the environment in the state that the step led to.
      carried: of the previous rollout; None: all episodes begin now. The environment is not reset.
      resets: robots (n,) bool to reset after a step; None: none.
      redirect: called before each observation with the robots (n,) bool whose episode begins; may
        give other robots a new goal. Returns both.
      snapshot: called before each step with observation, state and action; see `Transition`.

    Returns: the state from which the next rollout continues.
    """
    bind(policy, env)
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
