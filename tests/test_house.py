"""Counts that keep the house in order."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_documentation_has_at_most_18000_words() -> None:
    words = {page: len(page.read_text().split()) for page in (ROOT / "docs").rglob("*.md")}
    assert sum(words.values()) <= 18_000, sorted(words.items(), key=lambda item: -item[1])[:5]


def test_lines_of_prose_have_at_most_100_columns() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    wide = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in pages
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 100 and not line.startswith(("|", "<img"))
    ]
    assert not wide
