"""A small untrained skill module and policy."""

from tests.untrained import motions, policy, robot, skill, walking

__all__ = ["motions", "policy", "robot", "skill", "walking"]
