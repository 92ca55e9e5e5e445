"""Sampling of the reference frames at which episodes start."""

from __future__ import annotations

import torch
from torch import Tensor

from npmp.envs.reference import Reference

_MEMORY = 256_000  # visits over which counts decay: a thousand steps of 256 robots


class StartSampler:
    """Samples start frames: a share uniformly, the others in proportion to failure rates.

    Both follow the clips' sampling weights: a frame of a clip of weight 2 is sampled twice as often
    as one of weight 1. Clips are divided into segments of about half a second, each with a running
    failure rate: failures per visited control step. Frames at the end of a clip are not sampled.
    """

    def __init__(
        self, reference: Reference, *, tail: int = 10, segment: int = 25, uniform_share: float = 0.5
    ):
        """Args:
        tail: frames at the end of a clip where no episode starts, at least 1.
        segment: frames per segment.
        uniform_share: probability of a uniform sample, in [0, 1]; 1: no failure weighting.
        """
        self.uniform_share = uniform_share
        device = reference.start.device
        segment_of_frame = torch.zeros(reference.num_frames, dtype=torch.long)
        allowed = torch.zeros(reference.num_frames, dtype=torch.bool)
        count = 0
        for start, length in zip(reference.start.tolist(), reference.length.tolist(), strict=True):
            local = torch.arange(length) // segment
            segment_of_frame[start : start + length] = count + local
            allowed[start : start + max(1, length - max(1, tail))] = True
            count += int(local[-1]) + 1
        self._segment_of_frame = segment_of_frame.to(device)
        self._clip_of_frame = torch.repeat_interleave(
            torch.arange(len(reference.length), device=device), reference.length
        )
        self._frames = torch.nonzero(allowed).squeeze(-1).to(device)
        weight = reference.weight[self._clip_of_frame[self._frames]]
        # equal weights need random integers only, which is faster
        self._even = bool((weight == weight[0]).all())
        self._cumulative = weight.cumsum(0)
        # allowed frames per segment, contiguous and within one clip, and their total weight
        owner = self._segment_of_frame[self._frames]
        self._allowed = torch.bincount(owner, minlength=count)
        before = self._allowed.cumsum(0) - self._allowed
        self._first = self._frames[before.clamp(max=len(self._frames) - 1)]
        mass = torch.zeros(count, dtype=torch.float64, device=device)
        self._mass = mass.index_add_(0, owner, weight.double()).float()
        self._failures = torch.zeros(count, device=device)
        self._visits = torch.zeros(count, device=device)

    def record(self, frame: Tensor, failed: Tensor, counts: Tensor | None = None) -> None:
        """Count visits to frames (n,) and their failures (n,) bool; counts decay over `_MEMORY`
        visits.

        counts: (n,) bool, the visits that count; None: all.
        """
        counts = torch.ones_like(failed) if counts is None else counts
        decay = torch.exp(-counts.sum().double() / _MEMORY)
        self._failures *= decay
        self._visits *= decay
        index = self._segment_of_frame[frame]
        self._visits.index_add_(0, index, counts.to(torch.float32))
        self._failures.index_add_(0, index, (failed & counts).to(torch.float32))

    def forget(self) -> None:
        """Reset the counts."""
        self._failures.zero_()
        self._visits.zero_()

    def sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Clip indices and global start frames, (n,) each."""
        uniform = self._frames[self._sample_uniform(n, generator)]
        # pseudo-counts: an unvisited segment has a failure rate of 0.05
        rate = (self._failures + 0.05) / (self._visits + 1.0)
        # segments, then one of their frames: as sampling among all frames, but faster
        segment = torch.multinomial(rate * self._mass, n, replacement=True, generator=generator)
        place = torch.rand(n, generator=generator, device=uniform.device) * self._allowed[segment]
        weighted = self._first[segment] + place.long().clamp(max=self._allowed[segment] - 1)
        chance = torch.rand(n, generator=generator, device=uniform.device)
        frame = torch.where(chance < self.uniform_share, uniform, weighted)
        return self._clip_of_frame[frame], frame

    def _sample_uniform(self, n: int, generator: torch.Generator) -> Tensor:
        """Indices (n,) of allowed frames, sampled by the clips' weights."""
        device = self._frames.device
        if self._even:
            return torch.randint(len(self._frames), (n,), generator=generator, device=device)
        share = torch.rand(n, generator=generator, dtype=torch.float64, device=device)
        share = share * self._cumulative[-1]
        place = torch.searchsorted(self._cumulative, share, right=True)
        return place.clamp(max=len(self._frames) - 1)

    @property
    def counts(self) -> Tensor:
        """Failures and visits of each segment, (2, S). Raises ValueError for counts that do not
        fit."""
        return torch.stack((self._failures, self._visits))

    @counts.setter
    def counts(self, counts: Tensor) -> None:
        if counts.shape != self.counts.shape:
            raise ValueError(
                f"the start sampler's counts are {list(counts.shape)}, expected"
                f" {list(self.counts.shape)}"
            )
        if not bool((torch.isfinite(counts) & (counts >= 0)).all()):
            raise ValueError("the start sampler's counts must be finite and not negative")
        self._failures, self._visits = (part.clone() for part in counts)
