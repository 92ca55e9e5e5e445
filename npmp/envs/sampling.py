"""Where in the reference an episode starts."""

from __future__ import annotations

import torch
from torch import Tensor

from npmp.envs.reference import Reference


class StartSampler:
    """Start frames, partly uniform, partly in proportion to how badly their surroundings are tracked.

    Both parts follow the clips' sampling weights: a frame of a clip of weight 2 is drawn twice as often as one of weight 1.
    The clips are cut into segments of about half a second. Every segment keeps a running failure rate: failures per
    visited control step. Frames too close to the end of a clip to be worth an episode are never drawn.
    """

    def __init__(self, reference: Reference, *, tail: int = 10, segment: int = 25, uniform_share: float = 0.5):
        """Args:
        tail: frames at the end of a clip where no episode starts.
        segment: frames per segment.
        uniform_share: probability of a draw uniform over all frames, in [0, 1]; 1 switches the failure weighting off.
        """
        self.uniform_share = uniform_share
        segment_of_frame = torch.zeros(reference.num_frames, dtype=torch.long)
        allowed = torch.zeros(reference.num_frames, dtype=torch.bool)
        count = 0
        for start, length in zip(reference.start.tolist(), reference.length.tolist(), strict=True):
            local = torch.arange(length) // segment
            segment_of_frame[start : start + length] = count + local
            allowed[start : start + max(1, length - tail)] = True
            count += int(local[-1]) + 1
        self._segment_of_frame = segment_of_frame
        self._clip_of_frame = torch.repeat_interleave(torch.arange(len(reference.length)), reference.length)
        self._frames = torch.nonzero(allowed).squeeze(-1)
        weight = reference.weight[self._clip_of_frame[self._frames]]
        # None: all the same. Then draws are whole numbers, the cheaper way.
        self._weight = None if bool((weight == weight[0]).all()) else weight.to(torch.float32)
        self._cumulative = weight.cumsum(0)
        self._failures = torch.zeros(count)
        self._visits = torch.zeros(count)

    def record(self, frame: Tensor, failed: Tensor) -> None:
        """Count visits to frames (n,) and the failures among them (n,) bool; older counts fade over some thousand calls."""
        self._failures *= 0.999
        self._visits *= 0.999
        index = self._segment_of_frame[frame]
        self._visits.index_add_(0, index, torch.ones_like(index, dtype=torch.float32))
        self._failures.index_add_(0, index, failed.to(torch.float32))

    def sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Clip indices and global start frames, (n,) each."""
        uniform = self._frames[self._draw(n, generator)]
        # one pseudo-visit in 20 counted as failure: an unvisited segment is neither certain to fail nor to succeed
        rate = (self._failures + 0.05) / (self._visits + 1.0)
        weights = rate[self._segment_of_frame[self._frames]]
        if self._weight is not None:
            weights = weights * self._weight
        weighted = self._frames[torch.multinomial(weights, n, replacement=True, generator=generator)]
        frame = torch.where(torch.rand(n, generator=generator) < self.uniform_share, uniform, weighted)
        return self._clip_of_frame[frame], frame

    def _draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Places (n,) among the allowed frames, by the clips' weights alone."""
        if self._weight is None:
            return torch.randint(len(self._frames), (n,), generator=generator)
        share = torch.rand(n, generator=generator, dtype=torch.float64) * self._cumulative[-1]
        return torch.searchsorted(self._cumulative, share, right=True).clamp_(max=len(self._frames) - 1)

    def state_dict(self) -> dict[str, Tensor]:
        """What has been counted, for checkpoints."""
        return {"failures": self._failures, "visits": self._visits}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from checkpointed counts."""
        self._failures.copy_(state["failures"])
        self._visits.copy_(state["visits"])
