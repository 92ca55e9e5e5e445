"""Schedules."""

from __future__ import annotations

import pytest

from npmp.learning.schedules import linear, prior_weight


def test_linear_is_clamped() -> None:
    assert [linear((2.0, 4.0), p) for p in (-1.0, 0.0, 0.25, 1.0, 3.0)] == [2.0, 2.0, 2.5, 4.0, 4.0]


def test_prior_weight_is_robot_npmps() -> None:
    assert prior_weight(0.0, 0.3, 0.5) == 0.0
    assert prior_weight(0.25, 0.3, 0.5) == pytest.approx(0.3 * (1.0 - 0.5**0.2))
    assert prior_weight(0.5, 0.3, 0.5) == prior_weight(1.0, 0.3, 0.5) == 0.3
    assert prior_weight(0.0, 0.3, 0.0) == 0.3
