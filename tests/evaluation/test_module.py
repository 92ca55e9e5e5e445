"""Figures of a skill module over clips."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mocap_data.store import MotionSet
from npmp.evaluation.module import average_clips, feasibility_rows, seen_in_training


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


def test_rows_of_feasible_and_infeasible_clips() -> None:
    """Of 4 s and 1 s whole and 5 s by half: 1 of the feasible clips' time, half of the other's."""

    def clip(seconds: float, tracked: float, reason: str) -> dict[str, object]:
        return {
            "tracked_fraction": tracked / seconds,
            "tracked_s": tracked,
            "duration_s": seconds,
            "joint_error_rad": 0.1,
            "base_deviation_m": {"mean": 0.01},
            "infeasible_by": reason,
        }

    feasible = [clip(4.0, 4.0, ""), clip(1.0, 1.0, "")]
    rows = feasibility_rows([*feasible, clip(5.0, 2.5, "balance")])
    figures = {name: (row["number"], row["time_share"]) for name, row in rows.items()}
    assert figures == {"feasible": (2, 1.0), "infeasible": (1, 0.5)}
    assert rows["feasible"]["tracked_s"] == 2.5
    assert list(feasibility_rows(feasible)) == ["feasible"]


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
