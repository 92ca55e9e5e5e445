"""Copies at other tempos: their frames and sampling weights."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mocap_data.synthetic import dog_gait
from npmp.robots import Robot
from retarget import retarget_many
from retarget.time_scaling import at_tempo, with_tempos


@pytest.mark.parametrize(("tempo", "frames"), [(2.0, 16), (0.5, 61), (1.15, 27)])
def test_another_tempo_keeps_the_path(
    make: SimpleNamespace, robot: Robot, tempo: float, frames: int
) -> None:
    """31 frames at 50 Hz take 0.6 s: twice as fast, every second frame; half as fast, one more
    between each two."""
    motion = make.motion_of(robot, make.wandering(robot, 31))
    played = at_tempo(motion, robot, tempo)
    expected = (f"{motion.name}_x{tempo:g}", 50.0, frames)
    assert (played.name, played.rate_hz, played.num_frames) == expected
    np.testing.assert_allclose(played.qpos[0], motion.qpos[0], atol=1e-12)
    if tempo == 2.0:
        np.testing.assert_allclose(played.qpos, motion.qpos[::2], atol=1e-12)
        expected = (motion.qvel[1::2, :3] + motion.qvel[2::2, :3])[:15]
        np.testing.assert_allclose(played.qvel[1:, :3], expected, atol=1e-9)
    if tempo == 0.5:
        np.testing.assert_allclose(played.qpos[::2], motion.qpos, atol=1e-12)


def test_copies_at_other_tempos_have_half_of_the_sampling(robot: Robot) -> None:
    gaits = [
        dog_gait("trot", speed_mps=1.0, duration_s=2.0),
        dog_gait("walk", speed_mps=0.6, duration_s=2.0),
    ]
    motions = retarget_many(gaits, robot)
    clips = motions.motions
    tempos = (0.8, 1.25)
    more = with_tempos(motions, robot, tempos)
    assert more.motions[: len(clips)] == clips
    expected = [f"{m.name}_x{t:g}" for m in clips for t in tempos]
    assert [m.name for m in more.motions[len(clips) :]] == expected
    # of each clip, per second of motion; as the seconds differ, the sums over time do so a little
    weights = {m.name: m.weight for m in more.motions}
    assert all(
        sum(weights[f"{m.name}_x{t:g}"] for t in tempos) == pytest.approx(m.weight) for m in clips
    )
    assert with_tempos(motions, robot, ()) is motions
    # eight times as fast no leg can go, so nothing is added: what is left has the sampling of both
    alone = with_tempos(motions, robot, (8.0,)).motions
    assert [(m.name, m.weight) for m in alone] == [(m.name, 2.0 * m.weight) for m in clips]
    # a copy that is too short to track is left out, and the other has its share
    short = replace(motions, motions=(clips[0].crop(0, 9),))
    assert [
        (m.name[-5:], m.weight)
        for m in with_tempos(short, robot, (1.25, 0.8), min_frames=8).motions[1:]
    ] == [("_x0.8", 1.0)]
