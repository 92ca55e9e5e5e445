"""The protocol of policies: observation and state in, output and state out.

Encoders, high-level policies, priors, scripts, planners and teachers are policies, and so are their
compositions (`npmp.skills.composition`). Collection, imagination, evaluation, export and play take
the same object.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from npmp.core.tree import Tree
from npmp.envs.task_env import TaskEnv


class Observation(NamedTuple):
    """A policy's observation at a control step, leading shape (...). Trees leave out fields that
    are None."""

    # (..., o) `npmp.envs.features.proprioception`
    proprioception: Tensor
    # (..., c) `Task.observe`, unscaled; for a lower policy the command of the upper one
    task: Tensor
    # (...) bool: an episode begins with this step
    is_first: Tree = None
    # `RobotState`, the true state
    state: Tree = None
    # (...) bool: the robot tracks no reference and acts on the prior
    free: Tree = None
    # (..., d) the latent of the step before; 0 at an episode's start
    z_before: Tree = None
    # (..., f) `Prior.observe`
    prior: Tree = None
    # (..., d) standard normal, to sample latents; None: their mean, or the policy's generator
    noise: Tree = None


class PolicyOutput(NamedTuple):
    """The output of the lowest policy in one control step."""

    action: Tensor  # (n, nu) joint targets minus the home pose [rad]
    info: Any = None  # for recorders


class Policy(Protocol):
    """Observation and state in, output and state out; stateless between calls.

    A policy that reads more of its environment than the observation, e.g. the ground ahead, has a
    method `bind(env)`, which a rollout calls first.
    """

    def initial_state(self, n: int) -> Tree:
        """The state at the start of n episodes, leaves (n, ...)."""

    def step(self, observation: Observation, state: Tree) -> tuple[Any, Tree]:
        """One control step of all robots.

        Returns: the output, and the state after the step. The output is a `PolicyOutput`, or, for a
          lower policy, a `Gaussian` of latents or a tensor of commands (n, c).
        """


def bind(policy: Any, env: TaskEnv[Any]) -> None:
    """Call a policy's `bind`, if it has one."""
    if (method := getattr(policy, "bind", None)) is not None:
        method(env)


def observe(env: TaskEnv[Any], is_first: Tensor) -> Observation:
    """Observations of all robots of an environment; each call samples noise and delay.

    is_first: (n,) bool: an episode begins with this step.
    """
    tracking = getattr(env.task, "tracking", None)
    return Observation(
        proprioception=env.observe(),
        task=env.task.observe(),
        is_first=is_first,
        state=env.state,
        free=None if tracking is None else tracking.free,
    )
