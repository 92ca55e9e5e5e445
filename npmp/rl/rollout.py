"""What the learner learns from: T steps of B environments, as tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from npmp.tree import Tree, leaves, map_tree


@dataclasses.dataclass(frozen=True)
class Rollout:
    """T steps of B environments with K objectives and A action dimensions.

    The learner re-runs the policy on the stored observations, from the stored state. So whatever
    the policy takes from its own past actions (the previous latent z_{t-1} of a latent-space
    policy, say) must be an OBSERVATION: in a recurrent state it would be drawn anew. Invalid steps
    hold finite numbers of any kind.

    Attributes:
        observations: tree [T, B, ...], what the policy saw.
        actions: [T, B, A], what it drew.
        behaviour_log_prob: [T, B], log-density of the actions when they were drawn; for diagnosis
            only, V-MPO takes no importance weights.
        initial_state: tree [B, ...], the policy's recurrent state before step 0.
        resets: [T, B] bool, step t is the first of an episode: the state is reset before it.
        rewards: [T, B, K], of the step that follows the action.
        terminated: [T, B] bool, that step failed: its successor is worth nothing.
        truncated: [T, B] bool, that step ended the episode by time: its successor is worth its
          value.
        next_observations: tree [T, B, ...] for the CRITIC, the true successor of each step, before
            any reset. Read only where the next row is no successor: at truncated steps, before
            invalid ones and in the last row.
        critic_observations: tree [T, B, ...], what the critic sees; None where it sees what the
          policy does.
        valid: [T, B] bool, false where a step must not count (padding, the dead step of an
            automatic reset); None: all.
    Raises:
      ValueError: shapes that do not fit, flags that are not bool.
    """

    observations: Tree
    actions: Tensor
    behaviour_log_prob: Tensor
    initial_state: Tree
    resets: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    next_observations: Tree
    critic_observations: Tree = None
    valid: Tensor | None = None

    def __post_init__(self) -> None:
        if self.rewards.dim() != 3 or self.actions.dim() != 3:
            raise ValueError(
                f"rewards must be [T, B, K] and actions [T, B, A], "
                f"got {list(self.rewards.shape)} and {list(self.actions.shape)}"
            )
        leading = self.rewards.shape[:2]
        for name in ("resets", "terminated", "truncated", "valid"):
            flags = getattr(self, name)
            if flags is not None and (flags.shape != leading or flags.dtype != torch.bool):
                raise ValueError(
                    f"{name} must be bool {list(leading)}, got {flags.dtype} {list(flags.shape)}"
                )
        if self.behaviour_log_prob.shape != leading:
            raise ValueError(
                f"behaviour_log_prob must be {list(leading)}, got {list(self.behaviour_log_prob.shape)}"
            )
        for name in ("actions", "observations", "next_observations", "critic_observations"):
            for leaf in leaves(getattr(self, name)):
                if leaf.shape[:2] != leading:
                    raise ValueError(
                        f"{name} must lead with {list(leading)}, got {list(leaf.shape)}"
                    )
        for leaf in leaves(self.initial_state):
            if leaf.shape[:1] != leading[1:]:
                raise ValueError(
                    f"initial_state must lead with [{leading[1]}], got {list(leaf.shape)}"
                )

    @property
    def num_steps(self) -> int:
        """Steps of all environments, valid or not: T B."""
        return self.rewards.shape[0] * self.rewards.shape[1]

    def sequences(self, chosen: Tensor) -> Rollout:
        """The rollout of some environments only; `chosen` [N], their indices."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        start = fields.pop("initial_state")
        return Rollout(
            **{name: map_tree(lambda leaf: leaf[:, chosen], tree) for name, tree in fields.items()},
            initial_state=map_tree(lambda leaf: leaf[chosen], start),
        )

    @classmethod
    def joined(cls, parts: Sequence[Rollout]) -> Rollout:
        """Rollouts of as many steps as one, the environments side by side."""

        def together(name: str, dim: int) -> Tree:
            return map_tree(
                lambda *tensors: torch.cat(tensors, dim), *(getattr(part, name) for part in parts)
            )

        names = [field.name for field in dataclasses.fields(cls) if field.name != "initial_state"]
        return cls(
            **{name: together(name, 1) for name in names},
            initial_state=together("initial_state", 0),
        )

    def to(self, device: torch.device | str) -> Rollout:
        """The same rollout on another device."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Rollout(
            **{name: map_tree(lambda leaf: leaf.to(device), tree) for name, tree in fields.items()}
        )
