"""What a policy is: observation and state in, output and state out.

An encoder, a high-level policy, a prior, a script, a planner and a teacher are policies; one over
another is a policy as well (`npmp.skills.composition`). The same object collects, is imagined,
judged, exported and played.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from npmp.core.tree import Tree
from npmp.envs.task_env import TaskEnv


class Observation(NamedTuple):
    """What a policy observes at a control step, leading shape (...). A field that is None is not
    there: trees of observations leave it out."""

    # (..., o) as `npmp.envs.features.proprioception`
    proprioception: Tensor
    # (..., c) as `Task.observe`, in its own units; of a lower policy what the upper one commands
    task: Tensor
    # (...) bool: an episode begins with this step
    is_first: Tree = None
    # `RobotState`, the true state
    state: Tree = None
    # (...) bool: the robot tracks nothing and acts on the prior
    free: Tree = None
    # (..., d) the latent of the step before; 0 at an episode's start
    z_before: Tree = None
    # (..., f) what a prior observes of state and task
    prior: Tree = None
    # (..., d) standard normal, to sample latents by; None: their mean, or the policy's own
    noise: Tree = None


class PolicyOutput(NamedTuple):
    """What moves the robots in one control step."""

    action: Tensor  # (n, nu) joint targets minus the home pose [rad]
    info: Any = None  # what a recorder may want to know


class Policy(Protocol):
    """Observation and state in, output and state out; nothing is kept between calls."""

    def initial_state(self, n: int) -> Tree:
        """The state of n episodes that begin, leaves (n, ...)."""

    def step(self, observation: Observation, state: Tree) -> tuple[Any, Tree]:
        """One control step of all robots.

        Returns: the output, `PolicyOutput`, or for a policy below a `Gaussian` of latents or a
          tensor of commands (n, c); the state after the step.
        """


def observe(env: TaskEnv[Any], is_first: Tensor) -> Observation:
    """What all robots of an environment observe now; each call draws noise and delay anew.

    is_first: (n,) bool: an episode begins with this step.
    """
    return Observation(
        proprioception=env.observe(),
        task=env.task.observe(),
        is_first=is_first,
        state=env.state,
        free=getattr(env.task, "free", None),
    )
