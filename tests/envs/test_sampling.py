"""Where episodes start: uniform, or in proportion to failure, never at the very end."""

from __future__ import annotations

import torch

from mocap_data.store import MotionSet
from npmp.envs.reference import Reference
from npmp.envs.sampling import StartSampler
from npmp.robots import Robot


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


def test_a_tail_longer_than_the_clip_leaves_its_first_frame(robot: Robot, motions: MotionSet) -> None:
    share = draw(StartSampler(Reference(robot, motions), tail=1000, uniform_share=1.0))
    assert share[0] > 0.4 and share[100] > 0.4 and share.sum() == share[0] + share[100]


def test_starts_go_where_robots_fail(robot: Robot, motions: MotionSet) -> None:
    sampler = StartSampler(Reference(robot, motions), tail=10, segment=25, uniform_share=0.0)
    # one visit each to all frames; those of the second segment (25-49) fail, at 25 visits a segment:
    # rates (0.05 + 25) / 26 there and 0.05 / 26 elsewhere (the pseudo-visit), but for segments of 25 only
    frame = torch.arange(250)
    sampler.record(frame, (frame >= 25) & (frame < 50))
    share = draw(sampler)
    assert share[25:50].sum() > 0.97
    torch.testing.assert_close(share[25:50], torch.full((25,), share[25:50].mean()), atol=0.006, rtol=0)


def test_shares_of_uniform_and_weighted_starts_mix(robot: Robot, motions: MotionSet) -> None:
    sampler = StartSampler(Reference(robot, motions), tail=10, segment=25, uniform_share=0.5)
    frame = torch.arange(250)
    for _ in range(3):
        sampler.record(frame, (frame >= 25) & (frame < 50))
    inside = draw(sampler)[25:50].sum()
    expected = 0.5 * 25 / 230 + 0.5 * 0.99
    assert abs(inside - expected) < 0.02


def test_old_failures_fade_before_new_ones(robot: Robot, motions: MotionSet) -> None:
    sampler = StartSampler(Reference(robot, motions), segment=25, uniform_share=0.0)
    frame = torch.arange(250)
    sampler.record(frame, frame < 25)
    assert draw(sampler)[:25].sum() > 0.9
    for _ in range(3000):
        sampler.record(frame, torch.zeros(250, dtype=torch.bool))
    sampler.record(frame, (frame >= 25) & (frame < 50))
    # the old 25 failures are worth 25 * 0.999^3000 = 1.24 by now, plus the pseudo-count; the new ones 25
    share = draw(sampler)
    ratio = float(share[:25].sum() / share[25:50].sum())
    assert abs(ratio - (1.24 + 0.05) / (25 + 0.05)) < 0.01


def test_counts_survive_a_checkpoint(robot: Robot, motions: MotionSet) -> None:
    reference = Reference(robot, motions)
    a, b = StartSampler(reference, uniform_share=0.0), StartSampler(reference, uniform_share=0.0)
    a.record(torch.arange(250), torch.arange(250) > 200)
    b.load_state_dict({k: v.clone() for k, v in a.state_dict().items()})
    assert torch.equal(draw(a), draw(b))
