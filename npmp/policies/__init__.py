"""High-level policies that come with the package, each a folder with its card, README.md."""

from __future__ import annotations

from pathlib import Path

from npmp.shelf import Shelf

SHELF = Shelf(Path(__file__).resolve().parent, "policy", "policy.json", "README.md")
names, find, card = SHELF.names, SHELF.find, SHELF.card
