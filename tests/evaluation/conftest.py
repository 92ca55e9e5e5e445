"""A small untrained skill module and policy."""

from tests.untrained import motions, policy, skill, walking

__all__ = ["motions", "policy", "skill", "walking"]
