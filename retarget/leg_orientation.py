"""Orientation error of a robot's legs: a metric of retargeting people.

A leg's orientation is the directions of thigh (hip to knee) and shank (knee to ankle). The error is
the angle between the person's and the robot's direction in the world at the same time. Shapes: T
frames, two legs (left, right), two segments (thigh, shank). World frame, Z up.
"""

from __future__ import annotations

import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp.robots import Robot
from retarget.kinematics import Points

LEG_MARKERS = ("L_hip", "L_knee", "L_foot", "R_hip", "R_knee", "R_foot")
# thighs and shanks, from place to place in `LEG_MARKERS`
SEGMENTS = np.array([[0, 1], [1, 2], [3, 4], [4, 5]])


def leg_points(robot: Robot) -> Points:
    """The robot's markers `LEG_MARKERS` as points on its bodies.

    Raises:
      InputError: a missing one.
    """
    missing = [name for name in LEG_MARKERS if name not in robot.markers]
    if missing:
        expected = ", ".join(LEG_MARKERS)
        raise InputError(
            f"robot {robot.name!r}: marker {missing[0]!r} missing, expected {expected}"
        )
    markers = [robot.markers[name] for name in LEG_MARKERS]
    body = np.array([robot.body_names.index(marker.body) for marker in markers], dtype=np.intp)
    return Points(body, np.stack([marker.position for marker in markers]))


def directions(points: Array) -> Array:
    """Unit vectors (T, 2 legs, 2 segments, 3) of points (T, 2 legs, 3, 3): hip, knee, ankle [m];
    nan where two of a leg coincide."""
    segments = np.diff(points, axis=2)
    length = np.linalg.norm(segments, axis=-1, keepdims=True)
    return np.asarray(segments / np.where(length < 1e-9, np.nan, length))


def orientation_error(source: Array, robot: Array) -> Array:
    """Angles (T, 2, 2) [rad] between unit vectors (T, 2, 2, 3); a longer track is cut."""
    frames = min(len(source), len(robot))
    a = source[:frames]
    b = robot[:frames]
    # |a - b| and |a + b| are twice the sine and cosine of half the angle: exact for small angles
    sine = np.linalg.norm(a - b, axis=-1)
    cosine = np.linalg.norm(a + b, axis=-1)
    return np.asarray(2.0 * np.arctan2(sine, cosine))
