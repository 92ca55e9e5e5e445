"""Recent control steps of all robots, from which the model is fitted and imagination begins."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from npmp.core.state import pack, unpack
from npmp.core.tree import Tree, map_tree
from npmp.skills.nets import DecoderState


class Step(NamedTuple):
    """What is kept of a control step of n robots that is about to be made, leaves (n, ...)."""

    # (n,) bool: an episode begins, or the robot was sent to another goal: nothing leads up to it
    is_first: Tensor
    # (n,) bool: the robot acts on the prior and has no goal
    free: Tensor
    # packed RobotState, heights as an integral of velocities
    state: Tensor
    # (n, nu) applied until the next step [rad]
    setpoint: Tensor
    # (n, p) the random physics, and the push during the step
    physics: Tensor
    # (n, nu) squares of the motors' currents, mean over the step before [A^2]; (n, 0) where not
    # recorded
    currents: Tensor
    # (n, nu) of the encoders [rad]; (n, 0) where they are right
    joint_offset: Tensor
    # (n, H o) exact observations of the H steps before; (n, 0) where nothing is delayed
    history: Tensor
    # (n, 2) `Ground.patch` and (n, 5 F) heights about the feet [m]; (n, 0) on flat ground
    patch: Tensor
    ground: Tensor
    # (n, d) latent of the step before
    z: Tensor
    # memories before the step
    decoder: DecoderState
    policy: Tree
    # (n, g) as `Task.goal`
    goal: Tensor


class Window(NamedTuple):
    """Stretches of real experience, T steps of B robots."""

    states: Tensor  # (T + 1, B, s) packed RobotState
    setpoints: Tensor  # (T, B, nu) applied from step t to t + 1 [rad]
    # (T, B, p) the random physics, the push during the step, heights about the feet
    physics: Tensor
    # (T, B) 1 where the transition t -> t + 1 and all before it in the window are of one episode
    valid: Tensor
    # (T, B, nu) squares of the motors' currents, mean over the transition [A^2]; (T, B, 0)
    currents: Tensor


class ReplayBuffer:
    """A ring of the last `capacity` steps of n robots.

    The state after a step is the next slot's. The successor of an episode's last step is not kept:
    that transition is masked.
    """

    def __init__(self, capacity: int, example: Step):
        """example: a step like those that are kept, on their device."""
        self.capacity = capacity
        self.num_envs = len(example.is_first)
        self.device = example.is_first.device
        self.steps: Step = map_tree(lambda leaf: leaf.new_zeros(capacity, *leaf.shape), example)
        self.head = 0  # slot of the next write
        self.filled = 0

    def add(self, step: Step) -> None:
        """One step of all robots."""
        map_tree(lambda ring, leaf: ring[self.head].copy_(leaf), self.steps, step)
        self.head = (self.head + 1) % self.capacity
        self.filled = min(self.filled + 1, self.capacity)

    def recent(self) -> Step:
        """All that is kept, leaves (filled, n, ...), in no order."""
        return map_tree(lambda ring: ring[: self.filled], self.steps)

    def _draw(self, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random slots with `length` slots after them, and robots; (batch,) each."""
        oldest = (self.head - self.filled) % self.capacity
        age = torch.randint(self.filled - length, (batch,), generator=generator, device=self.device)
        robot = torch.randint(self.num_envs, (batch,), generator=generator, device=self.device)
        return (oldest + age) % self.capacity, robot

    def _one_of(
        self, chosen: Tensor, batch: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor] | None:
        """Random slots and robots where `chosen` (filled, n) holds; None where it nowhere does."""
        indices = torch.nonzero(chosen)
        if not len(indices):
            return None
        row = torch.randint(len(indices), (batch,), generator=generator, device=self.device)
        slot, robot = indices[row].T
        return slot, robot

    def windows(self, batch: int, length: int, generator: torch.Generator) -> Window:
        """Random windows of `length` transitions, heights above the ground where they begin: the
        same for all of a window, so that heights remain the integral of velocities."""
        slot, robot = self._draw(batch, length, generator)
        slots = (slot + torch.arange(length + 1, device=self.device).unsqueeze(-1)) % self.capacity
        kept = self.steps
        before = slots[:-1]
        valid = (~kept.is_first[slots[1:], robot]).to(torch.float32).cumprod(0)
        level = kept.patch[slot, robot, :1]
        ground = kept.ground[before, robot]
        ground = ground - level if ground.numel() else ground
        physics = torch.cat((kept.physics[before, robot], ground), -1)
        states = above(kept.state[slots, robot], level)
        currents = kept.currents[slots[1:], robot]
        return Window(states, kept.setpoint[before, robot], physics, valid, currents)

    def starts(
        self, batch: int, generator: torch.Generator, *, free: bool = True, fresh: int = 0
    ) -> Step:
        """Random single moments to imagine from, (batch, ...), heights above the ground there.

        free: also of robots that act on the prior. fresh: so many of them where an episode began,
        memories empty, if there are any such.
        """
        recent = self.recent()
        indices = None if free else self._one_of(~recent.free, batch, generator)
        slot, robot = indices or self._draw(batch, 0, generator)
        if fresh:
            # others were sent to another goal
            begins = recent.is_first & ~recent.decoder.hidden.any(-1)
            if (chosen := self._one_of(begins, fresh, generator)) is not None:
                slot[:fresh], robot[:fresh] = chosen
        step: Step = map_tree(lambda ring: ring[slot, robot], self.steps)
        return step._replace(state=above(step.state, step.patch[:, :1]))

    def state_dict(self) -> dict[str, Tensor]:
        """The written slots, for checkpoints."""
        return {**pack({"steps": self.recent()}), "head": torch.tensor(self.head)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from checkpointed slots.

        Raises:
          ValueError: when they are more than fit, or the head is not where it must be.
          InputError: when one is missing or of another shape.
        """
        filled = len(state["steps.is_first"])
        head = int(state["head"])
        # a run that stopped before the ring was full wrote its next slot after the last
        sound = 0 <= head < self.capacity if filled == self.capacity else head == filled
        if filled > self.capacity or not sound:
            raise ValueError(
                f"a replay of {filled} slots, head {head}, is not one of {self.capacity}"
            )
        self.filled = filled
        unpack({"steps": self.recent()}, state)
        self.head = head


def above(states: Tensor, level: Tensor) -> Tensor:
    """Packed states (..., B, s) with heights above levels (B, 1) [m]; (B, 0): as they are."""
    if level.shape[-1] == 0:
        return states
    lowered = states.clone()
    # the third number of a packed state
    lowered[..., 2] -= level.squeeze(-1)
    return lowered
