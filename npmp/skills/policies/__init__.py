"""High-level policies shipped with the package, each a folder with its card, README.md."""

from __future__ import annotations

from pathlib import Path

from npmp.core.registry import Registry

REGISTRY = Registry(Path(__file__).resolve().parent, "policy", "policy.json", "README.md")
names = REGISTRY.names
find = REGISTRY.find
card = REGISTRY.card
of_robot = REGISTRY.of_robot
