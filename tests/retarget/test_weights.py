"""Weights that flatten the histogram of speeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocap_data.motion import ReferenceMotion, speeds
from retarget.weights import MAX_RATIO, flat, histogram, weigh

RATE = 50.0


def gliding(name: str, velocity: np.ndarray, **more: object) -> ReferenceMotion:
    """A motion of a root alone at horizontal velocities (T, 2)."""
    qpos = np.zeros((len(velocity), 8))
    qpos[:, 3] = 1.0
    qpos[:, :2] = np.cumsum(velocity, axis=0) / RATE
    return ReferenceMotion(name, qpos, rate_hz=RATE, **more)


def steady(name: str, speed: float, seconds: float, **more: object) -> ReferenceMotion:
    return gliding(name, np.tile([0.6 * speed, -0.8 * speed], (round(seconds * RATE), 1)), **more)


def shares(motions: tuple[ReferenceMotion, ...]) -> np.ndarray:
    """The weighted histogram, (B,), of sum 1."""
    seconds, _ = histogram(motions)
    total = np.array([m.weight for m in motions]) @ seconds
    return total / total.sum()


def test_equal_speeds_get_equal_weights() -> None:
    motions = weigh([steady("a", 1.0, 4.0), steady("b", 1.0, 9.0), steady("c", 1.0, 2.0)])
    np.testing.assert_allclose([m.weight for m in motions], 1.0, atol=1e-12)


def test_by_hand() -> None:
    """8 s in one bin, 2 s in another: for equal shares weights of 1 : 4, whose mean over 10 s is 1:
    5/8 and 5/2."""
    np.testing.assert_allclose(flat(np.array([[8.0, 0.0], [0.0, 2.0]])), [0.625, 2.5], rtol=1e-9)
    # at most 1 : 30, where 1 : 100 would be even: (100 + 30) w = 101
    result = flat(np.array([[100.0, 0.0], [0.0, 1.0]]))
    np.testing.assert_allclose(result, [101 / 130, 30 * 101 / 130], rtol=1e-9)
    # an empty bin asks for nothing
    result = flat(np.array([[8.0, 0.0, 0.0], [0.0, 0.0, 2.0]]))
    np.testing.assert_allclose(result, [0.625, 2.5], rtol=1e-9)


def test_a_skewed_set_comes_out_flat() -> None:
    """Fifteen times more strolling than running: the weighted histogram varies by less than a
    tenth."""
    motions = [steady(f"m{i}", 0.05 + 0.1 * i, 15.0 * 0.75**i) for i in range(10)]
    before = shares(tuple(motions))
    after = shares(weigh(motions))
    assert before.max() / before.min() > 10.0
    np.testing.assert_allclose(after, 0.1, rtol=0.1)


@given(st.lists(st.tuples(st.floats(0.0, 4.0), st.floats(1.0, 20.0)), min_size=1, max_size=12))
def test_weights_are_bounded_and_average_to_one(entries: list[tuple[float, float]]) -> None:
    motions = weigh([steady(f"m{i}", *entry) for i, entry in enumerate(entries)])
    weight, duration = np.array([(m.weight, m.duration_s) for m in motions]).T
    assert (weight > 0.0).all() and weight.max() / weight.min() <= MAX_RATIO * (1 + 1e-9)
    assert weight @ duration == pytest.approx(duration.sum())
    backwards = weigh([steady(f"m{i}", *e) for i, e in reversed(list(enumerate(entries)))])
    np.testing.assert_allclose([m.weight for m in backwards[::-1]], weight, rtol=1e-9)


def test_each_split_is_flattened() -> None:
    train = [steady("a", 0.25, 50.0, split="train"), steady("b", 1.0, 10.0, split="train")]
    validation = [
        steady("c", 0.25, 5.0, split="validation"),
        steady("d", 1.0, 5.0, split="validation"),
    ]
    result = {m.name: m.weight for m in weigh([*train, *validation])}
    assert result["b"] / result["a"] == pytest.approx(5.0)
    assert result["c"] == pytest.approx(1.0) and result["d"] == pytest.approx(1.0)


def test_a_swaying_trunk_does_not_travel() -> None:
    """At 4 Hz, 0.5 m/s sideways to and fro, and 1 m/s forwards."""
    time = np.arange(500) / RATE
    motion = gliding("m", np.stack([np.ones(500), 0.5 * np.cos(8 * np.pi * time)], axis=1))
    np.testing.assert_allclose(speeds(motion)[25:-25], 1.0, atol=0.02)
