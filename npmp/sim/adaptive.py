"""Adaptive randomization: one success rate of all episodes widens or narrows the ranges that
physics are drawn from.

The ranges of the preset are the widest; they shrink to their middles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import ranges

KINDS = ("none", "all")
# draws that choose rather than measure
FIXED = ("weak_joint",)


@dataclass(frozen=True)
class AdaptiveConfig:
    """When ranges change, and by how much."""

    # none or all
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

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {self.kind!r}")
        ranges.share(self, "start", "least", "above", "below", "narrow")
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
    """`share` () of every range that is drawn from, about its middle; kept in checkpoints."""

    def __init__(
        self,
        config: AdaptiveConfig,
        columns: Mapping[str, slice],
        *,
        pushes: bool,
        device: torch.device,
    ):
        """columns: where the draws of each quantity stand, as in `PhysicsRandomizer`."""
        self.config = config
        if not pushes and all(
            part.start == part.stop for name, part in columns.items() if name not in FIXED
        ):
            raise InputError(
                "randomization.adaptive: nothing is drawn whose range could follow success"
            )
        self._fixed = [columns[name] for name in FIXED if name in columns]
        self.share = torch.tensor(config.start, device=device)
        self.succeeded, self.counted = (torch.zeros((), device=device) for _ in range(2))

    def draw(self, unit: Tensor) -> Tensor:
        """Uniform draws (k, P) in [-1, 1], scaled to the present ranges."""
        share = self.share.repeat(unit.shape[1])
        for columns in self._fixed:
            share[columns] = 1.0
        return 0.5 * (1.0 + unit) * (share + share) - share

    def note(self, succeeded: Tensor) -> None:
        """Count episodes that are over, `succeeded` (k,) bool; move the ranges where enough are."""
        c = self.config
        self.counted = self.counted + len(succeeded)
        self.succeeded = self.succeeded + succeeded.sum()
        if self.counted < c.episodes:
            return
        rate = self.succeeded / self.counted
        factor = c.widen if rate > c.above else c.narrow if rate < c.below else 1.0
        self.share = (self.share * factor).clamp(c.least, 1.0)
        self.succeeded, self.counted = (torch.zeros_like(self.counted) for _ in range(2))

    def logged(self) -> dict[str, float]:
        """For a run's metrics."""
        return {"range_share": self.share.item()}

    _KEPT = ("share", "succeeded", "counted")

    def state_dict(self) -> dict[str, Tensor]:
        """For checkpoints."""
        return {f"adaptive.{name}": getattr(self, name) for name in self._KEPT}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where `state_dict` was taken. Raises ValueError where it was taken without
        adaptive ranges."""
        for name in self._KEPT:
            found, own = state.get(f"adaptive.{name}"), getattr(self, name)
            if found is None or found.shape != own.shape:
                raise ValueError("taken without these adaptive ranges")
            setattr(self, name, found.to(own.device, copy=True))
