"""What of a house hides the robot from a viewer."""

from __future__ import annotations

import numpy as np
import pytest

from npmp.view.play.scene import between

# a wall of 0.2 m by 2 m, 0.8 m high, a metre in front of a robot in the origin
LOW, HIGH = np.array([1.0, -1.0, 0.0]), np.array([1.2, 1.0, 0.8])
AIM = np.array([0.0, 0.0, 0.25])


@pytest.mark.parametrize(
    ("place", "hidden"),
    [
        # the line passes the wall's near side at a height of 0.25 + (1.2 - 0.25) / 2 = 0.725 m
        ((2.0, 0.0, 1.2), True),
        # at 0.25 + (2.0 - 0.25) / 2 = 1.125 m, above it
        ((2.0, 0.0, 2.0), False),
        # beside it: at 1 m ahead it is 1.5 m to the left
        ((2.0, 3.0, 1.0), False),
        # the wall is behind the viewer, and behind the robot
        ((0.9, 0.0, 0.5), False),
        ((-2.0, 0.0, 0.5), False),
        # along the wall, level: no division by zero
        ((1.1, 0.0, 0.25), True),
    ],
)
def test_a_wall_hides_the_robot(place: tuple[float, float, float], hidden: bool) -> None:
    boxes = np.stack((LOW, LOW + 100.0)), np.stack((HIGH, HIGH + 100.0))
    assert between(np.array(place), AIM, *boxes).tolist() == [hidden, False]
