"""Robots: a MuJoCo model and what it leaves unsaid (limits, feet, markers, mirrors), in one value."""

from npmp.robots.robot import Marker, Robot, load, names
from npmp.robots.symmetry import Symmetry

__all__ = ["Marker", "Robot", "Symmetry", "load", "names"]
