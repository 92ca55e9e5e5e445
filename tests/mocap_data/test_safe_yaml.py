"""YAML from outside: what would grow, never end or nest without end is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mocap_data.safe_yaml import parse_yaml, read_yaml
from tests.refusals import refusal

LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}\n" for i in range(1, 40)
)
CHAIN = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 100))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "more than 100,000 values"),
        (MERGES, "more than 100,000 values"),
        (CHAIN, "nested more than 64 levels deep"),
        ("[" * 50_000, "nested more than 64 levels deep"),
        ("a: " * 2, "not a YAML file"),
        ("{" * 100 + "}" * 100, "nested more than 64"),
        ("a: &a [*a]", r"the alias \*a stands for nothing"),
        ("a: *b", r"the alias \*b stands for nothing"),
        ("a: " + "9" * 6000, "a number of 6,000 digits"),
        ("a: 1" + ":59" * 5000, "a number of 15,001 digits"),
        ("a: 2026-13-45", "not a YAML file"),
        ("? [a, {}]\n: 1", "not a YAML file"),
        ("a: !!python/object/apply:os.system ['true']", "not a YAML file"),
        ("a: !!int x", "not a YAML file"),
        ("a: \x00", "not a YAML file"),
        ("- 1\n" * 100_001, "more than 100,000 values"),
    ],
)
def test_bombs_are_one_line(text: str, message: str) -> None:
    assert refusal(message, parse_yaml, text, "robot.yaml").startswith("robot.yaml")


def test_what_is_usual_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "a: &legs {lower: -1.5, upper: 2}\nb: *legs\nc: {<<: *legs, upper: 3}\nd: 1e-3\n"
    )
    legs = {"lower": -1.5, "upper": 2}
    expected = {"a": legs, "b": legs, "c": legs | {"upper": 3}, "d": "1e-3"}
    assert read_yaml(tmp_path / "a.yaml") == expected
    assert parse_yaml("", "x") is None
    (tmp_path / "a.yaml").write_bytes(b"a: \xff")
    refusal("not UTF-8", read_yaml, tmp_path / "a.yaml")
    with (tmp_path / "a.yaml").open("wb") as file:
        file.truncate(2 << 20)
    refusal("2,097,152 bytes", read_yaml, tmp_path / "a.yaml")
