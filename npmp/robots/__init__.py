"""Robots: a MuJoCo model and what it leaves unsaid (limits, feet, markers, mirrors), in one value."""

from npmp.robots.robot import Marker, Robot, find, is_at_hand, load, names, user_names, with_joints
from npmp.robots.symmetry import Symmetry

__all__ = [
    "Marker",
    "Robot",
    "Symmetry",
    "find",
    "is_at_hand",
    "load",
    "names",
    "user_names",
    "with_joints",
]
