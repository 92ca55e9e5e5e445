"""Robots: MuJoCo models with limits, feet, markers and mirrors."""

from npmp.robots.robot import Marker, Robot, find, is_local, load, names, user_names, with_joints

__all__ = ["Marker", "Robot", "find", "is_local", "load", "names", "user_names", "with_joints"]
