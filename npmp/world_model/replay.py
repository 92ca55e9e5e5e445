"""Recent transitions of all robots, from which windows are drawn."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from npmp.checkpoint import indices, require_like


class Window(NamedTuple):
    """Stretches of real experience, T steps of B robots."""

    states: Tensor  # (T + 1, B, s) packed RobotState
    setpoints: Tensor  # (T, B, nu) applied from step t to t + 1 [rad]
    # (T, B, p) what was drawn of the physics, the push during the step, heights under the feet
    physics: Tensor
    # (T, B) 1 where the transition t -> t + 1 and all before it in the window are of one episode
    valid: Tensor


class Start(NamedTuple):
    """Single moments from which to imagine, B robots."""

    state: Tensor  # (B, s) packed RobotState
    setpoint: Tensor  # (B, nu) what was done there [rad]
    frame: Tensor  # (B,) global reference frame
    last_frame: Tensor  # (B,)
    z: Tensor  # (B, d) latent of the step before
    hidden: Tensor  # (B, h)
    cell: Tensor  # (B, h)
    physics: Tensor  # (B, p) what was drawn of the physics, and the push there
    joint_offset: Tensor  # (B, nu) of the encoders [rad]; (B, 0) where they are right
    # (B, H o) exact observations of the H steps before; (B, 0) where nothing is delayed
    history: Tensor


FLOATS = tuple(name for name in Start._fields if name not in ("frame", "last_frame"))


class Replay:
    """A ring of the last `capacity` steps of n robots.

    Slot t holds a robot's state before step t, what it did then, and whether an episode began
    there; the state after the step is the next slot's. The successor of an episode's last step is
    not kept: that transition is masked.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        sizes: dict[str, int],
        device: torch.device | str = "cpu",
        *,
        frames: int = 2**53,
    ):
        """sizes: widths of the float fields: of `Start`'s, 0 where one is not named, and of any
        others, which `moments` gives besides; heights, also those noted as `ground`, count above
        the first number of what is noted as `patch`. device: where all of it is kept. frames: of
        the reference, to hold restored slots against."""
        self.capacity, self.frames = capacity, frames
        self.num_envs = num_envs
        self.device = device
        widths = dict.fromkeys(FLOATS, 0) | sizes
        self.floats = {
            name: torch.zeros(capacity, num_envs, width, device=device)
            for name, width in widths.items()
        }
        self.frame = torch.zeros(capacity, num_envs, dtype=torch.long, device=device)
        self.last_frame = torch.zeros(capacity, num_envs, dtype=torch.long, device=device)
        self.first = torch.ones(capacity, num_envs, dtype=torch.bool, device=device)
        self.head = 0  # slot of the next write
        self.filled = 0

    def add(self, frame: Tensor, last_frame: Tensor, first: Tensor, **floats: Tensor) -> None:
        """One step of all robots. frame, last_frame, first (n,); floats: the fields of `sizes`, (n,
        size)."""
        for name, value in floats.items():
            self.floats[name][self.head] = value
        self.frame[self.head], self.last_frame[self.head], self.first[self.head] = (
            frame,
            last_frame,
            first,
        )
        self.head = (self.head + 1) % self.capacity
        self.filled = min(self.filled + 1, self.capacity)

    def __len__(self) -> int:
        return self.filled * self.num_envs

    def _draw(
        self, batch: int, length: int, generator: torch.Generator, *, tracking: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Random slots with `length` slots after them, oldest first, and robots; (batch,) each.

        tracking: only such as have reference left after these slots, if there are any.
        """
        oldest = (self.head - self.filled) % self.capacity
        if tracking:
            last = (oldest + torch.arange(length, self.filled, device=self.device)) % self.capacity
            known = torch.nonzero(self.frame[last] < self.last_frame[last])
            if len(known):
                age, robot = known[
                    torch.randint(len(known), (batch,), generator=generator, device=self.device)
                ].T
                return (oldest + age) % self.capacity, robot
        age = torch.randint(self.filled - length, (batch,), generator=generator, device=self.device)
        robot = torch.randint(self.num_envs, (batch,), generator=generator, device=self.device)
        return (oldest + age) % self.capacity, robot

    def windows(self, batch: int, length: int, generator: torch.Generator) -> Window:
        """Random windows of `length` transitions."""
        slot, env = self._draw(batch, length, generator)
        steps = (slot + torch.arange(length + 1, device=self.device).unsqueeze(-1)) % self.capacity
        valid = (~self.first[steps[1:], env]).to(torch.float32).cumprod(0)
        states, before = self._above_ground(self.floats["state"][steps, env], slot, env), steps[:-1]
        told = self.floats["physics"][before, env]
        if "ground" in self.floats:
            told = torch.cat(
                (told, self.floats["ground"][before, env] - self.floats["patch"][slot, env, :1]), -1
            )
        return Window(states, self.floats["setpoint"][before, env], told, valid)

    def moments(self, batch: int, generator: torch.Generator) -> dict[str, Tensor]:
        """All fields at random single moments, (batch, ...) each."""
        return self._at(*self._draw(batch, 0, generator))

    def _at(self, slot: Tensor, env: Tensor) -> dict[str, Tensor]:
        integers = {"frame": self.frame[slot, env], "last_frame": self.last_frame[slot, env]}
        floats = {k: v[slot, env] for k, v in self.floats.items()}
        return floats | integers | {"state": self._above_ground(floats["state"], slot, env)}

    def _above_ground(self, states: Tensor, slot: Tensor, env: Tensor) -> Tensor:
        """Packed states (..., B, s) of robots env (B,) with heights above the ground at slots (B,):
        the same ground for all of a window, so that heights remain the integral of velocities."""
        if "patch" not in self.floats:
            return states
        lowered = states.clone()
        # the third number of a packed state
        lowered[..., 2] -= self.floats["patch"][slot, env, 0]
        return lowered

    def starts(
        self, batch: int, generator: torch.Generator, *, tracking: bool = False, fresh: int = 0
    ) -> Start:
        """Random single moments to imagine from.

        tracking: of robots that have reference left. fresh: so many of them where an episode began,
        the decoder's memory empty, if there are any such.
        """
        slot, env = self._draw(batch, 0, generator, tracking=tracking)
        if fresh:
            begun = torch.nonzero(self.first[: self.filled])
            # others were sent elsewhere
            begun = begun[~self.floats["hidden"][begun[:, 0], begun[:, 1]].any(-1)]
            if len(begun):
                drawn = torch.randint(len(begun), (fresh,), generator=generator, device=self.device)
                slot[:fresh], env[:fresh] = begun[drawn].T
        return Start(**self._at(slot, env))

    def stretches(
        self, batch: int, length: int, generator: torch.Generator, *, tracking: bool = False
    ) -> tuple[Start, Tensor]:
        """`length` successive moments and the one after them, to imagine from: fields (length + 1,
        batch, ...), oldest first.

        tracking: of robots that have reference left after the last.

        Second, (length + 1, batch) bool: where an episode began, or the robot was sent to another
        frame.
        """
        slot, env = self._draw(batch, length, generator, tracking=tracking)
        steps = (slot + torch.arange(length + 1, device=self.device).unsqueeze(-1)) % self.capacity
        fields = {k: v[steps, env] for k, v in self.floats.items()}
        return Start(
            **fields, frame=self.frame[steps, env], last_frame=self.last_frame[steps, env]
        ), self.first[steps, env]

    def state_dict(self) -> dict[str, Tensor]:
        """The written slots, for checkpoints."""
        used = slice(0, self.filled)
        return {
            **{f"floats.{k}": v[used] for k, v in self.floats.items()},
            "frame": self.frame[used],
            "last_frame": self.last_frame[used],
            "first": self.first[used],
            "head": torch.tensor(self.head),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from checkpointed slots.

        Raises:
          ValueError: when they are of another shape or kind, or would be written beyond the end;
            nothing is changed then. KeyError: when a field lacks.
        """
        filled = len(state["frame"])
        here = {
            **{f"floats.{k}": v for k, v in self.floats.items()},
            "frame": self.frame,
            "last_frame": self.last_frame,
        }
        here |= {"first": self.first}
        if filled > self.capacity:
            raise ValueError(f"a replay of {filled} slots does not fit {self.capacity}")
        require_like(state, {k: v[:filled] for k, v in here.items()}, free=("head",))
        for name in ("frame", "last_frame"):
            indices(state[name], self.frames, f"the replay's {name}")
        # whoever stopped before the ring was full wrote its next slot after the last
        head = int(indices(state["head"].reshape(()), self.capacity, "the replay's head"))
        if filled < self.capacity and head != filled:
            raise ValueError(f"the replay's head is {head}, after {filled} slots")
        for name, values in here.items():
            values[:filled] = state[name]
        self.head, self.filled = head, filled
