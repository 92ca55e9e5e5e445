"""Figures of a skill module over clips."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mocap_data.store import MotionSet
from npmp.evaluation.module import average_clips, seen_in_training


def test_mean_and_median_over_clips() -> None:
    """Of 0.1, 0.2 and 0.6 they are 0.3 and 0.2."""
    figures = ("tracked_fraction", "tracked_s", "joint_error_rad")
    clips = [
        dict.fromkeys(figures, 2.0 * last) | {"base_deviation_m": {"mean": 0.01, "last": last}}
        for last in (0.6, 0.1, 0.2)
    ]
    for average, last in ((np.mean, 0.3), (np.median, 0.2)):
        found = average_clips(clips, average)
        assert found.pop("base_deviation_m") == pytest.approx({"mean": 0.01, "last": last})
        assert found == pytest.approx(dict.fromkeys(figures, 2.0 * last))


@pytest.mark.parametrize(
    ("training", "seen"),
    [
        ({"clips": ["r1_c00"]}, 3),  # its chunk and its mirror with it
        ({"clips": ["r1_c00_lr", "elsewhere"]}, 3),
        ({"clips": ["lone", "r1_c00"]}, 4),
        ({"clips": ["lone"]}, 1),  # "" is no recording that the other nameless one shares
        ({"clips": ["elsewhere"]}, 0),
        ({}, None),
    ],
)
def test_clips_seen_in_training(
    training: dict[str, list[str]], seen: int | None, motions: MotionSet
) -> None:
    recordings = dict.fromkeys(("r1_c00", "r1_c00_lr", "r1_c01"), "r1")
    recordings |= {"r2": "r2", "lone": "", "other": ""}
    made = [
        dataclasses.replace(motions.motions[0], name=name, recording=key)
        for name, key in recordings.items()
    ]
    assert seen_in_training(training, dataclasses.replace(motions, motions=tuple(made))) == seen
