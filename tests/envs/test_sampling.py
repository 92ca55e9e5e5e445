"""Where episodes start: uniform, or in proportion to failure, never at the very end."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from mocap_data.store import MotionSet
from npmp.envs.reference import Reference
from npmp.envs.sampling import StartSampler
from npmp.robots import Robot
from tests.refusals import refusal


def draw(sampler: StartSampler, n: int = 20_000) -> torch.Tensor:
    clip, frame = sampler.sample(n, torch.Generator().manual_seed(0))
    assert torch.equal(clip, (frame >= 100).long())  # the second clip starts at frame 100
    return torch.bincount(frame, minlength=250) / n


def test_uniform_starts_cover_all_frames_but_the_tails(robot: Robot, motions: MotionSet) -> None:
    share = draw(StartSampler(Reference(robot, motions), tail=10, uniform_share=1.0))
    allowed = torch.ones(250, dtype=torch.bool)
    allowed[90:100] = allowed[240:] = False
    assert (share[~allowed] == 0).all()
    torch.testing.assert_close(share[allowed], torch.full((230,), 1 / 230), atol=0.002, rtol=0)


def test_a_tail_longer_than_the_clip_leaves_its_first_frame(
    robot: Robot, motions: MotionSet
) -> None:
    share = draw(StartSampler(Reference(robot, motions), tail=1000, uniform_share=1.0))
    assert share[0] > 0.4 and share[100] > 0.4 and share.sum() == share[0] + share[100]


def test_starts_go_where_robots_fail(robot: Robot, motions: MotionSet) -> None:
    sampler = StartSampler(Reference(robot, motions), tail=10, segment=25, uniform_share=0.0)
    # one visit each to all frames; those of the second segment (25-49) fail, at 25 visits a
    # segment: rates (0.05 + 25) / 26 there and 0.05 / 26 elsewhere (the pseudo-visit), but for
    # segments of 25 only
    frame = torch.arange(250)
    sampler.record(frame, (frame >= 25) & (frame < 50))
    share = draw(sampler)
    assert share[25:50].sum() > 0.97
    expected = torch.full((25,), share[25:50].mean())
    torch.testing.assert_close(share[25:50], expected, atol=0.006, rtol=0)


def test_old_failures_fade_before_new_ones(robot: Robot, motions: MotionSet) -> None:
    sampler = StartSampler(Reference(robot, motions), segment=25, uniform_share=0.0)
    frame = torch.arange(250)
    sampler.record(frame, frame < 25)
    assert draw(sampler)[:25].sum() > 0.9
    for _ in range(3000):
        sampler.record(frame, torch.zeros(250, dtype=torch.bool))
    sampler.record(frame, (frame >= 25) & (frame < 50))
    # the old 25 failures are worth 25 * 0.999^3000 = 1.24 by now, plus the pseudo-count; the new
    # ones 25
    share = draw(sampler)
    ratio = float(share[:25].sum() / share[25:50].sum())
    assert abs(ratio - (1.24 + 0.05) / (25 + 0.05)) < 0.01


def test_counts_survive_a_checkpoint(robot: Robot, motions: MotionSet) -> None:
    reference = Reference(robot, motions)
    a, b = StartSampler(reference, uniform_share=0.0), StartSampler(reference, uniform_share=0.0)
    a.record(torch.arange(250), torch.arange(250) > 200)
    b.counts = a.counts
    assert torch.equal(draw(a), draw(b))
    for wrong in (torch.zeros(2, 3), torch.full_like(a.counts, -1.0), a.counts * torch.nan):
        with pytest.raises(ValueError, match="the start sampler's counts"):
            b.counts = wrong
    assert torch.equal(draw(a), draw(b))


def weighted(motions: MotionSet, *weights: float) -> MotionSet:
    changed = [
        dataclasses.replace(m, weight=w) for m, w in zip(motions.motions, weights, strict=True)
    ]
    return dataclasses.replace(motions, motions=tuple(changed))


def test_weights_of_clips(robot: Robot, motions: MotionSet) -> None:
    reference = Reference(robot, weighted(motions, 3.0, 0.5))
    # 90 frames of weight 3 and 140 of weight 1/2 are allowed: 270 : 70
    share = draw(StartSampler(reference, tail=10, uniform_share=1.0))
    torch.testing.assert_close(share[:90], torch.full((90,), 3.0 / 340), atol=0.003, rtol=0)
    assert abs(float(share[:100].sum()) - 270 / 340) < 0.01
    assert (share[90:100] == 0).all() and (share[240:] == 0).all()
    # failures weigh on top: nothing recorded, all segments alike, the clips' weights remain
    share = draw(StartSampler(reference, tail=10, uniform_share=0.0))
    assert abs(float(share[:100].sum()) - 270 / 340) < 0.01


def test_a_clip_of_weight_0_is_never_drawn(robot: Robot, motions: MotionSet) -> None:
    for uniform_share in (0.0, 1.0):
        share = draw(
            StartSampler(Reference(robot, weighted(motions, 0.0, 1.0)), uniform_share=uniform_share)
        )
        assert share[:100].sum() == 0
    refusal("weight", Reference, robot, weighted(motions, 0.0, 0.0))
