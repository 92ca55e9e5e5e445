"""YAML of users: aliases, deep nesting and impossible values are one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mocap_data.safe_yaml import parse_yaml, read_yaml
from tests.refusals import refusal

LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (LAUGHS, r"\*a0"),
        ("[" * 50_000, "nested"),
        ("a: " * 2, "YAML"),
        ("a: " + "9" * 6000, "6,000 digits"),
        ("a: " + "1:" * 3000 + "1", "digits"),
        ("a: !!python/object/apply:os.system ['true']", "YAML"),
    ],
)
def test_refused_texts(text: str, key: str) -> None:
    assert refusal(key, parse_yaml, text, "robot.yaml").startswith("robot.yaml")


def test_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: {lower: -1.5, upper: 2}\nd: 1e-3\n")
    assert read_yaml(path) == {"a": {"lower": -1.5, "upper": 2}, "d": "1e-3"}
    assert parse_yaml("", "x") is None
    path.write_bytes(b"a: \xff")
    refusal("UTF-8", read_yaml, path)
    with path.open("wb") as file:
        file.truncate(2 << 20)
    refusal("2,097,152 bytes", read_yaml, path)
