"""What an on-policy learner learns from: T steps of B environments, as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from npmp.core.tree import Tree, cat_trees, map_tree


class Rollout(NamedTuple):
    """T steps of B environments with K objectives and A action dimensions.

    The learner re-runs the policy on the stored observations, from the stored state. So whatever
    the policy takes from its own past actions (the previous latent z_{t-1} of a latent-space
    policy, say) must be an observation: in a recurrent state it would be sampled anew.
    """

    # tree [T, B, ...], what the policy saw
    observations: Tree
    # [T, B, A], its sample, and their log-density then [T, B]
    actions: Tensor
    behaviour_log_prob: Tensor
    # [T, B] bool, the step is an episode's first: the state is reset before it
    resets: Tensor
    # [T, B, K], of the step that follows the action
    rewards: Tensor
    # [T, B] bool, that step failed: its successor is worth nothing
    terminated: Tensor
    # [T, B] bool, that step ended the episode by time: its successor is worth its value
    truncated: Tensor
    # tree [T, B, ...], what the critic sees
    critic_observations: Tree
    # the same of each step's true successor, before any reset; read only where the next row is not
    # that: at truncated steps and in the last row
    next_observations: Tree
    # tree [B, ...], the policy's recurrent state before step 0
    initial_state: Tree

    @property
    def num_steps(self) -> int:
        """Steps of all environments: T B."""
        return self.rewards.shape[0] * self.rewards.shape[1]

    def sequences(self, chosen: Tensor) -> Rollout:
        """The rollout of some environments only; `chosen` [N], their indices."""
        start = map_tree(lambda leaf: leaf[chosen], self.initial_state)
        steps = map_tree(lambda leaf: leaf[:, chosen], self._replace(initial_state=None))
        return steps._replace(initial_state=start)

    @staticmethod
    def joined(parts: Sequence[Rollout]) -> Rollout:
        """Rollouts of as many steps as one, the environments side by side."""
        steps = cat_trees([part._replace(initial_state=None) for part in parts], 1)
        return steps._replace(initial_state=cat_trees([part.initial_state for part in parts]))


def successor_values(rollout: Rollout, values: Tensor, value: Callable[[Tree], Tensor]) -> Tensor:
    """V(s'_t) [T, B, K] from the rows' own values V(s_t) [T, B, K]; value: of observations, for
    where the next row is not the true successor and its value counts."""
    cut = rollout.truncated & ~rollout.terminated
    cut[-1] = True
    following = torch.cat((values[1:], values[-1:]))
    following[cut] = value(map_tree(lambda leaf: leaf[cut], rollout.next_observations))
    return following
