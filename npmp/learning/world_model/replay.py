"""The replay buffer: recent control steps, to fit the model and to start imagination from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from npmp.core.host_waits import is_asynchronous
from npmp.core.state import pack, unpack
from npmp.core.tree import Tree, map_tree
from npmp.skills.nets import DecoderState


class Step(NamedTuple):
    """A control step of n robots, before it is taken, leaves (n, ...)."""

    # (n,) bool: first step of an episode, or of a new goal: not the successor of the step before
    is_first: Tensor
    # (n,) bool: the robot acts on latents of the prior, without a goal
    free: Tensor
    # (n, s) packed RobotState, heights integrated from velocities
    state: Tensor
    # (n, nu) joint targets until the next step [rad]
    setpoint: Tensor
    # (n, p) randomized physics parameters, and the push during the step
    physics: Tensor
    # (n, nu) mean squared currents of the motors over the step before [A^2], or (n, 0)
    currents: Tensor
    # (n, nu) calibration errors of the joint encoders [rad], or (n, 0)
    joint_offset: Tensor
    # (n, H o) noise-free observations of the H steps before, or (n, 0) without delay
    history: Tensor
    # (n, 2) `Ground.patch` and (n, 5 F) heights around the feet [m]; (n, 0) on flat ground
    patch: Tensor
    ground: Tensor
    # (n, d) previous latent
    z: Tensor
    # recurrent states before the step
    decoder: DecoderState
    policy: Tree
    # (n, g)
    goal: Tensor


class Window(NamedTuple):
    """Recorded trajectories, T steps of B robots."""

    states: Tensor  # (T + 1, B, s) packed RobotState
    setpoints: Tensor  # (T, B, nu) applied from step t to t + 1 [rad]
    # (T, B, p) physics parameters, the push during the step, heights around the feet
    physics: Tensor
    # (T, B) 1 if all transitions up to t -> t + 1 are of one episode, else 0
    valid: Tensor
    # (T, B, nu) mean squared currents of the motors over the transition [A^2], or (T, B, 0)
    currents: Tensor


class ReplayBuffer:
    """A ring buffer of the last `capacity` steps of n robots.

    The state after a step is in the next slot. The last transition of an episode is masked, as its
    successor is not stored.
    """

    def __init__(self, capacity: int, example: Step):
        """example: a step with the shapes, types and device of the stored ones."""
        self.capacity = capacity
        self.num_envs = len(example.is_first)
        self.device = example.is_first.device
        self.steps: Step = map_tree(lambda leaf: leaf.new_zeros(capacity, *leaf.shape), example)
        self.head = 0  # slot of the next write
        self.filled = 0

    def add(self, step: Step) -> None:
        """Append one step of all robots."""
        map_tree(lambda ring, leaf: ring[self.head].copy_(leaf), self.steps, step)
        self.head = (self.head + 1) % self.capacity
        self.filled = min(self.filled + 1, self.capacity)

    def recent(self) -> Step:
        """All stored steps, leaves (filled, n, ...), in no order."""
        return map_tree(lambda ring: ring[: self.filled], self.steps)

    def _sample(self, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random slots with `length` slots after them, and robots; (batch,) each."""
        oldest = (self.head - self.filled) % self.capacity
        age = torch.randint(self.filled - length, (batch,), generator=generator, device=self.device)
        robot = torch.randint(self.num_envs, (batch,), generator=generator, device=self.device)
        return (oldest + age) % self.capacity, robot

    def _sample_where(
        self, mask: Tensor, batch: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor] | None:
        """Random slots and robots where `mask` (filled, n) is true; None if it never is, or on a
        GPU any."""
        if is_asynchronous(self.device):
            # the number of true entries up to each, and of all
            count = mask.flatten().cumsum(0)
            share = torch.rand(batch, generator=generator, device=self.device, dtype=torch.float64)
            at = torch.searchsorted(count, (share * count[-1]).long() + 1)
            at = at.clamp(max=len(count) - 1)
            return at // self.num_envs, at % self.num_envs
        indices = torch.nonzero(mask)
        if not len(indices):
            return None
        rows = torch.randint(len(indices), (batch,), generator=generator, device=self.device)
        slot, robot = indices[rows].T
        return slot, robot

    def windows(self, batch: int, length: int, generator: torch.Generator) -> Window:
        """Random windows of `length` transitions. Heights are relative to the ground at a window's
        start, so that they remain the integral of velocities."""
        slot, robot = self._sample(batch, length, generator)
        slots = (slot + torch.arange(length + 1, device=self.device).unsqueeze(-1)) % self.capacity
        steps = self.steps
        before = slots[:-1]
        valid = (~steps.is_first[slots[1:], robot]).to(torch.float32).cumprod(0)
        level = steps.patch[slot, robot, :1]
        ground = steps.ground[before, robot]
        ground = ground - level if ground.numel() else ground
        physics = torch.cat((steps.physics[before, robot], ground), -1)
        states = relative_to(steps.state[slots, robot], level)
        currents = steps.currents[slots[1:], robot]
        return Window(states, steps.setpoint[before, robot], physics, valid, currents)

    def starts(
        self, batch: int, generator: torch.Generator, *, free: bool = True, fresh: int = 0
    ) -> Step:
        """Random steps to start imagination from, (batch, ...); heights relative to the ground.

        free: include robots without a goal. fresh: number of steps at an episode's start, with
        empty recurrent states, if there are any.
        """
        recent = self.recent()
        indices = None if free else self._sample_where(~recent.free, batch, generator)
        slot, robot = indices or self._sample(batch, 0, generator)
        if fresh:
            # `is_first` alone includes new goals
            starts = recent.is_first & ~recent.decoder.hidden.any(-1)
            if (indices := self._sample_where(starts, fresh, generator)) is not None:
                slot[:fresh], robot[:fresh] = indices
        step: Step = map_tree(lambda ring: ring[slot, robot], self.steps)
        return step._replace(state=relative_to(step.state, step.patch[:, :1]))

    def state_dict(self) -> dict[str, Tensor]:
        """The filled slots, for checkpoints."""
        return {**pack({"steps": self.recent()}), "head": torch.tensor(self.head)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the slots of a checkpoint.

        Raises:
          ValueError: if the capacity is another.
          InputError: if a tensor is missing or of another shape.
        """
        filled = len(state["steps.is_first"])
        head = int(state["head"])
        # before the ring is full, the head is the next slot
        valid_head = 0 <= head < self.capacity if filled == self.capacity else head == filled
        if filled > self.capacity or not valid_head:
            raise ValueError(f"replay of {filled} slots, head {head}; expected {self.capacity}")
        self.filled = filled
        unpack({"steps": self.recent()}, state)
        self.head = head


def relative_to(states: Tensor, level: Tensor) -> Tensor:
    """Packed states (..., B, s), heights relative to `level` (B, 1) [m]; (B, 0): unchanged."""
    if level.shape[-1] == 0:
        return states
    shifted = states.clone()
    shifted[..., 2] -= level.squeeze(-1)
    return shifted
