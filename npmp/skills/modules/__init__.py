"""Skill modules shipped with the package, each a folder with its model card, CARD.md."""

from __future__ import annotations

from pathlib import Path

from npmp.core.registry import Registry

REGISTRY = Registry(
    Path(__file__).resolve().parent, "skill module", "module.json", "CARD.md", "npmp skill add"
)
names = REGISTRY.names
find = REGISTRY.find
card = REGISTRY.card
of_robot = REGISTRY.of_robot
