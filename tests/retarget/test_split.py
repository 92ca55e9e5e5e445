"""Splits by recording: nothing crosses, the share is met, and nothing but names and durations
matters."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mocap_data.motion import ReferenceMotion
from retarget.split import TRAIN, VALIDATION, choose, recording_of, split
from tests.refusals import refusal

NAMES = st.text("abcdef_0123", min_size=1, max_size=6)
RECORDINGS = st.dictionaries(
    NAMES, st.floats(0.5, 100.0).map(lambda s: np.array([s])), min_size=2, max_size=25
)


def motion(name: str, recording: str, frames: int) -> ReferenceMotion:
    qpos = np.zeros((frames, 8))
    qpos[:, 3] = 1.0
    return ReferenceMotion(name, qpos, rate_hz=10.0, recording=recording)


@given(seconds=RECORDINGS, share=st.floats(0.01, 0.9), seed=st.integers(0, 5), order=st.randoms())
def test_the_choice(seconds: dict[str, np.ndarray], share: float, seed: int, order: object) -> None:
    chosen = choose(seconds, share, seed)
    assert chosen <= set(seconds) and 1 <= len(chosen) < len(seconds)
    shuffled = list(seconds.items())
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert choose(dict(shuffled), share, seed) == chosen  # the order of the files does not matter
    # no single recording that is left out would have brought the sum nearer, but for the last one
    # of all
    goal = share * sum(seconds.values())
    total = sum(seconds[name] for name in chosen)
    rest = set(seconds) - chosen
    if len(rest) > 1:
        nearest = min(abs(total + seconds[name] - goal) for name in rest)
        assert abs(total - goal) <= nearest + 1e-9


@given(data=st.data(), validation=st.floats(0.05, 0.5), seed=st.integers(0, 3))
def test_chunks_and_mirrors_never_cross(data: st.DataObject, validation: float, seed: int) -> None:
    motions = []
    for number in range(data.draw(st.integers(2, 8))):
        for chunk in range(data.draw(st.integers(1, 4))):
            for mirror in ("", "_lr"):
                frames = data.draw(st.integers(1, 30))
                motions.append(motion(f"r{number}_c{chunk}{mirror}", f"r{number}", frames))
    divided = split(motions, validation, seed)
    sides = {}
    for entry in divided:
        assert entry.split in (TRAIN, VALIDATION)
        assert sides.setdefault(recording_of(entry), entry.split) == entry.split
    assert set(sides.values()) == {TRAIN, VALIDATION}
    backwards = {entry.name: entry.split for entry in split(motions[::-1], validation, seed)}
    assert backwards == {entry.name: entry.split for entry in divided}


def test_both_sides_have_all_speeds() -> None:
    """Of two canters, four trots and thirty strolls, about a quarter of each is held out, at most
    one of the canters."""
    rng = np.random.default_rng(0)
    profile = {}
    for i in range(36):
        kind = 2 if i < 2 else 1 if i < 6 else 0
        profile[f"r{i}"] = np.eye(3)[kind] * rng.uniform(20, 40) * (0.5 if kind == 2 else 1.0)
    total = np.sum(list(profile.values()), axis=0)
    for seed in range(5):
        held_out = np.sum([profile[name] for name in choose(profile, 0.25, seed)], axis=0)
        assert abs(held_out.sum() / total.sum() - 0.25) < 0.02
        np.testing.assert_allclose(held_out[:2] / total[:2], 0.25, atol=0.1)
        assert held_out[2] < 0.7 * total[2]


def test_edges() -> None:
    alone = motion("a", "", 30)
    assert recording_of(alone) == "a"
    # nothing to train on is no choice
    assert [entry.split for entry in split([alone], 0.5)] == [TRAIN]
    marked = dataclasses.replace(alone, split=VALIDATION)
    assert [entry.split for entry in split([marked], 0.0)] == [""]
    assert split([], 0.1) == ()
    for share in (-0.1, 1.0, float("nan")):
        refusal("validation=", split, [alone], share)


def test_stretches_of_one_recording_stay_together() -> None:
    """Two stretches of one file may overlap: what is in one would be judged on what was learned
    from the other."""
    motions = [motion(name, name, 100) for name in ("a_0_100", "a_50_150", "a_end", "b", "c", "d")]
    origins = dict.fromkeys(("a_0_100", "a_50_150", "a_end"), "a")
    for seed in range(20):
        divided = split(motions, 0.4, seed, origins)
        assert len({entry.split for entry in divided[:3]}) == 1
        assert {entry.split for entry in divided} == {TRAIN, VALIDATION}
    # nothing says so: they are three recordings
    apart = [split(motions, 0.4, seed)[:3] for seed in range(20)]
    assert any(len({entry.split for entry in three}) == 2 for three in apart)


def test_recordings_by_name() -> None:
    motions = [
        motion(f"{name}_lr", name, 100) for name in ("walk_0_100", "walk_50_150", "trot", "turn")
    ]
    origins = dict.fromkeys(("walk_0_100", "walk_50_150"), "walk")
    sides = [
        entry.split for entry in split(motions, 0.0, 0, origins, recordings=["*_0_100", "turn"])
    ]
    assert sides == [VALIDATION, VALIDATION, TRAIN, VALIDATION]  # stretches of one stay together
    refusal(r"'run\*'", split, motions, 0.0, recordings=["turn", "run*"])
