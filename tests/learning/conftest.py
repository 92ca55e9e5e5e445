"""A small untrained skill module and policy; and what every trainer must do."""

from __future__ import annotations

from tests.untrained import policy, skill, walking

__all__ = ["policy", "skill", "walking"]
