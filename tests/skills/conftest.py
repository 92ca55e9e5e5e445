"""A small untrained skill module and policy."""

from tests.untrained import policy, skill, walking

__all__ = ["policy", "skill", "walking"]
