"""Rollouts: T steps of B environments as tensors, the input of on-policy learners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from npmp.core.tree import Tree, cat_trees, map_tree


class Rollout(NamedTuple):
    """T steps of B environments with K objectives and A action dimensions.

    The learner re-runs the policy on the stored observations from the stored state. Past samples
    that the policy conditions on (such as the previous latent z_{t-1}) must be observations: in the
    recurrent state they would be sampled again.
    """

    # tree [T, B, ...], of the policy
    observations: Tree
    # [T, B, A], and their log-density when sampled [T, B]
    actions: Tensor
    behaviour_log_prob: Tensor
    # [T, B] bool, first step of an episode: the state is reset before it
    resets: Tensor
    # [T, B, K], after the action
    rewards: Tensor
    # [T, B] bool, failure: the successor has value 0
    terminated: Tensor
    # [T, B] bool, time-out: the successor has its value
    truncated: Tensor
    # tree [T, B, ...], of the critic
    critic_observations: Tree
    # observation of the critic at each step's true successor, before any reset; used where the next
    # row is another state: at truncated steps and in the last row
    next_observations: Tree
    # tree [B, ...], the policy's recurrent state before step 0
    initial_state: Tree

    @property
    def num_steps(self) -> int:
        """Steps of all environments: T B."""
        return self.rewards.shape[0] * self.rewards.shape[1]

    def select(self, env_ids: Tensor) -> Rollout:
        """The rollout of some environments; env_ids [N]."""
        start = map_tree(lambda leaf: leaf[env_ids], self.initial_state)
        steps = map_tree(lambda leaf: leaf[:, env_ids], self._replace(initial_state=None))
        return steps._replace(initial_state=start)

    @staticmethod
    def concatenate(parts: Sequence[Rollout]) -> Rollout:
        """Rollouts of equal length as one, their environments side by side."""
        steps = cat_trees([part._replace(initial_state=None) for part in parts], 1)
        return steps._replace(initial_state=cat_trees([part.initial_state for part in parts]))


def successor_values(rollout: Rollout, values: Tensor, value: Callable[[Tree], Tensor]) -> Tensor:
    """V(s'_t) [T, B, K] from V(s_t) [T, B, K].

    value: the value function of observations, called where the next row is not the successor.
    """
    bootstrapped = rollout.truncated & ~rollout.terminated
    bootstrapped[-1] = True
    next_values = torch.cat((values[1:], values[-1:]))
    next_values[bootstrapped] = value(
        map_tree(lambda leaf: leaf[bootstrapped], rollout.next_observations)
    )
    return next_values
