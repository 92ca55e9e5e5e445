"""Reference motions: what they refuse, and cutting pieces out of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocap_data import rotations
from mocap_data.motion import ReferenceMotion
from tests.refusals import refusal

RATE = 50.0


def make_motion(frames: int = 40, **more: object) -> ReferenceMotion:
    rng = np.random.default_rng(0)
    qpos = rng.normal(size=(frames, 9))
    qpos[:, 3:7] = rotations.normalize(qpos[:, 3:7])
    arrays = {
        "qpos": qpos,
        "contacts": rng.random((frames, 2)) < 0.5,
        "frame_quality": {"marker_rms_m": np.arange(frames) / 1000},
        "recording": "walk",
        "start_s": 3.0,
    }
    return ReferenceMotion(name="m", rate_hz=RATE, **(arrays | more))


@given(st.data())
def test_crops_of_crops_are_crops(data: st.DataObject) -> None:
    motion = make_motion()
    start = data.draw(st.integers(0, 38))
    stop = data.draw(st.integers(start + 1, 40))
    inner = data.draw(st.integers(0, stop - start - 1))
    once = motion.crop(start + inner, stop)
    twice = motion.crop(start, stop).crop(inner)
    for key in ("qpos", "contacts"):
        np.testing.assert_array_equal(getattr(once, key), getattr(twice, key))
        expected = getattr(motion, key)[start + inner : stop]
        np.testing.assert_array_equal(getattr(once, key), expected)
    np.testing.assert_array_equal(once.qvel[1:], motion.qvel[start + inner + 1 : stop])
    expected = np.arange(start + inner, stop) / 1000
    np.testing.assert_array_equal(twice.frame_quality["marker_rms_m"], expected)
    assert (
        once.start_s == pytest.approx(twice.start_s) == pytest.approx(3.0 + (start + inner) / RATE)
    )
    assert (twice.recording, twice.weight, twice.rate_hz) == ("walk", 1.0, RATE)


def test_arrays_are_copied() -> None:
    contacts = np.zeros((40, 2), dtype=bool)
    figure = np.zeros(40)
    motion = make_motion(contacts=contacts, frame_quality={"f": figure})
    contacts[:] = True
    figure[:] = 1.0
    assert motion.contacts is not None and not motion.contacts.any()
    assert not motion.frame_quality["f"].any()
    with pytest.raises(ValueError, match="read-only"):
        motion.contacts[0] = True


def test_contacts_of_zeros_and_ones() -> None:
    motion = make_motion(contacts=np.tile(np.array([0, 1], np.uint8), (40, 1)))
    assert motion.contacts is not None and motion.contacts.dtype == np.bool_
    np.testing.assert_array_equal(motion.contacts[7], [False, True])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contacts": np.zeros((39, 2), bool)}, "arrays differ in frames: .*contacts 39"),
        ({"contacts": np.zeros((40, 2))}, "contacts must be truth values"),
        ({"frame_quality": {"f": np.zeros((40, 1))}}, r"frame_quality 'f' has shape \(40, 1\)"),
        ({"weight": -1.0}, "weight -1.0 must be 0, or from 1e-09 to "),
        ({"start_s": np.inf}, "start_s=inf"),
    ],
)
def test_invalid_motions(change: dict, message: str) -> None:
    refusal(message, dataclasses.replace, make_motion(), **change)
