"""A small untrained skill module and policy."""

from tests.untrained import policy, robot, skill, walking

__all__ = ["policy", "robot", "skill", "walking"]
