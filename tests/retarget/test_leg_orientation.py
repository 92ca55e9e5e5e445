"""Leg orientation errors by hand."""

from __future__ import annotations

import numpy as np

from retarget import leg_orientation


def test_leg_error_by_hand() -> None:
    """A shank turned by 0.1 rad is 0.1 off, thighs are not."""
    person = np.zeros((1, 2, 3, 3))
    person[:, :, 1] = [0, 0, -1]
    person[:, :, 2] = [0, 0, -2]
    other = person.copy()
    other[0, 1, 2] = other[0, 1, 1] + [0.5 * np.sin(0.1), 0, -0.5 * np.cos(0.1)]
    error = leg_orientation.orientation_error(
        leg_orientation.directions(person), leg_orientation.directions(other)
    )
    np.testing.assert_allclose(error, np.array([[[0, 0], [0, 0.1]]]), atol=1e-12)


def test_legs_of_coinciding_points_have_no_direction() -> None:
    assert np.isnan(leg_orientation.directions(np.zeros((1, 2, 3, 3)))).all()
