"""Heights of a profile: between its points, over its period, under a sphere."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mocap_data.errors import InputError
from mocap_data.ground_profile import GroundProfile


def step() -> GroundProfile:
    """0 up to x = 0.5 m, then a riser of 0.1 m in one cell, 0.1 from 0.55 to 0.95, and down."""
    return GroundProfile(np.repeat([0.0, 0.1], [11, 9]))


def test_heights_between_points_and_in_the_next_period() -> None:
    x = np.array([0.3, 0.525, 0.55, 0.95, 0.975, 1.0, 1.525, -0.025])
    expected = [0.0, 0.05, 0.1, 0.1, 0.05, 0.0, 0.05, 0.05]
    np.testing.assert_allclose(step().height_at(x), expected, atol=1e-12)


def test_a_sphere_on_a_riser_and_beside_it() -> None:
    """The riser's slope is 2. A sphere of radius r touches it where its centre is r from the plane,
    so its lowest point is r (sqrt(1 + 2^2) - 1) above the ground at its centre. Beside the edge of
    the upper level, by b < r, it is r - sqrt(r^2 - b^2) lower than on it."""
    r = 0.02
    low, riser, edge = step().height_at(np.array([0.47, 0.515, 0.55 + 0.01]), r)
    assert low == 0.0
    assert riser == pytest.approx(2.0 * 0.015 + r * (math.sqrt(5.0) - 1.0), abs=2e-4)
    assert edge == pytest.approx(0.1, abs=1e-9)
    platform = GroundProfile(np.repeat([0.0, 10.0], [11, 9]))
    drop = r - math.sqrt(r**2 - 0.01**2)
    # beside a riser of slope 200, which is 0.01 / 200 wide up there
    assert platform.height_at(np.array([0.54]), r)[0] == pytest.approx(10.0 - drop, abs=3e-3)


def test_reversed_is_the_mirror_image() -> None:
    x = np.linspace(-3.0, 3.0, 101)
    profile = GroundProfile(np.random.default_rng(0).uniform(0.0, 0.3, 20))
    np.testing.assert_allclose(profile.reversed().height_at(x), profile.height_at(-x), atol=1e-12)


@pytest.mark.parametrize("heights", [[], [[0.0]], [np.nan], [1e9]])
def test_impossible_heights(heights: list[float]) -> None:
    with pytest.raises(InputError, match="ground"):
        GroundProfile(np.array(heights))
