"""A small untrained skill module and policy."""

from tests.untrained import policy, skill, start_poses, walking

__all__ = ["policy", "skill", "start_poses", "walking"]
