"""Robots: a MuJoCo model, and the limits, feet, markers and mirrors that it does not have."""

from npmp.robots.robot import Marker, Robot, find, is_local, load, names, user_names, with_joints

__all__ = ["Marker", "Robot", "find", "is_local", "load", "names", "user_names", "with_joints"]
