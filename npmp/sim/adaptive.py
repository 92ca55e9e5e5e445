"""Adaptive randomization: how much of each range physics are drawn from follows from how often
episodes succeed.

Two ways. `all`: one success rate of all episodes widens or narrows all ranges (as sim-to-real
practice has it). `each`: OpenAI's automatic domain randomization (Akkaya et al. 2019): some
episodes have one quantity at an end of its range, and how often those succeed moves that end alone.
The ranges of the preset are the widest; they shrink to their middles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import ranges

KINDS = ("none", "all", "each")
# the name of the pushes' size among what is drawn
PUSHES = "pushes"
# draws that choose rather than measure
FIXED = ("weak_joint",)


@dataclass(frozen=True)
class AdaptiveConfig:
    """When ranges change, and by how much."""

    # none, all or each
    kind: str = "none"
    # share of each range at the beginning of a run
    start: float = 0.3
    # share of it at least
    least: float = 0.05
    # a higher success rate widens
    above: float = 0.8
    # a lower one narrows
    below: float = 0.5
    widen: float = 1.1
    narrow: float = 0.9
    # that a success rate is of; then it is counted anew
    episodes: int = 64
    # each: share of episodes with one quantity at an end of its range
    at_ends: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {self.kind!r}")
        ranges.share(self, "start", "least", "above", "below", "narrow", "at_ends")
        ranges.at_least_one(self, "episodes")
        if not (
            0.0 < self.least <= self.start
            and self.below <= self.above
            and self.widen >= 1.0
            and self.narrow > 0.0
        ):
            got = (self.least, self.start, self.below, self.above, self.widen, self.narrow)
            words = "0 < least <= start, below <= above, widen >= 1 and narrow > 0 must hold"
            raise ValueError(f"{words}, got {', '.join(map(str, got))}")


class AdaptiveRanges:
    """The share of each of G ranges that is drawn from: `low` (G,) below its middle, `high` (G,)
    above; kept in checkpoints.

    An end belongs to one quantity and one side. Quantities with a draw per part (joint offsets)
    have one end for both sides, which move together; pushes have an upper end only.
    """

    def __init__(
        self,
        config: AdaptiveConfig,
        columns: Mapping[str, slice],
        *,
        pushes: bool,
        num_envs: int,
        device: torch.device,
    ):
        """columns: where the draws of each quantity stand, as in `PhysicsRandomizer`."""
        self.config = config
        sizes = {
            name: part.stop - part.start for name, part in columns.items() if name not in FIXED
        }
        self.names = (
            *(name for name, size in sizes.items() if size),
            *((PUSHES,) if pushes else ()),
        )
        ends = [
            (g, side)
            for g, name in enumerate(self.names)
            for side in ((1,) if name == PUSHES else (-1, 1) if sizes[name] == 1 else (0,))
        ]
        if not self.names:
            raise InputError(
                "randomization.adaptive: nothing is drawn whose range could follow success"
            )
        if config.kind == "all":
            ends = [(0, 0)]  # one success rate, of no end
        self._of, self._side = torch.tensor(ends, device=device).view(-1, 2).T
        width = max((part.stop for part in columns.values()), default=0)
        # of each draw; the last: always whole
        self._group = torch.full((width,), len(self.names), device=device)
        for g, name in enumerate(self.names):
            if name != PUSHES:
                self._group[columns[name]] = g
        self.low, self.high = (
            torch.full((len(self.names),), config.start, device=device) for _ in range(2)
        )
        self.succeeded, self.counted = (torch.zeros(len(ends), device=device) for _ in range(2))
        # the end that the present episode is at; -1: none
        self.end = torch.full((num_envs,), -1, device=device)

    def draw(self, ids: Tensor, unit: Tensor, generator: torch.Generator) -> Tensor:
        """Draws for new episodes of robots ids (k,): uniform ones (k, P) in [-1, 1], scaled to the
        present ranges."""
        whole = self.low.new_ones(1)
        low, high = (torch.cat((share, whole))[self._group] for share in (self.low, self.high))
        drawn = 0.5 * (1.0 + unit) * (low + high) - low
        if self.config.kind != "each":
            return drawn
        chance = torch.rand((2, len(ids)), generator=generator, device=unit.device)
        end = torch.where(chance[0] < self.config.at_ends, (chance[1] * len(self._of)).long(), -1)
        self.end = self.end.index_copy(0, ids, end)
        of, side = (
            torch.where(end >= 0, values[end], -1).unsqueeze(-1)
            for values in (self._of, self._side)
        )
        upper = (side > 0) | ((side == 0) & (unit >= 0.0))
        return torch.where(self._group == of, torch.where(upper, high, -low), drawn)

    def pushed(self, share: Tensor) -> Tensor:
        """Sizes of pushes as shares of the largest (n,), of uniform ones in [0, 1)."""
        if self.config.kind == "each":
            at_end = (self.end >= 0) & (self._of[self.end] == len(self.names) - 1)
            share = torch.where(at_end, 1.0, share)
        return self.high[-1] * share

    def note(self, ids: Tensor, succeeded: Tensor) -> None:
        """Count episodes of robots ids (k,) that are over, `succeeded` (k,) bool; move ranges where
        enough are."""
        c = self.config
        end = self.end[ids] if c.kind == "each" else torch.zeros_like(ids)
        known = end >= 0
        self.counted = self.counted.index_add(
            0, end[known], torch.ones_like(end[known], dtype=self.counted.dtype)
        )
        self.succeeded = self.succeeded.index_add(
            0, end[known], succeeded[known].to(self.succeeded)
        )
        full = self.counted >= c.episodes
        rate = self.succeeded / self.counted.clamp(min=1.0)
        factor = torch.where(rate > c.above, c.widen, torch.where(rate < c.below, c.narrow, 1.0))
        factor = torch.where(full, factor, 1.0)
        for below, share in ((True, self.low), (False, self.high)):
            if c.kind == "all":
                share *= factor[0]
            else:
                mine = self._side <= 0 if below else self._side >= 0
                share[self._of[mine]] *= factor[mine]
            share.clamp_(c.least, 1.0)
        self.succeeded, self.counted = (
            torch.where(full, 0.0, count) for count in (self.succeeded, self.counted)
        )

    def shares(self) -> dict[str, list[float]]:
        """By quantity the shares of its range below and above the middle; of pushes that of the
        largest."""
        both = zip(self.names, self.low.tolist(), self.high.tolist(), strict=True)
        return {name: [high] if name == PUSHES else [low, high] for name, low, high in both}

    def logged(self) -> dict[str, float]:
        """For a run's metrics: `range_share`, the mean over all, and with `each` also that of every
        quantity."""
        means = {name: sum(shares) / len(shares) for name, shares in self.shares().items()}
        found = {"range_share": sum(means.values()) / max(len(means), 1)}
        if self.config.kind == "each":
            found |= {f"range_share_{name}": mean for name, mean in means.items()}
        return found

    _KEPT = ("low", "high", "succeeded", "counted", "end")

    def state_dict(self) -> dict[str, Tensor]:
        """For checkpoints."""
        return {f"adaptive.{name}": getattr(self, name) for name in self._KEPT}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where `state_dict` was taken. Raises ValueError where it was taken of other
        ranges."""
        for name in self._KEPT:
            found, own = state.get(f"adaptive.{name}"), getattr(self, name)
            if found is None or found.shape != own.shape:
                raise ValueError("taken without these adaptive ranges")
            setattr(self, name, found.to(own.device, copy=True))
